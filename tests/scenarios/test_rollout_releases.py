"""Releases on the twin, end to end: a good one reaches every node, a bad one stops by itself and is taken back."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import Activation, Component
from ops_pipelines.core.rollout import NodeStage, RolloutState
from ops_pipelines_lab.simulator.journal import EntryKind
from ops_pipelines_lab.simulator.versions import ReleaseTrouble
from tests.scenarios.rollout_stage import (
    LIMITS,
    NEW_KERNEL,
    ROLLOUT_POLICY,
    RolloutStage,
    bad_kernel,
    change,
    release_of,
)
from tests.simulator.small_cluster import TRAINING

OLD_KERNEL = "6.8.0-60-generic"
_SHORT = replace(TRAINING, node_count=1, gpus_per_node=2, work_seconds=20.0)
SHORT_JOBS = tuple(replace(_SHORT, name=f"short-{number}") for number in range(40))
"""Work for every node, that ends by itself."""
LOOKED_AT_LONGER = replace(ROLLOUT_POLICY, rollouts=replace(LIMITS, soak=timedelta(seconds=20)))


def assert_nothing_is_left(stage: RolloutStage) -> None:
    """Assert that no node is drained or marked, nothing acted beside the rollout, and the ledger holds together."""
    assert stage.drained() == set()
    assert {each.node for each in stage.cluster.scheduler.read_nodes() if each.is_last_choice} == set()
    assert stage.cluster.ledger.verify_chain().first_broken_seq is None


def test_good_release_reaches_every_node_and_opens_nothing_that_acts_or_pages(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path)
    stage.start()

    most_out = 0
    while stage.rollout().state is not RolloutState.DONE:
        stage.step()
        most_out = max(most_out, len(stage.drained()))
    stage.step()

    assert set(stage.versions().values()) == {NEW_KERNEL}
    assert set(stage.stages().values()) == {"updated"}
    assert most_out == LIMITS.max_out_count
    assert stage.pages() == []
    assert [stage.cluster.ledger.records(each.incident) for each in stage.incidents()] == [()] * len(stage.incidents())
    assert_nothing_is_left(stage)


def test_release_of_two_steps_activates_one_after_the_other(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path, node_count=2)
    steps = (
        change(Component.DCGM, "4.4.2", activation=Activation.LIVE),
        change(Component.KERNEL, NEW_KERNEL, activation=Activation.REBOOT),
    )
    stage.start(release_of(*steps))

    stage.run_to()

    assert set(stage.versions(Component.DCGM).values()) == {"4.4.2"}
    assert set(stage.versions().values()) == {NEW_KERNEL}
    assert len(stage.received(EntryKind.START_INSTALL)) == 4
    assert len(stage.received(EntryKind.REBOOT)) == 2
    assert_nothing_is_left(stage)


@pytest.mark.parametrize(
    "trouble", [ReleaseTrouble.INSTALL_FAILS, ReleaseTrouble.COMES_UP_OLD, ReleaseTrouble.LOSES_GPU]
)
def test_release_that_shows_before_the_return_goes_back_after_its_canaries(
    tmp_path: Path, trouble: ReleaseTrouble
) -> None:
    stage = RolloutStage(tmp_path, release_faults=(bad_kernel(trouble),))
    stage.start()

    stage.run_to()

    assert stage.rollout().state is RolloutState.WENT_BACK
    assert set(stage.versions().values()) == {OLD_KERNEL}
    assert stage.touched_count() == 3
    assert stage.pages() == []
    assert_nothing_is_left(stage)


def test_release_that_lowers_what_a_canary_measures_goes_back(tmp_path: Path) -> None:
    slower = bad_kernel(ReleaseTrouble.SLOWER, slowdown_ratio=0.3, found_by=("nccl_loopback",))
    stage = RolloutStage(tmp_path, gpus_per_node=8, node_count=4, release_faults=(slower,))
    stage.start()

    stage.run_to()

    assert stage.rollout().state is RolloutState.WENT_BACK
    assert stage.touched_count() == 3
    assert_nothing_is_left(stage)


def test_nodes_that_never_boot_again_are_handed_to_people(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path, release_faults=(bad_kernel(ReleaseTrouble.NEVER_BOOTS),))
    stage.start()

    stage.run_to(RolloutState.STUCK)

    assert stage.touched_count() == 2  # The third canary finds no room while two are out.
    assert sorted(stage.stages().values()) == ["lost"] * 2 + ["pending"] * 4
    assert stage.drained() == {name for name, each in stage.stages().items() if each == "lost"}


@pytest.mark.parametrize("trouble", [ReleaseTrouble.XID_PRONE, ReleaseTrouble.HANGS])
def test_release_that_fails_under_load_stops_before_the_third_wave(tmp_path: Path, trouble: ReleaseTrouble) -> None:
    stage = RolloutStage(
        tmp_path,
        *SHORT_JOBS,
        policy=LOOKED_AT_LONGER,
        release_faults=(bad_kernel(trouble, after_seconds=3.0),),
    )
    stage.start()

    stage.run_while(lambda: not stage.is_at_rest())

    stages = {name: each for name, each in stage.stages().items() if name not in stage.waiting_for_incidents()}
    assert stage.rollout().state in (RolloutState.GOING_BACK, RolloutState.WENT_BACK)
    assert stage.rollout().stopped_because.startswith("common cause")
    assert stage.touched_count() <= 3
    assert set(stages.values()) <= {"back", "pending"}
    assert stage.cluster.ledger.verify_chain().first_broken_seq is None


def test_one_node_that_fails_alone_is_pulled_out_and_goes_back_while_the_rest_goes_on(tmp_path: Path) -> None:
    alone = bad_kernel(ReleaseTrouble.INSTALL_FAILS, nodes=(NodeName("gpu004"),))
    stage = RolloutStage(tmp_path, release_faults=(alone,))
    stage.start()

    stage.run_to()

    assert stage.rollout().state is RolloutState.DONE
    assert stage.stage_of("gpu004") is NodeStage.BACK
    assert stage.versions() == {
        each: OLD_KERNEL if each == "gpu004" else NEW_KERNEL for each in stage.cluster.rules.topology.places
    }
    assert_nothing_is_left(stage)


def test_one_more_pulled_node_than_allowed_asks_and_a_person_may_let_it_go_on(tmp_path: Path) -> None:
    reasons = (
        bad_kernel(ReleaseTrouble.INSTALL_FAILS, nodes=(NodeName("gpu007"),)),
        bad_kernel(ReleaseTrouble.LOSES_GPU, nodes=(NodeName("gpu009"),)),
    )
    stage = RolloutStage(tmp_path, node_count=9, release_faults=reasons)
    stage.start()

    stage.run_to(RolloutState.ASKING)
    assert "max_pulled_count is 1" in stage.rollout().reason
    stage.go_on()
    stage.run_to()

    assert stage.rollout().state is RolloutState.DONE
    assert {name for name, each in stage.stages().items() if each == "back"} == {"gpu007", "gpu009"}
    assert_nothing_is_left(stage)
