"""When a pass over the rollouts is worth a run before the schedule starts one. Reads the ledger and nothing else.

A run never sits and waits: whoever installs, restarts, is tested or soaks is looked at again by the next one.
"""

from collections.abc import Collection
from datetime import datetime, timedelta

from ops_pipelines.core.entries import LedgerState
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Release
from ops_pipelines.core.rollout import IN_HAND, OF_PEOPLE, Rollout, RolloutNode, RolloutState
from ops_pipelines.domain.lifecycle.gate.judge_wave import soak_of
from ops_pipelines.remediate.due import Due

_SOAK_LOOKS = 16
"""So often is a soak looked at, at most: what goes wrong in it stops the rollout that much sooner."""
_SELDOM = timedelta(minutes=5)


def due_rollout(state: LedgerState, ledger: Ledger, *, limits: RolloutLimits, now: datetime) -> Due | None:
    """Return the pass that is due now; None if nothing has changed and nothing can have.

    One pass serves every rollout, so it is due anew when it is for any of them: one that waits hides no other.
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
