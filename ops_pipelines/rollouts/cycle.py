"""One pass over every rollout, and the maintenance bookings that the scheduler keeps free for them.

A node is drained as soon as there is a place for it; until then the scheduler would give it another long job, and it
would wait for the end of that. So the few that come next are booked from the moment at which they are expected to be
taken: never more than rollouts may have out at once, so that no wave is idle, and never long before. What runs
continues, shorter jobs still start, longer ones start elsewhere or wait. A booking ends by itself if we die.

A run never waits: nodes that install, restart, are tested or soak are looked at again by the next one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, LedgerConflict, LedgerState
from ops_pipelines.core.identity import NodeName, cause_of
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import JobStatus, Rejected
from ops_pipelines.core.periods import Interval, WorkCalendar
from ops_pipelines.core.policy import Mode, RolloutLimits
from ops_pipelines.core.release import Release
from ops_pipelines.core.rollout import (
    IN_HAND,
    OF_PEOPLE,
    Booking,
    Direction,
    NodeStage,
    Rollout,
    RolloutNode,
    RolloutState,
    step_of,
)
from ops_pipelines.core.sources import SourceError
from ops_pipelines.lake.formats.calendar import work_calendar
from ops_pipelines.remediate.due import Due
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.rollouts.fleet import FleetNode, view_fleet
from ops_pipelines.rollouts.gate.judge_wave import soak_of
from ops_pipelines.rollouts.gate_sources import judge_of
from ops_pipelines.rollouts.node_pass import Surroundings
from ops_pipelines.rollouts.planner import HORIZON, MeasuredVisits, visit_times
from ops_pipelines.rollouts.rollout_pass import (
    Judge,
    PassReport,
    advance_rollout,
    keep_wide_jobs_off,
    owing,
    put_back_canaries,
)

# -- when rollouts may take nodes --


_LOOKED_BACK = timedelta(days=1)
"""A window that is open now may have opened yesterday."""


def calendar_of(cluster: Cluster, *, now: datetime) -> tuple[WorkCalendar, tuple[Rejected, ...]]:
    """Return when rollouts may take nodes, and the entries of calendars that nobody could read.

    Raises SourceUnavailable where a calendar that the policy names is not there: it may hold a freeze.
    """
    policy = cluster.rules.policy
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)  # The same all day: calendars are read once for it.
    freezes = [
        Interval(begins_at=each.begins_at, ends_at=each.ends_at, name=each.name) for each in policy.freeze_windows
    ]
    files = () if cluster.rollout_files is None else cluster.rollout_files.calendars()
    return work_calendar(
        policy.maintenance_windows,
        {each.name: each.text for each in files},
        freezes=freezes,
        since=today - _LOOKED_BACK,
        until=today + HORIZON + timedelta(days=1),
    )


# -- maintenance that the scheduler is asked for --


LEAD = timedelta(hours=4)
"""# Assumption: long enough that most jobs end within it, short enough that the queue loses little by it."""
_SPARE = timedelta(hours=1)
"""How much later than expected a visit may end before the booking is changed for it."""
_WINDOWS_TRIED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """What the next visits are expected from."""

    fleet: Mapping[NodeName, FleetNode]
    calendar: WorkCalendar
    max_out_count: int
    visit: timedelta
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """A node that comes soon, and when its work begins at the latest expected."""

    node: NodeName
    begins_at: datetime


def booking_name(rollout: Rollout) -> str:
    """Return the name under which a wave is booked: an operator who sees it finds the rollout by it."""
    return f"ops-{rollout.rollout}-w{rollout.wave}"


def wanted_booking(rollout: Rollout, nodes: Collection[RolloutNode], prospect: Prospect) -> Booking | None:
    """Return what should be booked now; None for nothing. Pure. What still fits is returned as it is."""
    if rollout.state is not RolloutState.RUNNING:
        return None
    known, now = rollout.booking, prospect.now
    is_known = known is not None and known.name == booking_name(rollout) and known.ends_at > now
    ours = frozenset(known.nodes) if known is not None and is_known else frozenset()
    # Who could begin now and has not lacks something else than time: it is not kept idle for that.
    coming = [
        each
        for each in _next_ones(rollout, nodes, prospect)
        if each.begins_at - now <= LEAD and (each.begins_at > now or each.node in ours)
    ]
    if not coming:
        return None
    names = tuple(sorted(each.node for each in coming))
    first, last = min(each.begins_at for each in coming), max(each.begins_at for each in coming)
    if known is not None and is_known and known.nodes == names and _still_fits(known, first, last, prospect):
        return known
    return Booking(
        name=booking_name(rollout),
        nodes=names,
        begins_at=first,
        ends_at=last + prospect.visit + _SPARE,
    )


def book_ahead(report: PassReport, around: Surroundings, cluster: Cluster, *, lease: Lease) -> PassReport:
    """Book what comes next after a pass, and give back what does not; return the report with what was in the way.

    What is asked for is in the ledger before it is asked, and until it was given back. A scheduler that refuses
    costs the booking and nothing else. Raises LedgerError.
    """
    rollout, now = report.rollout, cluster.clock.now()
    state, limits = cluster.ledger.read_state(now), cluster.rules.policy.rollouts
    if state.pause is not None:
        return report  # Nothing is sent to the scheduler then; what is booked ends by itself.
    prospect = Prospect(
        fleet=around.fleet,
        calendar=around.calendar,
        max_out_count=max(0, limits.max_out_count - _booked_by_others(rollout, state.rollouts)),
        visit=timedelta(seconds=around.visit_seconds),
        now=now,
    )
    wanted = wanted_booking(rollout, report.nodes, prospect)
    if wanted == rollout.booking and (wanted is None or wanted.is_accepted):
        return report
    token = lease.token(cluster.ledger, now)
    if token is None or token != cluster.ledger.current_lease(now):
        return report
    try:
        return replace(report, rollout=_change(rollout, wanted, cluster, lease=lease))
    except (SourceError, LedgerConflict) as problem:
        said = f"maintenance is not booked as it should be: {problem}"
        return replace(
            report,
            rollout=cluster.ledger.rollout(rollout.rollout) or rollout,
            problems=(*report.problems, said),
        )


def give_back(rollout: Rollout, cluster: Cluster, *, lease: Lease) -> Rollout:
    """Give back what is booked for a rollout, if anything is. Raises SourceError, LedgerError."""
    return rollout if rollout.booking is None else _change(rollout, None, cluster, lease=lease)


def _booked_by_others(rollout: Rollout, rollouts: Collection[Rollout]) -> int:
    return sum(len(each.booking.nodes) for each in rollouts if each.booking and each.rollout != rollout.rollout)


def _change(rollout: Rollout, wanted: Booking | None, cluster: Cluster, *, lease: Lease) -> Rollout:
    known = rollout.booking
    if known is not None and (wanted is None or wanted.name != known.name):
        lease.require(cluster.ledger, cluster.clock.now())
        cluster.scheduler.unreserve(known.name)
        rollout = _remember(rollout, None, cluster)
    if wanted is None:
        return rollout
    rollout = _remember(rollout, wanted, cluster)
    lease.require(cluster.ledger, cluster.clock.now())
    cluster.scheduler.book(wanted.nodes, name=wanted.name, begins_at=wanted.begins_at, ends_at=wanted.ends_at)
    return _remember(rollout, replace(wanted, is_accepted=True), cluster)


def _remember(rollout: Rollout, booking: Booking | None, cluster: Cluster) -> Rollout:
    after = replace(rollout, booking=booking)
    cluster.ledger.change_rollout(after, (), actor=AUTOPILOT, now=cluster.clock.now())
    return after


def _still_fits(known: Booking, first: datetime, last: datetime, prospect: Prospect) -> bool:
    """Return whether a booking serves although the times have moved: each change of it is one more command."""
    has_begun = known.begins_at <= prospect.now
    # Who could begin now does so with the next pass: the booking need not come forward for that.
    is_due = has_begun or first <= prospect.now
    is_soon_enough = is_due or abs(known.begins_at - first) <= max(prospect.visit / 2, timedelta(minutes=10))
    # What is in force is not made longer for nodes that still do not begin: it lapses, and they work on.
    return is_soon_enough and (has_begun or known.ends_at >= last + prospect.visit)


def _next_ones(rollout: Rollout, nodes: Collection[RolloutNode], prospect: Prospect) -> tuple[Next, ...]:
    """Return the nodes that come next, as many as may be out at once, in the order in which they will be taken."""
    waiting = [
        prospect.fleet[each.node]
        for each in nodes
        if each.wave == rollout.wave and each.stage is NodeStage.PENDING and _can_be_foreseen(each, prospect)
    ]
    found: list[Next] = []
    first = sorted(waiting, key=lambda each: (_free_at(each, prospect.now), each.node))
    for node, place_at in zip(first, _places(nodes, prospect), strict=False):
        begins_at = _begins_at(node, place_at, prospect)
        if begins_at is not None:
            found.append(Next(node=node.node, begins_at=begins_at))
    return tuple(found)


def _can_be_foreseen(node: RolloutNode, prospect: Prospect) -> bool:
    known = prospect.fleet.get(node.node)
    if known is None or known.why_not or not known.is_in_service:
        return False
    return known.is_idle or known.free_at is not None


def _free_at(node: FleetNode, now: datetime) -> datetime:
    return now if node.is_idle or node.free_at is None else max(now, node.free_at)


def _places(nodes: Collection[RolloutNode], prospect: Prospect) -> Sequence[datetime]:
    """Return when there is a place for one node more, each time, as often as nodes may be out at once."""
    in_hand = [each for each in nodes if each.stage in IN_HAND]
    free = [prospect.now] * max(0, prospect.max_out_count - len(in_hand))
    taken = sorted(at for each in in_hand if (at := _ends_at(each, prospect)) is not None)
    return [*free, *taken][: prospect.max_out_count]


def _ends_at(node: RolloutNode, prospect: Prospect) -> datetime | None:
    """Return when a node in hand is expected to work again; None: it waits for jobs of which nobody knows the end."""
    known = prospect.fleet.get(node.node)
    if node.stage is not NodeStage.DRAINING:
        return max(prospect.now, node.since + prospect.visit)
    if known is None or (known.free_at is None and not known.is_idle):
        return None
    return _free_at(known, prospect.now) + prospect.visit


def _begins_at(node: FleetNode, place_at: datetime, prospect: Prospect) -> datetime | None:
    """Return when the work on a node is expected to begin: it is free, has a place, and the window is long enough."""
    at = max(place_at, _free_at(node, prospect.now))
    for _ in range(_WINDOWS_TRIED):
        opens_at = prospect.calendar.opens_at(at)
        if opens_at is None or opens_at - prospect.now > LEAD:
            return None
        closes_at = prospect.calendar.closes_at(opens_at)
        if closes_at is None or opens_at + prospect.visit <= closes_at:
            return opens_at
        at = closes_at
    return None


# -- when a pass over the rollouts is worth a run before the schedule starts one --


_SOAK_LOOKS = 16
"""So often is a soak looked at, at most: what goes wrong in it stops the rollout that much sooner."""
_SELDOM = timedelta(minutes=5)


def due_rollout(state: LedgerState, ledger: Ledger, *, limits: RolloutLimits, now: datetime) -> Due | None:
    """Return the pass that is due now; None if nothing has changed and nothing can have.

    One pass serves every rollout, so it is due again when it is for any of them: one that waits hides no other.
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
    """Return why no node is started and nobody is kept off or let on, in words; empty where nothing is in the way.

    Acts are judged one by one; what is sent to the scheduler beside them is not.
    """
    if state.pause is not None:
        return f"no node is started: {state.pause.actor} paused the autopilot ({state.pause.reason})"
    if cluster.rules.policy.mode is Mode.OBSERVE:
        return "no node is started: policy.yaml says mode: observe"
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
        return WorkCalendar(windows=()), (f"no node is started, for a calendar cannot be read: {problem}",)
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
