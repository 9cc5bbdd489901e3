"""What was decided and done in a stretch of time, read back from the record as values. By its type it cannot act."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ops_pipelines.domain.action import Action, ActionRecord
from ops_pipelines.domain.guardrails.refusal import Refusal
from ops_pipelines.domain.identity import Digest, IncidentId, NodeName, PlanId
from ops_pipelines.domain.incident import Incident
from ops_pipelines.domain.node_health.node_check import NodeCheck
from ops_pipelines.domain.plan import IncidentPlan
from ops_pipelines.domain.snapshot import Rules, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """One line of a decision with what it changed. One pass may write two: what is wrong, then what to do."""

    seq: int
    at: datetime
    inputs: Digest
    """Of the snapshot that it was made from."""
    incidents: tuple[Incident, ...]
    plans: tuple[IncidentPlan, ...]
    refusals: tuple[tuple[IncidentId, Refusal], ...] | None
    """None where the line tells of none: nothing was planned, or an older version wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """An act was begun."""

    at: datetime
    actor: str
    record: ActionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What came of an act."""

    at: datetime
    record: ActionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedAct:
    """An act was refused when its turn came."""

    at: datetime
    action: Action
    refusal: Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    """A person said yes to a plan."""

    at: datetime
    plan: PlanId
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A line that this version of the program cannot read."""

    at: datetime
    problem: str


Event = Decided | Began | Ended | RefusedAct | Approved | Unreadable


class Chronicle(Protocol):
    """Reads the record. Writes nothing; every method raises LedgerError where the ledger does not answer."""

    def events(self, *, since: datetime, until: datetime) -> Iterator[Event]:
        """Yield what was written in [since, until), in order, a page at a time."""
        ...

    def snapshot(self, digest: Digest) -> Snapshot:
        """Return what a decision was made from; raise LedgerError if it is missing or of another version."""
        ...

    def rules(self, digest: Digest) -> Rules | None:
        """Return the rules of that digest; None where they were not kept, or are of another version."""
        ...

    def incident(self, incident: IncidentId) -> Incident | None:
        """Return an incident as it stands now."""
        ...

    def incidents_since(self, since: datetime) -> tuple[Incident, ...]:
        """Return every incident that is open or changed at or after `since`, oldest first."""
        ...

    def records(self, incident: IncidentId) -> tuple[ActionRecord, ...]:
        """Return every act of one incident in the order begun."""
        ...

    def checks(self, node: NodeName, *, limit: int) -> tuple[tuple[NodeCheck, bool], ...]:
        """Return the newest tests of one node, newest first, each with whether the node was found well."""
        ...
