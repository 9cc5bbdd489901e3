"""What was good and bad of each objective: attempts, waits and minutes -> tallies -> budgets.

What counts, and what does not, stands in the docstring of each tally; the arithmetic of budgets is
`core.objectives`.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

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
from ops_pipelines.core.observation import Workload

if TYPE_CHECKING:
    from ops_pipelines.frames.history.job_runs import Break, Stint, Waited
    from ops_pipelines.frames.history.latency_minutes import LatencyMinute

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
    """Return the sums of what lies in [since, until): a stretch counts by its part within, a moment whole or not."""
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
    program did to itself, is neither good nor bad. Of a job that never came back nobody knows what it wanted.
    """
    from ops_pipelines.frames.history.job_runs import Cause

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
    """Yield each job once, when it first began: good if it waited at most the limit since it could have begun.

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
    """Yield each minute of each service in which it told its latency; a silent minute says nothing.

    A service belongs to the account of its job, else to its namespace.
    """
    if objective.workload not in (WorkloadClass.INFERENCE, WorkloadClass.ANY):
        return
    limit = (objective.limit or timedelta(0)).total_seconds()
    for each in minutes:
        team = team_of.get(each.job) or each.namespace
        if objective.is_for(team, Workload.INFERENCE):
            yield each.at, each.at, 1.0, each.p99_seconds <= limit
