"""Sources that do not answer, or answer nonsense: nothing is done in the dark, nothing is lost, all heals later."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.notes import Message
from ops_pipelines.core.observation import JobState, JobStatus, NodeStatus
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import Sample, SourceError, SourceNonsense, SourceUnavailable
from ops_pipelines_lab.simulator import ground_truth
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.scenarios.small_autopilot import MessagesInMemory, SmallAutopilot
from tests.simulator.small_cluster import TRAINING


class NoTelemetry:
    """A metrics source that is down."""

    def read_samples(self, at: datetime) -> tuple[Sample, ...]:
        raise SourceUnavailable("prometheus did not answer within 5 s")


class NoScheduler:
    """A scheduler that answers every question in the same bad way."""

    def __init__(self, problem: SourceError) -> None:
        self._problem = problem

    def read_nodes(self) -> tuple[NodeStatus, ...]:
        raise self._problem

    def read_jobs(self) -> tuple[JobStatus, ...]:
        raise self._problem


class DarkAfterReboot:
    """A metrics source that goes down with the first reboot, until `is_back`."""

    def __init__(self, autopilot: SmallAutopilot) -> None:
        self._autopilot = autopilot
        self._telemetry = autopilot.cluster.telemetry
        self.is_back = False

    def read_samples(self, at: datetime) -> tuple[Sample, ...]:
        if not self.is_back and self._autopilot.received(EntryKind.REBOOT):
            raise SourceUnavailable("prometheus did not answer within 5 s")
        return self._telemetry.read_samples(at)


class DeadNotifier(MessagesInMemory):
    """A notifier of which no channel works until `is_back`."""

    is_back = False

    def send(self, message: Message) -> str:
        if not self.is_back:
            raise SourceUnavailable("no channel took the message")
        return super().send(message)


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5)
    autopilot.let_pass(15)
    return autopilot


def test_without_metrics_nothing_beyond_a_drain_is_done_and_all_heals_when_they_are_back(
    autopilot: SmallAutopilot,
) -> None:
    telemetry = autopilot.cluster.telemetry
    autopilot.cluster = replace(autopilot.cluster, telemetry=NoTelemetry())
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)

    autopilot.run_for(40)
    in_the_dark = autopilot.commands()
    autopilot.cluster = replace(autopilot.cluster, telemetry=telemetry)
    autopilot.run_until(IncidentState.RESOLVED)

    assert in_the_dark == [EntryKind.DRAIN]
    assert autopilot.job().restart_count == 1
    assert ground_truth.read_nodes(autopilot.twin)[0].is_healthy


def test_repaired_node_is_not_returned_while_the_metrics_are_down(autopilot: SmallAutopilot) -> None:
    telemetry = DarkAfterReboot(autopilot)
    autopilot.cluster = replace(autopilot.cluster, telemetry=telemetry)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)

    autopilot.run_for(40)
    state_before, returned_before = autopilot.incident().state, autopilot.received(EntryKind.RESUME)
    telemetry.is_back = True
    autopilot.run_until(IncidentState.RESOLVED)

    assert state_before is IncidentState.VERIFYING
    assert returned_before == ()
    assert not autopilot.node("gpu001").is_drained


def test_node_that_cannot_be_proven_well_for_want_of_metrics_is_escalated_once(autopilot: SmallAutopilot) -> None:
    autopilot.cluster = replace(autopilot.cluster, telemetry=DarkAfterReboot(autopilot))
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)

    autopilot.run_until(IncidentState.ESCALATED)
    autopilot.run_for(30)

    assert len(autopilot.pages()) == 1
    assert "could not be proven well" in autopilot.pages()[0].body
    assert autopilot.node("gpu001").is_drained


def test_silent_scheduler_stops_everything_and_loses_no_evidence(autopilot: SmallAutopilot) -> None:
    scheduler = autopilot.cluster.scheduler
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    for problem in (SourceUnavailable("slurmctld did not answer"), SourceNonsense("no JSON")):
        autopilot.cluster = replace(autopilot.cluster, scheduler=cast("Scheduler", NoScheduler(problem)))
        autopilot.run_for(20)
    in_the_dark, known_before = autopilot.commands(), autopilot.incidents()

    autopilot.cluster = replace(autopilot.cluster, scheduler=scheduler)
    autopilot.run_until(IncidentState.RESOLVED)

    assert in_the_dark == []
    assert known_before == ()
    assert len(autopilot.failures) > 5
    assert autopilot.received(EntryKind.REBOOT) != ()
    assert autopilot.job().state is JobState.RUNNING


def test_scheduler_that_falls_silent_in_the_middle_of_a_plan_is_waited_for(autopilot: SmallAutopilot) -> None:
    scheduler = autopilot.cluster.scheduler
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.observe_and_decide()
    silent = NoScheduler(SourceUnavailable("slurmctld did not answer"))
    autopilot.cluster = replace(autopilot.cluster, scheduler=cast("Scheduler", silent))
    with pytest.raises(SourceUnavailable):
        autopilot.run_once()
    autopilot.run_for(60)
    autopilot.cluster = replace(autopilot.cluster, scheduler=scheduler)

    autopilot.run_until(IncidentState.RESOLVED)

    assert len(autopilot.received(EntryKind.DRAIN, EntryKind.REBOOT)) == 2
    assert ground_truth.read_split_brains(autopilot.twin) == ()


def test_page_that_no_channel_takes_is_tried_again_until_one_does(autopilot: SmallAutopilot) -> None:
    notifier = DeadNotifier()
    autopilot.messages = notifier
    autopilot.cluster = replace(autopilot.cluster, notifier=notifier)
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason="somebody's maintenance")
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)

    autopilot.run_for(20)
    state_before = autopilot.incident().state
    notifier.is_back = True
    autopilot.run_until(IncidentState.ESCALATED)

    assert state_before is not IncidentState.ESCALATED
    assert len(autopilot.pages()) == 1


class NoMessages:
    """A notifier that no channel serves, until `is_back`."""

    def __init__(self, messages: MessagesInMemory) -> None:
        self._messages = messages
        self.is_back = False

    def send(self, message: Message) -> str:
        if not self.is_back:
            raise SourceUnavailable("no channel took the message")
        return self._messages.send(message)


def test_an_owner_who_cannot_be_told_does_not_hold_up_the_rescue_of_the_job(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, TRAINING)
    autopilot.let_pass(15)
    notifier = NoMessages(autopilot.messages)
    autopilot.cluster = replace(autopilot.cluster, notifier=notifier)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=1)

    autopilot.run_for(8)

    assert len(autopilot.received(EntryKind.RELEASE)) == 1
    assert autopilot.messages.messages == []
