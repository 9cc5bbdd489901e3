"""Hours of a rollout on the simulated cluster: what the ledger of a real pass says is maintenance, and all closes."""

from datetime import UTC, timedelta
from pathlib import Path
from typing import Any, cast

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.periods import BilledPart
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.costs.charges import hours_by_fate
from ops_pipelines.costs.gather_usage import usage_of
from ops_pipelines.costs.states import Condition, find_states
from ops_pipelines.costs.usage import Fate, month_at
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.price import InstalledNode
from tests.flow.cost_stage import RowsLake
from tests.flow.review_stage import LedgerOfValues, stage
from tests.scenarios.test_bookings_of_rollouts import begun

_HOUR = timedelta(hours=1)


def test_the_node_in_hand_is_maintenance_and_the_booked_one_from_when_it_is_kept_free(tmp_path: Path) -> None:
    rollout = begun(tmp_path)
    now = rollout.clock.now().astimezone(UTC).replace(microsecond=0)
    month = month_at(now, zone=UTC)
    part = BilledPart(month=month, since=max(month.begins_at, now - _HOUR), until=min(month.ends_at, now + 6 * _HOUR))
    names = sorted(each.node for each in rollout.cluster.ledger.rollout_nodes(rollout.rollout().rollout))
    _, observatory = stage(RowsLake(), LedgerOfValues(), now=now)
    desk = TeamsDesk(
        cluster=rollout.cluster,
        observatory=cast("Any", observatory),
        agreements=None,
        installed=tuple(
            InstalledNode(
                node=NodeName(name), asset="small", gpu_type=GpuType(""), gpu_count=2, since=month.begins_at, until=None
            )
            for name in names
        ),
    )

    found = find_states(part, desk)
    usage = usage_of(part, desk)

    by_condition = {
        condition: [each for each in found.states if each.condition is condition] for condition in Condition
    }
    (taken,) = by_condition[Condition.ROLLOUT]
    assert taken.until is None
    booking = rollout.rollout().booking
    assert booking is not None
    (kept,) = by_condition[Condition.RESERVATION]
    assert (kept.since, kept.until) == (booking.begins_at, booking.ends_at)
    assert kept.cause == "ops-ROLL-0001-w1"
    assert {taken.node, kept.node} == set(names)
    assert hours_by_fate(usage.total)[Fate.MAINTENANCE] > 0
    assert usage.residual_gpu_seconds == 0
