"""What happens around a rollout: freezes, windows, long jobs, faults, silence, other rollouts and repairs beside it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.identity import NodeName, RolloutId, cause_of
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.policy import DrainBudget, FreezeWindow, RolloutLimits
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import IN_HAND, NodeStage, RolloutState
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.rollouts import orders
from ops_pipelines_lab.simulator.adapters import SimulatedScheduler
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.scenarios.rollout_stage import (
    FIRST,
    LIMITS,
    NEW_KERNEL,
    PERSON,
    ROLLOUT_POLICY,
    RolloutStage,
    change,
    release_of,
)
from tests.simulator.small_cluster import TRAINING

OLD_KERNEL = "6.8.0-60-generic"
ENDLESS = replace(TRAINING, name="endless", node_count=1, gpus_per_node=2)
SECOND = RolloutId("ROLL-0002")


def limited(**options: Any) -> RolloutLimits:
    return replace(LIMITS, **options)


def in_hand(stage: RolloutStage) -> set[NodeName]:
    return {name for name, each in stage.nodes().items() if each.stage in IN_HAND}


def freeze(stage: RolloutStage, *, seconds: float) -> None:
    """Let a freeze begin now, as after an edit of policy.yaml."""
    now = stage.clock.now()
    window = FreezeWindow(name="a visit", begins_at=now, ends_at=now + timedelta(seconds=seconds))
    stage.use_policy(replace(stage.cluster.rules.policy, freeze_windows=(window,)))


def test_freeze_that_begins_in_mid_wave_lets_nodes_in_hand_be_finished_and_none_be_begun(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path)
    stage.start()
    stage.run_until_stage("gpu002", NodeStage.INSTALLING)
    freeze(stage, seconds=90)

    stage.run_while(lambda: bool(in_hand(stage)))
    for _ in range(6):
        stage.step()
    during = stage.touched_count()
    stage.run_to()

    assert during == 3
    assert stage.rollout().state is RolloutState.DONE
    assert set(stage.versions().values()) == {NEW_KERNEL}


def test_calendar_that_is_not_there_begins_no_node(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path)
    stage.start()
    stage.files.is_there = False

    for _ in range(4):
        stage.step()

    assert stage.touched_count() == 0
    assert "calendar" in stage.reports[-1].problems[0]


def test_window_that_closes_ends_the_beginning_of_nodes_and_the_next_goes_on(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path)
    stage.start()
    stage.run_until_stage("gpu004", NodeStage.INSTALLING)
    freeze(stage, seconds=3600)
    stage.run_while(lambda: bool(in_hand(stage)))
    stage.let_pass(3600)

    stage.run_to()

    assert stage.rollout().state is RolloutState.DONE


def test_node_whose_job_does_not_end_is_put_back_tried_again_last_and_then_left_out(tmp_path: Path) -> None:
    policy = replace(ROLLOUT_POLICY, rollouts=limited(job_end_limit=timedelta(seconds=20), canary_counts=(1, 5)))
    stage = RolloutStage(tmp_path, replace(ENDLESS, node_count=2), node_count=8, policy=policy)
    stage.start()
    busy = {each for each, truth in stage.nodes().items() if stage.node(each).gpu_in_use_count}

    stage.run_to()

    assert stage.rollout().state is RolloutState.DONE
    assert {each for each, found in stage.stages().items() if found != "updated"} == busy
    assert {stage.nodes()[each].wave for each in busy} == {len(stage.rollout().waves)}
    assert stage.job("endless").restart_count == 0
    assert stage.drained() == set()


def test_broken_node_is_passed_over_until_its_incident_is_over(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path, node_count=4)
    stage.start()
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu003", gpu=0)

    stage.run_to()

    repairs = [each for each in stage.incidents() for each in stage.cluster.ledger.records(each.incident)]
    assert {each.action.node for each in repairs if each.action.node} == {"gpu003"}
    assert stage.rollout().state is RolloutState.DONE
    assert set(stage.versions().values()) == {NEW_KERNEL}


def test_fault_on_a_soaking_node_goes_its_own_way(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path, node_count=4)
    stage.start()
    stage.run_until_stage("gpu002", NodeStage.SOAKING)
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu002", gpu=0)

    stage.run_to()

    assert stage.rollout().state is RolloutState.DONE
    assert any(each.state is IncidentState.RESOLVED and each.plan_count for each in stage.incidents())
    assert stage.drained() == set()


def test_node_that_breaks_while_it_only_drains_is_given_to_its_incident(tmp_path: Path) -> None:
    long_enough = replace(ENDLESS, work_seconds=40.0, node_count=4)
    stage = RolloutStage(tmp_path, long_enough, node_count=4)
    stage.start()
    stage.run_until_stage("gpu001", NodeStage.DRAINING)
    stage.step()
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=0)

    stage.run_to(seconds=900)

    assert any(each.plan_count for each in stage.incidents())
    assert stage.rollout().state is RolloutState.DONE
    assert stage.drained() == set()


def test_node_that_is_silent_for_good_in_mid_install_is_lost_and_the_others_go_on(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path, node_count=5)
    stage.start()
    stage.run_until_stage("gpu004", NodeStage.INSTALLING)
    stage.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu004", gpu=None)

    stage.run_while(lambda: stage.stage_of("gpu004") is not NodeStage.LOST)
    stage.run_to()

    assert stage.rollout().state is RolloutState.DONE
    assert stage.drained() == {"gpu004"}
    assert sorted(stage.stages().values()) == ["lost"] + ["updated"] * 4


class Failing:
    """A port of which some calls do not come back, as long as `fails` says so."""

    def __init__(self, port: object, *names: str, problem: Callable[[], Exception]) -> None:
        self.port, self.names, self.problem = port, names, problem
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        if self.fails and (name in self.names or not self.names):
            raise self.problem()
        return getattr(self.port, name)


def no_answer() -> Exception:
    return SourceUnavailable("no answer within 5 s")


@pytest.mark.parametrize(
    ("port", "names"),
    [
        ("fleet", ()),
        ("scheduler", ()),
        ("scheduler", ("resume",)),
        ("telemetry", ()),
    ],
    ids=["BMC and nodes", "scheduler", "returns alone", "metrics"],
)
def test_what_does_not_answer_for_a_while_delays_and_spoils_nothing(
    tmp_path: Path, port: str, names: tuple[str, ...]
) -> None:
    stage = RolloutStage(tmp_path, node_count=3)
    failing = Failing(getattr(stage.cluster, port), *names, problem=no_answer)
    stage.cluster = replace(stage.cluster, **cast("Any", {port: failing}))
    stage.start()
    for number in range(12):
        failing.fails = number % 3 != 0
        stage.step()
    failing.fails = False

    stage.run_to()

    assert stage.rollout().state is RolloutState.DONE
    assert set(stage.versions().values()) == {NEW_KERNEL}
    assert stage.drained() == set()


def test_ledger_that_cannot_be_written_for_a_while_loses_nothing(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path, node_count=3)
    ledger = Failing(stage.cluster.ledger, "finish", "change_rollout", problem=lambda: LedgerError("disk full"))
    stage.cluster = replace(stage.cluster, ledger=cast("Any", ledger))
    stage.start()
    problems = 0
    for number in range(12):
        ledger.fails = number % 2 == 1
        try:
            stage.step()
        except LedgerError:
            problems += 1
            stage.let_pass(3)
    ledger.fails = False

    stage.run_to()

    assert problems
    assert stage.rollout().state is RolloutState.DONE
    assert len(stage.received(EntryKind.REBOOT)) == len(stage.received(EntryKind.START_INSTALL)) == 3


def test_two_rollouts_on_different_nodes_share_what_may_be_out(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path, node_count=6)
    names = list(stage.cluster.rules.topology.places)
    live = change(Component.DCGM, "4.4.2")
    stage.start(release_of(live, name="dcgm", opted_out=frozenset(names[3:])))
    stage.start(release_of(change(Component.KERNEL, NEW_KERNEL), name="kernel", opted_out=frozenset(names[:3])))

    most_out = 0
    while any(stage.rollout(each).state is not RolloutState.DONE for each in (FIRST, SECOND)):
        stage.step()
        most_out = max(most_out, len(stage.drained()))

    assert most_out == LIMITS.max_out_count
    assert stage.drained() == set()
    assert all(
        {each.action.node for each in stage.cluster.ledger.records(cause_of(rollout))} <= set(part)
        for rollout, part in ((FIRST, names[:3]), (SECOND, names[3:]))
    )


def test_rollout_waits_where_repairs_have_used_the_budget_up(tmp_path: Path) -> None:
    budget = DrainBudget(max_out_count=1, max_out_per_rack_count=4, min_in_service_ratio=0.0)
    stage = RolloutStage(tmp_path, policy=replace(ROLLOUT_POLICY, drain_budget=budget), node_count=4)
    stage.start()
    stage.step()
    orders.pause(FIRST, stage.cluster, actor=PERSON, reason="first the fault")
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu004", gpu=0)
    stage.step()
    stage.go_on()

    most_out = 0
    while stage.rollout().state is not RolloutState.DONE:
        stage.step()
        most_out = max(most_out, len(stage.drained()))

    assert most_out == 1
    assert all(each.state is IncidentState.RESOLVED for each in stage.incidents())


def test_wide_job_is_kept_off_a_canary_while_it_soaks_and_let_on_again(tmp_path: Path) -> None:
    policy = replace(ROLLOUT_POLICY, rollouts=limited(gang_cap_node_count=2, soak=timedelta(seconds=30)))
    stage = RolloutStage(tmp_path, ENDLESS, policy=policy)
    stage.start()
    stage.run_while(lambda: NodeStage.SOAKING.value not in stage.stages().values())
    canaries = {name for name, each in stage.stages().items() if each == NodeStage.SOAKING.value}
    stage.twin.submit(replace(ENDLESS, name="wide", node_count=6))
    stage.step()
    during = stage.job("wide").excluded_nodes
    orders.abort(FIRST, stage.cluster, actor=PERSON, reason="it is urgent")
    for _ in range(3):
        stage.step()

    assert during == canaries
    assert stage.job("wide").excluded_nodes == frozenset()


def test_node_that_somebody_drained_over_ours_is_put_back_when_they_return_it(tmp_path: Path) -> None:
    stage = RolloutStage(tmp_path, replace(ENDLESS, node_count=3), node_count=3)
    stage.start()
    canary = stage.rollout().waves[0].nodes[0]
    stage.run_until_stage(canary, NodeStage.DRAINING)
    stage.run_while(lambda: canary not in stage.drained())
    theirs = SimulatedScheduler(stage.twin)
    theirs.resume(canary)
    theirs.drain([canary], reason="OPS-17 cable swap")

    orders.send_back(FIRST, stage.cluster, actor=PERSON, reason="not today")
    stage.advance()
    waiting = stage.nodes()[canary]
    theirs.resume(canary)
    stage.run_to()

    assert waiting.stage is NodeStage.DRAINING
    assert "drained by someone else (OPS-17 cable swap)" in waiting.reason
    assert stage.stage_of(canary) is NodeStage.SKIPPED
    assert stage.rollout().state is RolloutState.WENT_BACK
    assert not stage.drained()
