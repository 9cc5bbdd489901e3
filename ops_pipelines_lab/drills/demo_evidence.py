"""What a part of the demo is, and what its end is judged on.

The end is read from the twin (what really is so), from its journal (what it was ordered), from the ledger (what we
wrote down) and from the messages; never from what we believe. Which parts there are is not here.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.notes import BATCH_PREFIX, Audience
from ops_pipelines_lab.drills.dagster_api import Shown
from ops_pipelines_lab.simulator.ground_truth import (
    JobProgress,
    NodeTruth,
    read_nodes,
    read_progress,
    read_split_brains,
)
from ops_pipelines_lab.simulator.journal import NOT_COMMANDS, Entry, EntryKind
from ops_pipelines_lab.simulator.twin import Twin

_COMMANDS = frozenset(EntryKind) - NOT_COMMANDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """One fault as it happened: what the end is judged against."""

    part: str
    at: datetime
    nodes: tuple[NodeName, ...]
    job: JobProgress | None
    """The job that it hit, as it was then."""
    serial: str = ""
    """What is printed on the part that broke, where the end asks for it."""
    others: tuple["Injected", ...] = ()
    """Faults of the same part on other nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that the end of a part is judged on, read at one time."""

    twin: Twin
    cluster: Cluster
    injected: Injected
    state: Path
    """The demo's own directory: messages, reports."""
    call: Callable[[Sequence[str]], str]
    """Runs `ops-pipelines` with these words and returns what it prints; a refusal is a RuntimeError."""
    browse: Callable[[str, dict[str, str] | None], Shown]
    """Opens an address of ours as a browser does; with a form, sends it."""

    @property
    def messages(self) -> Path:
        """Where the notifier writes, one JSON line a message."""
        return self.state / "messages.jsonl"

    def of(self, injected: Injected) -> "Evidence":
        """Return the same for another fault of the part."""
        return replace(self, injected=injected)

    @property
    def own_incidents(self) -> tuple[Incident, ...]:
        """Those of the fault alone: a mass event or a switch may hit the same node later."""
        return tuple(
            each
            for each in self.incidents
            if not each.is_mass_event and each.state is not IncidentState.MERGED and len(each.nodes) <= 1
        )

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """Incidents since the fault that name its nodes or its job."""
        job = self.injected.job
        return tuple(
            incident
            for incident in self.cluster.ledger.incidents_since(self.injected.at)
            if incident.opened_at >= self.injected.at
            and (
                incident.nodes & set(self.injected.nodes)
                or (job is not None and any(victim.job == job.job for victim in incident.victims))
            )
        )

    def commands(self, *kinds: EntryKind) -> tuple[Entry, ...]:
        """Accepted commands since the fault that name its nodes or its job; of all kinds if none is given."""
        job = self.injected.job
        wanted = frozenset(kinds) or _COMMANDS
        return tuple(
            entry
            for entry in self.twin.entries()
            if entry.at >= self.injected.at
            and entry.refusal is None
            and entry.kind in wanted
            and (set(entry.nodes) & set(self.injected.nodes) or (job is not None and entry.job == job.job))
        )

    def faults(self) -> tuple[Entry, ...]:
        """Faults of the node of this part, since the beginning of the demo."""
        return tuple(
            entry
            for entry in self.twin.entries()
            if entry.kind is EntryKind.FAULT and entry.nodes == self.injected.nodes and entry.at >= self.injected.at
        )

    def node(self) -> NodeTruth:
        return next(node for node in read_nodes(self.twin) if node.node == self.injected.nodes[0])

    def job_now(self) -> JobProgress | None:
        job = self.injected.job
        return next((each for each in read_progress(self.twin) if job is not None and each.job == job.job), None)

    def is_in_service(self) -> bool:
        status = next(each for each in self.cluster.scheduler.read_nodes() if each.node == self.injected.nodes[0])
        return status.is_responding and not status.is_drained and not status.is_last_choice

    def records(self) -> tuple[ActionRecord, ...]:
        """Acts that the ledger holds over the incidents of this part, in order."""
        return tuple(
            record for incident in self.own_incidents for record in self.cluster.ledger.records(incident.incident)
        )

    def done_verbs(self) -> tuple[Verb, ...]:
        """Verbs that the ledger holds as witnessed, in order, over the incidents of this part."""
        return tuple(
            record.action.verb
            for record in self.records()
            if record.outcome is not None and record.outcome.kind is OutcomeKind.DONE
        )

    def has_two_writers(self) -> bool:
        """Return whether the job ever had processes of two attempts at one time."""
        job = self.injected.job
        return job is not None and any(
            attempt.job == job.job for split in read_split_brains(self.twin) for attempt in split.attempts
        )

    def message_count(self, audience: Audience, incidents: Iterable[Incident]) -> int:
        """Return how many pages and notices of plans were sent. The notes about them are counted elsewhere."""
        names = {incident.incident for incident in incidents}
        lines = self.messages.read_text().splitlines() if self.messages.exists() else []
        sent = [json.loads(line) for line in lines]
        acts = [message for message in sent if not message["key"].startswith(BATCH_PREFIX)]
        return sum(message["audience"] == audience.value and message["thread"] in names for message in acts)


def at_once(_twin: Twin) -> bool:
    """Let a part begin whenever it is its turn."""
    return True


def leave_alone(_evidence: Evidence) -> None:
    """Let nothing more happen than the fault itself."""


def tell_nothing(_evidence: Evidence) -> tuple[str, ...]:
    """Leave a part without a story of its own."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One fault, and what must have come of it. `differences` is empty once the stated end is reached."""

    letter: str
    title: str
    inject: Callable[[Twin], Injected]
    differences: Callable[[Evidence], tuple[str, ...]]
    limit_seconds: float
    is_ready: Callable[[Twin], bool] = at_once
    """Whether the moment for the fault has come."""
    proceed: Callable[[Evidence], None] = leave_alone
    """What nature or a person does later in the part; asked for at every look until its end is reached."""
    tell: Callable[[Evidence], tuple[str, ...]] = tell_nothing
    """What it showed, in sentences for the end of the demo."""


def expect(*claims: tuple[bool, str]) -> tuple[str, ...]:
    """Return the words of the claims that do not hold."""
    return tuple(what for is_so, what in claims if not is_so)


def incident_words(incidents: Iterable[Incident]) -> str:
    """Return how the incidents stand, for a claim that they ended."""
    return "; ".join(f"{each.incident} is {each.state.value}: {each.note}" for each in incidents) or "none"


def job_of(evidence: Evidence) -> JobId:
    """Return the job that the fault hit; a part whose fault hit none does not ask."""
    job = evidence.injected.job
    assert job is not None  # the part was started on a job
    return job.job
