"""What people say to a rollout: yes, stop for a while, go on, end it, send it back, leave this node out.

Each order is one event of the table, in the ledger, under the name of whoever gave it. What follows from it is done by
the next pass.
"""

from dataclasses import replace

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import NodeName, RolloutId
from ops_pipelines.core.release import Release
from ops_pipelines.core.rollout import (
    FINAL,
    IN_HAND,
    NodeEvent,
    NodeStage,
    Rollout,
    RolloutEvent,
    RolloutNode,
    RolloutState,
)
from ops_pipelines.domain.lifecycle.course import Turn
from ops_pipelines.domain.lifecycle.transitions import ROLLOUT_TABLE
from ops_pipelines.domain.lifecycle.way import Step
from ops_pipelines.flow.lifecycle.node_pass import after_step
from ops_pipelines.flow.lifecycle.rollout_pass import after_turn
from ops_pipelines.remediate.by_hand import ByHandRefused

_GOES_ON = {
    RolloutState.RUNNING: RolloutEvent.RESUME_UPDATING,
    RolloutState.SOAKING: RolloutEvent.RESUME_SOAKING,
    RolloutState.GOING_BACK: RolloutEvent.RESUME_GOING_BACK,
}


def say_yes(rollout: RolloutId, cluster: Cluster, *, actor: str) -> Rollout:
    """Let a rollout begin, or its next wave where that cannot be taken back."""
    known = _known(rollout, cluster)
    release = cluster.ledger.release(known.release_digest)
    return _order(
        known,
        RolloutEvent.YES,
        cluster,
        actor=actor,
        reason=f"{actor} said yes" + (f" to wave {known.wave}" if release.is_one_way else ""),
        yes_through=known.wave if release.is_one_way else len(known.waves),
    )


def pause(rollout: RolloutId, cluster: Cluster, *, actor: str, reason: str) -> Rollout:
    """Begin no other node until `go_on`; nodes in hand are finished."""
    return _order(_known(rollout, cluster), RolloutEvent.PAUSE, cluster, actor=actor, reason=f"{actor}: {reason}")


def go_on(rollout: RolloutId, cluster: Cluster, *, actor: str, reason: str) -> Rollout:
    """Let a rollout go on that is paused, or that asks: a person answers for what the gate could not decide."""
    known = _known(rollout, cluster)
    event = None if known.paused_from is None else _GOES_ON.get(known.paused_from)
    if event is None:
        raise ByHandRefused(f"{rollout} is {known.state.value}; only a rollout that is paused or asks can be resumed")
    if known.state is RolloutState.ASKING:
        failed = [each for each in cluster.ledger.rollout_nodes(rollout) if each.failure]
        known = replace(known, resumed_at=cluster.clock.now(), excused_count=len(failed))
    return _order(known, event, cluster, actor=actor, reason=f"{actor}: {reason}")


def abort(rollout: RolloutId, cluster: Cluster, *, actor: str, reason: str) -> Rollout:
    """End a rollout: nodes in hand are finished, the others keep what they have."""
    return _order(_known(rollout, cluster), RolloutEvent.ABORT, cluster, actor=actor, reason=f"{actor}: {reason}")


def send_back(rollout: RolloutId, cluster: Cluster, *, actor: str, reason: str) -> Rollout:
    """Give every touched node its old version."""
    known = _known(rollout, cluster)
    if cluster.ledger.release(known.release_digest).is_one_way:
        raise ByHandRefused(f"{rollout} installs what cannot go back; abort it, and repair its nodes by hand")
    return _order(known, RolloutEvent.GO_BACK, cluster, actor=actor, reason=f"{actor}: {reason}")


def skip(rollout: RolloutId, node: NodeName, cluster: Cluster, *, actor: str, reason: str) -> RolloutNode:
    """Leave one node out that was not touched yet; the others go on."""
    known = _known(rollout, cluster)
    found = next((each for each in cluster.ledger.rollout_nodes(rollout) if each.node == node), None)
    if found is None:
        raise ByHandRefused(
            f"{node} is not part of {rollout}; `ops-pipelines rollout status {rollout} --json` lists its nodes"
        )
    if found.stage is not NodeStage.PENDING:
        hint = "it is finished first" if found.stage in IN_HAND else "send the rollout back to undo it"
        raise ByHandRefused(f"{node} is {found.stage.value} in {rollout}; only a pending node can be left out ({hint})")
    now = cluster.clock.now()
    release: Release = cluster.ledger.release(known.release_digest)
    left_out = after_step(
        found, Step(event=NodeEvent.SKIP, reason=f"left out by {actor}: {reason}"), release, cluster, now=now
    )
    cluster.ledger.change_rollout(None, [left_out], actor=actor, now=now)
    return left_out


def _known(rollout: RolloutId, cluster: Cluster) -> Rollout:
    known = cluster.ledger.rollout(rollout)
    if known is None:
        raise ByHandRefused(f"there is no rollout {rollout}; `ops-pipelines rollout history` lists them")
    if known.state in FINAL:
        raise ByHandRefused(f"{rollout} is over: {known.state.value} since {known.since:%Y-%m-%d %H:%M} UTC")
    return known


def _order(
    known: Rollout, event: RolloutEvent, cluster: Cluster, *, actor: str, reason: str, yes_through: int | None = None
) -> Rollout:
    if (known.state, event) not in ROLLOUT_TABLE:
        asked = event.value.replace("_", " ")
        raise ByHandRefused(f"{known.rollout} is {known.state.value}: {known.reason}. It cannot take: {asked}")
    now = cluster.clock.now()
    after = after_turn(known, Turn(event=event, reason=reason), cluster, now=now, actor=actor)
    if yes_through is not None:
        after = replace(after, yes_by=actor, yes_through=yes_through)
    cluster.ledger.change_rollout(after, (), actor=actor, now=now)
    return after
