"""Many nodes at once are one page: what counts as at once, what is left out, and what joins it."""

from datetime import timedelta

import pytest

from ops_pipelines.domain.diagnosis.correlation import correlate
from ops_pipelines.domain.identity import PlanId
from ops_pipelines.domain.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.domain.meaning.finding import Finding, Response
from ops_pipelines.domain.policy import MassEvent
from tests.domain.builders import (
    NODE,
    NOW,
    conditions_of,
    incident,
    node_names,
    policy,
    telemetry_stale,
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

    assert (changed.response, changed.nodes) == (Response.REBOOT_NODE, {"gpu009"})


def test_a_mass_event_names_what_its_nodes_share() -> None:
    changed = correlate(broken(4), [], world(policy_=SMALL_MASS))

    (mass,) = [each for each in changed if each.is_mass_event]
    assert mass.note == "4 nodes look broken within 120 s; all stand at rack r00"


def test_nodes_of_another_cluster_make_no_mass_event() -> None:
    strangers = [xid(79, node=f"elsewhere{number}") for number in range(9)]

    changed = correlate([*strangers, xid(79)], [], world(policy_=SMALL_MASS))

    assert not any(each.is_mass_event for each in changed)
    assert {node for each in changed for node in each.nodes} >= {NODE}
