"""The shape of answers about rollouts: what `rollout plan`, `status` and `history` say, for people and in JSON.

Field names are JSON keys: renaming one breaks the scripts of operators.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.proof import Refusal
from ops_pipelines.core.release import Release, activation_of
from ops_pipelines.core.rollout import Contradiction, Rollout, RolloutNode, RolloutPlan
from ops_pipelines.rollouts.gate.evidence import Verdict
from ops_pipelines.rollouts.orders import Planned


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeView:
    component: str
    version: str
    activation: str
    reversible: str
    conditions: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveView:
    wave: int
    kind: str
    """canary, deciding (the last canaries), or growing."""
    nodes: tuple[str, ...]
    planned_from: datetime | None
    planned_until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamView:
    team: str
    nodes: tuple[str, ...]
    gpu_count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTouchedView:
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContradictionView:
    rule: str
    said: str
    source: str
    nodes: tuple[str, ...]
    """Empty: the release itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """What a rollout would be if it began now; `plan` is None where there is none, and `refused` says why."""

    cluster: str
    made_at: datetime
    release: str
    about: str
    plan: str | None
    refused: str
    changes: tuple[ChangeView, ...]
    node_count: int
    waves: tuple[WaveView, ...]
    starts_at: datetime | None
    finishes_at: datetime | None
    lost_gpu_hours: float | None
    teams: tuple[TeamView, ...]
    not_touched: tuple[NotTouchedView, ...]
    contradictions: tuple[ContradictionView, ...]
    needs_yes_for: tuple[str, ...]
    """Components that cannot go back: each alone in its wave, each wave asked for."""
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TestView:
    __test__ = False

    test: str
    verdict: str
    said: str
    evidence_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    node: str
    wave: int | None
    """None: left out when it was planned."""
    stage: str
    direction: str
    since: datetime
    deadline: datetime | None
    reason: str
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """One rollout as it stands."""

    rollout: str
    release: str
    plan: str
    state: str
    owner: str
    reason: str
    since: datetime
    deadline: datetime | None
    wave: int
    wave_count: int
    nodes_by_stage: dict[str, int]
    finishes_at: datetime | None
    created_by: str
    created_at: datetime
    yes_by: str
    stopped_because: str
    waits_for: str
    """Why no further node is begun now, where that is the calendar's; empty: it is not."""
    tests: tuple[TestView, ...]
    """Of the gate, as it judges now; empty where nothing was updated yet."""
    verdict: str
    nodes: tuple[NodeView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsView:
    cluster: str
    taken_at: datetime
    rollouts: tuple[RolloutView, ...]
    problems: tuple[str, ...]


def view_plan(planned: Planned, *, cluster: str) -> PlanView:
    """Return a plan, or why there is none, as it is shown."""
    release, plan = planned.release, planned.plan
    made = plan if isinstance(plan, RolloutPlan) else None
    return PlanView(
        cluster=cluster,
        made_at=planned.fleet.taken_at,
        release=release.name,
        about=release.about,
        plan=None if made is None else made.plan,
        refused=f"{plan.guardrail}: {plan.reason}" if isinstance(plan, Refusal) else "",
        changes=_changes(release),
        node_count=0 if made is None else sum(len(wave.nodes) for wave in made.waves),
        waves=() if made is None else _waves(made),
        starts_at=None if made is None else made.starts_at,
        finishes_at=None if made is None else made.finishes_at,
        lost_gpu_hours=None if made is None else round(made.lost_gpu_hours, 1),
        teams=() if made is None else _teams(made),
        not_touched=()
        if made is None
        else tuple(NotTouchedView(node=each.node, reason=each.reason) for each in made.skipped),
        contradictions=tuple(_contradiction(each) for each in planned.contradictions),
        needs_yes_for=() if made is None else tuple(each.component.value for each in made.one_way),
        warnings=(*(() if made is None else made.warnings), *(each.reason for each in planned.rejected)),
    )


def view_rollout(
    rollout: Rollout, nodes: Sequence[RolloutNode], verdict: Verdict | None, *, waits_for: str
) -> RolloutView:
    """Return one rollout as it is shown."""
    return RolloutView(
        rollout=rollout.rollout,
        release=rollout.release,
        plan=rollout.plan,
        state=rollout.state.value,
        owner=rollout.owner,
        reason=rollout.reason,
        since=rollout.since,
        deadline=rollout.deadline,
        wave=rollout.wave,
        wave_count=len(rollout.waves),
        nodes_by_stage=dict(Counter(each.stage.value for each in nodes)),
        finishes_at=rollout.finishes_at,
        created_by=rollout.created_by,
        created_at=rollout.created_at,
        yes_by=rollout.yes_by,
        stopped_because=rollout.stopped_because,
        waits_for=waits_for,
        tests=() if verdict is None else _tests(verdict),
        verdict="" if verdict is None else f"{verdict.kind.value}: {verdict.reason}",
        nodes=tuple(_node(each) for each in nodes),
    )


def _changes(release: Release) -> tuple[ChangeView, ...]:
    return tuple(
        ChangeView(
            component=change.component.value,
            version=change.version,
            activation=activation_of(step).value,
            reversible=change.reversibility.value,
            conditions=change.conditions,
        )
        for step in release.steps
        for change in step
    )


def _waves(plan: RolloutPlan) -> tuple[WaveView, ...]:
    return tuple(
        WaveView(
            wave=wave.number,
            kind="deciding" if wave.is_deciding else "canary" if wave.is_canary else "growing",
            nodes=wave.nodes,
            planned_from=wave.planned_from,
            planned_until=wave.planned_until,
        )
        for wave in plan.waves
    )


def _teams(plan: RolloutPlan) -> tuple[TeamView, ...]:
    return tuple(
        TeamView(
            team=each.team,
            nodes=each.nodes,
            gpu_count=each.gpu_count,
            first_at=each.first_at,
            last_at=each.last_at,
        )
        for each in plan.teams
    )


def _contradiction(found: Contradiction) -> ContradictionView:
    return ContradictionView(rule=found.rule, said=found.said, source=found.source, nodes=found.nodes)


def _tests(verdict: Verdict) -> tuple[TestView, ...]:
    return tuple(
        TestView(test=each.name, verdict=each.state.value, said=each.said, evidence_ratio=round(each.evidence_ratio, 2))
        for each in verdict.tests
    )


def _node(node: RolloutNode) -> NodeView:
    return NodeView(
        node=node.node,
        wave=node.wave,
        stage=node.stage.value,
        direction=node.direction.value,
        since=node.since,
        deadline=node.deadline,
        reason=node.reason,
        failure=node.failure,
    )
