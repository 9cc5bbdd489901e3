"""Many nodes at once are one page: what counts as at once, what is left out, and what joins it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ops_pipelines.core.action import Verb
from ops_pipelines.core.finding import Finding, Response
from ops_pipelines.core.identity import PlanId
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.policy import DrainBudget, MassEvent, Mode
from ops_pipelines.diagnose.correlate import correlate, is_renewal_due
from ops_pipelines.remediate.planning import plan_remediation
from tests.domain.builders import (
    NODE,
    NOW,
    ago,
    conditions_of,
    facts,
    gpu_missing,
    incident,
    node,
    node_names,
    policy,
    telemetry_stale,
    topology,
    unreachable,
    verdict,
    world,
    xid,
)

SMALL_MASS = policy(mass_event=MassEvent(min_node_count=4, window=timedelta(seconds=120)))


def acting(*findings: Finding, state: IncidentState = IncidentState.ACTING) -> Incident:
    return incident(*findings, state=state, plan=PlanId("PLAN-1"), plan_count=1)


def broken(count: int, *, seconds_ago: float = 0.0) -> list[Finding]:
    """Return one lost GPU on each of `count` nodes."""
    return [xid(79, node=name, seconds_ago=seconds_ago) for name in node_names(count)]


@pytest.mark.parametrize(
    ("node_count", "is_mass"),
    [
        pytest.param(3, False, id="one less"),
        pytest.param(4, True, id="exactly"),
        pytest.param(5, True, id="one more"),
    ],
)
def test_enough_nodes_at_once_are_a_mass_event(node_count: int, is_mass: bool) -> None:
    changed = correlate(broken(node_count), [], world(policy_=SMALL_MASS))

    open_ones = [each for each in changed if each.is_open]
    if is_mass:
        (mass,) = open_ones
        assert (mass.response, mass.nodes) == (Response.PAGE_MASS_EVENT, frozenset(node_names(node_count)))
        merged = [each for each in changed if each is not mass]
        assert len(merged) == node_count
        assert all(each.state is IncidentState.MERGED and mass.incident in each.note for each in merged)
    else:
        assert [each.response for each in open_ones] == [Response.REBOOT_NODE] * node_count


@pytest.mark.parametrize(
    ("seconds_ago", "is_mass"),
    [
        pytest.param(119, True, id="just inside the window"),
        pytest.param(120, True, id="at its edge"),
        pytest.param(120.001, False, id="just outside"),
    ],
)
def test_only_what_broke_within_the_window_counts(seconds_ago: float, is_mass: bool) -> None:
    old, *young = broken(4)
    old = xid(79, node=old.node, seconds_ago=seconds_ago)

    changed = correlate([old, *young], [], world(policy_=SMALL_MASS))

    assert any(each.is_mass_event for each in changed) is is_mass


def test_many_faults_of_one_node_are_no_mass_event() -> None:
    findings = [xid(79, position=str(number)) for number in range(20)]

    (opened,) = correlate(findings, [], world(policy_=SMALL_MASS))

    assert not opened.is_mass_event


def test_an_incident_in_repair_counts_for_a_mass_event_and_is_left_to_its_end() -> None:
    in_repair = acting(xid(79))

    changed = correlate(broken(4)[1:], [in_repair], world(policy_=SMALL_MASS, incident_count=1))

    (mass,) = [each for each in changed if each.is_mass_event]
    assert mass.nodes == frozenset(node_names(4)[1:])
    assert in_repair.incident not in {each.incident for each in changed}


def test_a_superseded_incident_is_no_part_of_a_mass_event() -> None:
    """Its node is drained and its jobs may be held: nobody would ever release them."""
    superseded = advance(acting(xid(79)), IncidentEvent.SUPERSEDED, at=NOW, note="")

    changed = correlate(broken(4)[1:], [superseded], world(policy_=SMALL_MASS, incident_count=1))

    (mass,) = [each for each in changed if each.is_mass_event]
    assert NODE not in mass.nodes
    assert superseded.incident not in {each.incident for each in changed}


def test_metrics_that_stop_on_many_nodes_are_one_page_and_not_many() -> None:
    stale = [telemetry_stale(node=name) for name in node_names(4)]

    changed = correlate(stale, [], world(policy_=SMALL_MASS, conditions=conditions_of(*stale)))

    assert [each.response for each in changed if each.is_open] == [Response.PAGE_MASS_EVENT]


@pytest.mark.parametrize("state", [IncidentState.OPEN, IncidentState.ACTING, IncidentState.ESCALATED])
def test_while_a_mass_event_is_open_new_repairs_join_it(state: IncidentState) -> None:
    mass = incident(*broken(4), response=Response.PAGE_MASS_EVENT, state=state)

    (changed,) = correlate([xid(79, node="gpu009")], [mass], world(policy_=SMALL_MASS, incident_count=1))

    assert changed.incident == mass.incident
    assert (changed.response, changed.state) == (Response.PAGE_MASS_EVENT, state)
    assert "gpu009" in changed.nodes


@pytest.mark.parametrize(
    ("last_seconds_ago", "joins"),
    [
        pytest.param(119, True, id="just inside the window"),
        pytest.param(120, True, id="at the edge of the window"),
        pytest.param(121, False, id="after the window"),
    ],
)
def test_a_mass_event_takes_new_repairs_only_while_it_spreads(last_seconds_ago: int, joins: bool) -> None:
    """A mass event that waits for its human for days must not swallow what breaks meanwhile."""
    found = [xid(79, node=name, seconds_ago=last_seconds_ago) for name in node_names(4)]
    mass = incident(*found, response=Response.PAGE_MASS_EVENT, state=IncidentState.ESCALATED)

    (changed,) = correlate([xid(79, node="gpu009")], [mass], world(policy_=SMALL_MASS, incident_count=1))

    assert (changed.incident == mass.incident) is joins


def test_after_a_mass_event_a_new_repair_stands_for_itself() -> None:
    mass = incident(*broken(4), response=Response.PAGE_MASS_EVENT, state=IncidentState.RESOLVED)

    (changed,) = correlate([xid(79, node="gpu009")], [mass], world(policy_=SMALL_MASS, incident_count=1))

    assert (changed.response, changed.nodes) == (Response.REBOOT_NODE, frozenset({"gpu009"}))


def test_a_mass_event_names_what_its_nodes_share() -> None:
    changed = correlate(broken(4), [], world(policy_=SMALL_MASS))

    (mass,) = [each for each in changed if each.is_mass_event]
    assert mass.note == "4 nodes look broken within 120 s; all stand at rack r00"


def test_nodes_of_another_cluster_make_no_mass_event() -> None:
    strangers = [xid(79, node=f"elsewhere{number}") for number in range(9)]

    changed = correlate([*strangers, xid(79)], [], world(policy_=SMALL_MASS))

    assert not any(each.is_mass_event for each in changed)
    assert {node for each in changed for node in each.nodes} >= {NODE}


# -- what breaks once the storm is over --


def over_for(seconds: float, **changes: Any) -> Incident:
    """Return a mass event of four nodes that a person has, with its storm so many seconds ago."""
    found = [xid(79, node=name, seconds_ago=seconds) for name in node_names(4)]
    return incident(*found, response=Response.PAGE_MASS_EVENT, state=IncidentState.ESCALATED, plan_count=1, **changes)


@pytest.mark.parametrize(
    ("storm_seconds_ago", "is_answered"),
    [
        pytest.param(119, False, id="just inside two minutes"),
        pytest.param(120, True, id="at their end"),
        pytest.param(121, True, id="after them"),
    ],
)
def test_a_hard_fault_on_a_node_of_a_mass_event_is_answered_two_minutes_after_the_storm_at_the_earliest(
    storm_seconds_ago: float, is_answered: bool
) -> None:
    (changed,) = correlate([xid(79)], [over_for(storm_seconds_ago)], world(policy_=SMALL_MASS, incident_count=1))

    assert (changed.state is IncidentState.OPEN) is is_answered
    assert changed.renewed == (frozenset({NODE}) if is_answered else frozenset())


@pytest.mark.parametrize(
    ("state", "is_new"),
    [
        pytest.param(IncidentState.ESCALATED, True, id="a person was paged"),
        pytest.param(IncidentState.ACTING, False, id="the page is under way, and names it"),
    ],
)
def test_what_breaks_within_the_window_is_new_once_a_person_was_paged(state: IncidentState, is_new: bool) -> None:
    storm = replace(over_for(30), state=state)

    (struck,) = [
        each
        for each in correlate([xid(79, node="gpu009")], [storm], world(policy_=SMALL_MASS, incident_count=1))
        if each.is_open
    ]

    assert struck.struck == (frozenset({"gpu009"}) if is_new else frozenset())
    assert not is_renewal_due(struck, now=NOW + timedelta(seconds=89))
    assert is_renewal_due(struck, now=NOW + timedelta(seconds=90)) is is_new


def test_the_renewed_page_says_the_new_fault_and_no_wish_of_the_driver() -> None:
    old, new, wish = xid(79, seconds_ago=600), xid(48, seconds_ago=2), verdict(2, seconds_ago=1)
    struck = replace(over_for(3600), findings=(old, new, wish), state=IncidentState.OPEN, renewed=frozenset({NODE}))

    plan = plan_remediation(struck, facts(), policy=policy(), topology=topology())

    assert isinstance(plan, IncidentPlan)
    (page,) = [each.text for each in plan.actions if each.verb is Verb.PAGE_HUMAN]
    assert "broke again (gpu001): Xid 48" in page
    assert "the driver asks" not in page


@pytest.mark.parametrize(
    "finding",
    [
        pytest.param(xid(31), id="an application error"),
        pytest.param(unreachable(), id="a silence"),
        pytest.param(telemetry_stale(), id="metrics that stop"),
        pytest.param(gpu_missing(), id="a condition, which may be our eyes"),
    ],
)
def test_what_is_not_hard_opens_no_mass_event_again(finding: Finding) -> None:
    now = world(policy_=SMALL_MASS, incident_count=1, conditions=conditions_of(finding))

    changed = correlate([finding], [over_for(3600)], now)

    assert all(each.state is not IncidentState.OPEN for each in changed if each.is_mass_event)


@pytest.mark.parametrize(
    ("seconds_ago", "is_opened"),
    [
        pytest.param(119, False, id="just before"),
        pytest.param(120, True, id="at it"),
        pytest.param(121, True, id="after"),
    ],
)
def test_a_mass_event_is_opened_again_once_in_two_minutes(seconds_ago: float, is_opened: bool) -> None:
    told = over_for(3600, renewed_at=ago(seconds_ago), renewed=frozenset({"gpu002"}))

    (changed,) = correlate([xid(79)], [told], world(policy_=SMALL_MASS, incident_count=1))

    assert (changed.state is IncidentState.OPEN) is is_opened
    assert NODE in (changed.renewed if is_opened else changed.struck)
    assert is_renewal_due(changed, now=NOW + timedelta(seconds=120)) is not is_opened


def test_faults_of_nodes_that_are_out_of_service_open_no_mass_event_again() -> None:
    drained = replace(world(policy_=SMALL_MASS, incident_count=1), nodes=(node(is_drained=True),))

    (changed,) = correlate([xid(79)], [over_for(3600)], drained)

    assert (changed.state, changed.struck) == (IncidentState.ESCALATED, frozenset())


def test_nodes_that_broke_anew_are_drained_within_the_budget_and_the_page_names_the_rest() -> None:
    budget = DrainBudget(max_out_count=2)
    struck = replace(over_for(3600), state=IncidentState.OPEN, renewed=frozenset(node_names(4)))

    plan = plan_remediation(struck, facts(), policy=policy(drain_budget=budget), topology=topology())

    assert isinstance(plan, IncidentPlan)
    assert [(each.verb, each.node) for each in plan.actions] == [
        (Verb.DRAIN, "gpu001"),
        (Verb.PAGE_HUMAN, None),
        (Verb.DRAIN, "gpu002"),
    ]
    assert "drained within the budget: gpu001, gpu002" in plan.actions[1].text
    assert "left in service, where jobs may start on them: gpu003, gpu004" in plan.actions[1].text
    assert {each.try_number for each in plan.actions} == {2}


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.APPROVE])
def test_who_may_not_drain_by_himself_pages_what_stays_in_service(mode: Mode) -> None:
    struck = replace(over_for(3600), state=IncidentState.OPEN, renewed=frozenset({NODE}))

    plan = plan_remediation(struck, facts(), policy=policy(mode), topology=topology())

    assert isinstance(plan, IncidentPlan)
    assert [each.verb for each in plan.actions] == [Verb.PAGE_HUMAN]
    assert "no node was drained" in plan.actions[0].text
    assert "left in service" in plan.actions[0].text
