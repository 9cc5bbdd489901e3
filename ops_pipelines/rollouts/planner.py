"""The planner: a release and the fleet in, waves and expected visits out, or the reason for none.

As the engine will carry it out: within the budgets that repair shares, inside windows, outside freezes, idle nodes
first. It rests on time limits of jobs; the engine takes which nodes are really free. Nodes, waves and how many may be
out at once are `candidates`'.
"""

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from statistics import median

from ops_pipelines.core.identity import NodeName, PlanId, digest_of
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.policy import Policy, RolloutLimits
from ops_pipelines.core.proof import Patience, Refusal
from ops_pipelines.core.release import Activation, Change, Release, Reversibility, activation_of
from ops_pipelines.core.rollout import Contradiction, PlannedVisit, RolloutPlan, TeamTouched, Wave
from ops_pipelines.rollouts.candidates import Candidates, Places, choose_candidates, draw_waves
from ops_pipelines.rollouts.fleet import FleetNode
from ops_pipelines.rollouts.gate.judge_wave import foreseen_sight, soak_of, sought_in

# -- plays a rollout once through, event by event --


HORIZON = timedelta(days=90)
"""What does not end by then is not expected to end."""
UNKNOWN_JOB_END = timedelta(hours=24)
"""# Assumption: a job without a time limit is over within a day, or its node is taken later."""
_SHORTEST_WORK = timedelta(hours=1)
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitTimes:
    """How long a node is expected to be out, and a wave to soak."""

    visit: timedelta
    """Install, activate, verify, gate, return."""
    canary_extra: timedelta
    """What the longer tests of a canary add."""
    deciding_soak: timedelta
    """Until the gate has decided, for a wave before which everything sought must have been looked for."""


class Foresight:
    """The rollout played through: who is out, who is free when."""

    def __init__(
        self,
        candidates: Collection[FleetNode],
        *,
        places: Places,
        calendar: WorkCalendar,
        times: VisitTimes,
        job_end_limit: timedelta,
        now: datetime,
    ) -> None:
        self._nodes = {each.node: each for each in candidates}
        self._places = places
        self._calendar = calendar
        self._times = times
        self._job_end_limit = job_end_limit
        self._now = now
        self._ends_after = _work_ends(candidates, now=now)
        self.visits: list[PlannedVisit] = []
        self.stuck: tuple[NodeName, ...] = ()
        """Who had no place or no window when the play ended; empty: it was played to its end."""
        self.tries: list[PlannedVisit] = []
        """Visits that come to nothing: drained, and put back untouched when their jobs outlast the limit."""
        self.given_up: tuple[NodeName, ...] = ()
        """Who was drained in the wave that was played last, and put back: their jobs outlast the limit."""

    def play(self, wave: Wave, begins_at: datetime, *, put_off: Collection[NodeName] = ()) -> datetime | None:
        """Foresee the visits of one wave, and of nodes postponed to it by those before.

        Returns when the last of them works again, None if it never does.
        """
        waiting = {name: self._nodes[name] for name in (*wave.nodes, *put_off)}
        given_up: list[NodeName] = []
        length = self._times.visit + (self._times.canary_extra if wave.is_canary else timedelta(0))
        out: list[tuple[datetime, NodeName]] = []
        at, latest = begins_at, begins_at
        while waiting:
            while out and out[0][0] <= at:
                self._places.give_back(self._nodes[heapq.heappop(out)[1]])
            opens_at = self._calendar.opens_at(at)
            if opens_at is None or opens_at > self._now + HORIZON:
                break
            if opens_at > at:
                at = opens_at
                continue
            closes_at = self._calendar.closes_at(at)
            for visit in self._taken(tuple(waiting.values()), wave, length, at=at, closes_at=closes_at):
                del waiting[visit.node]
                ends_at = visit.ends_at
                if visit.begins_at - at > self._job_end_limit:
                    ends_at = at + self._job_end_limit
                    given_up.append(visit.node)
                    self.tries.append(replace(visit, begins_at=ends_at, ends_at=ends_at))
                else:
                    self.visits.append(visit)
                heapq.heappush(out, (ends_at, visit.node))
                latest = max(latest, ends_at)
            if out:
                at = out[0][0]
            elif waiting and (closes_at is None or not any(map(self._places.has_room, waiting.values()))):
                break  # Nobody is out who would come back, and nothing else will change.
            elif closes_at is not None:
                at = closes_at
        self.stuck, self.given_up = tuple(sorted(waiting)), tuple(sorted(given_up))
        for _, name in out:
            self._places.give_back(self._nodes[name])
        return None if waiting else latest

    def why_stuck(self) -> str:
        """Return in words why nodes have no place or no time."""
        full = {self._places.why_full(self._nodes[name]) for name in self.stuck} - {""}
        if full:
            return f"no room in {', '.join(sorted(full))}: too many nodes are out there already"
        if self._calendar.windows is None:
            return f"freezes, or the ends of their jobs, leave none within {HORIZON.days} days"
        return f"no window that is known, up to {HORIZON.days} days ahead, is long enough behind the end of their jobs"

    def _taken(
        self,
        waiting: Sequence[FleetNode],
        wave: Wave,
        length: timedelta,
        *,
        at: datetime,
        closes_at: datetime | None,
    ) -> list[PlannedVisit]:
        """Return who begins at this moment, who is free soonest first; takes their places."""
        found: list[PlannedVisit] = []
        if self._places.left_count < 1:
            return found
        for free_at, name in sorted((self._free_at(each, at), each.node) for each in waiting):
            if self._places.left_count < 1 or (closes_at is not None and free_at + length > closes_at):
                break
            if self._places.has_room(self._nodes[name]):
                self._places.take(self._nodes[name])
                found.append(
                    PlannedVisit(
                        node=name, wave=wave.number, drained_at=at, begins_at=free_at, ends_at=free_at + length
                    )
                )
        return found

    def _free_at(self, node: FleetNode, at: datetime) -> datetime:
        """Return when a node that is drained at some time is free: its job's end, or that of whatever follows it."""
        if node.is_idle:
            return at
        known = node.free_at if node.free_at is not None else self._now + UNKNOWN_JOB_END
        if known >= at:
            return known
        place = bisect_left(self._ends_after, at - known)
        return known + self._ends_after[place] if place < len(self._ends_after) else at


def _work_ends(nodes: Collection[FleetNode], *, now: datetime) -> list[timedelta]:
    """Return how long after the end of a node's present work the work that follows ends, one piece after the other.

    # Assumption: pieces last as long as the present ones do, which are half over when they are looked at; from half as
    long to half as long again, evenly mixed, so that no node stays in step with the windows.
    """
    ends_at = [each.free_at for each in nodes if not each.is_idle and each.free_at is not None]
    left = [(at - now).total_seconds() for at in ends_at]
    usual = max(_SHORTEST_WORK, timedelta(seconds=2 * median(left))) if left else UNKNOWN_JOB_END
    ends = [timedelta(0)]
    while ends[-1] <= HORIZON + usual:
        ends.append(ends[-1] + usual * (0.5 + len(ends) * _GOLDEN % 1))
    return ends


# -- the planner --


__all__ = ["HORIZON", "Candidates", "VisitTimes", "choose_candidates", "plan_rollout"]


def plan_rollout(
    release: Release,
    fleet: Sequence[FleetNode],
    *,
    policy: Policy,
    calendar: WorkCalendar,
    times: VisitTimes,
    contradictions: Sequence[Contradiction],
    now: datetime,
) -> RolloutPlan | Refusal:
    """Return the plan of a rollout on the fleet as it is, or why there is none."""
    against_all = [each for each in contradictions if not each.nodes]
    if against_all:
        said = "; ".join(f"{each.rule}: {each.said} ({each.source})" for each in against_all)
        return Refusal(guardrail="compatibility", reason=said, patience=Patience.NEVER)
    candidates = choose_candidates(release, fleet, contradictions)
    if not candidates.nodes:
        return _no_node(release, candidates)
    full = _no_place(fleet, policy)
    if full is not None:
        return full
    waves = draw_waves(candidates.nodes, limits=policy.rollouts, now=now)
    course = Foresight(
        candidates.nodes,
        places=Places(fleet, policy=policy),
        calendar=calendar,
        times=times,
        job_end_limit=policy.rollouts.job_end_limit,
        now=now,
    )
    foreseen, finishes_at = _play(waves, course, release, policy=policy, times=times, now=now)
    visits = tuple(sorted(course.visits, key=lambda each: (each.begins_at, each.node)))
    nodes = {each.node: each for each in candidates.nodes}
    one_way = tuple(each for each in release.changes if each.reversibility is Reversibility.NO)
    return RolloutPlan(
        plan=_plan_id(release, waves),
        release=release.name,
        made_at=now,
        waves=foreseen,
        visits=visits,
        skipped=candidates.skipped,
        starts_at=min((each.drained_at for each in visits), default=now),
        finishes_at=finishes_at,
        lost_gpu_hours=sum(
            (each.ends_at - each.begins_at).total_seconds() / 3600 * nodes[each.node].gpu_count for each in visits
        ),
        teams=_teams((*visits, *course.tries), nodes),
        one_way=one_way,
        left_out=course.given_up,
        sight=tuple(foreseen_sight(foreseen, claims=release.claims, limits=policy.rollouts)),
        warnings=(
            *_cautions(release, one_way, policy.rollouts),
            *_warnings(candidates, course),
        ),
    )


def _no_node(release: Release, candidates: Candidates) -> Refusal:
    reasons = Counter(each.reason for each in candidates.skipped)
    said = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(5)) or "none is of its models"
    return Refusal(guardrail="no_node", reason=f"{release.name} would touch no node: {said}", patience=Patience.WAIT)


def _no_place(fleet: Sequence[FleetNode], policy: Policy) -> Refusal | None:
    """Return why not a single node can be taken: by the policy itself, or by those that are out now."""
    if Places(fleet, policy=policy).left_count > 0:
        return None
    well = [replace(each, is_in_service=True, is_in_hand=False) for each in fleet]
    if Places(well, policy=policy).left_count > 0:
        out = sum(not each.is_in_service or each.is_in_hand for each in fleet)
        reason = f"{out} nodes are out, and rollouts.max_out_count and drain_budget leave no place for another"
        return Refusal(guardrail="rollout_budget", reason=reason, patience=Patience.WAIT)
    reason = "rollouts.max_out_count or drain_budget leave no place for a single node"
    return Refusal(guardrail="rollout_budget", reason=reason, patience=Patience.NEVER)


def _play(
    waves: Sequence[Wave], course: Foresight, release: Release, *, policy: Policy, times: VisitTimes, now: datetime
) -> tuple[tuple[Wave, ...], datetime | None]:
    """Return the waves with the times that they are expected for, and the end of the last."""
    soak = soak_of(release.claims, policy.rollouts)
    at: datetime | None = now
    foreseen: list[Wave] = []
    put_off: list[NodeName] = []
    for wave in waves:
        begins_at = at
        if at is not None:
            at = course.play(wave, at, put_off=put_off if wave is waves[-1] else ())
            put_off += course.given_up
        if at is not None:
            is_sought = sought_in(wave, waves, claims=release.claims, limits=policy.rollouts) is not None
            at += max(soak, times.deciding_soak) if is_sought else soak
        foreseen.append(replace(wave, planned_from=begins_at, planned_until=at))
    return tuple(foreseen), at


def _plan_id(release: Release, waves: Sequence[Wave]) -> PlanId:
    """Return what an approval covers: the release with all that it runs on a node, and its waves with their nodes."""
    nodes = [f"{wave.number}:{','.join(sorted(wave.nodes))}" for wave in waves]
    return PlanId("PLAN-" + digest_of(_canonical(release), *nodes)[:12])


def _canonical(value: object) -> str:
    """Return a value as text that is the same for equal values, in whatever order their sets and keys come."""
    if is_dataclass(value):
        inner = [f"{each.name}={_canonical(getattr(value, each.name))}" for each in fields(value)]
        return f"({' '.join(inner)})"
    if isinstance(value, Enum):
        return _canonical(value.value)
    if isinstance(value, Mapping):
        return "{" + " ".join(sorted(f"{_canonical(key)}:{_canonical(each)}" for key, each in value.items())) + "}"
    if isinstance(value, frozenset):
        return "{" + " ".join(sorted(_canonical(each) for each in value)) + "}"
    if isinstance(value, tuple):
        return f"[{' '.join(map(_canonical, value))}]"
    return repr(value)


def _teams(visits: Sequence[PlannedVisit], nodes: Mapping[NodeName, FleetNode]) -> tuple[TeamTouched, ...]:
    of_team: dict[str, list[PlannedVisit]] = {}
    for visit in visits:
        for team in nodes[visit.node].teams:
            of_team.setdefault(team, []).append(visit)
    return tuple(
        TeamTouched(
            team=team,
            nodes=tuple(sorted({each.node for each in touched})),
            gpu_count=sum(nodes[each].gpu_count for each in {each.node for each in touched}),
            first_at=min(each.drained_at for each in touched),
            last_at=max(each.ends_at for each in touched),
        )
        for team, touched in sorted(of_team.items())
    )


def _cautions(release: Release, one_way: Sequence[Change], limits: RolloutLimits) -> Iterator[str]:
    if one_way:
        what = ", ".join(each.component.value for each in one_way)
        yield f"{what} cannot roll back: every wave waits for approval of its own"
    if soak_of(release.claims, limits) > limits.soak_limit:
        yield (
            "rollouts.soak_limit_seconds is over before what the release claims can show: every wave would ask; "
            "raise it, or lower claims.slowest_failure_hours"
        )


def _warnings(candidates: Candidates, course: Foresight) -> tuple[str, ...]:
    said: list[str] = []
    if course.stuck:
        left = len(candidates.nodes) - len(course.visits)
        said.append(f"no time for {left} of {len(candidates.nodes)} nodes: {course.why_stuck()}")
    if course.given_up:
        said.append(
            f"{len(course.given_up)} of {len(candidates.nodes)} nodes would be left out: their jobs end later than "
            "rollouts.job_end_limit_seconds after their turn; jobs are never moved for a rollout"
        )
    unknown = sum(not each.is_idle and each.free_at is None for each in candidates.nodes)
    if unknown:
        said.append(
            f"jobs without a time limit on {unknown} of {len(candidates.nodes)} nodes: nobody foresees their end"
        )
    return tuple(said)


# -- how long a node is expected to be out for a release --


_INSTALL = timedelta(minutes=5)
"""# Assumption: of one step; firmware takes longer, and is measured after the first node."""
_RESTART = {
    Activation.LIVE: timedelta(0),
    Activation.DRIVER_RELOAD: timedelta(minutes=1),
    Activation.REBOOT: timedelta(minutes=5),
    Activation.POWER_CYCLE: timedelta(minutes=10),
    Activation.AC_CYCLE: timedelta(minutes=20),
}
"""# Assumption: as of nodes of this class; measured after the first one."""
_GATE = timedelta(minutes=4)
"""# Assumption: DCGM level 1 and a minute of NCCL, with their start and end."""
_CANARY_GATE = timedelta(minutes=70)
"""# Assumption: DCGM level 3 and pairwise tests on eight GPUs."""
_FEW = 3
"""So many visits of its own say more than the assumptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredVisits:
    """How long nodes of one release were out so far, from the first installation to the return."""

    canaries: Sequence[timedelta] = ()
    """With the longer tests."""
    others: Sequence[timedelta] = ()


def visit_times(release: Release, *, limits: RolloutLimits, measured: MeasuredVisits = MeasuredVisits()) -> VisitTimes:
    """Return how long nodes will be out: as measured where a few were, else as assumed."""
    assumed = _GATE + sum(
        (
            _INSTALL + _RESTART[activation_of(step)] + limits.good_read_count * limits.good_read_every
            for step in release.steps
        ),
        timedelta(0),
    )
    visit = _median(measured.others) or assumed
    canary = _median(measured.canaries) or visit + _CANARY_GATE
    return VisitTimes(visit=visit, canary_extra=max(canary - visit, timedelta(0)), deciding_soak=limits.soak_limit)


def _median(times: Sequence[timedelta]) -> timedelta | None:
    return timedelta(seconds=median(each.total_seconds() for each in times)) if len(times) >= _FEW else None
