"""One pass over a rollout that is not over: what the gate says, who begins, who turns round, how far each node comes.

A pass never sits and waits: what needs time is found again by the next one. What comes next is decided by
`domain.lifecycle.course` and `engine`; here it is asked, done and written.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, LedgerConflict
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.rollout import (
    IN_HAND,
    OF_PEOPLE,
    NodeEvent,
    NodeStage,
    Rollout,
    RolloutEvent,
    RolloutNode,
    RolloutState,
)
from ops_pipelines.core.sources import SourceError
from ops_pipelines.domain.lifecycle.course import Turn, next_turn
from ops_pipelines.domain.lifecycle.gate.evidence import Verdict
from ops_pipelines.domain.lifecycle.transitions import next_rollout_state
from ops_pipelines.domain.lifecycle.way import Step
from ops_pipelines.flow.lifecycle.aftermath import keep_wide_jobs_off, put_back_canaries
from ops_pipelines.flow.lifecycle.errand import Errand, Surroundings, jobs_on, trouble_of, with_returned
from ops_pipelines.flow.lifecycle.node_pass import advance_node, after_step
from ops_pipelines.flow.lifecycle.node_starts import begin_nodes
from ops_pipelines.remediate.acts.facts import Lease

PEOPLE = "people"
"""Owns what waits for an answer that anybody may give."""
_MOST_ROUNDS = 8
"""Of one pass: each lets what was freed by the round before begin."""


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
            has_begun = begin_nodes(errand, nodes, around)
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
                    jobs=jobs_on(name, around),
                    trouble=trouble_of(name, around),
                    closed=around.calendar.why_closed(errand.cluster.clock.now()) or "",
                )
                has_moved |= moved
            except (SourceError, LedgerConflict) as problem:
                problems[f"{name}: {problem}"] = None
        if not has_begun and not has_moved:
            break
        around = with_returned(around, nodes)
    errand = _settle(errand, nodes, around, problems)
    return PassReport(rollout=errand.rollout, nodes=tuple(nodes.values()), verdict=verdict, problems=tuple(problems))


def _settle(
    errand: Errand, nodes: Mapping[NodeName, RolloutNode], around: Surroundings, problems: dict[str, None]
) -> Errand:
    """Keep wide jobs off nodes that soak, and undo what a wave that is over left behind."""
    if not around.may_act:
        return errand
    everybody = tuple(nodes.values())
    try:
        rollout = keep_wide_jobs_off(errand.rollout, everybody, around.jobs, errand.cluster, lease=errand.lease)
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
