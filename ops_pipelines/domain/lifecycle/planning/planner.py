"""The planner: a release and the fleet in, waves and foreseen visits out, or the reason for none. Pure.

Who is part of it is `candidates`', in which waves `waves`', when each is foreseen `foresight`'s, how many may be out at
once `places`'. What is foreseen rests on time limits of jobs; the engine takes whoever is really free.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from enum import Enum

from ops_pipelines.core.identity import NodeName, PlanId, digest_of
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.policy import Policy, RolloutLimits
from ops_pipelines.core.proof import Patience, Refusal
from ops_pipelines.core.release import Change, Release, Reversibility
from ops_pipelines.core.rollout import Contradiction, PlannedVisit, RolloutPlan, TeamTouched, Wave
from ops_pipelines.domain.lifecycle.fleet import FleetNode
from ops_pipelines.domain.lifecycle.gate.judge_wave import soak_of
from ops_pipelines.domain.lifecycle.planning.candidates import Candidates, choose_candidates
from ops_pipelines.domain.lifecycle.planning.foresight import HORIZON, Foresight, VisitTimes
from ops_pipelines.domain.lifecycle.planning.places import Places
from ops_pipelines.domain.lifecycle.planning.waves import draw_waves

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
    """Return the waves with the times that they are foreseen for, and the end of the last."""
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
            at += max(soak, times.deciding_soak) if wave.is_deciding else soak
        foreseen.append(replace(wave, planned_from=begins_at, planned_until=at))
    return tuple(foreseen), at


def _plan_id(release: Release, waves: Sequence[Wave]) -> PlanId:
    """Return what a yes covers: the release with all that it runs on a node, and which nodes come in which wave."""
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
        yield f"{what} cannot go back: every wave waits for a yes of its own"
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
