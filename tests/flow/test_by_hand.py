"""What a person does by hand goes through the same guardrails, and owns what it drained until it is returned."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.policy import Mode
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.people import orders
from ops_pipelines.remediate.by_hand import ByHandRefused, drain_by_hand, return_by_hand
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.simulator.small_cluster import GPU1, GPU2


class RefusesResume:
    """A scheduler that refuses to resume until `is_willing`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.is_willing = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)

    def resume(self, node: NodeName) -> None:
        if not self.is_willing:
            raise SourceRefused("access denied")
        self._scheduler.resume(node)


class DrainsLater:
    """A scheduler that takes a drain, or does not even answer, and carries it out when `catch_up` is called."""

    def __init__(self, scheduler: Scheduler, problem: SourceUnavailable | None) -> None:
        self._scheduler = scheduler
        self._problem = problem
        self._asked_for: list[tuple[Collection[NodeName], str]] = []
        self.is_prompt = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)

    def drain(self, nodes: Collection[NodeName], *, reason: str) -> None:
        if self.is_prompt:
            self._scheduler.drain(nodes, reason=reason)
            return
        self._asked_for.append((nodes, reason))
        if self._problem is not None:
            raise self._problem

    def catch_up(self) -> None:
        nodes, reason = self._asked_for[-1]
        self._scheduler.drain(nodes, reason=reason)


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, node_count=4)
    autopilot.let_pass(5)
    return autopilot


def drain(autopilot: SmallAutopilot, node: NodeName = GPU1) -> Incident:
    return drain_by_hand(node, autopilot.cluster, lease=autopilot.lease, actor="day-shift", why="replace a fan")


def give_back(autopilot: SmallAutopilot, node: NodeName = GPU1) -> tuple[Incident, ...]:
    return return_by_hand(node, autopilot.cluster, lease=autopilot.lease, actor="night-shift", why="fan replaced")


def test_drain_is_owned_by_an_incident_that_names_who_and_why(autopilot: SmallAutopilot) -> None:
    incident = drain(autopilot)

    assert incident.state is IncidentState.ESCALATED
    assert autopilot.node("gpu001").reason == f"ops_pipelines {incident.incident}: day-shift: replace a fan"


def test_node_is_returned_and_its_incident_closed(autopilot: SmallAutopilot) -> None:
    drain(autopilot)

    (closed,) = give_back(autopilot)

    assert closed.state is IncidentState.RESOLVED
    assert not autopilot.node("gpu001").is_drained


@pytest.mark.parametrize("mode", list(Mode))
def test_mode_does_not_bind_a_person(autopilot: SmallAutopilot, mode: Mode) -> None:
    autopilot.use_policy(replace(POLICY, mode=mode))

    drain(autopilot)

    assert autopilot.node("gpu001").is_drained


def test_budget_binds_a_person_and_leaves_nothing_open(autopilot: SmallAutopilot) -> None:
    autopilot.use_policy(replace(POLICY, drain_budget=replace(POLICY.drain_budget, max_out_count=1)))
    drain(autopilot)

    with pytest.raises(ByHandRefused, match="drain_budget"):
        drain(autopilot, GPU2)

    assert [each.state for each in autopilot.incidents()] == [IncidentState.ESCALATED, IncidentState.RESOLVED]
    assert not autopilot.node("gpu002").is_drained


def test_foreign_drain_is_neither_taken_over_nor_returned(autopilot: SmallAutopilot) -> None:
    autopilot.twin.command(EntryKind.DRAIN, nodes=("gpu001",), reason="rack 1 (late-shift)")

    with pytest.raises(ByHandRefused, match="already drained by someone else"):
        drain(autopilot)
    with pytest.raises(ByHandRefused, match="only who drained it"):
        give_back(autopilot)

    assert autopilot.node("gpu001").reason == "rack 1 (late-shift)"
    assert autopilot.incidents() == ()


def test_node_that_is_not_declared_is_refused(autopilot: SmallAutopilot) -> None:
    with pytest.raises(ByHandRefused, match="not declared"):
        drain(autopilot, NodeName("gpu999"))


def test_node_that_is_not_drained_cannot_be_returned(autopilot: SmallAutopilot) -> None:
    with pytest.raises(ByHandRefused, match="not drained"):
        give_back(autopilot)


def test_node_that_the_autopilot_still_repairs_cannot_be_returned(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.use_policy(replace(POLICY, durations=replace(POLICY.durations, soak=POLICY.durations.reboot_limit)))
    autopilot.run_until(IncidentState.VERIFYING)

    with pytest.raises(ByHandRefused, match="still verifying"):
        give_back(autopilot)


def test_return_that_was_refused_can_be_asked_for_again(autopilot: SmallAutopilot) -> None:
    drain(autopilot)
    scheduler = RefusesResume(autopilot.cluster.scheduler)
    autopilot.cluster = replace(autopilot.cluster, scheduler=cast("Scheduler", scheduler))
    with pytest.raises(ByHandRefused, match="access denied"):
        give_back(autopilot)
    scheduler.is_willing = True

    (closed,) = give_back(autopilot)

    assert closed.state is IncidentState.RESOLVED


def test_node_that_a_person_drained_through_us_is_nobody_elses_to_repair(autopilot: SmallAutopilot) -> None:
    """Somebody is at the open chassis: that it falls silent is no reason to switch its power."""
    drain(autopilot)

    autopilot.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1)
    autopilot.run_for(40)

    assert autopilot.received(EntryKind.POWER_OFF, EntryKind.POWER_ON, EntryKind.REBOOT, EntryKind.RESUME) == ()
    assert autopilot.node("gpu001").is_drained


def test_pause_binds_the_autopilot_and_not_a_person(autopilot: SmallAutopilot) -> None:
    orders.pause(autopilot.cluster, actor="day-shift", reason="maintenance")

    drain(autopilot)

    assert autopilot.node("gpu001").is_drained


# -- a drain that does not show, or was cut short -------------------------------------------------------------------

LATE = [
    pytest.param(None, id="accepted and not shown"),
    pytest.param(SourceUnavailable("slurmctld did not answer"), id="not answered"),
]


def drain_late(autopilot: SmallAutopilot, problem: SourceUnavailable | None) -> DrainsLater:
    """Ask for a drain that does not show in time."""
    scheduler = DrainsLater(autopilot.cluster.scheduler, problem)
    autopilot.cluster = replace(autopilot.cluster, scheduler=cast("Scheduler", scheduler))
    with pytest.raises(ByHandRefused, match=r"gpu001 may or may not be drained.*INC-0001 stays yours"):
        drain(autopilot)
    return scheduler


@pytest.mark.parametrize("problem", LATE)
def test_drain_that_may_still_take_effect_stays_with_a_person_and_can_be_returned(
    autopilot: SmallAutopilot, problem: SourceUnavailable | None
) -> None:
    scheduler = drain_late(autopilot, problem)
    before = autopilot.incident()

    scheduler.catch_up()
    autopilot.run_for(10)
    while_drained = autopilot.incident().state
    (closed,) = give_back(autopilot)

    assert before.state is IncidentState.ESCALATED
    assert "drained by hand by day-shift: replace a fan; whether it took effect is not known" in before.note
    assert while_drained is IncidentState.ESCALATED
    assert closed.state is IncidentState.RESOLVED
    assert not autopilot.node("gpu001").is_drained


@pytest.mark.parametrize("problem", LATE)
def test_drain_asked_for_again_goes_on_with_the_same_incident(
    autopilot: SmallAutopilot, problem: SourceUnavailable | None
) -> None:
    scheduler = drain_late(autopilot, problem)
    scheduler.is_prompt = True

    incident = drain(autopilot)

    assert incident.incident == autopilot.incident().incident
    assert autopilot.node("gpu001").is_drained


def test_drain_that_was_refused_leaves_nothing_open(autopilot: SmallAutopilot) -> None:
    scheduler = autopilot.cluster.scheduler

    class Refuses:
        def __getattr__(self, name: str) -> object:
            return getattr(scheduler, name)

        def drain(self, nodes: Collection[NodeName], *, reason: str) -> None:
            raise SourceRefused("access denied")

    autopilot.cluster = replace(autopilot.cluster, scheduler=cast("Scheduler", Refuses()))
    with pytest.raises(ByHandRefused, match="was not drained: access denied"):
        drain(autopilot)

    assert autopilot.incident().state is IncidentState.RESOLVED


def test_who_drains_twice_is_told_which_incident_holds_the_drain(autopilot: SmallAutopilot) -> None:
    drain(autopilot)

    with pytest.raises(
        ByHandRefused, match=r"already drained by INC-0001, which is escalated \(drained by hand by day"
    ):
        drain(autopilot)

    assert len(autopilot.incidents()) == 1
