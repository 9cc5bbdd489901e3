"""What may be given out: installed, less broken, less rollouts, less what is kept back; each node counted once."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.identity import IncidentId, NodeName, Place, Topology
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.core.rollout import NodeStage, RolloutState
from ops_pipelines.quotas.today import count_supply, stands_at, tally
from ops_pipelines.teams.desk import QuotaPolicy
from ops_pipelines.teams.price import InstalledNode
from tests.domain.builders import incident
from tests.flow.quota_mornings import NO_TYPE, QuotaStage, installed
from tests.scenarios.rollout_stage import KERNEL, RolloutStage

NOW = datetime(2026, 11, 21, 7, tzinfo=UTC)


def nodes(count: int, *, gpu_count: int = 8, gpu_type: str = "") -> list[InstalledNode]:
    return [installed(NodeName(f"n{number}"), gpu_type=gpu_type, gpu_count=gpu_count) for number in range(count)]


def in_racks(count: int, *, rack_size: int) -> Topology:
    return Topology(
        places={
            NodeName(f"n{number}"): Place(
                rack=f"r{number // rack_size}", nvlink_domain=f"n{number}", leaf_switch="leaf"
            )
            for number in range(count)
        },
        gpus_per_node=8,
    )


def keep_incident(ledger: Ledger, *, state: IncidentState, node: str) -> None:
    known = incident(name="INC-0001", state=state, nodes=frozenset({NodeName(node)}))
    ledger.record_decision(
        inputs=ledger.store("{}"), decided_through=0, expected_head=None, incidents=[known], plans=[], now=NOW
    )


# -- the sums --


@pytest.mark.parametrize(
    ("node_count", "rack_size", "ratio", "slack"),
    [
        pytest.param(3, 1, 1.0, 0, id="three nodes keep nothing back"),
        pytest.param(4, 1, 1.0, 8, id="four nodes keep their largest rack back"),
        pytest.param(8, 4, 1.0, 32, id="the largest rack"),
        pytest.param(10, 4, 1.0, 32, id="the largest, not the last"),
        pytest.param(8, 4, 0.24, 8, id="no more than the policy's share, in whole nodes rounded down"),
        pytest.param(8, 4, 0.25, 16, id="the share is two whole nodes"),
        pytest.param(8, 4, 0.12, 0, id="less than a node is nothing"),
        pytest.param(8, 4, 0.0, 0, id="the policy keeps nothing back"),
    ],
)
def test_slack_is_the_largest_rack_within_the_policys_share(
    node_count: int, rack_size: int, ratio: float, slack: float
) -> None:
    found = tally(
        nodes(node_count),
        missing={},
        broken={},
        in_rollouts={},
        topology=in_racks(node_count, rack_size=rack_size),
        slack_max_ratio=ratio,
    )

    (line,) = found.lines
    assert line.slack == slack
    assert line.supply == line.installed - slack


def test_what_is_broken_uses_up_the_slack_before_it_cuts_a_team() -> None:
    topology, there = in_racks(8, rack_size=1), nodes(8)

    supplies = [
        tally(
            there,
            missing={},
            broken={each.node: "down" for each in there[:count]},
            in_rollouts={},
            topology=topology,
            slack_max_ratio=0.125,
        )
        .lines[0]
        .supply
        for count in (0, 1, 2)
    ]

    assert supplies == [56, 56, 48]


def test_a_node_that_is_broken_and_planned_is_counted_once_as_broken() -> None:
    there = nodes(4)

    found = tally(
        there,
        missing={there[0].node: 3, there[1].node: 2},
        broken={there[0].node: "down"},
        in_rollouts={there[0].node: "ROLL-0001", there[2].node: "ROLL-0001"},
        topology=in_racks(4, rack_size=1),
        slack_max_ratio=0.0,
    )

    (line,) = found.lines
    assert (line.broken, line.in_rollouts, line.supply) == (10, 8, 14)


def test_types_are_counted_apart() -> None:
    there = [*nodes(4, gpu_type="h100"), installed(NodeName("x1"), gpu_type="a100", gpu_count=4)]

    found = tally(
        there,
        missing={},
        broken={NodeName("x1"): "down"},
        in_rollouts={},
        topology=in_racks(4, rack_size=1),
        slack_max_ratio=0.25,
    )

    assert [(each.gpu_type, each.installed, each.supply) for each in found.lines] == [
        ("a100", 4, 0),
        ("h100", 32, 24),
    ]
    assert found.line(GpuType("v100")) is None


@given(
    count=st.integers(0, 12),
    broken=st.sets(st.integers(0, 11)),
    planned=st.sets(st.integers(0, 11)),
    missing=st.dictionaries(st.integers(0, 11), st.integers(0, 8)),
    ratio=st.floats(0, 1),
)
def test_supply_is_never_negative_nor_more_than_is_healthy(
    count: int, broken: set[int], planned: set[int], missing: dict[int, int], ratio: float
) -> None:
    found = tally(
        nodes(count),
        missing={NodeName(f"n{each}"): lost for each, lost in missing.items()},
        broken={NodeName(f"n{each}"): "down" for each in broken if each < count},
        in_rollouts={NodeName(f"n{each}"): "a rollout" for each in planned if each < count},
        topology=in_racks(count, rack_size=2),
        slack_max_ratio=ratio,
    )

    for line in found.lines:
        healthy = line.installed - line.broken - line.in_rollouts
        assert 0 <= line.supply <= healthy
        assert line.supply <= line.installed - line.slack
        assert line.supply in (healthy, line.installed - line.slack)


@pytest.mark.parametrize(("hours", "stands"), [(-1, False), (0, True), (1, True), (23, True), (24, False)])
def test_a_node_stands_there_from_its_first_moment_to_its_last(hours: int, stands: bool) -> None:
    node = InstalledNode(
        node=NodeName("n1"), asset="hgx", gpu_type=NO_TYPE, gpu_count=8, since=NOW, until=NOW + timedelta(days=1)
    )

    assert stands_at(node, NOW + timedelta(hours=hours)) is stands


# -- the cluster --


def test_a_healthy_cluster_gives_out_all_but_the_slack(tmp_path: Path) -> None:
    stage = QuotaStage(tmp_path, quotas=QuotaPolicy(slack_max_ratio=0.2))

    (line,) = count_supply(stage.desk, now=stage.now).lines

    assert (line.installed, line.broken, line.in_rollouts, line.slack, line.supply) == (48, 0, 0, 8, 40)


def test_a_drained_node_and_one_that_nobody_knows_are_broken(tmp_path: Path) -> None:
    stage = QuotaStage(tmp_path, quotas=QuotaPolicy(slack_max_ratio=0.0))
    stage.desk.cluster.scheduler.drain([NodeName("gpu002")], reason="a person")
    stage.change(installed=(*stage.desk.installed, installed(NodeName("gpu099"))))

    found = count_supply(stage.desk, now=stage.now)

    assert found.out == {"gpu002": "drained", "gpu099": "the scheduler does not know it"}
    assert (found.lines[0].installed, found.lines[0].broken, found.lines[0].supply) == (56, 16, 40)


def test_gpus_that_fell_off_the_bus_are_broken_and_their_node_is_not(tmp_path: Path) -> None:
    stage = QuotaStage(tmp_path, quotas=QuotaPolicy(slack_max_ratio=0.0))
    bought = tuple(installed(each.node, gpu_count=10) for each in stage.desk.installed[:1])
    stage.change(installed=(*bought, *stage.desk.installed[1:]))

    found = count_supply(stage.desk, now=stage.now)

    assert (found.lines[0].broken, found.lines[0].supply, dict(found.out)) == (2, 48, {})


@pytest.mark.parametrize(
    ("state", "is_out"),
    [
        (IncidentState.OPEN, True),
        (IncidentState.ACTING, True),
        (IncidentState.VERIFYING, True),
        (IncidentState.PROBATION, True),
        (IncidentState.IN_REPAIR, True),
        (IncidentState.ESCALATED, False),
        (IncidentState.RESOLVED, False),
    ],
)
def test_a_node_of_an_incident_is_out_until_people_or_health_have_it(
    tmp_path: Path, state: IncidentState, is_out: bool
) -> None:
    stage = QuotaStage(tmp_path, quotas=QuotaPolicy(slack_max_ratio=0.0))
    keep_incident(stage.desk.cluster.ledger, state=state, node="gpu003")

    found = count_supply(stage.desk, now=stage.now)

    assert (set(found.out) == {"gpu003"}) is is_out
    assert found.lines[0].supply == (40 if is_out else 48)
    assert not is_out or IncidentId("INC-0001") in found.out[NodeName("gpu003")]


def test_nodes_of_a_rollout_are_out_while_it_has_them_and_when_it_takes_them_by_morning(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path, node_count=3)
    stage.start(KERNEL)
    desk = QuotaStage(tmp_path / "desk").desk
    nodes_of = [installed(name) for name in stage.cluster.rules.topology.places]
    desk = replace(desk, cluster=stage.cluster, installed=tuple(nodes_of))

    planned = count_supply(desk, now=stage.clock.now())
    (rollout,) = stage.cluster.ledger.rollouts(final_since=None)
    waves = rollout.waves

    due = {node for wave in waves if wave.planned_from is not None for node in wave.nodes}
    assert rollout.state is RolloutState.RUNNING
    assert all(each.stage is NodeStage.PENDING for each in stage.cluster.ledger.rollout_nodes(rollout.rollout))
    assert set(planned.out) == due
    assert planned.lines[0].in_rollouts == 8 * len(due)
