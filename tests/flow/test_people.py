"""Stop, continue, yes to exactly this plan, done with this incident: each is written down or refused."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.identity import IncidentId, NodeName, PlanId
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.policy import Mode
from ops_pipelines.people import orders
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines_lab.simulator.journal import FaultKind
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot

HOUR = timedelta(hours=1)


@pytest.fixture
def waiting(tmp_path: Path) -> SmallAutopilot:
    """Return a cluster with one plan that waits for approval."""
    autopilot = SmallAutopilot(tmp_path, node_count=4, policy=replace(POLICY, mode=Mode.APPROVE))
    autopilot.let_pass(5)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.run_once()
    return autopilot


def test_yes_names_the_plan_who_gave_it_and_until_when(waiting: SmallAutopilot) -> None:
    (plan,) = waiting._plans

    known, approval = orders.approve(plan.plan, waiting.cluster, actor="day-shift", valid_for=HOUR)

    assert known == plan
    assert (approval.plan, approval.actor) == (plan.plan, "day-shift")
    assert approval.expires_at - approval.given_at == HOUR
    assert waiting.cluster.ledger.read_state(waiting.clock.now()).approvals == (approval,)


def test_yes_to_a_plan_that_nobody_made_is_refused(waiting: SmallAutopilot) -> None:
    with pytest.raises(ByHandRefused, match="there is no plan"):
        orders.approve(PlanId("PLAN-000000000000"), waiting.cluster, actor="day-shift", valid_for=HOUR)

    assert waiting.cluster.ledger.read_state(waiting.clock.now()).approvals == ()


def test_yes_to_a_plan_that_is_done_is_refused(waiting: SmallAutopilot) -> None:
    (plan,) = waiting._plans
    orders.approve(plan.plan, waiting.cluster, actor="day-shift", valid_for=HOUR)
    waiting.run_until(IncidentState.RESOLVED)

    with pytest.raises(ByHandRefused, match="no longer waits"):
        orders.approve(plan.plan, waiting.cluster, actor="day-shift", valid_for=HOUR)


def test_pause_stands_until_it_is_lifted_and_the_first_one_counts(waiting: SmallAutopilot) -> None:
    first = orders.pause(waiting.cluster, actor="day-shift", reason="moving racks")
    orders.pause(waiting.cluster, actor="night-shift", reason="me too")
    during = waiting.cluster.ledger.read_state(waiting.clock.now()).pause

    orders.resume_autopilot(waiting.cluster, actor="late-shift")

    assert during == first
    assert waiting.cluster.ledger.read_state(waiting.clock.now()).pause is None


def test_incident_that_waits_for_us_is_not_a_persons_to_close(waiting: SmallAutopilot) -> None:
    with pytest.raises(ByHandRefused, match="only an escalated incident"):
        orders.close(waiting.incident().incident, waiting.cluster, actor="day-shift", reason="done")

    assert waiting.incident().state is IncidentState.OPEN


def test_incident_that_does_not_exist_cannot_be_closed(waiting: SmallAutopilot) -> None:
    with pytest.raises(ByHandRefused, match="there is no incident"):
        orders.close(IncidentId("INC-0099"), waiting.cluster, actor="day-shift", reason="done")


def test_escalated_incident_is_closed_with_who_and_why(tmp_path: Path) -> None:
    policy = replace(POLICY, untouchable_nodes=frozenset({NodeName("gpu001")}))
    autopilot = SmallAutopilot(tmp_path, node_count=4, policy=policy)
    autopilot.let_pass(5)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.run_until(IncidentState.ESCALATED)

    closed = orders.close(autopilot.incident().incident, autopilot.cluster, actor="day-shift", reason="GPU replaced")

    assert closed.state is IncidentState.RESOLVED
    assert closed.note == "closed by day-shift: GPU replaced"
    assert autopilot.incident() == closed
