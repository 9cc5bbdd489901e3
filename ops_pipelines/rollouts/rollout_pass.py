"""One pass over one rollout that is not over, and what it owes the cluster when nodes have soaked.

Asked in each pass, and for a day after the end: what the scheduler did not take then is given back later.

A pass never sits and waits: what needs time is found again by the next one. What comes next is decided by
`rollouts.course` and `engine`; here it is asked, done and written.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import Action, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, LedgerConflict
from ops_pipelines.core.identity import NodeName, cause_of
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.plan import Order
from ops_pipelines.core.rollout import (
    FINAL,
    IN_HAND,
    OF_PEOPLE,
    NodeEvent,
    NodeStage,
    Rollout,
    RolloutEvent,
    RolloutNode,
    RolloutState,
    is_canary,
)
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.remediate.perform import perform
from ops_pipelines.rollouts.course import Turn, gang_cap, next_rollout_state, next_turn
from ops_pipelines.rollouts.engine import Step
from ops_pipelines.rollouts.gate.evidence import GateVerdict
from ops_pipelines.rollouts.node_pass import (
    Errand,
    Surroundings,
    advance_node,
    after_step,
    begin_nodes,
    jobs_on,
    trouble_of,
    with_returned,
)

# -- what a rollout owes the cluster when nodes have soaked, or when it is over --


OWED_FOR = timedelta(days=1)


def owing(cluster: Cluster) -> tuple[Rollout, ...]:
    """Return the rollouts of the last day that are over and still owe something."""
    over = cluster.ledger.rollouts(final_since=cluster.clock.now() - OWED_FOR)
    return tuple(
        each
        for each in over
        if each.state in FINAL
        and (
            each.kept_off or each.booking or marked_canaries(each, cluster.ledger.rollout_nodes(each.rollout), cluster)
        )
    )


def marked_canaries(rollout: Rollout, nodes: Collection[RolloutNode], cluster: Cluster) -> tuple[RolloutNode, ...]:
    """Return the canaries that are still chosen last although their wave was good, or nothing more comes."""
    found: list[RolloutNode] = []
    for node in nodes:
        is_at_work = node.stage is NodeStage.UPDATED or (node.stage is NodeStage.SOAKING and rollout.state in FINAL)
        if not is_at_work or not is_canary(node, rollout):
            continue
        done = [
            each.action.verb
            for each in cluster.ledger.records_on(cause_of(rollout.rollout), node.node)
            if each.action.verb in (Verb.PUT_LAST, Verb.PUT_BACK)
            and each.outcome is not None
            and each.outcome.kind is OutcomeKind.DONE
        ]
        # Of any pass: who set out for its rollback and was given out of hand again still has the mark of the first.
        if done and done[-1] is Verb.PUT_LAST:
            found.append(node)
    return tuple(found)


def put_back_canaries(rollout: Rollout, nodes: Collection[RolloutNode], cluster: Cluster, *, lease: Lease) -> None:
    """Let canaries be chosen like any other node again. Raises as `perform`."""
    for node in marked_canaries(rollout, nodes, cluster):
        put_back = Action(
            verb=Verb.PUT_BACK, incident=cause_of(rollout.rollout), node=node.node, try_number=node.try_number
        )
        perform(Order(action=put_back, behind=rollout.plan), cluster, lease=lease)


def keep_wide_jobs_off(
    rollout: Rollout, nodes: Collection[RolloutNode], jobs: Collection[JobStatus], cluster: Cluster, *, lease: Lease
) -> Rollout:
    """Keep wide waiting jobs off nodes that soak, let them on afterwards; return the rollout as it is then.

    What we are about to exclude is in the ledger before it is sent, and stays there until it was taken back: after a
    crash between the two nobody is kept off without a trace. Raises SourceError, LedgerError.
    """
    cap = gang_cap(
        rollout,
        nodes,
        tuple(jobs),
        limits=cluster.rules.policy.rollouts,
        gpus_per_node=cluster.rules.topology.gpus_per_node,
    )
    before = {
        job: tuple(sorted({*rollout.kept_off.get(job, ()), *cap.kept_off.get(job, ())}))
        for job in {*cap.kept_off, *cap.let_on}
    }
    rollout = _remember(replace(rollout, kept_off=before), rollout, cluster)
    for job, off in cap.keep_off.items():
        lease.require(cluster.ledger, cluster.clock.now())
        cluster.scheduler.exclude(job, off)
    for job, on in cap.let_on.items():
        lease.require(cluster.ledger, cluster.clock.now())
        cluster.scheduler.readmit(job, on)
    return _remember(replace(rollout, kept_off=cap.kept_off), rollout, cluster)


def _remember(after: Rollout, before: Rollout, cluster: Cluster) -> Rollout:
    if after == before:
        return before
    cluster.ledger.change_rollout(after, (), actor=AUTOPILOT, now=cluster.clock.now())
    return after


# -- one pass over a rollout that is not over --


PEOPLE = "people"
"""Owns what waits for an answer that anybody may give."""
_MOST_ROUNDS = 8
"""Of one pass: each lets what was freed by the round before begin."""


Judge = Callable[[Rollout, Sequence[RolloutNode]], GateVerdict | None]
"""Gathers what is seen of updated nodes and judges it; None where nothing was updated yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """How far one rollout came in one pass."""

    rollout: Rollout
    nodes: tuple[RolloutNode, ...]
    verdict: GateVerdict | None
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
    verdict: GateVerdict | None = None
    for _ in range(_MOST_ROUNDS):
        verdict = judge(errand.rollout, tuple(nodes.values()))
        try:
            errand = _turn(errand, nodes, verdict)
            has_begun = begin_nodes(errand, nodes, around)
        except LedgerConflict as problem:  # A person gave an order meanwhile: the next pass continues with that.
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


def _turn(errand: Errand, nodes: dict[NodeName, RolloutNode], verdict: GateVerdict | None) -> Errand:
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
    # What follows a stop does not explain it; what a person let continue, and the gate stops, has another reason.
    is_of_gate = turn.event in (RolloutEvent.GATE_STOPPED, RolloutEvent.GATE_UNDECIDED)
    is_why = has_stopped and (is_of_gate or not rollout.stopped_because)
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
        stopped_because=turn.reason if is_why else rollout.stopped_because,
    )


def owner_of(state: RolloutState, actor: str) -> str:
    """Return who must move a rollout on: anyone who stopped it, people where we did, and the autopilot else."""
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
