"""What happened in a shift, what we did, what needs a human: as data. Words and tables are made by the edges."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.identity import listed
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import JobState, JobStatus, NodeState, NodeStatus

_NEEDS_HANDS = frozenset({IncidentState.ESCALATED, IncidentState.IN_REPAIR})


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentLine:
    """One incident as a hand-over names it."""

    incident: str
    state: IncidentState
    where: str
    what: str
    did: str
    """The actions that were done, in order, as words; empty if none."""
    jobs_moved_count: int
    open_for: timedelta
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftReport:
    """A shift in numbers and lines, ordered as a good hand-over speaks: first what the next person must do."""

    since: datetime
    until: datetime
    needs_human: tuple[IncidentLine, ...]
    under_way: tuple[IncidentLine, ...]
    healed: tuple[IncidentLine, ...]
    told_owner: tuple[IncidentLine, ...]
    merged_count: int
    cleared_count: int
    nodes_by_state: Mapping[str, int]
    jobs_by_state: Mapping[str, int]
    action_count_by_verb: Mapping[str, int]
    failed_action_count: int
    mean_time_to_heal: timedelta | None
    """From opening to return, over the healed; None if none was."""


def write_shift_report(
    incidents: Sequence[Incident],
    records: Mapping[str, Sequence[ActionRecord]],
    nodes: Sequence[NodeStatus],
    jobs: Sequence[JobStatus],
    *,
    since: datetime,
    until: datetime,
) -> ShiftReport:
    """Return the report of `since <= t < until` over the given incidents and the actions of each."""
    lines = {incident.incident: _line(incident, records.get(incident.incident, ()), until) for incident in incidents}
    pairs = [(incident, lines[incident.incident]) for incident in incidents]
    resolved = [(incident, line) for incident, line in pairs if incident.state is IncidentState.RESOLVED]
    healed = [(incident, line) for incident, line in resolved if line.did and incident.response in REPAIRS]
    every = [record for group in records.values() for record in group]
    done = [record for record in every if record.outcome is not None and record.outcome.kind is OutcomeKind.DONE]
    # In service again is healed; the probation after it is watching.
    ends = [(incident, incident.returned_at or incident.closed_at) for incident, _ in healed]
    times = [end - incident.opened_at for incident, end in ends if end is not None]
    return ShiftReport(
        since=since,
        until=until,
        needs_human=tuple(line for incident, line in pairs if incident.state in _NEEDS_HANDS),
        under_way=tuple(line for incident, line in pairs if incident.is_open and incident.state not in _NEEDS_HANDS),
        healed=tuple(line for _, line in healed),
        told_owner=tuple(line for incident, line in resolved if incident.response is Response.NOTIFY_OWNER),
        merged_count=sum(incident.state is IncidentState.MERGED for incident in incidents),
        cleared_count=sum(
            incident.response is not Response.NOTIFY_OWNER and not (line.did and incident.response in REPAIRS)
            for incident, line in resolved
        ),
        nodes_by_state=_count(node_word(node) for node in nodes),
        jobs_by_state=_count(job.state.value for job in jobs if job.state in (JobState.PENDING, JobState.RUNNING)),
        action_count_by_verb=_count(record.action.verb.value for record in done),
        failed_action_count=sum(
            record.outcome is not None and record.outcome.kind is not OutcomeKind.DONE for record in every
        ),
        mean_time_to_heal=sum(times, timedelta()) / len(times) if times else None,
    )


def node_word(node: NodeStatus) -> str:
    """Return the one word under which a person counts the node."""
    if not node.is_responding:
        return "unreachable"
    if node.state is NodeState.DOWN:
        return "down"
    if node.is_drained:
        return "drained"
    return str(node.state.value)


def _line(incident: Incident, records: Sequence[ActionRecord], until: datetime) -> IncidentLine:
    done = [
        record.action for record in records if record.outcome is not None and record.outcome.kind is OutcomeKind.DONE
    ]
    where = listed(sorted(incident.nodes))
    if not where:
        where = ", ".join(f"job {attempt.job}" for attempt in sorted(incident.victims)) or "nowhere"
    return IncidentLine(
        incident=incident.incident,
        state=incident.state,
        where=where,
        what=incident.cause,
        did=", ".join(_words(done)),
        jobs_moved_count=sum(action.verb is Verb.RELEASE for action in done),
        open_for=(incident.closed_at or until) - incident.opened_at,
        note=incident.note,
    )


def _words(actions: Sequence[Action]) -> list[str]:
    """Return each verb once, in the order first done."""
    return list(dict.fromkeys(action.verb.value.replace("_", " ") for action in actions))


def _count(words: Iterable[str]) -> Mapping[str, int]:
    return dict(sorted(Counter(words).items()))
