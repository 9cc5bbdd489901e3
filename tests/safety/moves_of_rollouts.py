"""Moves of people around rollouts: one is started, and instructed to wait, to continue, to stop, to roll back, or given
an approval.

Moves like those of `moves`; what somebody approved is noted in the orders that the judge goes by.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerConflict
from ops_pipelines.core.identity import RolloutId
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.rollouts import orders
from ops_pipelines.rollouts.orders import plan_release, start_release
from tests.safety.border import PROBLEMS
from tests.safety.move_kinds import Move, MoveKind
from tests.safety.stage import Stage
from tests.scenarios.rollout_stage import KERNEL

_ACTOR = "day-shift"
_FOREVER = datetime.max
_Order = Callable[[RolloutId, Cluster], object]
_ORDERS: tuple[_Order, ...] = (
    lambda rollout, cluster: orders.pause(rollout, cluster, actor=_ACTOR, reason="wait"),
    lambda rollout, cluster: orders.go_on(rollout, cluster, actor=_ACTOR, reason="seen to"),
    lambda rollout, cluster: orders.go_on(rollout, cluster, actor=_ACTOR, reason="seen to"),
    lambda rollout, cluster: orders.send_back(rollout, cluster, actor=_ACTOR, reason="a bug report"),
    lambda rollout, cluster: orders.abort(rollout, cluster, actor=_ACTOR, reason="not today"),
)


_CALLS = ("start_install", "read_install", "read_versions")


def _roll_out(stage: Stage, move: Move) -> None:
    """Begin one where there is none; else approve where it waits for one, or something else; or nobody installs."""
    if move.number % 5 == 4:
        stage.mischief.failing[_CALLS[move.number % len(_CALLS)]] = PROBLEMS[move.node % len(PROBLEMS)]
        return
    with suppress(ByHandRefused, LedgerConflict, PolicyError, SourceError):
        present = stage.ledger.read_state(stage.own_clock.now()).rollouts
        if not present:
            stage.has_rollout = True
            start_release(plan_release(KERNEL, stage.desk), stage.desk, actor=_ACTOR)
            return
        rollout = present[0]
        if move.number % 2:
            orders.say_yes(rollout.rollout, stage.desk, actor=_ACTOR)
            now = stage.own_clock.now()
            stage.orders.approved.setdefault(rollout.plan, []).append((now, _FOREVER.replace(tzinfo=now.tzinfo)))
        else:
            _ORDERS[move.number // 2 % len(_ORDERS)](rollout.rollout, stage.desk)


MOVES_OF_ROLLOUTS: Mapping[MoveKind, Callable[[Stage, Move], None]] = {MoveKind.ROLL_OUT: _roll_out}
