"""One pass over a rollout that is not over: what the gate says, who begins, who turns round, how far each node comes.

A pass never sits and waits: what needs time is found again by the next one. What comes next is decided by
`domain.lifecycle.course` and `engine`; here it is asked, done and written.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ops_pipelines.domain.identity import NodeName
from ops_pipelines.domain.lifecycle.course import (
    Beginning,
    Turn,
    in_hand,
    next_turn,
    pulled_out,
    put_off,
    ready,
    turning_round,
)
from ops_pipelines.domain.lifecycle.engine import Step
from ops_pipelines.domain.lifecycle.fleet import FleetNode
from ops_pipelines.domain.lifecycle.gate.evidence import Verdict
from ops_pipelines.domain.lifecycle.planning.places import Places, pick
from ops_pipelines.domain.lifecycle.release import Component, Reversibility
from ops_pipelines.domain.lifecycle.rollout import (
    IN_HAND,
    OF_PEOPLE,
    Direction,
    NodeEvent,
    NodeStage,
    Rollout,
    RolloutEvent,
    RolloutNode,
    RolloutState,
    next_rollout_state,
)
from ops_pipelines.domain.lifecycle.windows import WorkCalendar
from ops_pipelines.domain.observation import MAY_HAVE_PROCESSES, JobStatus
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.lease import Lease
from ops_pipelines.flow.lifecycle.aftermath import keep_wide_jobs_off, put_back_canaries
from ops_pipelines.flow.lifecycle.fleet_view import read_versions
from ops_pipelines.flow.lifecycle.node_pass import Errand, advance_node, after_step
from ops_pipelines.ports.ledger import AUTOPILOT, LedgerConflict
from ops_pipelines.ports.source_error import SourceError

_AT_WORK = frozenset({NodeStage.SOAKING, NodeStage.BACK, NodeStage.PENDING})
PEOPLE = "people"
"""Owns what waits for an answer that anybody may give."""
_MOST_ROUNDS = 8
"""Of one pass: each lets what was freed by the round before begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a pass is told of the world beside the ledger."""

    fleet: Mapping[NodeName, FleetNode]
    calendar: WorkCalendar
    jobs: Sequence[JobStatus]
    visit_seconds: float
    """How long a node is foreseen to be out."""
    may_act: bool = True
    """Whether nodes are begun, and anything is said to the scheduler beside acts."""


Judge = Callable[[Rollout, Sequence[RolloutNode]], Verdict | None]
"""Gathers what is seen of updated nodes and judges it; None where nothing was updated yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """How far one rollout came in one pass."""

    rollout: Rollout
    nodes: tuple[RolloutNode, ...]
    verdict: Verdict | None
    problems: tuple[str, ...]
    """What was in the way, in words: a source without an answer, a writer who came first."""


def advance_rollout(
    rollout: Rollout, cluster: Cluster, *, lease: Lease, around: Surroundings, judge: Judge
) -> PassReport:
    """Bring one rollout as far as it goes now. Raises LedgerError; what one node runs into does not stop the others."""
    errand = Errand(
        rollout=rollout, release=cluster.ledger.release(rollout.release_digest), cluster=cluster, lease=lease
    )
    nodes = {each.node: each for each in cluster.ledger.rollout_nodes(rollout.rollout)}
    problems: dict[str, None] = {}
    verdict: Verdict | None = None
    for _ in range(_MOST_ROUNDS):
        verdict = judge(errand.rollout, tuple(nodes.values()))
        try:
            errand = _turn(errand, nodes, verdict)
            has_begun = _begin(errand, nodes, around)
        except LedgerConflict as problem:  # A person said something meanwhile: the next pass goes on with that.
            problems[str(problem)] = None
            break
        has_moved = False
        for name in sorted(nodes):
            if nodes[name].stage not in IN_HAND:
                continue
            try:
                nodes[name], moved = advance_node(
                    nodes[name],
                    errand,
                    jobs=_jobs_on(name, around.jobs),
                    trouble=around.fleet[name].trouble if name in around.fleet else "",
                )
                has_moved |= moved
            except (SourceError, LedgerConflict) as problem:
                problems[f"{name}: {problem}"] = None
        if not has_begun and not has_moved:
            break
        around = _with_returned(around, nodes)
    errand = _settle(errand, nodes, around, problems)
    return PassReport(rollout=errand.rollout, nodes=tuple(nodes.values()), verdict=verdict, problems=tuple(problems))


def _with_returned(around: Surroundings, nodes: Mapping[NodeName, RolloutNode]) -> Surroundings:
    """Return the surroundings with the nodes that came back to work in this pass: their places are free again."""
    back = {
        name: replace(known, is_in_service=True, is_in_hand=False)
        for name, known in around.fleet.items()
        if known.is_in_hand and name in nodes and nodes[name].stage in _AT_WORK
    }
    return replace(around, fleet={**around.fleet, **back}) if back else around


def _settle(
    errand: Errand, nodes: Mapping[NodeName, RolloutNode], around: Surroundings, problems: dict[str, None]
) -> Errand:
    """Keep wide jobs off nodes that soak, and undo what a wave that is over left behind."""
    if not around.may_act:
        return errand
    everybody = tuple(nodes.values())
    try:
        rollout = keep_wide_jobs_off(errand.rollout, everybody, around.jobs, errand.cluster)
        put_back_canaries(rollout, everybody, errand.cluster, lease=errand.lease)
    except (SourceError, LedgerConflict) as problem:
        problems[str(problem)] = None
        return errand
    return replace(errand, rollout=rollout)


def _turn(errand: Errand, nodes: dict[NodeName, RolloutNode], verdict: Verdict | None) -> Errand:
    """Let the rollout take the event that is due, with what that means for nodes of its wave."""
    cluster, rollout = errand.cluster, errand.rollout
    turn = next_turn(
        rollout,
        tuple(nodes.values()),
        release=errand.release,
        verdict=verdict,
        limits=cluster.rules.policy.rollouts,
    )
    if turn is None:
        return errand
    now = cluster.clock.now()
    after = after_turn(rollout, turn, cluster, now=now)
    changed = _good_ones(rollout, nodes, turn, errand, now=now)
    cluster.ledger.change_rollout(after, changed, actor=AUTOPILOT, now=now)
    nodes |= {each.node: each for each in changed}
    return replace(errand, rollout=after)


def after_turn(rollout: Rollout, turn: Turn, cluster: Cluster, *, now: datetime, actor: str = AUTOPILOT) -> Rollout:
    """Return a rollout as it is after an event that `actor` gave."""
    state = next_rollout_state(rollout.state, turn.event)
    is_next_wave = turn.event in (RolloutEvent.WAVE_GOOD, RolloutEvent.ONE_WAY_NEXT)
    has_stopped = state in (RolloutState.GOING_BACK, RolloutState.ASKING, RolloutState.STUCK)
    limit = cluster.rules.policy.rollouts.answer_limit
    return replace(
        rollout,
        state=state,
        wave=rollout.wave + 1 if is_next_wave else rollout.wave,
        since=now,
        deadline=now + limit if state in OF_PEOPLE else None,
        owner=owner_of(state, actor),
        reason=turn.reason,
        paused_from=rollout.state if state in (RolloutState.PAUSED, RolloutState.ASKING) else None,
        stopped_because=turn.reason if has_stopped and not rollout.stopped_because else rollout.stopped_because,
    )


def owner_of(state: RolloutState, actor: str) -> str:
    """Return who must move a rollout on: whoever stopped it, people where we did, and the autopilot else."""
    if state not in OF_PEOPLE:
        return AUTOPILOT
    return PEOPLE if actor == AUTOPILOT else actor


def _good_ones(
    rollout: Rollout, nodes: Mapping[NodeName, RolloutNode], turn: Turn, errand: Errand, *, now: datetime
) -> list[RolloutNode]:
    """Return the nodes of a wave that was found good, as they are from now on."""
    if turn.event not in (RolloutEvent.WAVE_GOOD, RolloutEvent.LAST_WAVE_GOOD, RolloutEvent.ONE_WAY_NEXT):
        return []
    good = Step(event=NodeEvent.WAVE_GOOD, reason=turn.reason)
    return [
        after_step(each, good, errand.release, errand.cluster, now=now)
        for each in nodes.values()
        if each.wave == rollout.wave and each.stage is NodeStage.SOAKING
    ]


def _begin(errand: Errand, nodes: dict[NodeName, RolloutNode], around: Surroundings) -> bool:
    """Let nodes start on their way, there or back; return whether any did.

    Who was pulled out goes back in every state: that only brings to an end what was begun.
    """
    if not around.may_act:
        return False
    cluster, rollout = errand.cluster, errand.rollout
    now = cluster.clock.now()
    everybody = tuple(nodes.values())
    first, fleet, versions = _who_begins(errand, everybody, around, now=now)
    starting = (*turning_round(rollout, everybody), *pulled_out(everybody, release=errand.release), *first)
    changed = [_begun(nodes[each.node], each, errand, versions.get(each.node, {}), now=now) for each in starting]
    if not first:
        changed += put_off(
            rollout,
            everybody,
            fleet=fleet,
            calendar=around.calendar,
            limits=cluster.rules.policy.rollouts,
            visit_seconds=around.visit_seconds,
            now=now,
            why_full=_places(everybody, fleet, errand).why_full,
        )
    if not changed:
        return False
    cluster.ledger.change_rollout(None, changed, actor=AUTOPILOT, now=now)
    nodes |= {each.node: each for each in changed}
    return any(each.stage in IN_HAND for each in changed)


def _who_begins(
    errand: Errand, nodes: Sequence[RolloutNode], around: Surroundings, *, now: datetime
) -> tuple[tuple[Beginning, ...], Mapping[NodeName, FleetNode], Mapping[NodeName, Mapping[Component, str]]]:
    """Return who begins, with the fleet and what runs on them. A node that does not tell has no way back: not begun."""
    fleet = dict(around.fleet)
    versions: dict[NodeName, Mapping[Component, str]] = {}
    needed = {change.component for change in errand.release.changes if change.reversibility is not Reversibility.NO}
    while True:
        waiting = ready(
            errand.rollout,
            nodes,
            fleet=fleet,
            calendar=around.calendar,
            visit_seconds=around.visit_seconds,
            now=now,
        )
        first = _with_room(waiting, nodes, fleet, errand)
        asked = [each.node for each in first if each.event is NodeEvent.BEGIN and each.node not in versions]
        if not asked:
            return first, fleet, versions
        answers = read_versions(asked, errand.cluster)
        for name in asked:
            versions[name] = answers.get(name, {})
            missing = ", ".join(sorted(each.value for each in needed - versions[name].keys()))
            if missing:
                why_not = f"it does not tell which {missing} it runs, so that there is no way back"
                fleet[name] = replace(fleet[name], why_not=why_not)


def _with_room(
    waiting: Sequence[Beginning],
    nodes: Sequence[RolloutNode],
    fleet: Mapping[NodeName, FleetNode],
    errand: Errand,
) -> tuple[Beginning, ...]:
    """Return who of those that are ready finds room in every budget: who would be refused takes no place of another.

    A node that nobody declares any more has no place to find: on its way back it is lost in words, not waited for.
    """
    if not waiting:
        return ()
    places = _places(nodes, fleet, errand)
    chosen = frozenset(pick((fleet[each.node] for each in waiting if each.node in fleet), places))
    return tuple(each for each in waiting if each.node in chosen or each.node not in fleet)


def _places(nodes: Sequence[RolloutNode], fleet: Mapping[NodeName, FleetNode], errand: Errand) -> Places:
    begun = {each.node for each in nodes if each.stage in IN_HAND}
    policy = errand.cluster.rules.policy
    return Places(fleet.values(), policy=policy, in_hand=begun, waiting=begun - in_hand(nodes, fleet))


def _begun(
    node: RolloutNode, start: Beginning, errand: Errand, versions: Mapping[Component, str], *, now: datetime
) -> RolloutNode:
    """Return a node at the beginning of a pass of its own: its acts are new ones, its way starts at the first step.

    `versions` are what runs there now: where the way back leads.
    """
    is_back = start.event is NodeEvent.GO_BACK
    components = {change.component for change in errand.release.changes}
    before = {each: version for each, version in versions.items() if each in components}
    after = after_step(
        replace(node, direction=Direction.BACK if is_back else Direction.FORWARD),
        Step(event=start.event, reason=start.reason),
        errand.release,
        errand.cluster,
        now=now,
    )
    return replace(
        after,
        step=0,
        try_number=node.try_number + 1,
        versions_before=node.versions_before or before,
    )


def _jobs_on(node: NodeName, jobs: Sequence[JobStatus]) -> tuple[JobStatus, ...]:
    return tuple(each for each in jobs if node in each.nodes and each.state in MAY_HAVE_PROCESSES)
