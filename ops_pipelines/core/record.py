"""What is kept beside the ledger: bundles, pages, statements, releases, sealed links; and the ledger read back.

`Bundles` keeps them, `Recollection` reports what the lake still knows of an interval of time. What goes into a bundle
is `remediate.bundle`'s business.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from ops_pipelines.core.action import Action, ActionRecord
from ops_pipelines.core.identity import Digest, IncidentId, JobId, NodeName, PlanId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.core.plan import IncidentPlan, Rules, Snapshot
from ops_pipelines.core.proof import Refusal
from ops_pipelines.core.release import CompatibilityTables, Release
from ops_pipelines.core.sources import Rows

# -- evidence bundles --


class BundleError(RuntimeError):
    """A bundle cannot be kept or read: disk full, no right, too large. The message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBundle:
    """One bundle that is kept."""

    incident: IncidentId
    reason: str
    """`opened`, `changed`, or the plan before whose first act it was saved: one bundle of each."""
    saved_at: datetime
    place: str
    """Where a person finds it: a directory or URL."""
    digest: Digest
    """sha256 of `manifest`."""
    manifest: str
    """JSON: what the bundle holds, with the sha256 of every file."""
    files: tuple[str, ...]
    missing: tuple[str, ...]
    """What should be in it and is not, one sentence each."""


class Bundles(Protocol):
    """Keeps evidence bundles: each whole or not at all."""

    def save(
        self,
        incident: IncidentId,
        *,
        reason: str,
        at: datetime,
        documents: Mapping[str, object],
        files: Mapping[str, bytes],
        missing: Sequence[str],
    ) -> SavedBundle:
        """Keep a bundle in place of one of the same incident and reason.

        `documents` are values of the domain by file name (`incident.json`), `files` are kept as they are. Raises
        BundleError; then what was kept before is still there.
        """
        ...

    def of(self, incident: IncidentId) -> tuple[SavedBundle, ...]:
        """Return the bundles of an incident, oldest first; none if there is none. Raises BundleError."""
        ...

    def tidy(self, now: datetime, *, keep: Collection[IncidentId]) -> int:
        """Delete what has served its time, but never a bundle of an incident in `keep`; return how many incidents
        lost theirs. Raises BundleError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecalledLine:
    """One line that a kernel or a job wrote. Its text is untrusted."""

    written_at: datetime
    node: NodeName
    job: str
    source: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """What the lake knows of some nodes and jobs in an interval of time."""

    lines: tuple[RecalledLine, ...]
    """In the order of their times."""
    telemetry: Rows | None
    """Rows of `gpu_telemetry`; None where there are none."""
    missing: tuple[str, ...]
    """What it was asked for and has not, one sentence each."""


class Recollection(Protocol):
    """What surrounded an event, as far as it was kept."""

    def recall(
        self,
        *,
        nodes: Collection[NodeName],
        jobs: Collection[JobId],
        start: datetime,
        end: datetime,
        nearest_to: datetime,
        max_lines: int,
    ) -> Recalled:
        """Return what is known of start <= time < end; of more lines than `max_lines` those nearest to the moment.

        No node and no job gives nothing. Raises LakeError.
        """
        ...


# -- what was decided and done in an interval of time, read back from the record as values --


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
    """None where the line reports of none: nothing was planned, or an older version wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """An act was started."""

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
    """A person approved a plan."""

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
        """Return an incident as it is now."""
        ...

    def incidents_since(self, since: datetime) -> tuple[Incident, ...]:
        """Return every incident that is open or changed at or after `since`, oldest first."""
        ...

    def records(self, incident: IncidentId) -> tuple[ActionRecord, ...]:
        """Return every act of one incident in the order started."""
        ...

    def checks(self, node: NodeName, *, limit: int) -> tuple[tuple[NodeCheck, bool], ...]:
        """Return the newest tests of one node, newest first, each with whether the node was found well."""
        ...


# -- where pages for people are kept --


class ShelfError(RuntimeError):
    """A page cannot be kept or read: disk full, no right. The message says what to do."""


class PageShelf(Protocol):
    """Keeps HTML pages by name: letters, digits, `.`, `_` and `-`."""

    def keep(self, name: str, html: str, *, shows: datetime) -> str:
        """Keep a page in place of the one of that name and return where a person finds it; `shows` is the time that it
        is of. Raises ShelfError; then what was there before is still there."""
        ...

    def shows(self, name: str) -> datetime | None:
        """Return of which time the page of that name is; None if there is none. Raises ShelfError."""
        ...

    def read(self, name: str) -> str | None:
        """Return the page of that name; None if there is none. Raises ShelfError."""
        ...

    def place(self, name: str) -> str:
        """Return where a person finds the page of that name, whether there is one or not."""
        ...

    def tidy(self, now: datetime) -> int:
        """Delete what is too old, and the oldest of what is too many; return how many. Raises ShelfError."""
        ...


# -- where statements and plans are kept for anyone who bills and buys --


class StatementFilesError(RuntimeError):
    """A file cannot be kept or read: disk full, no right. The message says what to do."""


class StatementFiles(Protocol):
    """Keeps files by the name of their time and kind: `2026-11.csv` of a month, `2026Q4.json` of a quarter.

    Which names it takes, each place says; another one is refused.
    """

    def keep(self, name: str, content: bytes) -> str:
        """Keep a file in place of the one of that name and return where a person finds it.

        Raises StatementFilesError; then what was there before is still there.
        """
        ...

    def read(self, name: str) -> bytes | None:
        """Return the file of that name; None if there is none. Raises StatementFilesError."""
        ...


# -- what operators lay down in files for rollouts, beside the policy --


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarText:
    """One iCalendar file as it lies there. Untrusted: `lake.formats.calendar` reads it."""

    name: str
    text: bytes


class RolloutFiles(Protocol):
    """Reads them again each time: what an operator changes holds from the next look on."""

    def release_names(self) -> tuple[str, ...]:
        """Return the names of the releases that lie there, readable or not, in order."""
        ...

    def release(self, name: str) -> Release:
        """Return one release; raise PolicyError with every fault of its file, or the names that there are."""
        ...

    def check_artifacts(self, release: Release) -> None:
        """Return if the files that lie here are what the release says; raise PolicyError with each that is not."""
        ...

    def tables(self) -> CompatibilityTables:
        """Return which versions run with which, and in which order they are installed."""
        ...

    def calendars(self) -> tuple[CalendarText, ...]:
        """Return the calendars that the policy names. Raises SourceUnavailable if one cannot be read."""
        ...


# -- seals what a link says, so that nobody else can make or change one --


class LinkSeal(Protocol):
    """Makes and reads tokens that fit into a URL, with a key that never leaves it."""

    def seal(self, says: Mapping[str, str]) -> str:
        """Return the token that says this: the same words give the same token. Letters, digits, `-`, `_` and `.`."""
        ...

    def open(self, token: str) -> Mapping[str, str] | None:
        """Return what a token says; None if we did not make it exactly so, whatever text it is."""
        ...

    def digest(self, plan: IncidentPlan) -> Digest:
        """Return the sha256 of the whole plan as the ledger stores it, every word and number of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalLinks:
    """How a cluster's approval links are made: by whose seal, under which address, valid for how long."""

    seal: LinkSeal
    base_url: str
    """How people reach the web process, without a slash at its end."""
    life: timedelta
