"""An incident closes by itself only when what it rests on is gone, or when others have ended it."""

import pytest

from ops_pipelines.core.finding import Finding, Response
from ops_pipelines.core.identity import PlanId
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.diagnose.correlate import correlate
from tests.domain.builders import (
    NODE,
    NOW,
    OTHER_NODE,
    conditions_of,
    gpu_missing,
    incident,
    node_names,
    policy,
    telemetry_stale,
    unreachable,
    verdict,
    world,
    xid,
)


def acting(*findings: Finding, state: IncidentState = IncidentState.ACTING) -> Incident:
    return incident(*findings, state=state, plan=PlanId("PLAN-1"), plan_count=1)


def test_a_node_that_a_person_returned_closes_its_incident_before_a_new_fault_is_placed() -> None:
    left = incident(xid(79, seconds_ago=3600), state=IncidentState.ESCALATED, plan_count=1)

    closed, opened = correlate([xid(79)], [left], world(returned=frozenset({left.incident}), incident_count=1))

    assert (closed.incident, closed.state) == (left.incident, IncidentState.RESOLVED)
    assert (opened.state, opened.nodes) == (IncidentState.OPEN, {NODE})


def test_what_is_still_worked_on_is_not_closed_as_returned() -> None:
    acting = incident(xid(79), state=IncidentState.ACTING, plan_count=1)

    changed = correlate([], [acting], world(returned=frozenset({acting.incident}), incident_count=1))

    assert changed == ()


@pytest.mark.parametrize("finding", [gpu_missing(), unreachable(), telemetry_stale()])
@pytest.mark.parametrize("state", [IncidentState.OPEN, IncidentState.ESCALATED])
def test_an_untouched_incident_of_conditions_closes_when_none_holds_any_more(
    finding: Finding, state: IncidentState
) -> None:
    waiting = incident(finding, state=state)

    (closed,) = correlate([], [waiting], world())

    assert (closed.state, closed.closed_at) == (IncidentState.RESOLVED, NOW)


def test_one_condition_that_still_holds_keeps_the_incident() -> None:
    waiting = incident(gpu_missing(), unreachable())

    assert correlate([], [waiting], world(conditions=conditions_of(gpu_missing()))) == ()


def test_the_same_condition_on_another_node_does_not() -> None:
    (closed,) = correlate([], [incident(gpu_missing())], world(conditions=conditions_of(gpu_missing(node=OTHER_NODE))))

    assert closed.state is IncidentState.RESOLVED


@pytest.mark.parametrize("logged", [xid(79), xid(54), verdict(1)])
def test_what_was_logged_never_clears_by_itself(logged: Finding) -> None:
    assert correlate([], [incident(gpu_missing(), logged)], world()) == ()


@pytest.mark.parametrize("state", [IncidentState.ACTING, IncidentState.VERIFYING, IncidentState.ESCALATED])
def test_what_we_touched_never_clears_by_itself(state: IncidentState) -> None:
    assert correlate([], [acting(unreachable(), state=state)], world()) == ()


def test_what_was_superseded_never_clears_by_itself() -> None:
    superseded = advance(acting(unreachable()), IncidentEvent.SUPERSEDED, at=NOW, note="")

    assert correlate([], [superseded], world()) == ()


def test_a_paged_mass_event_of_conditions_clears_when_all_are_gone() -> None:
    names = node_names(4)
    mass = incident(
        *(unreachable(node=name) for name in names),
        response=Response.PAGE_MASS_EVENT,
        state=IncidentState.ESCALATED,
        plan=PlanId("PLAN-1"),
        plan_count=1,
    )

    still = correlate([], [mass], world(conditions=conditions_of(unreachable(node=names[3]))))
    (cleared,) = correlate([], [mass], world())

    assert still == ()
    assert cleared.state is IncidentState.RESOLVED


@pytest.mark.parametrize(
    ("beyond_seconds", "state"), [(-1.0, IncidentState.OPEN), (0.0, IncidentState.OPEN), (1.0, IncidentState.RESOLVED)]
)
def test_owner_who_was_not_told_in_time_leaves_no_incident_open(beyond_seconds: float, state: IncidentState) -> None:
    seconds_ago = policy().durations.waiting_limit.total_seconds() + beyond_seconds
    untold = incident(xid(31, seconds_ago=seconds_ago))

    changed = correlate([], [untold], world())

    assert [each.state for each in changed] == ([] if state is IncidentState.OPEN else [state])


def test_fault_of_a_node_stays_open_however_long_it_waits() -> None:
    waiting = incident(xid(79, seconds_ago=2 * policy().durations.waiting_limit.total_seconds()))

    assert correlate([], [waiting], world()) == ()
