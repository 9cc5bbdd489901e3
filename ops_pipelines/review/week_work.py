"""The jobs of a week, what interrupted them and why, and what that means for each objective.

What counts, and what does not, is in the docstring of each tally; the arithmetic of budgets is `core.objectives`. Reads
hours of accounting, allocations and job logs, and joins them with what the ledger has of incidents and holds.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.cluster import HOUR, hour_of
from ops_pipelines.core.fault import AtFault, Family
from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.objectives import (
    LOOK_BACK,
    WINDOW,
    Budget,
    Objective,
    ObjectiveKind,
    Tally,
    WorkloadClass,
    judge_budget,
)
from ops_pipelines.core.observation import JobState, JobStatus, Workload
from ops_pipelines.core.sources import CheckpointSeen, Lake, ReadComment, Rows
from ops_pipelines.observe.job_facts import note_lines
from ops_pipelines.review.week_incidents import at_fault_of, family_of

# -- what was good and bad of each objective --


if TYPE_CHECKING:
    from ops_pipelines.review.job_runs import Break, LatencyMinute, Stint, Waited

_DAY = timedelta(days=1)
_NODE_FAILED = frozenset({"NODE_FAIL", "BOOT_FAIL"})
_Piece = tuple[datetime, datetime, float, bool]
"""From, until, how much of its unit it weighs in all, whether it was good."""


def judge_objectives(
    objectives: Sequence[Objective],
    stints: "Sequence[Stint]",
    breaks: "Sequence[Break]",
    waited: "Sequence[Waited]",
    minutes: "Sequence[LatencyMinute]",
    *,
    until: datetime,
) -> tuple[Budget, ...]:
    """Return the budget of each objective at `until`, in the order given."""
    team_of = {each.job: each.team for each in stints}
    found = []
    for objective in objectives:
        if objective.kind is ObjectiveKind.UPTIME:
            pieces = list(_uptime(objective, stints, breaks, until=until))
        elif objective.kind is ObjectiveKind.QUEUE_WAIT:
            pieces = list(_waits(objective, stints, waited))
        else:
            pieces = list(_latencies(objective, minutes, team_of))
        found.append(
            judge_budget(
                objective,
                tally_of(pieces, since=until - WINDOW, until=until),
                tally_of(pieces, since=until - LOOK_BACK, until=until),
            )
        )
    return tuple(found)


def tally_of(pieces: Iterable[_Piece], *, since: datetime, until: datetime) -> Tally:
    """Return the sums of what lies in [since, until): an interval counts by its part within, a moment whole or not."""
    good = bad = 0.0
    days: set[int] = set()
    for begin, end, amount, is_good in pieces:
        first, last = max(begin, since), min(end, until)
        if begin == end:
            if not since <= begin < until:
                continue
            share = 1.0
        elif first >= last:
            continue
        else:
            share = (last - first) / (end - begin)
        if amount <= 0:
            continue
        good += amount * share if is_good else 0.0
        bad += 0.0 if is_good else amount * share
        newest = last if last == first else last - timedelta(microseconds=1)
        days |= set(range(_day(first), _day(newest) + 1))
    return Tally(good=good, bad=bad, days=float(len(days)))


def _day(at: datetime) -> int:
    return at.astimezone(UTC).toordinal()


def _uptime(
    objective: Objective, stints: "Sequence[Stint]", breaks: "Sequence[Break]", *, until: datetime
) -> Iterator[_Piece]:
    """Yield GPU-hours that jobs ran (good), and that they waited after hardware or we had interrupted them (bad).

    Waits after what nobody can explain count as bad where the scheduler says that a node failed. Preemption, and what a
    program did to itself, is neither good nor bad. Of a job that never came back nobody knows what it requested.
    """
    from ops_pipelines.review.job_runs import Cause

    for stint in stints:
        end = stint.ended_at or stint.seen_until or stint.started_at
        if end > stint.started_at and objective.is_for(stint.team, stint.said.workload):
            yield stint.started_at, end, stint.gpu_count * ((end - stint.started_at) / timedelta(hours=1)), True
    for each in breaks:
        is_ours = each.cause in (Cause.HARDWARE, Cause.OURS)
        is_ours |= each.cause is Cause.UNKNOWN and each.stint.state in _NODE_FAILED
        resumed_at = each.resumed_at or (until if each.waits_on else None)
        begin = each.waits_from or each.ended_at
        if not is_ours or resumed_at is None or resumed_at <= begin:
            continue
        if objective.is_for(each.stint.team, each.stint.said.workload):
            yield begin, resumed_at, each.stint.gpu_count * ((resumed_at - begin) / timedelta(hours=1)), False


def _waits(objective: Objective, stints: "Sequence[Stint]", waited: "Sequence[Waited]") -> Iterator[_Piece]:
    """Yield each job once, when it first began: good if it waited at most the limit since it could have started.

    One that was given up before it began is bad if it had waited longer, and says nothing otherwise. Jobs that still
    run are counted when accounting has them, at their end.
    """
    limit = objective.limit or timedelta(0)
    seen: set[str] = set()
    for stint in stints:
        if stint.job in seen:
            continue
        seen.add(stint.job)
        since = stint.submitted_at
        if stint.eligible_at is not None and stint.eligible_at <= stint.started_at:
            since = stint.eligible_at
        if since is None or stint.restart_count or not objective.is_for(stint.team, stint.said.workload):
            continue
        yield stint.started_at, stint.started_at, 1.0, stint.started_at - since <= limit
    for job in waited:
        if objective.is_for(job.team, job.said.workload) and job.until - job.since > limit and job.job not in seen:
            yield job.until, job.until, 1.0, False


def _latencies(objective: Objective, minutes: "Sequence[LatencyMinute]", team_of: dict[str, str]) -> Iterator[_Piece]:
    """Yield each minute of each service in which it reported its latency; a silent minute says nothing.

    A service belongs to the account of its job, else to its namespace.
    """
    if objective.workload not in (WorkloadClass.INFERENCE, WorkloadClass.ANY):
        return
    limit = (objective.limit or timedelta(0)).total_seconds()
    for each in minutes:
        team = team_of.get(each.job) or each.namespace
        if objective.is_for(team, Workload.INFERENCE):
            yield each.at, each.at, 1.0, each.p99_seconds <= limit


# -- what the lake says of a week's jobs --


if TYPE_CHECKING:
    from ops_pipelines.review.job_runs import Break, Cause, JobLines, Stint, Waited

MARGIN = timedelta(days=1)
"""So far beyond the edges is read, for interruptions whose two attempts lie on either side of one."""
LINES_BACK = timedelta(hours=6)
"""So far before an interruption a checkpoint is looked for. # Assumption: who saves less often is not known to save."""
BREAKS_AT_MOST = 200
"""Interruptions, the newest, whose lines are read: each costs a look into up to nine hours of job logs."""
_ALLOCATION_HOURS = 6
"""So many hours are gone back for one that has allocations."""
_INTERRUPTED = frozenset({"REQUEUED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"})
_MAY_BE_VICTIM = _INTERRUPTED | {"FAILED"}
"""A program that dies of a broken part ends as FAILED: it counts where an incident of a part names it."""
_BEFORE_END, _AFTER_END = timedelta(minutes=10), timedelta(minutes=5)
"""As `diagnose.trouble_rows`: a node is what ended a job if it was in trouble so close to the job's end."""
_HARDWARE = frozenset({AtFault.GPU, AtFault.NODE, AtFault.FABRIC, AtFault.STORAGE, AtFault.FACILITY})
_SOFTWARE = frozenset({AtFault.APPLICATION, AtFault.USER})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHistory:
    """Every attempt of an interval of time, and what is known of its interruptions."""

    stints: "tuple[Stint, ...]"
    waited: "tuple[Waited, ...]"
    breaks: "tuple[Break, ...]"
    hours: frozenset[datetime]
    """Hours of which accounting or allocations have anything."""


def read_job_history(
    lake: Lake,
    *,
    since: datetime,
    until: datetime,
    now: datetime,
    jobs: Sequence[JobStatus],
    read_comment: ReadComment,
    incidents: Collection[Incident],
    records: Mapping[IncidentId, Sequence[ActionRecord]],
    facts_since: datetime,
    edges: Collection[datetime] = (),
) -> JobHistory:
    """Return the attempts that ran in [since, until), with their interruptions. Raises LakeError.

    `jobs`: what the scheduler says now. `facts_since`: lines are read for interruptions from then on. `edges`: times at
    which what ran then is looked for, besides the end: accounting has an attempt when it has ended.
    """
    from ops_pipelines.remediate.restart_costs import HOLD_OFF
    from ops_pipelines.review.job_runs import ACCOUNTING, ALLOCATIONS, find_breaks, stints_of

    seen: set[datetime] = set()
    last = min(until + MARGIN, max(now, until))
    accounting = _hours(lake, "job_accounting", ACCOUNTING, since=since - MARGIN, until=last, seen=seen)
    stints, waited = stints_of(
        accounting,
        [
            rows
            for end in sorted({facts_since, *(min(each, until) for each in edges), until, last})
            if (rows := _newest(lake, "job_allocations", ALLOCATIONS, before=end, seen=seen)) is not None
        ],
        read_comment=read_comment,
        known={job.job: job.workload for job in jobs},
    )
    for _ in _hours(lake, "job_allocations", ("job",), since=facts_since, until=until, seen=seen):
        pass  # An hour in which nothing ended is on record all the same, if anything ran.
    blame = Blame(incidents, records)
    waiting = {job.job for job in jobs if job.state is JobState.PENDING} if until >= now - HOUR else set()
    breaks = find_breaks(stints, blame=blame, hold_off=HOLD_OFF, waiting=waiting)
    return JobHistory(
        stints=stints,
        waited=waited,
        breaks=_with_facts(breaks, lake, blame=blame, since=facts_since),
        hours=frozenset(seen),
    )


def _hours(
    lake: Lake, table: str, columns: Sequence[str], *, since: datetime, until: datetime, seen: set[datetime]
) -> Iterator[Rows]:
    hour = hour_of(since)
    while hour < until:
        rows = lake.read(table, start=hour, end=hour + HOUR, columns=columns)
        if rows.num_rows:
            seen.add(hour)
            yield rows
        hour += HOUR


def _newest(lake: Lake, table: str, columns: Sequence[str], *, before: datetime, seen: set[datetime]) -> Rows | None:
    """Return the newest hour that begins before a time and has anything, of the last few."""
    for back in range(_ALLOCATION_HOURS):
        hour = hour_of(before - timedelta(microseconds=1)) - back * HOUR
        rows = lake.read(table, start=hour, end=hour + HOUR, columns=columns)
        if rows.num_rows:
            seen.add(hour)
            return rows
    return None


# -- who is to blame --


class Blame:
    """Says why an attempt ended, by the incidents and holds of the ledger."""

    def __init__(self, incidents: Collection[Incident], records: Mapping[IncidentId, Sequence[ActionRecord]]) -> None:
        self._by_attempt: dict[tuple[str, datetime], list[Incident]] = {}
        self._by_node: dict[NodeName, list[Incident]] = {}
        self._holds: dict[tuple[str, datetime], ActionRecord] = {}
        self._checkpoints: dict[tuple[str, datetime], datetime] = {}
        self._incidents = {each.incident: each for each in incidents}
        for incident in incidents:
            if incident.state is not IncidentState.MERGED and not incident.is_watched:
                for attempt in incident.victims:
                    self._by_attempt.setdefault(_key(attempt.job, attempt.started_at), []).append(incident)
                for node in incident.nodes:
                    self._by_node.setdefault(node, []).append(incident)
            for recovery in incident.recoveries:
                self._note_checkpoint(recovery.attempt.job, recovery.attempt.started_at, recovery.checkpointed_at)
        for record in (each for listed in records.values() for each in listed):
            held = record.action.attempt
            if record.action.verb is Verb.HOLD and held is not None and record.took_effect:
                self._holds[_key(held.job, held.started_at)] = record
                self._note_checkpoint(held.job, held.started_at, record.checkpointed_at)

    def __call__(self, stint: "Stint") -> "tuple[Cause, str] | None":
        """Return why it ended and the incident that says so; None where nothing interrupted it."""
        from ops_pipelines.review.job_runs import Cause

        if stint.ended_at is None or stint.state not in _MAY_BE_VICTIM:
            return None
        hold = self._holds.get(_key(stint.job, stint.started_at))
        if hold is not None and not hold.action.has_ended:
            return Cause.OURS, hold.action.incident
        blamed = self._incidents.get(hold.action.incident) if hold is not None else self._incident_of(stint)
        cause = Cause.UNKNOWN if blamed is None else _cause_of(blamed)
        if stint.state not in _INTERRUPTED:
            return (cause, blamed.incident) if blamed is not None and cause is Cause.HARDWARE else None
        if stint.state == "PREEMPTED" and blamed is None:
            return Cause.PREEMPTED, ""
        return cause, "" if blamed is None else blamed.incident

    def checkpoint_of(self, stint: "Stint") -> datetime | None:
        """Return the newest checkpoint of an attempt that the ledger knows of."""
        return self._checkpoints.get(_key(stint.job, stint.started_at))

    def _note_checkpoint(self, job: str, started_at: datetime, at: datetime | None) -> None:
        if at is not None:
            key = _key(job, started_at)
            self._checkpoints[key] = max(at, self._checkpoints.get(key, at))

    def _incident_of(self, stint: "Stint") -> Incident | None:
        """Return the incident that ended an attempt: one that names it, else one on its nodes; of parts first."""
        from ops_pipelines.lake.node_names import expand_host_list

        end = stint.ended_at
        assert end is not None  # asked of ended attempts only
        named = [
            each
            for each in self._by_attempt.get(_key(stint.job, stint.started_at), ())
            if each.began_at <= end + _AFTER_END and (each.closed_at is None or each.closed_at >= end - _BEFORE_END)
        ]
        if not named and stint.nodes:
            try:
                nodes: Iterable[NodeName] = expand_host_list(stint.nodes)
            except ValueError:
                nodes = ()
            named = [
                each
                for node in nodes
                for each in self._by_node.get(node, ())
                if end - _BEFORE_END <= each.began_at <= end + _AFTER_END
            ]
        return min(named, key=lambda each: (at_fault_of(each) not in _HARDWARE, each.incident), default=None)


def _key(job: str, started_at: datetime) -> tuple[str, datetime]:
    """Return an attempt to the second: accounting knows no fractions."""
    return job, started_at.replace(microsecond=0)


def _cause_of(incident: Incident) -> "Cause":
    from ops_pipelines.review.job_runs import Cause

    at_fault = at_fault_of(incident)
    if at_fault in _SOFTWARE or family_of(incident) is Family.SOFTWARE:
        return Cause.SOFTWARE
    return Cause.HARDWARE if at_fault in _HARDWARE else Cause.UNKNOWN


# -- what was lost --


def _with_facts(breaks: "Sequence[Break]", lake: Lake, *, blame: Blame, since: datetime) -> "tuple[Break, ...]":
    """Return the interruptions with what the ledger and the jobs' own lines tell of checkpoints and restarts."""
    from ops_pipelines.remediate.restart_costs import LOG_COLUMNS
    from ops_pipelines.review.job_runs import read_job_lines

    recent = sorted((each for each in breaks if each.ended_at >= since), key=lambda each: each.ended_at)
    asked = recent[-BREAKS_AT_MOST:]
    wanted: dict[datetime, set[str]] = {}
    for each in asked:
        for hour in _hours_about(each):
            wanted.setdefault(hour, set()).add(each.stint.job)
    lines = read_job_lines(lambda hour: lake.read("job_logs", start=hour, end=hour + HOUR, columns=LOG_COLUMNS), wanted)
    chosen = {id(each) for each in asked}
    return tuple(_with_lines(each, lines, blame) if id(each) in chosen else each for each in breaks)


def _hours_about(each: "Break") -> Iterator[datetime]:
    from ops_pipelines.remediate.restart_costs import START_LIMIT

    hour = hour_of(max(each.stint.started_at, each.ended_at - LINES_BACK))
    while hour <= each.ended_at:
        yield hour
        hour += HOUR
    if each.resumed_at is not None:
        hour = hour_of(each.resumed_at)
        while hour < each.resumed_at + START_LIMIT:
            yield hour
            hour += HOUR


def _with_lines(each: "Break", lines: "JobLines", blame: Blame) -> "Break":
    from ops_pipelines.remediate.restart_costs import START_LIMIT, Interruption, time_restart

    stint = each.stint
    since = max(stint.started_at, each.ended_at - LINES_BACK)
    told = note_lines(
        CheckpointSeen(),
        lines.before(stint.job, since=since, until=each.ended_at),
        started_at=stint.started_at,
    )
    known = [
        at
        for at in (each.checkpointed_at, blame.checkpoint_of(stint), told.checkpointed_at)
        if at is not None and at <= each.ended_at
    ]
    is_whole = since == stint.started_at and lines.has_lines(stint.job, since=since, until=each.ended_at)
    restart = None
    after = None if each.resumed_at is None else lines.after(each.resumed_at, within=START_LIMIT)
    if each.resumed_at is not None and after is not None:
        interruption = Interruption(
            job=stint.job, why=stint.state, ended_at=each.ended_at, resumed_at=each.resumed_at, queue_seconds=0.0
        )
        seconds = time_restart(interruption, after)
        restart = None if seconds is None else timedelta(seconds=seconds)
    return replace(
        each,
        checkpointed_at=max(known, default=None),
        # Every line of the attempt is at hand, the job does tell of its saves, and reported of none.
        saved_nothing=each.saved_nothing or (not known and is_whole and lines.tells_of_saves(stint.job)),
        restart=restart,
    )
