"""One pass over every rollout, and when it is worth a run before the schedule starts one.

A run never sits and waits: whoever installs, restarts, is tested or soaks is looked at again by the next one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerConflict, LedgerState
from ops_pipelines.core.identity import NodeName, cause_of
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.policy import Mode, RolloutLimits
from ops_pipelines.core.release import Release
from ops_pipelines.core.rollout import IN_HAND, OF_PEOPLE, Direction, Rollout, RolloutNode, RolloutState, step_of
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.acts.facts import Lease
from ops_pipelines.remediate.due import Due
from ops_pipelines.rollouts.bookings import book_ahead, calendar_of, give_back
from ops_pipelines.rollouts.gate.judge_wave import soak_of
from ops_pipelines.rollouts.gate_sources import judge_of
from ops_pipelines.rollouts.node_pass import Surroundings
from ops_pipelines.rollouts.planning.planner import MeasuredVisits, visit_times
from ops_pipelines.rollouts.rollout_pass import (
    Judge,
    PassReport,
    advance_rollout,
    keep_wide_jobs_off,
    owing,
    put_back_canaries,
)
from ops_pipelines.rollouts.seen_fleet import view_fleet

# -- when a pass over the rollouts is worth a run before the schedule starts one --


_SOAK_LOOKS = 16
"""So often is a soak looked at, at most: what goes wrong in it stops the rollout that much sooner."""
_SELDOM = timedelta(minutes=5)


def due_rollout(state: LedgerState, ledger: Ledger, *, limits: RolloutLimits, now: datetime) -> Due | None:
    """Return the pass that is due now; None if nothing has changed and nothing can have.

    One pass serves every rollout, so it is due anew when it is for any of them: one that waits hides no other.
    """
    each_due = [_due(rollout, ledger, limits=limits, now=now) for rollout in state.rollouts]
    found = [due for due in each_due if due is not None]
    if not found:
        return None
    return Due(run_key=" ".join(due.run_key for due in found), reason="; ".join(due.reason for due in found))


def _due(rollout: Rollout, ledger: Ledger, *, limits: RolloutLimits, now: datetime) -> Due | None:
    nodes = ledger.rollout_nodes(rollout.rollout)
    in_hand = [each for each in nodes if each.stage in IN_HAND]
    name = rollout.rollout
    if in_hand:
        return Due(
            run_key=f"{name}:in hand:{_slot(limits.good_read_every, now)}",
            reason=f"{name} has {len(in_hand)} node(s) in hand",
        )
    if rollout.state in OF_PEOPLE:
        return None
    if rollout.state is RolloutState.SOAKING:
        return _due_in_soak(rollout, nodes, ledger.release(rollout.release_digest), limits=limits, now=now)
    # Once for what has just changed; what waits for a window, a budget or a job is the schedule's.
    return Due(run_key=f"{name}:{rollout.state.value}:{rollout.since.isoformat()}", reason=f"{name}: {rollout.reason}")


def _due_in_soak(
    rollout: Rollout, nodes: Collection[RolloutNode], release: Release, *, limits: RolloutLimits, now: datetime
) -> Due:
    soak = soak_of(release.claims, limits)
    returned = [each.returned_at for each in nodes if each.wave == rollout.wave and each.returned_at is not None]
    is_over = now >= max(returned, default=rollout.since) + soak
    slot = _slot(max(min(soak / _SOAK_LOOKS, _SELDOM), limits.good_read_every), now)
    said = "has soaked" if is_over else "soaks"
    return Due(run_key=f"{rollout.rollout}:{said}:{slot}", reason=f"wave {rollout.wave} of {rollout.rollout} {said}")


def _slot(every: timedelta, now: datetime) -> int:
    return int(now.timestamp() / max(every.total_seconds(), 1.0))


# -- one pass over every rollout that is not over --


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleReport:
    """What one pass over all rollouts did, and what was in the way of all of them."""

    passes: tuple[PassReport, ...]
    problems: tuple[str, ...]


def advance_rollouts(
    cluster: Cluster, *, lease: Lease, judging: Callable[[Rollout, Cluster], Judge] = judge_of
) -> CycleReport:
    """Bring every rollout as far as it goes now. Raises LedgerError; SourceError if the scheduler does not answer."""
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    owed = owing(cluster)
    if not state.rollouts and not owed:
        return CycleReport(passes=(), problems=())
    fleet = view_fleet(cluster, state, versions={})
    why_not = _why_nothing_is_done(state, cluster, lease=lease)
    unpaid = tuple(
        said for rollout in owed if not why_not for said in _settle_all(rollout, fleet.jobs, cluster, lease=lease)
    )
    calendar, problems = _calendar(cluster) if not why_not else (WorkCalendar(windows=()), (why_not,))
    passes: list[PassReport] = []
    for rollout in state.rollouts:
        around = Surroundings(
            fleet=fleet.nodes,
            calendar=calendar,
            jobs=fleet.jobs,
            visit_seconds=_visit_seconds(rollout, cluster),
            may_act=not why_not,
        )
        report = advance_rollout(rollout, cluster, lease=lease, around=around, judge=judging(rollout, cluster))
        passes.append(book_ahead(report, around, cluster, lease=lease))
    return CycleReport(passes=tuple(passes), problems=(*unpaid, *problems))


def _why_nothing_is_done(state: LedgerState, cluster: Cluster, *, lease: Lease) -> str:
    """Return why no node is begun and nobody is kept off or let on, in words; empty where nothing is in the way.

    Acts are judged one by one; what is said to the scheduler beside them is not.
    """
    if state.pause is not None:
        return f"no node is begun: {state.pause.actor} paused the autopilot ({state.pause.reason})"
    if cluster.rules.policy.mode is Mode.OBSERVE:
        return "no node is begun: policy.yaml says mode: observe"
    now = cluster.clock.now()
    token = lease.token(cluster.ledger, now)
    return "" if token is not None and token == cluster.ledger.current_lease(now) else "another process acts"


def _settle_all(rollout: Rollout, jobs: tuple[JobStatus, ...], cluster: Cluster, *, lease: Lease) -> tuple[str, ...]:
    """Give back what a rollout that is over still owes; return what was in the way: it holds up no other."""
    nodes = cluster.ledger.rollout_nodes(rollout.rollout)
    try:
        rollout = give_back(rollout, cluster, lease=lease)
        rollout = keep_wide_jobs_off(rollout, nodes, jobs, cluster, lease=lease)
        put_back_canaries(rollout, nodes, cluster, lease=lease)
    except (SourceError, LedgerConflict) as problem:
        return (f"{rollout.rollout} is over and left something behind: {problem}",)
    return ()


def _calendar(cluster: Cluster) -> tuple[WorkCalendar, tuple[str, ...]]:
    """Return when nodes may be taken; never, while a calendar is not there: it may hold a freeze."""
    try:
        calendar, rejected = calendar_of(cluster, now=cluster.clock.now())
    except SourceError as problem:
        return WorkCalendar(windows=()), (f"no node is begun, for a calendar cannot be read: {problem}",)
    return calendar, tuple(f"{each.source} {each.position}: {each.reason}" for each in rejected)


def _visit_seconds(rollout: Rollout, cluster: Cluster) -> float:
    release: Release = cluster.ledger.release(rollout.release_digest)
    times = visit_times(
        release,
        limits=cluster.rules.policy.rollouts,
        measured=measured_visits(cluster.ledger.records(cause_of(rollout.rollout)), canary_suite=release.canary_suite),
    )
    is_canary = rollout.waves[rollout.wave - 1].is_canary
    return (times.visit + (times.canary_extra if is_canary else timedelta(0))).total_seconds()


def measured_visits(records: Sequence[ActionRecord], *, canary_suite: str) -> MeasuredVisits:
    """Return how long each way there took so far, from the first installation on a node to its return."""
    begun: dict[tuple[NodeName, int], ActionRecord] = {}
    tested_longer: set[tuple[NodeName, int]] = set()
    canaries: list[timedelta] = []
    others: list[timedelta] = []
    for record in records:
        action = record.action
        if action.node is None:
            continue
        way = (action.node, action.try_number)
        if action.verb is Verb.INSTALL and step_of(action.part)[1] is Direction.FORWARD:
            begun.setdefault(way, record)
        elif action.verb is Verb.CHECK and action.suite == canary_suite:
            tested_longer.add(way)
        is_done = record.outcome is not None and record.outcome.kind is OutcomeKind.DONE
        if action.verb is Verb.RESUME and is_done and way in begun and record.outcome is not None:
            took = record.outcome.finished_at - begun[way].begun_at
            (canaries if way in tested_longer else others).append(took)
    return MeasuredVisits(canaries=canaries, others=others)


def nodes_by_stage(report: PassReport) -> Mapping[str, int]:
    """Return how many nodes of a rollout stand where, by the name of the stage."""
    counts: dict[str, int] = {}
    for each in report.nodes:
        counts[each.stage.value] = counts.get(each.stage.value, 0) + 1
    return counts
