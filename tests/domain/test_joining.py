"""What joins an incident makes it stronger, never weaker, and leaves a plan in force that covers it."""

from dataclasses import replace

import pytest

from ops_pipelines.core.fault import Family
from ops_pipelines.core.finding import Finding, Response
from ops_pipelines.core.identity import PlanId
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.diagnose.correlate import correlate
from ops_pipelines.diagnose.hypothesis import gpus_to_reset
from tests.domain.builders import (
    GPU,
    NOW,
    OTHER_GPU,
    conditions_of,
    gpu_missing,
    incident,
    unreachable,
    world,
    xid,
)


def acting(*findings: Finding, state: IncidentState = IncidentState.ACTING) -> Incident:
    return incident(*findings, state=state, plan=PlanId("PLAN-1"), plan_count=1)


def test_before_we_act_a_condition_strengthens() -> None:
    (changed,) = correlate([unreachable()], [incident(xid(48))], world(conditions=conditions_of(unreachable())))

    assert changed.response is Response.POWER_CYCLE


@pytest.mark.parametrize("state", [IncidentState.ACTING, IncidentState.VERIFYING, IncidentState.ESCALATED])
@pytest.mark.parametrize("condition", [gpu_missing(), unreachable()])
def test_once_we_act_a_node_that_vanishes_is_our_own_doing(state: IncidentState, condition: Finding) -> None:
    (changed,) = correlate([condition], [acting(xid(48), state=state)], world(conditions=conditions_of(condition)))

    assert (changed.state, changed.response, changed.plan) == (state, Response.RESET_GPU, "PLAN-1")
    assert condition.evidence in [each.evidence for each in changed.findings]
    assert changed.hypothesis is not None
    assert changed.hypothesis.family is not Family.SILENCE


def test_a_node_that_fell_silent_before_we_acted_is_the_cause() -> None:
    waiting = incident(xid(48))

    (changed,) = correlate([unreachable()], [waiting], world(conditions=conditions_of(unreachable())))

    assert changed.hypothesis is not None
    assert changed.hypothesis.family is Family.SILENCE


def test_it_stays_our_own_doing_when_a_weaker_event_follows() -> None:
    repairing = acting(xid(48), unreachable())
    repairing = replace(repairing, response=Response.RESET_GPU)

    (changed,) = correlate([xid(95)], [repairing], world(conditions=conditions_of(unreachable())))

    assert (changed.state, changed.response) == (IncidentState.ACTING, Response.RESET_GPU)


def test_a_superseded_incident_is_not_strengthened_by_conditions_either() -> None:
    waiting = advance(acting(xid(48)), IncidentEvent.SUPERSEDED, at=NOW, note="")

    (changed,) = correlate([unreachable()], [waiting], world(conditions=conditions_of(unreachable())))

    assert changed.response is Response.RESET_GPU


@pytest.mark.parametrize("state", [IncidentState.ACTING, IncidentState.VERIFYING])
def test_a_stronger_logged_event_supersedes_the_plan(state: IncidentState) -> None:
    (changed,) = correlate([xid(79)], [acting(xid(48), state=state)], world())

    assert (changed.state, changed.response, changed.plan) == (IncidentState.OPEN, Response.REBOOT_NODE, None)
    assert changed.plan_count == 1


@pytest.mark.parametrize("code", [48, 54, 31, 43])
def test_a_logged_event_that_asks_for_no_more_leaves_the_plan_in_force(code: int) -> None:
    (changed,) = correlate([xid(code, position="another")], [acting(xid(79))], world())

    assert (changed.state, changed.response, changed.plan) == (IncidentState.ACTING, Response.REBOOT_NODE, "PLAN-1")


def test_a_fault_of_another_gpu_supersedes_the_reset_of_the_first() -> None:
    """Otherwise the node would be returned with a GPU that nobody reset."""
    (changed,) = correlate([xid(48, gpu=OTHER_GPU)], [acting(xid(48))], world())

    assert (changed.state, changed.response) == (IncidentState.OPEN, Response.RESET_GPU)
    assert gpus_to_reset(changed.findings) == {GPU, OTHER_GPU}


def test_a_reboot_covers_every_gpu_of_the_node() -> None:
    (changed,) = correlate([xid(48, gpu=OTHER_GPU)], [acting(xid(79))], world())

    assert (changed.state, changed.response) == (IncidentState.ACTING, Response.REBOOT_NODE)


def test_an_escalated_incident_takes_evidence_in_and_stays_with_its_person() -> None:
    (changed,) = correlate([xid(79)], [acting(xid(48), state=IncidentState.ESCALATED)], world())

    assert (changed.state, changed.response) == (IncidentState.ESCALATED, Response.REBOOT_NODE)


def test_a_repair_on_a_node_that_waits_for_a_page_takes_the_incident_over() -> None:
    (changed,) = correlate([xid(79)], [incident(xid(54))], world())

    assert (changed.incident, changed.response) == ("INC-0001", Response.REBOOT_NODE)
