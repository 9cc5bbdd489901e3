"""What people say to a rollout while it runs: each order holds at once, and nothing is left half-way by it."""

from dataclasses import replace
from pathlib import Path

import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.policy import ActionClass, Consent
from ops_pipelines.core.release import Activation, Component, Reversibility
from ops_pipelines.core.rollout import IN_HAND, NodeStage, RolloutState
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.rollouts import orders
from ops_pipelines_lab.simulator.versions import ReleaseTrouble
from tests.scenarios.rollout_stage import (
    FIRST,
    NEW_KERNEL,
    PERSON,
    ROLLOUT_POLICY,
    RolloutStage,
    bad_kernel,
    change,
    release_of,
)

OLD_KERNEL = "6.8.0-60-generic"


def begun(directory: Path, **options: object) -> RolloutStage:
    """Return a stage whose rollout is in its second wave, with both nodes of it in hand."""
    stage = RolloutStage(directory, **{"node_count": 4, **options})  # type: ignore[arg-type]  # what RolloutStage takes
    stage.start()
    stage.run_until_stage("gpu002", NodeStage.ACTIVATING)
    return stage


def in_hand(stage: RolloutStage) -> set[NodeName]:
    return {name for name, each in stage.nodes().items() if each.stage in IN_HAND}


def test_pause_finishes_the_nodes_in_hand_and_begins_no_other_until_it_is_lifted(tmp_path: Path) -> None:
    stage = begun(tmp_path)
    orders.pause(FIRST, stage.cluster, actor=PERSON, reason="a visit")

    stage.run_while(lambda: bool(in_hand(stage)))
    for _ in range(5):
        stage.step()
    paused = stage.stages()
    stage.go_on()
    stage.run_to()

    assert sorted(paused.values()) == ["pending"] + ["soaking"] * 2 + ["updated"]
    assert stage.rollout().state is RolloutState.DONE
    assert set(stage.versions().values()) == {NEW_KERNEL}


def test_abort_finishes_the_nodes_in_hand_and_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    stage = begun(tmp_path)
    orders.abort(FIRST, stage.cluster, actor=PERSON, reason="not today")

    stage.run_to()
    stage.step()

    assert stage.rollout().state is RolloutState.ABORTED
    assert sorted(stage.versions().values()) == [OLD_KERNEL] + [NEW_KERNEL] * 3
    assert stage.drained() == set()
    assert not any(each.is_last_choice for each in stage.cluster.scheduler.read_nodes())


def test_abort_takes_a_node_back_first_that_was_pulled_out(tmp_path: Path) -> None:
    alone = bad_kernel(ReleaseTrouble.INSTALL_FAILS, nodes=(NodeName("gpu002"),))
    stage = RolloutStage(tmp_path, node_count=4, release_faults=(alone,))
    stage.start()
    stage.run_until_stage("gpu002", NodeStage.INSTALLING)
    orders.abort(FIRST, stage.cluster, actor=PERSON, reason="not today")

    stage.run_to()

    assert stage.stage_of("gpu002") is NodeStage.BACK
    assert stage.drained() == set()


def test_order_to_go_back_turns_nodes_round_where_they_stand(tmp_path: Path) -> None:
    stage = begun(tmp_path)
    orders.send_back(FIRST, stage.cluster, actor=PERSON, reason="a bug report")

    stage.run_to()

    assert stage.rollout().state is RolloutState.WENT_BACK
    assert set(stage.versions().values()) == {OLD_KERNEL}
    assert sorted(stage.stages().values()) == ["back"] * 3 + ["pending"]
    assert stage.drained() == set()


def test_lost_nodes_are_tried_once_more_when_somebody_sends_a_stuck_rollout_back_again(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path, release_faults=(bad_kernel(ReleaseTrouble.NEVER_BOOTS),))
    stage.start()
    stage.run_to(RolloutState.STUCK)
    stage.twin.repair_by_hand("gpu001")
    orders.send_back(FIRST, stage.cluster, actor=PERSON, reason="gpu001 was booted from the network")

    stage.run_to(RolloutState.STUCK, RolloutState.WENT_BACK)

    assert stage.touched_count() == 2
    assert stage.nodes()[NodeName("gpu001")].try_number > 3


def test_node_that_is_left_out_keeps_what_it_has(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path, node_count=5)
    stage.start()
    orders.skip(FIRST, NodeName("gpu005"), stage.cluster, actor=PERSON, reason="a paper is due")

    stage.run_to()

    assert stage.versions()[NodeName("gpu005")] == OLD_KERNEL
    assert stage.stage_of("gpu005") is NodeStage.SKIPPED


def test_node_in_hand_is_not_left_out(tmp_path: Path) -> None:
    stage = begun(tmp_path)

    with pytest.raises(ByHandRefused, match="it is finished first"):
        orders.skip(FIRST, NodeName("gpu002"), stage.cluster, actor=PERSON, reason="a paper is due")


def test_rollout_that_needs_a_yes_touches_nothing_before_it(tmp_path: Path) -> None:
    policy = replace(ROLLOUT_POLICY, consents={ActionClass.UPDATE: Consent.APPROVE})
    stage = RolloutStage(tmp_path, node_count=2, policy=policy)
    stage.start()
    for _ in range(3):
        stage.step()
    before = stage.touched_count()
    orders.say_yes(FIRST, stage.cluster, actor=PERSON)

    stage.run_to()

    assert before == 0
    assert stage.rollout().state is RolloutState.DONE


def test_what_cannot_go_back_asks_for_each_wave(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path, node_count=4)
    no_way_back = change(
        Component.KERNEL, NEW_KERNEL, activation=Activation.REBOOT, reversibility=Reversibility.NO, rollback=()
    )
    stage.start(release_of(no_way_back))

    touched = []
    while stage.rollout().state is RolloutState.AWAITING_YES:
        touched.append(stage.touched_count())
        orders.say_yes(FIRST, stage.cluster, actor=PERSON)
        stage.run_to(RolloutState.AWAITING_YES, RolloutState.DONE)

    assert touched == [0, 1, 3]
    assert stage.rollout().state is RolloutState.DONE


def test_what_cannot_go_back_is_not_sent_back(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path, node_count=4)
    no_way_back = change(Component.KERNEL, NEW_KERNEL, reversibility=Reversibility.NO, rollback=())
    stage.start(release_of(no_way_back))

    with pytest.raises(ByHandRefused, match="cannot roll back"):
        orders.send_back(FIRST, stage.cluster, actor=PERSON, reason="a bug report")
