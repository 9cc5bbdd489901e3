"""What people say and do beside us: modes, approvals, pause, foreign drains, nodes that are none of our business."""

from dataclasses import replace
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from ops_pipelines.core.entries import Approval
from ops_pipelines.core.entries import EntryKind as LedgerEntryKind
from ops_pipelines.core.identity import NodeName, PlanId, Topology
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.policy import Mode
from ops_pipelines.core.sources import LogBatch, LogLine
from ops_pipelines.people import orders
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.report.terminal import print_document
from ops_pipelines.terminal.incidents import incidents_document, read_incidents
from ops_pipelines_lab.simulator import ground_truth
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.simulator.small_cluster import TRAINING

XID_79 = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=python3, GPU has fallen off the bus."
XID_UNKNOWN = "NVRM: Xid (PCI:0000:1b:00): 997, pid=1, name=python3, something new"
MAINTENANCE = "rack 1: new switch (day-shift)"


class OneLine:
    """A log source with a single line."""

    source = "one_line"

    def __init__(self, autopilot: SmallAutopilot, *, node: str, text: str) -> None:
        self._line = LogLine(node=node, written_at=autopilot.clock.now(), position="line:0", text=text)

    def read_new(self, cursor: str | None, *, max_lines: int) -> LogBatch:
        return LogBatch(lines=() if cursor else (self._line,), cursor="line:1")


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5)
    autopilot.let_pass(15)
    return autopilot


def lose_gpu(autopilot: SmallAutopilot, node: str = "gpu001") -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node, gpu=3)


def latest_plan(autopilot: SmallAutopilot) -> PlanId:
    (*_, plan) = autopilot._plans
    return plan.plan


def stop_after(autopilot: SmallAutopilot, kind: EntryKind) -> None:
    """Run passes that never wait until the cluster got a command of this kind: the plan is then under way."""
    durations = replace(POLICY.durations, run_patience=timedelta(seconds=0))
    autopilot.use_policy(replace(POLICY, durations=durations))
    for _ in range(30):
        if kind in autopilot.commands():
            break
        autopilot.run_once()
        autopilot.let_pass(0.5)
    autopilot.use_policy(POLICY)


# -- modes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [FaultKind.GPU_FELL_OFF_BUS, FaultKind.NODE_UNREACHABLE, FaultKind.APPLICATION_XID31])
def test_who_only_observes_plans_but_sends_no_command_and_tells_no_owner(
    autopilot: SmallAutopilot, fault: FaultKind
) -> None:
    autopilot.use_policy(replace(POLICY, mode=Mode.OBSERVE))
    autopilot.twin.inject(fault, "gpu001", gpu=None if fault is FaultKind.NODE_UNREACHABLE else 3)

    autopilot.run_for(40)

    assert autopilot.incident().state is IncidentState.OPEN
    assert autopilot._plans != ()
    assert autopilot.commands() == []
    assert autopilot.messages.messages == []


def test_plan_waits_for_a_yes_and_is_carried_out_to_the_end_after_it(autopilot: SmallAutopilot) -> None:
    autopilot.use_policy(replace(POLICY, mode=Mode.APPROVE))
    lose_gpu(autopilot)

    autopilot.run_for(20)
    before = (autopilot.commands(), autopilot.messages.messages[:])
    orders.approve(latest_plan(autopilot), autopilot.cluster, actor="day-shift", valid_for=timedelta(seconds=5))
    autopilot.run_until(IncidentState.RESOLVED)

    assert before == ([], [])
    assert autopilot.received(EntryKind.REBOOT, EntryKind.RESUME) != ()
    assert ground_truth.read_nodes(autopilot.twin)[0].is_healthy


def test_yes_that_has_expired_does_nothing(autopilot: SmallAutopilot) -> None:
    autopilot.use_policy(replace(POLICY, mode=Mode.APPROVE))
    lose_gpu(autopilot)
    autopilot.run_once()
    orders.approve(latest_plan(autopilot), autopilot.cluster, actor="day-shift", valid_for=timedelta(seconds=5))
    autopilot.let_pass(5)

    autopilot.run_for(20)

    assert autopilot.commands() == []
    assert autopilot.incident().state is IncidentState.OPEN


def test_yes_that_expires_after_the_plan_is_in_force_and_before_its_first_act_needs_a_new_yes(
    autopilot: SmallAutopilot,
) -> None:
    autopilot.use_policy(replace(POLICY, mode=Mode.APPROVE))
    lose_gpu(autopilot)
    autopilot.run_once()
    plan = latest_plan(autopilot)
    orders.approve(plan, autopilot.cluster, actor="day-shift", valid_for=timedelta(seconds=30))
    lease, autopilot.lease = autopilot.lease, Lease(holder="old", given="an outdated token")
    autopilot.run_once()
    autopilot.lease = lease
    autopilot.let_pass(30)

    autopilot.run_for(20)
    in_force = (autopilot.incident().state, autopilot.commands())
    orders.approve(plan, autopilot.cluster, actor="day-shift", valid_for=timedelta(hours=1))
    autopilot.run_until(IncidentState.RESOLVED)

    assert in_force == (IncidentState.ACTING, [])
    assert EntryKind.REBOOT in autopilot.commands()


def test_yes_to_a_plan_that_has_changed_since_does_nothing(autopilot: SmallAutopilot) -> None:
    autopilot.use_policy(replace(POLICY, mode=Mode.APPROVE))
    lose_gpu(autopilot)
    autopilot.run_once()
    approved = latest_plan(autopilot)
    orders.approve(approved, autopilot.cluster, actor="day-shift", valid_for=timedelta(hours=1))
    autopilot.twin.command(EntryKind.CANCEL, job=autopilot.job().job)
    autopilot.let_pass(5)

    autopilot.run_for(20)

    assert latest_plan(autopilot) != approved
    assert autopilot.commands() == []


def test_yes_to_one_incident_is_no_yes_to_another(autopilot: SmallAutopilot) -> None:
    autopilot.use_policy(replace(POLICY, mode=Mode.APPROVE))
    lose_gpu(autopilot, "gpu001")
    autopilot.run_once()
    orders.approve(latest_plan(autopilot), autopilot.cluster, actor="day-shift", valid_for=timedelta(hours=1))
    lose_gpu(autopilot, "gpu005")

    autopilot.run_for(60)

    assert {entry.nodes for entry in autopilot.received(EntryKind.DRAIN)} == {("gpu001",)}


def test_message_that_opens_a_plan_is_no_yes_to_the_rest_of_it(autopilot: SmallAutopilot) -> None:
    autopilot.use_policy(replace(POLICY, mode=Mode.APPROVE))
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason=MAINTENANCE)
    lose_gpu(autopilot)  # The drain is somebody else's, so the plan begins with a word to the owner, not with a drain.

    autopilot.run_for(30)

    assert autopilot.received(EntryKind.HOLD) == ()
    assert autopilot.owners_told() == []
    assert autopilot.job().restart_count == 0


# -- pause ------------------------------------------------------------------------------------------------------------


def test_pause_in_the_middle_of_a_plan_holds_over_a_restart_until_it_is_lifted(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5)
    autopilot.let_pass(15)
    lose_gpu(autopilot)
    stop_after(autopilot, EntryKind.HOLD)
    orders.pause(autopilot.cluster, actor="day-shift", reason="moving racks")

    autopilot.run_for(10)
    autopilot.restart()
    autopilot.run_for(20)
    while_paused = autopilot.commands()
    records = autopilot.cluster.ledger.records(autopilot.incident().incident)
    orders.resume_autopilot(autopilot.cluster, actor="day-shift")
    autopilot.run_until(IncidentState.RESOLVED)

    assert while_paused == [EntryKind.DRAIN, EntryKind.RESERVE, EntryKind.HOLD]
    assert all(record.outcome is not None for record in records)
    assert autopilot.job().restart_count == 1
    assert not autopilot.node("gpu001").is_drained


def test_pause_keeps_a_proven_node_from_being_returned(autopilot: SmallAutopilot) -> None:
    durations = replace(POLICY.durations, soak=timedelta(seconds=20))
    autopilot.use_policy(replace(POLICY, durations=durations))
    lose_gpu(autopilot)
    autopilot.run_until(IncidentState.VERIFYING)
    orders.pause(autopilot.cluster, actor="day-shift", reason="moving racks")

    autopilot.run_for(60)
    while_paused = autopilot.received(EntryKind.RESUME)
    orders.resume_autopilot(autopilot.cluster, actor="day-shift")
    autopilot.run_until(IncidentState.RESOLVED)

    assert while_paused == ()


# -- somebody else's drain --------------------------------------------------------------------------------------------


def test_foreign_drain_is_never_overwritten_nor_resumed_and_a_person_is_paged(autopilot: SmallAutopilot) -> None:
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason=MAINTENANCE)
    lose_gpu(autopilot)

    autopilot.run_for(60)

    assert autopilot.incident().state is IncidentState.ESCALATED
    assert autopilot.node("gpu001").reason == MAINTENANCE
    assert len(autopilot.received(EntryKind.DRAIN)) == 1
    assert autopilot.received(EntryKind.RESUME, EntryKind.REBOOT, EntryKind.POWER_OFF) == ()
    assert len(autopilot.pages()) == 1
    assert autopilot.job().state is JobState.RUNNING
    assert "gpu001" not in autopilot.job().nodes


def test_node_left_to_a_foreign_drain_does_not_read_as_if_it_were_rebooted(autopilot: SmallAutopilot) -> None:
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason=MAINTENANCE)
    lose_gpu(autopilot)
    stop_after(autopilot, EntryKind.HOLD)
    out = Console(file=StringIO(), width=200, force_terminal=False)

    view = read_incidents(autopilot.cluster, closed_within=None)
    print_document(out, incidents_document(view))

    (acting,) = view.incidents
    assert acting.incident.state is IncidentState.ACTING
    assert acting.plan is not None
    assert acting.plan.recorded.left_to == MAINTENANCE
    assert f"left to the person who drained it ({MAINTENANCE})" in acting.next_step
    assert "reboot node" not in cast("StringIO", out.file).getvalue()


@pytest.mark.parametrize("after", [EntryKind.DRAIN, EntryKind.HOLD, EntryKind.RELEASE])
def test_node_that_somebody_else_drains_while_we_act_is_left_to_them(
    autopilot: SmallAutopilot, after: EntryKind
) -> None:
    lose_gpu(autopilot)
    stop_after(autopilot, after)
    autopilot.let_pass(1)
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason=MAINTENANCE)

    autopilot.run_until(IncidentState.ESCALATED)
    autopilot.run_for(30)

    assert autopilot.node("gpu001").reason == MAINTENANCE
    assert autopilot.received(EntryKind.RESUME, EntryKind.REBOOT) == ()
    assert len(autopilot.pages()) == 1
    assert ground_truth.read_split_brains(autopilot.twin) == ()


def test_silent_node_under_a_foreign_drain_keeps_its_power(autopilot: SmallAutopilot) -> None:
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason=MAINTENANCE)
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu001")

    autopilot.run_for(60)

    assert autopilot.commands() == [EntryKind.DRAIN]
    assert autopilot.node("gpu001").reason == MAINTENANCE


def test_node_returned_by_somebody_else_while_we_act_is_not_rebooted(autopilot: SmallAutopilot) -> None:
    lose_gpu(autopilot)
    stop_after(autopilot, EntryKind.RELEASE)
    autopilot.twin.command(EntryKind.RESUME, nodes=("gpu001",))

    autopilot.run_for(60)

    assert autopilot.received(EntryKind.REBOOT) == ()
    assert len(autopilot.pages()) == 1


# -- nodes that are none of our business ------------------------------------------------------------------------------


def test_fault_on_a_node_that_nobody_declared_is_paged_once_and_touches_nothing(autopilot: SmallAutopilot) -> None:
    line = OneLine(autopilot, node="gpu999", text=XID_79)
    autopilot.cluster = replace(autopilot.cluster, logs=(line,))

    autopilot.run_for(20)

    assert autopilot.incident().state is IncidentState.ESCALATED
    assert len(autopilot.pages()) == 1
    assert autopilot.commands() == []


def test_node_that_the_scheduler_has_and_cluster_yaml_lacks_is_never_touched(autopilot: SmallAutopilot) -> None:
    topology = autopilot.cluster.rules.topology
    declared = {name: place for name, place in topology.places.items() if name != "gpu001"}
    rules = replace(autopilot.cluster.rules, topology=Topology(places=declared, gpus_per_node=8))
    autopilot.cluster = replace(autopilot.cluster, rules=rules)
    lose_gpu(autopilot)
    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, "gpu001")

    autopilot.run_for(40)

    assert autopilot.commands() == []
    assert autopilot.job().restart_count == 0


def test_untouchable_node_is_paged_once_and_left_alone_with_its_job(autopilot: SmallAutopilot) -> None:
    autopilot.use_policy(replace(POLICY, untouchable_nodes=frozenset({NodeName("gpu001")})))
    lose_gpu(autopilot)

    autopilot.run_for(40)

    assert autopilot.incident().state is IncidentState.ESCALATED
    assert len(autopilot.pages()) == 1
    assert autopilot.commands() == []
    assert autopilot.job().restart_count == 0


def test_unknown_xid_pages_once_and_touches_nothing(autopilot: SmallAutopilot) -> None:
    line = OneLine(autopilot, node="gpu001", text=XID_UNKNOWN)
    autopilot.cluster = replace(autopilot.cluster, logs=(*autopilot.cluster.logs, line))

    autopilot.run_for(40)

    assert autopilot.incident().state is IncidentState.ESCALATED
    assert len(autopilot.pages()) == 1
    assert autopilot.commands() == []
    assert autopilot.owners_told() == []


def test_every_approval_pause_and_its_end_is_an_entry_with_its_author(autopilot: SmallAutopilot) -> None:
    autopilot.use_policy(replace(POLICY, mode=Mode.APPROVE))
    lose_gpu(autopilot)
    autopilot.run_once()
    _, approval = orders.approve(
        latest_plan(autopilot), autopilot.cluster, actor="day-shift", valid_for=timedelta(hours=1)
    )
    orders.pause(autopilot.cluster, actor="night-shift", reason="wait")
    orders.resume_autopilot(autopilot.cluster, actor="late-shift")

    entries = autopilot.cluster.ledger.entries(after=0, limit=1000)

    assert isinstance(approval, Approval)
    assert [(entry.kind, entry.actor) for entry in entries if entry.actor != "autopilot"] == [
        (LedgerEntryKind.APPROVAL, "day-shift"),
        (LedgerEntryKind.PAUSE, "night-shift"),
        (LedgerEntryKind.RESUME_AUTOPILOT, "late-shift"),
    ]
