"""What must not harm a rollout: the kill switch, our own absence, another process, a stop of what cannot be rolled
back."""

from dataclasses import replace
from pathlib import Path

import pytest

from ops_pipelines.core.entries import Pause
from ops_pipelines.core.policy import Mode
from ops_pipelines.core.release import Component, Reversibility
from ops_pipelines.core.rollout import IN_HAND, NodeStage, RolloutState
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.rollouts import orders
from ops_pipelines.rollouts.cycle import advance_rollouts
from ops_pipelines.rollouts.gate.evidence import GateVerdict, VerdictKind
from tests.scenarios.rollout_stage import FIRST, NEW_KERNEL, PERSON, RolloutStage, change, release_of

NO_WAY_BACK = release_of(
    replace(change(Component.KERNEL, NEW_KERNEL), reversibility=Reversibility.NO, rollback=()),
)


def test_what_cannot_go_back_is_not_drained_when_the_gate_stops_it(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path)
    stage.start(NO_WAY_BACK)
    orders.say_yes(FIRST, stage.cluster, actor=PERSON)
    stage.run_to(RolloutState.AWAITING_YES)
    orders.say_yes(FIRST, stage.cluster, actor=PERSON)
    stop = GateVerdict(kind=VerdictKind.STOP, reason="two nodes failed", tests=())

    for _ in range(8):
        advance_rollouts(stage.cluster, lease=stage.lease, judging=lambda *_: lambda *_: stop)
        stage.let_pass(3)

    assert stage.rollout().state is RolloutState.ASKING
    assert stage.rollout().stopped_because == "two nodes failed; a part of it cannot be rolled back"
    assert NodeStage.LOST.value not in stage.stages().values()
    assert stage.drained() == set()


@pytest.mark.parametrize(
    "where",
    [NodeStage.INSTALLING, NodeStage.ACTIVATING, NodeStage.VERIFYING, NodeStage.TESTING],
    ids=lambda each: each.value,
)
def test_nobody_looking_for_half_an_hour_makes_no_node_fail(tmp_path: Path, where: NodeStage) -> None:
    stage = RolloutStage(tmp_path)
    stage.start()
    stage.run_until_stage("gpu001", where)

    stage.let_pass(1_800)
    stage.run_until_stage("gpu001", NodeStage.SOAKING, NodeStage.PULLED, NodeStage.BACK)

    assert stage.stage_of("gpu001") is NodeStage.SOAKING
    assert [each.failure for each in stage.nodes().values() if each.failure] == []


def test_paused_autopilot_begins_no_node_and_blames_the_pause_on_none(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path)
    stage.start()
    stage.run_until_stage("gpu001", NodeStage.INSTALLING)
    stage.cluster.ledger.pause(Pause(actor=PERSON, since=stage.clock.now(), reason="a look"))

    for _ in range(12):
        stage.advance()
        stage.let_pass(50)
    in_hand = {each.node for each in stage.nodes().values() if each.stage in IN_HAND}
    said = stage.reports[-1].problems
    stage.cluster.ledger.resume_autopilot(actor=PERSON, now=stage.clock.now())
    stage.run_to(RolloutState.DONE)

    assert in_hand == {"gpu001"}
    assert said == (f"no node is started: {PERSON} paused the autopilot (a look)",)
    assert [each.failure for each in stage.nodes().values() if each.failure] == []


@pytest.mark.parametrize("obstacle", ["paused", "observing", "another process"])
def test_who_may_not_act_neither_begins_a_node_nor_keeps_a_job_off(tmp_path: Path, obstacle: str) -> None:
    stage = RolloutStage(tmp_path)
    stage.start()
    lease = stage.lease
    if obstacle == "paused":
        stage.cluster.ledger.pause(Pause(actor=PERSON, since=stage.clock.now(), reason="a look"))
    elif obstacle == "observing":
        stage.use_policy(replace(stage.cluster.rules.policy, mode=Mode.OBSERVE))
    else:
        lease = Lease(holder="late", given="a token of yesterday")

    report = advance_rollouts(stage.cluster, lease=lease)

    assert set(stage.stages().values()) == {NodeStage.PENDING.value}
    assert report.problems
