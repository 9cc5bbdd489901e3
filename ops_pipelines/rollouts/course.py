"""What comes next for a rollout as a whole, where each event leads, and which jobs are kept off nodes that soak.

A row is here only if something brings it about: the autopilot by `course` and `engine`, a person by
`rollouts.orders`.

Only canaries are spared wide jobs. Later waves are too large for it: wide jobs would find no place at all.

Which nodes start for it is `fleet`', one node's own way is `engine`'s, whether a wave was good is `gate`'s. What people
say comes from them (`rollouts.orders`).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import JobState, JobStatus
from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Release
from ops_pipelines.core.rollout import (
    FINAL,
    IN_HAND,
    OF_PEOPLE,
    Direction,
    NodeEvent,
    NodeStage,
    Rollout,
    RolloutEvent,
    RolloutNode,
    RolloutState,
    Wave,
    is_canary,
)
from ops_pipelines.rollouts.fleet import UPDATED, is_to_go_back, pulled_out
from ops_pipelines.rollouts.gate.evidence import GateVerdict, VerdictKind

# -- where each event leads --


ROLLOUT_TABLE: Mapping[tuple[RolloutState, RolloutEvent], RolloutState] = {
    (RolloutState.AWAITING_YES, RolloutEvent.YES): RolloutState.RUNNING,
    (RolloutState.AWAITING_YES, RolloutEvent.ABORT): RolloutState.ENDING,
    (RolloutState.RUNNING, RolloutEvent.WAVE_UPDATED): RolloutState.SOAKING,
    (RolloutState.RUNNING, RolloutEvent.GATE_STOPPED): RolloutState.GOING_BACK,
    (RolloutState.RUNNING, RolloutEvent.GATE_UNDECIDED): RolloutState.ASKING,
    (RolloutState.RUNNING, RolloutEvent.PAUSE): RolloutState.PAUSED,
    (RolloutState.RUNNING, RolloutEvent.ABORT): RolloutState.ENDING,
    (RolloutState.RUNNING, RolloutEvent.GO_BACK): RolloutState.GOING_BACK,
    (RolloutState.SOAKING, RolloutEvent.WAVE_GOOD): RolloutState.RUNNING,
    (RolloutState.SOAKING, RolloutEvent.LAST_WAVE_GOOD): RolloutState.DONE,
    (RolloutState.SOAKING, RolloutEvent.ONE_WAY_NEXT): RolloutState.AWAITING_YES,
    (RolloutState.SOAKING, RolloutEvent.GATE_STOPPED): RolloutState.GOING_BACK,
    (RolloutState.SOAKING, RolloutEvent.GATE_UNDECIDED): RolloutState.ASKING,
    (RolloutState.SOAKING, RolloutEvent.PAUSE): RolloutState.PAUSED,
    (RolloutState.SOAKING, RolloutEvent.ABORT): RolloutState.ENDING,
    (RolloutState.SOAKING, RolloutEvent.GO_BACK): RolloutState.GOING_BACK,
    (RolloutState.PAUSED, RolloutEvent.RESUME_UPDATING): RolloutState.RUNNING,
    (RolloutState.PAUSED, RolloutEvent.RESUME_SOAKING): RolloutState.SOAKING,
    (RolloutState.PAUSED, RolloutEvent.GATE_STOPPED): RolloutState.GOING_BACK,
    (RolloutState.PAUSED, RolloutEvent.ABORT): RolloutState.ENDING,
    (RolloutState.PAUSED, RolloutEvent.GO_BACK): RolloutState.GOING_BACK,
    (RolloutState.ASKING, RolloutEvent.RESUME_UPDATING): RolloutState.RUNNING,
    (RolloutState.ASKING, RolloutEvent.RESUME_SOAKING): RolloutState.SOAKING,
    (RolloutState.ASKING, RolloutEvent.GATE_STOPPED): RolloutState.GOING_BACK,
    (RolloutState.ASKING, RolloutEvent.ABORT): RolloutState.ENDING,
    (RolloutState.ASKING, RolloutEvent.GO_BACK): RolloutState.GOING_BACK,
    (RolloutState.GOING_BACK, RolloutEvent.ALL_BACK): RolloutState.WENT_BACK,
    (RolloutState.GOING_BACK, RolloutEvent.BACK_FAILED): RolloutState.STUCK,
    (RolloutState.STUCK, RolloutEvent.GO_BACK): RolloutState.GOING_BACK,
    (RolloutState.STUCK, RolloutEvent.ABORT): RolloutState.ENDING,
    (RolloutState.GOING_BACK, RolloutEvent.PAUSE): RolloutState.PAUSED,
    (RolloutState.PAUSED, RolloutEvent.RESUME_GOING_BACK): RolloutState.GOING_BACK,
    (RolloutState.ENDING, RolloutEvent.GO_BACK): RolloutState.GOING_BACK,
    (RolloutState.ENDING, RolloutEvent.AT_REST): RolloutState.ABORTED,
}

_HANDLED = tuple(sorted(IN_HAND, key=lambda each: each.value))

NODE_TABLE: Mapping[tuple[NodeStage, NodeEvent], NodeStage] = {
    (NodeStage.PENDING, NodeEvent.BEGIN): NodeStage.DRAINING,
    (NodeStage.PENDING, NodeEvent.SKIP): NodeStage.SKIPPED,
    (NodeStage.DRAINING, NodeEvent.FREE): NodeStage.INSTALLING,
    (NodeStage.DRAINING, NodeEvent.NOT_NOW): NodeStage.PENDING,
    (NodeStage.DRAINING, NodeEvent.SKIP): NodeStage.SKIPPED,
    (NodeStage.INSTALLING, NodeEvent.INSTALLED): NodeStage.ACTIVATING,
    (NodeStage.ACTIVATING, NodeEvent.ACTIVATED): NodeStage.VERIFYING,
    (NodeStage.VERIFYING, NodeEvent.VERIFIED): NodeStage.TESTING,
    (NodeStage.VERIFYING, NodeEvent.NEXT_STEP): NodeStage.INSTALLING,
    (NodeStage.TESTING, NodeEvent.PASSED): NodeStage.RETURNING,
    (NodeStage.RETURNING, NodeEvent.RETURNED): NodeStage.SOAKING,
    (NodeStage.RETURNING, NodeEvent.IS_BACK): NodeStage.BACK,
    (NodeStage.SOAKING, NodeEvent.WAVE_GOOD): NodeStage.UPDATED,
    # The rollback begins with the drain again, wherever the node is; what is drained already passes through it. Who
    # only drains on its way there was not touched: it is put back as it was.
    **{
        (stage, NodeEvent.GO_BACK): NodeStage.DRAINING
        for stage in (
            *(each for each in _HANDLED if each is not NodeStage.DRAINING),
            NodeStage.SOAKING,
            NodeStage.UPDATED,
            NodeStage.PULLED,
            NodeStage.LOST,
        )
    },
    **{(stage, NodeEvent.FAILED): NodeStage.PULLED for stage in _HANDLED},
}
"""Of the way forward. On the rollback FAILED leads to LOST, and NOT_NOW to work with the new version (`next_stage`)."""


class IllegalRolloutTransitionError(RuntimeError):
    """Our own fault: a rollout was asked to do what its state does not allow. Nothing was changed."""


def next_rollout_state(state: RolloutState, event: RolloutEvent) -> RolloutState:
    """Return the state after `event`; raise where the table has no entry."""
    try:
        return ROLLOUT_TABLE[state, event]
    except KeyError:
        raise IllegalRolloutTransitionError(f"a rollout that is {state.value} cannot take {event.value}") from None


def next_stage(stage: NodeStage, event: NodeEvent, *, direction: Direction) -> NodeStage:
    """Return the stage after `event`; raise where the table has no entry."""
    if event is NodeEvent.FAILED and direction is Direction.BACK and stage in IN_HAND:
        return NodeStage.LOST
    if event is NodeEvent.NOT_NOW and direction is Direction.BACK and stage is NodeStage.DRAINING:
        return NodeStage.SOAKING
    try:
        return NODE_TABLE[stage, event]
    except KeyError:
        raise IllegalRolloutTransitionError(f"a node that is {stage.value} cannot take {event.value}") from None


def next_direction(event: NodeEvent, direction: Direction) -> Direction:
    """Return which way a node goes after `event`: there, until it rolls back."""
    if event is NodeEvent.GO_BACK:
        return Direction.BACK
    return Direction.FORWARD if event in (NodeEvent.BEGIN, NodeEvent.NOT_NOW) else direction


# -- which waiting jobs are kept off nodes that soak --


_NEW = frozenset({NodeStage.RETURNING, NodeStage.SOAKING})
_MOST_JOBS = 50
"""# Assumption: anyone who waits behind so many wide jobs does not start while canaries soak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangCap:
    """What has to be asked of the scheduler so that nodes that soak carry narrow jobs only."""

    keep_off: Mapping[JobId, tuple[NodeName, ...]]
    """Waiting jobs, and the nodes that each is to be kept off from now on."""
    let_on: Mapping[JobId, tuple[NodeName, ...]]
    """Waiting jobs that we kept off nodes which soak no more."""
    kept_off: Mapping[JobId, tuple[NodeName, ...]]
    """What the rollout remembers when both are done; jobs that started or ended are forgotten."""


def gang_cap(
    rollout: Rollout,
    nodes: Collection[RolloutNode],
    jobs: Sequence[JobStatus],
    *,
    limits: RolloutLimits,
    gpus_per_node: int,
) -> GangCap:
    """Return what changes. A node that the job's owner excluded was never ours to give back."""
    soaking = {each.node for each in nodes if _is_new_canary(each, rollout)}
    keep_off: dict[JobId, tuple[NodeName, ...]] = {}
    let_on: dict[JobId, tuple[NodeName, ...]] = {}
    kept_off: dict[JobId, tuple[NodeName, ...]] = {}
    waiting = [job for job in jobs if job.state is JobState.PENDING]
    wide = [job for job in waiting if job.gpu_count > limits.gang_cap_node_count * gpus_per_node]
    for job in waiting:
        ours = frozenset(rollout.kept_off.get(job.job, ()))
        over = sorted((ours - soaking) & job.excluded_nodes)
        if over:
            let_on[job.job] = tuple(over)
        if ours & soaking:
            kept_off[job.job] = tuple(sorted(ours & soaking))
    for job in wide[:_MOST_JOBS]:
        new = sorted(soaking - job.excluded_nodes)
        if new:
            keep_off[job.job] = tuple(new)
            kept_off[job.job] = tuple(sorted({*kept_off.get(job.job, ()), *new}))
    return GangCap(keep_off=keep_off, let_on=let_on, kept_off=kept_off)


def _is_new_canary(node: RolloutNode, rollout: Rollout) -> bool:
    # One that a person ended leaves its canaries as they are: nobody watches them any more.
    is_watched = rollout.state not in FINAL and is_canary(node, rollout)
    return is_watched and node.stage in _NEW and node.direction is Direction.FORWARD


# -- what comes next for a rollout as a whole --


_ONE_WAY = "a part of it cannot be rolled back"
_IS_ONE_WAY = re.compile(r"a part of it cannot (?:be rolled|go) back$")
"""Earlier versions wrote the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One event for the rollout, and why."""

    event: RolloutEvent
    reason: str


def present_wave(rollout: Rollout) -> Wave:
    return rollout.waves[rollout.wave - 1]


def is_wave_updated(rollout: Rollout, nodes: Collection[RolloutNode]) -> bool:
    """Return whether every node of the present wave that can be updated is, and works."""
    of_wave = [each for each in nodes if each.wave == rollout.wave]
    return all(each.stage not in IN_HAND and each.stage is not NodeStage.PENDING for each in of_wave)


def next_turn(
    rollout: Rollout,
    nodes: Collection[RolloutNode],
    *,
    release: Release,
    verdict: GateVerdict | None,
    limits: RolloutLimits,
) -> Turn | None:
    """Return what happens to the rollout now; None if it stays as it is. What people say comes from them."""
    match rollout.state:
        case RolloutState.PAUSED if rollout.paused_from is RolloutState.GOING_BACK:
            return None  # It has its verdict: the gate must not end a person's pause.
        case RolloutState.RUNNING | RolloutState.SOAKING | RolloutState.PAUSED | RolloutState.ASKING:
            return _judged(rollout, nodes, release=release, verdict=verdict, limits=limits)
        case RolloutState.GOING_BACK:
            return _gone_back(rollout, nodes)
        case RolloutState.ENDING if not _is_under_way(nodes, release=release):
            return Turn(event=RolloutEvent.AT_REST, reason="ended by a person; no node is in hand any more")
        case _:
            return None


def is_stopped_for_good(rollout: Rollout) -> bool:
    """Return whether a rollout asks because the gate stopped what cannot roll back: who resumes it is asked again."""
    return rollout.state is RolloutState.ASKING and bool(_IS_ONE_WAY.search(rollout.reason))


def _judged(
    rollout: Rollout,
    nodes: Collection[RolloutNode],
    *,
    release: Release,
    verdict: GateVerdict | None,
    limits: RolloutLimits,
) -> Turn | None:
    is_ours = rollout.state not in OF_PEOPLE
    is_stopped = verdict is not None and verdict.kind is VerdictKind.STOP
    if verdict is not None and is_stopped and not release.is_one_way:
        return Turn(event=RolloutEvent.GATE_STOPPED, reason=verdict.reason)
    if not is_ours:
        return None
    if verdict is not None and is_stopped:
        # Sent back, every node would be drained and none could be repaired: nothing else is started, and people decide.
        return Turn(event=RolloutEvent.GATE_UNDECIDED, reason=f"{verdict.reason}; {_ONE_WAY}")
    pulled = [each for each in nodes if each.failure]
    if len(pulled) - rollout.excused_count > limits.max_pulled_count:
        names = ", ".join(sorted(each.node for each in pulled))
        return Turn(
            event=RolloutEvent.GATE_UNDECIDED,
            reason=f"{len(pulled)} nodes failed, each in its own way ({names}); "
            f"max_pulled_count is {limits.max_pulled_count}",
        )
    if rollout.state is RolloutState.RUNNING:
        if is_wave_updated(rollout, nodes):
            return Turn(event=RolloutEvent.WAVE_UPDATED, reason=f"wave {rollout.wave} is updated and works")
        return None
    is_under_way = _is_under_way(nodes, release=release)
    of_wave = [each for each in nodes if each.wave == rollout.wave]
    if not any(each.stage in UPDATED or each.stage in IN_HAND for each in of_wave):
        return None if is_under_way else _empty_wave(rollout, nodes, release=release)
    if verdict is None or verdict.kind is VerdictKind.UNDECIDED:
        return None
    if verdict.kind is VerdictKind.GOOD and is_under_way:
        return None  # A node that was pulled out rolls back: it is brought to its end before the wave is.
    if verdict.kind is VerdictKind.ASK:
        return Turn(event=RolloutEvent.GATE_UNDECIDED, reason=verdict.reason)
    if rollout.wave == len(rollout.waves):
        return Turn(event=RolloutEvent.LAST_WAVE_GOOD, reason=verdict.reason)
    return Turn(
        event=RolloutEvent.ONE_WAY_NEXT if release.is_one_way else RolloutEvent.WAVE_GOOD, reason=verdict.reason
    )


def _is_under_way(nodes: Collection[RolloutNode], *, release: Release) -> bool:
    """Return whether a node is in hand, or about to be: pulled out, and not rolling back yet."""
    return any(each.stage in IN_HAND for each in nodes) or bool(pulled_out(nodes, release=release))


def _empty_wave(rollout: Rollout, nodes: Collection[RolloutNode], *, release: Release) -> Turn:
    """Return what follows on a wave of which no node could be updated: the next one takes its place, but for canaries'.

    Nobody else is touched before canaries have shown that the release is good.
    """
    said = f"no node of wave {rollout.wave} could be updated"
    is_last = rollout.wave == len(rollout.waves)
    if is_last and any(each.stage is NodeStage.UPDATED for each in nodes):
        return Turn(event=RolloutEvent.LAST_WAVE_GOOD, reason=f"{said}; those before it are good")
    if is_last or present_wave(rollout).is_deciding:
        return Turn(event=RolloutEvent.GATE_UNDECIDED, reason=f"{said}, so that nothing has been shown")
    return Turn(event=RolloutEvent.ONE_WAY_NEXT if release.is_one_way else RolloutEvent.WAVE_GOOD, reason=said)


def _gone_back(rollout: Rollout, nodes: Collection[RolloutNode]) -> Turn | None:
    if any(each.stage in IN_HAND or each.stage is NodeStage.PULLED or is_to_go_back(each, rollout) for each in nodes):
        return None
    lost = sorted(each.node for each in nodes if each.stage is NodeStage.LOST)
    if lost:
        return Turn(event=RolloutEvent.BACK_FAILED, reason=f"{', '.join(lost)} could not be restored")
    return Turn(event=RolloutEvent.ALL_BACK, reason="every touched node runs its old version, verified")
