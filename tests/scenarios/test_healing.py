"""Faults to their stated end: which commands the cluster gets, in which order, and what is left afterwards."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.action import OutcomeKind
from ops_pipelines.core.cluster import Fleet
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import JobState, NodeInspection
from ops_pipelines_lab.simulator import ground_truth
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.simulator.small_cluster import SESSION, TRAINING

REBOOTED = [
    EntryKind.DRAIN,
    EntryKind.RESERVE,
    EntryKind.HOLD,
    EntryKind.EXCLUDE,
    EntryKind.UNRESERVE,
    EntryKind.RELEASE,
    EntryKind.REBOOT,
    EntryKind.START_CHECK,
    EntryKind.RESUME,
]
POWER_CYCLED = [
    EntryKind.HOLD,
    EntryKind.DRAIN,
    EntryKind.POWER_OFF,
    EntryKind.DECLARE_DOWN,
    EntryKind.EXCLUDE,
    EntryKind.RELEASE,
    EntryKind.POWER_ON,
    EntryKind.START_CHECK,
    EntryKind.RESUME,
]
RESET = [kind if kind is not EntryKind.REBOOT else EntryKind.RESET_GPU for kind in REBOOTED]
IDLE_REBOOTED = [EntryKind.DRAIN, EntryKind.REBOOT, EntryKind.START_CHECK, EntryKind.RESUME]
OF_JOBS = (EntryKind.RESERVE, EntryKind.HOLD, EntryKind.UNRESERVE, EntryKind.RELEASE)
"""Of these the node that is broken is none."""


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5)
    autopilot.let_pass(15)
    return autopilot


def saved_steps(autopilot: SmallAutopilot) -> int:
    return ground_truth.read_progress(autopilot.twin)[0].checkpointed_step_count


def assert_all_is_well(autopilot: SmallAutopilot) -> None:
    """Nothing is drained or broken, every action is witnessed, no job ever had two writers, the ledger is whole."""
    assert ground_truth.read_split_brains(autopilot.twin) == ()
    assert [node.node for node in ground_truth.read_nodes(autopilot.twin) if not node.is_healthy] == []
    for status in autopilot.cluster.scheduler.read_nodes():
        assert not status.is_drained
        assert status.is_responding
    assert autopilot.cluster.ledger.verify_chain().first_broken_seq is None
    outcomes = {
        record.outcome.kind if record.outcome is not None else None
        for incident in autopilot.incidents()
        for record in autopilot.cluster.ledger.records(incident.incident)
    }
    assert outcomes == {OutcomeKind.DONE}


@pytest.mark.parametrize(
    ("fault", "gpu", "commands"),
    [
        pytest.param(FaultKind.GPU_FELL_OFF_BUS, 3, REBOOTED, id="Xid 79: reboot"),
        pytest.param(FaultKind.NODE_UNREACHABLE, None, POWER_CYCLED, id="silent node: power cycle"),
        pytest.param(FaultKind.UNCORRECTABLE_ECC, 2, RESET, id="ECC with Xid 154: reset of the GPU"),
    ],
)
def test_broken_node_is_emptied_repaired_proven_and_returned(
    autopilot: SmallAutopilot, fault: FaultKind, gpu: int | None, commands: list[EntryKind]
) -> None:
    before, saved_before = autopilot.job(), saved_steps(autopilot)
    autopilot.twin.inject(fault, "gpu001", gpu=gpu)

    autopilot.run_until(IncidentState.RESOLVED)
    autopilot.run_for(25)

    after = autopilot.job()
    assert len(autopilot.incidents()) == 1
    assert autopilot.commands() == commands
    assert (after.job, after.state, after.restart_count) == (before.job, JobState.RUNNING, before.restart_count + 1)
    assert "gpu001" not in after.nodes
    assert saved_steps(autopilot) > saved_before
    assert [message.recipient for message in autopilot.owners_told()] == ["research-train"]
    assert autopilot.pages() == []
    assert_all_is_well(autopilot)


def test_memory_error_resets_the_damaged_gpu_and_no_other(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=2)

    autopilot.run_until(IncidentState.RESOLVED)

    damaged = autopilot.received(EntryKind.FAULT)[0].gpu
    assert [entry.gpu for entry in autopilot.received(EntryKind.RESET_GPU)] == [damaged]
    assert [node.boot_count for node in ground_truth.read_nodes(autopilot.twin)] == [1] * 5


def test_application_error_tells_the_owner_once_and_touches_nothing(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.APPLICATION_XID31, "gpu001", gpu=0)

    autopilot.run_for(30)

    assert autopilot.incident().state is IncidentState.RESOLVED
    assert autopilot.incident().nodes == frozenset()
    assert autopilot.commands() == []
    assert [message.recipient for message in autopilot.owners_told()] == ["research-train"]
    assert autopilot.pages() == []
    assert_all_is_well(autopilot)


def test_many_silent_nodes_are_one_incident_that_pages_once_and_closes_when_the_network_is_back(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=8)
    autopilot.let_pass(15)
    names = [f"gpu00{number}" for number in range(1, 8)]
    autopilot.twin.inject(FaultKind.NETWORK_PARTITION, *names, seconds=40)

    autopilot.run_for(30)
    during = [incident for incident in autopilot.incidents() if incident.is_open]
    autopilot.run_for(60)

    (mass,) = during
    assert mass.response is Response.PAGE_MASS_EVENT
    assert mass.state is IncidentState.ESCALATED
    assert mass.nodes == frozenset(names)
    assert len(autopilot.pages()) == 1
    assert autopilot.commands() == []
    assert autopilot.owners_told() == []
    assert [incident for incident in autopilot.incidents() if incident.is_open] == []
    assert_all_is_well(autopilot)


def test_faults_on_two_nodes_at_once_are_healed_side_by_side(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, TRAINING, replace(TRAINING, name="second"), node_count=8)
    autopilot.let_pass(15)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu003")

    autopilot.run_until(IncidentState.RESOLVED)

    by_node = {
        node: [e.kind for e in autopilot.received(*REBOOTED, *POWER_CYCLED) if node in e.nodes]
        for node in ("gpu001", "gpu003")
    }
    assert len(autopilot.incidents()) == 2
    assert by_node == {
        "gpu001": [kind for kind in REBOOTED if kind not in OF_JOBS],
        "gpu003": [kind for kind in POWER_CYCLED if kind not in OF_JOBS],
    }
    assert [autopilot.job(name).restart_count for name in ("pretrain", "second")] == [1, 1]
    assert_all_is_well(autopilot)


def test_faults_on_both_nodes_of_one_job_move_the_job_without_a_second_writer(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu002", gpu=5)

    autopilot.run_until(IncidentState.RESOLVED)
    autopilot.run_for(10)

    assert len(autopilot.incidents()) == 2
    assert autopilot.job().state is JobState.RUNNING
    assert not autopilot.job().nodes & {"gpu001", "gpu002"}
    assert len(autopilot.received(EntryKind.REBOOT)) == 2
    assert_all_is_well(autopilot)


def test_stronger_fault_on_the_same_node_while_we_act_supersedes_the_plan(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, replace(SESSION, work_seconds=60.0), node_count=5)
    autopilot.let_pass(15)
    (node,) = autopilot.job("notebook").nodes
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, node, gpu=2)
    autopilot.run_once()
    state_before = autopilot.incident().state
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node, gpu=3)

    autopilot.run_until(IncidentState.RESOLVED)

    assert state_before is IncidentState.ACTING
    assert autopilot.incident().plan_count == 2
    assert autopilot.received(EntryKind.RESET_GPU) == ()
    assert len(autopilot.received(EntryKind.REBOOT)) == 1
    assert len({entry.reason for entry in autopilot.received(EntryKind.DRAIN)}) == 1
    assert_all_is_well(autopilot)


def test_the_same_fault_again_while_we_act_joins_and_is_covered_by_the_repair(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.observe_and_decide()
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=6)
    autopilot.act_and_verify()

    autopilot.run_until(IncidentState.RESOLVED)

    assert autopilot.commands() == REBOOTED
    assert autopilot.incident().plan_count == 1


def test_node_with_a_job_that_must_not_be_requeued_waits_for_its_end_and_then_heals(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, replace(SESSION, work_seconds=90.0), node_count=5)
    autopilot.let_pass(15)
    (node,) = autopilot.job("notebook").nodes
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node, gpu=7)

    autopilot.run_for(40)
    while_it_runs = autopilot.commands()
    state_before = autopilot.job("notebook").state
    autopilot.run_until(IncidentState.RESOLVED)

    assert state_before is JobState.RUNNING
    assert while_it_runs == [EntryKind.DRAIN]
    assert autopilot.job("notebook").state is JobState.COMPLETED
    assert autopilot.commands() == IDLE_REBOOTED
    (told,) = autopilot.owners_told()
    assert "It is left running: it may not be requeued" in told.body
    assert_all_is_well(autopilot)


@pytest.mark.parametrize("passes_before", [0, 1])
def test_job_that_ends_between_plan_and_act_needs_no_hold(autopilot: SmallAutopilot, passes_before: int) -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.observe_and_decide()
    autopilot.twin.command(EntryKind.CANCEL, job=autopilot.job().job)
    autopilot.let_pass(2.0 * passes_before)  # KillWait is 1 s: still completing, or over

    autopilot.act_and_verify()
    autopilot.run_until(IncidentState.RESOLVED)

    of_room = (EntryKind.RESERVE, EntryKind.UNRESERVE)
    assert [kind for kind in autopilot.commands() if kind not in of_room] == IDLE_REBOOTED
    assert autopilot.job().state is JobState.CANCELLED
    assert autopilot.pages() == []


def test_node_that_answers_again_before_its_power_is_cut_keeps_its_power(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.NETWORK_PARTITION, "gpu001", seconds=14)
    autopilot.let_pass(3)
    autopilot.observe_and_decide()
    autopilot.let_pass(6)
    autopilot.observe_and_decide()
    autopilot.let_pass(7)

    autopilot.act_and_verify()
    autopilot.run_until(IncidentState.RESOLVED)
    autopilot.run_for(10)

    assert autopilot.received(EntryKind.POWER_OFF, EntryKind.DECLARE_DOWN, EntryKind.POWER_ON) == ()
    assert autopilot.job().state is JobState.RUNNING
    assert_all_is_well(autopilot)


def test_short_silence_that_ends_before_it_is_believed_costs_nothing(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.NETWORK_PARTITION, "gpu001", seconds=4)

    autopilot.run_for(30)

    assert autopilot.incident().state is IncidentState.RESOLVED
    assert autopilot.commands() == []
    assert autopilot.job().restart_count == 0


class FaultAfterBoot:
    """A fleet whose nodes lose a GPU again as soon as they are up after a reboot."""

    def __init__(self, autopilot: SmallAutopilot) -> None:
        self._fleet = autopilot.cluster.fleet
        self._autopilot = autopilot

    def __getattr__(self, name: str) -> object:
        return getattr(self._fleet, name)

    def inspect(self, node: NodeName) -> NodeInspection:
        found = self._fleet.inspect(node)
        faults = self._autopilot.received(EntryKind.FAULT)
        if found.booted_at > faults[-1].at:
            self._autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node, gpu=3)
        return found


def test_fault_that_outlives_every_repair_is_queued_for_hands_once_and_the_node_stays_drained(
    autopilot: SmallAutopilot,
) -> None:
    autopilot.cluster = replace(autopilot.cluster, fleet=cast("Fleet", FaultAfterBoot(autopilot)))
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)

    autopilot.run_until(IncidentState.IN_REPAIR)
    autopilot.run_for(60)

    assert autopilot.incident().state is IncidentState.IN_REPAIR
    assert [each.response for each in autopilot.incident().tries] == [Response.REBOOT_NODE, Response.POWER_CYCLE]
    assert autopilot.node("gpu001").is_drained
    assert len(autopilot.pages()) == 1
    assert autopilot.received(EntryKind.RESUME) == ()
    assert autopilot.job().state is JobState.RUNNING
    assert "gpu001" not in autopilot.job().nodes


def test_idle_broken_node_is_healed_without_touching_any_job(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu005", gpu=3)

    autopilot.run_until(IncidentState.RESOLVED)

    assert autopilot.commands() == IDLE_REBOOTED
    assert autopilot.owners_told() == []
    assert autopilot.job().restart_count == 0


def test_passes_over_a_healed_cluster_send_nothing(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.run_until(IncidentState.RESOLVED)
    before, told_before = autopilot.commands(), len(autopilot.messages.messages)

    autopilot.run_for(30)

    assert autopilot.commands() == before
    assert len(autopilot.messages.messages) == told_before


def test_budget_lets_one_node_after_another_be_repaired(tmp_path: Path) -> None:
    budget = replace(POLICY.drain_budget, max_out_count=1)
    autopilot = SmallAutopilot(tmp_path, node_count=5, policy=replace(POLICY, drain_budget=budget))
    for name in ("gpu001", "gpu002", "gpu003"):
        autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, name, gpu=0)

    autopilot.run_until(IncidentState.RESOLVED, seconds=200)

    in_and_out = [entry.kind for entry in autopilot.received(EntryKind.DRAIN, EntryKind.RESUME)]
    assert in_and_out == [EntryKind.DRAIN, EntryKind.RESUME] * 3
    assert [entry.nodes for entry in autopilot.received(EntryKind.REBOOT)] == [("gpu001",), ("gpu002",), ("gpu003",)]
