"""The lake's part of a replay: hours without decisions, understood again and planned on under both policies.

Nobody decided then, so "then" is today's policy on the same evidence. What the lake does not keep of the scheduler is
assumed to be the most cautious, and that is reported.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from ops_pipelines.core.identity import Digest, IncidentId
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobStatus, NodeState, NodeStatus, Observation, Signal
from ops_pipelines.core.plan import Rules, Snapshot
from ops_pipelines.core.policy import Policy
from ops_pipelines.core.sources import Lake
from ops_pipelines.review.replay_result import History
from ops_pipelines.review.replay_side import Courses, Side, courses_of
from ops_pipelines.review.retrace import LOOK_EVERY, JobTimeline, Turn, evidence_from_lake, turns

READ_AT_ONCE = timedelta(hours=6)
"""Bounds memory: what lines and detectors say of one piece is held at once."""
_HOUR = timedelta(hours=1)
_LOOK_AGAIN = timedelta(minutes=1)
"""Between two decisions on what only time changes: confirmations, closings."""
_NO_DIGEST = Digest("0" * 64)
NOT_IN_LAKE = (
    "how the scheduler saw each node is not kept: a node is taken to be in service unless its silence was recorded; "
    "what people had drained is not known",
    "of jobs, checkpoints, whether they may be requeued, and their kind of work are not kept: each counts as one that "
    "must not be moved, and its loss as unknown",
    "nothing is known of what was done: an incident stays as it was until its evidence ends",
)


@dataclass(slots=True, kw_only=True)
class LakeReplay:
    """One interval, with what both policies would have done."""

    since: datetime
    until: datetime
    then: Side = field(default_factory=Side)
    new: Side = field(default_factory=Side)
    decision_count: int = 0
    understanding_difference_count: int = 0
    plan_difference_count: int = 0
    unknown: tuple[str, ...] = ()


def hours_without_decisions(
    decided_at: Collection[datetime], *, since: datetime, until: datetime
) -> tuple[tuple[datetime, datetime], ...]:
    """Return the intervals of [since, until) made of full hours (UTC) in which nothing was decided."""
    busy = {_hour_of(at) for at in decided_at}
    found: list[tuple[datetime, datetime]] = []
    hour = _hour_of(since)
    while hour < until:
        begin, end = max(hour, since), min(hour + _HOUR, until)
        if hour not in busy and found and found[-1][1] == begin:
            found[-1] = (found[-1][0], end)
        elif hour not in busy:
            found.append((begin, end))
        hour += _HOUR
    return tuple(found)


def _hour_of(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def replay_stretch(
    lake: Lake,
    since: datetime,
    until: datetime,
    *,
    history: History,
    policy: Policy,
    known: Sequence[Incident],
    first_number: int = 0,
    on_progress: Callable[[datetime], None],
) -> LakeReplay:
    """Return what both policies do in [since, until). Incidents that the ledger had open then (`known`) are left out.

    `first_number` is how many incidents were found in the intervals before; `on_progress` receives the time reached.
    Raises LakeError.
    """
    found = LakeReplay(since=since, until=until)
    present = history.present
    then = _Understanding(rules=present, incident_count=first_number)
    new = _Understanding(rules=replace(present, policy=policy), incident_count=first_number)
    gaps: list[str] = []
    begin = since
    while begin < until:
        end = min(begin + READ_AT_ONCE, until)
        piece = evidence_from_lake(
            lake,
            at=end,
            back=end - begin,
            topology=present.topology,
            step_seconds=history.step_seconds,
            release=history.release,
        )
        gaps += piece.gaps
        jobs = JobTimeline(piece.jobs)
        learnt = {turn.at: turn for turn in turns(piece.events, piece.spells, tick=LOOK_EVERY, until=end)}
        then.begin_piece()
        new.begin_piece()
        for at in _moments(learnt, begin, end, (then, new)):
            running = jobs.at(at)
            before = then.decide(at, learnt.get(at), running, is_seeing=not piece.is_blind)
            after = new.decide(at, learnt.get(at), running, is_seeing=not piece.is_blind)
            found.decision_count += 1
            found.understanding_difference_count += before.decision.incidents != after.decision.incidents
            found.plan_difference_count += before.plan_marks() != after.plan_marks()
            before, after = _unknown_to(known, before, at=at), _unknown_to(known, after, at=at)
            found.then.take(before, after, at=at)
            found.new.take(after, before, at=at)
        on_progress(end)
        begin = end
    found.unknown = (*NOT_IN_LAKE, *_in_short(gaps))
    return found


def _in_short(gaps: Sequence[str]) -> Iterator[str]:
    """Yield one sentence a table: its first gap, and how many more there are."""
    by_table: dict[str, list[str]] = {}
    for gap in gaps:
        by_table.setdefault(gap.partition(":")[0], []).append(gap)
    for alike in by_table.values():
        yield alike[0] if len(alike) == 1 else f"{alike[0]}; and {len(alike) - 1} more such gaps"


def _moments(
    learnt: Collection[datetime], begin: datetime, end: datetime, sides: Sequence["_Understanding"]
) -> Iterator[datetime]:
    """Yield when to decide: whenever something is learnt, and each minute while an incident is open."""
    told = sorted(learnt)
    next_told = 0
    minute = begin + _LOOK_AGAIN
    while next_told < len(told) or minute <= end:
        if next_told < len(told) and told[next_told] <= minute:
            at = told[next_told]
            next_told += 1
            minute += _LOOK_AGAIN if at == minute else timedelta(0)
            yield at
        else:
            at = minute
            minute += _LOOK_AGAIN
            if any(side.has_open for side in sides):
                yield at


def _unknown_to(known: Sequence[Incident], courses: Courses, *, at: datetime) -> Courses:
    """Return the courses of incidents that the ledger did not have open at that time."""
    open_then = [
        each
        for each in known
        if each.state is not IncidentState.MERGED
        and each.opened_at <= at
        and (each.closed_at is None or each.closed_at >= at)
    ]

    def is_known(incident: Incident) -> bool:
        return any(
            not incident.nodes.isdisjoint(each.nodes)
            or (not incident.nodes and not incident.victims.isdisjoint(each.victims))
            for each in open_then
        )

    left = {name: course for name, course in courses.by_incident.items() if not is_known(course.incident)}
    return Courses(decision=courses.decision, by_incident=left)


@dataclass(slots=True, kw_only=True)
class _Understanding:
    """What one policy makes of the evidence so far."""

    rules: Rules
    incident_count: int
    _open: dict[IncidentId, Incident] = field(default_factory=dict)
    _seen: set[IncidentId] = field(default_factory=set)
    _conditions: dict[tuple[str, str], Observation] = field(default_factory=dict)

    @property
    def has_open(self) -> bool:
        return bool(self._open)

    def begin_piece(self) -> None:
        """Forget what held: the next piece reports it again from its first moment."""
        self._conditions.clear()

    def decide(self, at: datetime, turn: Turn | None, jobs: tuple[JobStatus, ...], *, is_seeing: bool) -> Courses:
        """Return what is decided at `at` on what is known by then."""
        new: list[Observation] = []
        if turn is not None:
            for gone in turn.ended:
                self._conditions.pop((gone.source, gone.position), None)
            for begun in turn.begun:
                if self._conditions.setdefault((begun.source, begun.position), begun) is begun:
                    new.append(begun)
            new += turn.events
        courses = courses_of(self._snapshot(at, tuple(new), jobs, is_seeing=is_seeing), self.rules)
        for incident in courses.decision.incidents:
            if incident.incident not in self._seen:
                self._seen.add(incident.incident)
                self.incident_count += 1
            if incident.is_open:
                self._open[incident.incident] = incident
            else:
                self._open.pop(incident.incident, None)
        return courses

    def _snapshot(
        self, at: datetime, new: tuple[Observation, ...], jobs: tuple[JobStatus, ...], *, is_seeing: bool
    ) -> Snapshot:
        return Snapshot(
            taken_at=at,
            rules_digest=_NO_DIGEST,
            ledger_head=0,
            evidence_through=0,
            observations=new,
            conditions=tuple(self._conditions.values()),
            nodes=self._nodes(jobs),
            jobs=tuple(sorted(jobs, key=lambda job: job.job)),
            telemetry=(),
            is_telemetry_available=is_seeing,
            incidents=tuple(self._open[name] for name in sorted(self._open)),
            incident_count=self.incident_count,
            records=(),
            is_paused=False,
        )

    def _nodes(self, jobs: tuple[JobStatus, ...]) -> tuple[NodeStatus, ...]:
        busy = {node for job in jobs if job.state in MAY_HAVE_PROCESSES for node in job.nodes}
        silent = {each.node for each in self._conditions.values() if each.signal is Signal.NODE_UNREACHABLE}
        gpu_count = self.rules.topology.gpus_per_node
        return tuple(
            NodeStatus(
                node=node,
                state=NodeState.ALLOCATED if node in busy else NodeState.IDLE,
                is_drained=False,
                is_responding=node not in silent,
                reason=None,
                reason_set_at=None,
                booted_at=None,
                gpu_count=gpu_count,
                gpu_in_use_count=gpu_count if node in busy else 0,
            )
            for node in sorted(self.rules.topology.places)
        )
