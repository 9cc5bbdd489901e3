"""Our rollout in the simulated world: bad releases are stopped and roll back whole, and nobody reports it which it
is."""

import ast
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ops_pipelines.core.rollout import IN_HAND, NodeStage
from ops_pipelines_lab.whatif.lifecycle import controller, hands
from ops_pipelines_lab.whatif.lifecycle import hands as fleet_seen
from ops_pipelines_lab.whatif.lifecycle import hands as gate_record
from ops_pipelines_lab.whatif.lifecycle import trials as peers
from ops_pipelines_lab.whatif.lifecycle.controller import OurRollout
from ops_pipelines_lab.whatif.lifecycle.hands import GateRecord, name_of, number_of
from ops_pipelines_lab.whatif.lifecycle.scenario import policy_of, read_scenarios
from ops_pipelines_lab.whatif.lifecycle.world import DAY, World
from tests.whatif.small_cluster import NODE_COUNT, rolled_out, small_site, unbounded, world_of

BAD = [name for name, each in read_scenarios().items() if not each.is_good]


def stages(rollout: OurRollout) -> Counter[str]:
    return Counter(each.stage.value for each in rollout.nodes)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_release_is_stopped_on_the_canaries_and_every_touched_node_runs_its_old_version(name: str) -> None:
    world, rollout = rolled_out(name)

    outcome = rollout.outcome
    assert outcome.is_stopped
    assert outcome.reason
    assert outcome.is_back
    assert 1 <= outcome.touched_count <= 30
    assert not any(node.is_updated or node.is_drained or node.is_capped for node in world.nodes)
    assert stages(rollout).keys() <= {"back", "pending"}


def test_a_good_release_reaches_every_node() -> None:
    world, rollout = rolled_out("good")

    assert rollout.outcome.is_done
    assert not rollout.outcome.is_stopped
    assert rollout.outcome.upgraded_count == NODE_COUNT
    assert all(node.is_updated and not node.is_capped for node in world.nodes)


def test_a_fleet_too_small_to_see_what_the_policy_bounds_asks_and_is_not_stopped() -> None:
    _, rollout = rolled_out("good", policy=policy_of(small_site()))

    assert rollout.outcome.has_asked
    assert rollout.outcome.reason.startswith("not decided in 7.0 d")
    assert "found nine times of ten" in rollout.outcome.reason
    assert rollout.outcome.touched_count == 30


def test_never_are_more_nodes_in_hand_than_the_policy_allows_and_no_job_is_killed() -> None:
    world = world_of(site=replace(small_site(), failures_per_node_day=1e-9))
    world.play(DAY / 4)
    policy = unbounded()
    rollout = OurRollout(world, policy)

    most = 0
    for _ in range(2_000):
        world.play(world.now + 300.0)
        most = max(most, sum(each.stage in IN_HAND for each in rollout.nodes))
        assert all(node.job is None or node.job.attempt == 0 for node in world.nodes)

    assert rollout.outcome.is_done
    assert most == policy.rollouts.max_out_count
    assert world.losses.recomputed == 0.0


@pytest.mark.parametrize("module", [controller, fleet_seen, gate_record, hands, peers])
def test_nothing_of_the_scenario_can_be_seen_from_where_it_is_decided(module: object) -> None:
    tree = ast.parse(Path(str(getattr(module, "__file__", ""))).read_text(encoding="utf-8"))

    names = {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
    assert "scenario" not in names
    assert not {"fails_update_ratio", "slowdown_ratio", "hangs_after_seconds", "extra_failures_per_node_day"} & names


def test_the_same_seed_rolls_out_the_same_way() -> None:
    one, same = rolled_out("slow", seed=3)[1].outcome, rolled_out("slow", seed=3)[1].outcome

    assert one == same


# -- what is counted --


def record() -> tuple[World, GateRecord]:
    world = world_of()
    return world, GateRecord(world)


def test_the_same_trouble_of_a_node_within_a_day_is_counted_once() -> None:
    world, seen = record()

    for hours in (1.0, 24.9, 49.0):
        world.play(hours * 3_600)
        seen.note_failure(7, NodeStage.PENDING)

    counts = seen.evidence((), wave=1, soak_began_at=None).counts[0]
    assert counts.control_count == 2
    assert counts.control_node_days == pytest.approx(NODE_COUNT * 49 / 24)


def test_nodes_that_are_being_changed_are_no_longer_compared_with() -> None:
    world, seen = record()
    world.play(DAY)

    for number in range(20):
        seen.note_begin(number)
    world.play(2 * DAY)
    seen.note_not_now()
    world.play(3 * DAY)

    counts = seen.evidence((), wave=1, soak_began_at=None).counts[0]
    assert counts.control_node_days == pytest.approx(NODE_COUNT + (NODE_COUNT - 20) + (NODE_COUNT - 19))


def test_names_and_numbers_of_nodes_are_the_same_thing() -> None:
    assert [number_of(name_of(each)) for each in (0, 999, 19_999)] == [0, 999, 19_999]
