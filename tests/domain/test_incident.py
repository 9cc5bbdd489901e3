"""The life of an incident: what the table allows, and that nothing else ever happens."""

from dataclasses import replace
from itertools import product

import pytest

from ops_pipelines.core.fault import FIRST_STEPS, AtFault, Family, FirstAction, Hypothesis
from ops_pipelines.core.finding import Finding
from ops_pipelines.core.identity import PlanId
from ops_pipelines.core.incident import (
    OPEN_STATES,
    TRANSITIONS,
    IllegalTransitionError,
    IncidentEvent,
    IncidentState,
    advance,
    asked_of_person,
    next_state,
)
from ops_pipelines.diagnose.hypothesis import diagnose
from tests.domain.builders import after, gpu_missing, incident, telemetry_stale, topology, verdict, xid

EVERY_PAIR = list(product(IncidentState, IncidentEvent))
FINAL = frozenset({IncidentState.RESOLVED, IncidentState.MERGED})


@pytest.mark.parametrize(
    ("state", "event", "expected"),
    [
        (IncidentState.OPEN, IncidentEvent.PLAN_BEGUN, IncidentState.ACTING),
        (IncidentState.OPEN, IncidentEvent.CLEARED, IncidentState.RESOLVED),
        (IncidentState.OPEN, IncidentEvent.JOINED_OTHER, IncidentState.MERGED),
        (IncidentState.OPEN, IncidentEvent.NEEDS_HUMAN, IncidentState.ESCALATED),
        (IncidentState.ACTING, IncidentEvent.STEPS_DONE, IncidentState.VERIFYING),
        (IncidentState.ACTING, IncidentEvent.NOTHING_TO_VERIFY, IncidentState.RESOLVED),
        (IncidentState.ACTING, IncidentEvent.SUPERSEDED, IncidentState.OPEN),
        (IncidentState.ACTING, IncidentEvent.NEEDS_HUMAN, IncidentState.ESCALATED),
        (IncidentState.VERIFYING, IncidentEvent.RECOVERED, IncidentState.RESOLVED),
        (IncidentState.VERIFYING, IncidentEvent.SUPERSEDED, IncidentState.OPEN),
        (IncidentState.VERIFYING, IncidentEvent.NEEDS_HUMAN, IncidentState.ESCALATED),
        (IncidentState.ACTING, IncidentEvent.REPAIR_FAILED, IncidentState.OPEN),
        (IncidentState.ACTING, IncidentEvent.QUEUED, IncidentState.IN_REPAIR),
        (IncidentState.VERIFYING, IncidentEvent.NOT_WELL, IncidentState.OPEN),
        (IncidentState.VERIFYING, IncidentEvent.RETURNED, IncidentState.PROBATION),
        (IncidentState.PROBATION, IncidentEvent.RECOVERED, IncidentState.RESOLVED),
        (IncidentState.PROBATION, IncidentEvent.RELAPSED, IncidentState.OPEN),
        (IncidentState.PROBATION, IncidentEvent.NEEDS_HUMAN, IncidentState.ESCALATED),
        (IncidentState.IN_REPAIR, IncidentEvent.REPAIRED, IncidentState.VERIFYING),
        (IncidentState.IN_REPAIR, IncidentEvent.CLEARED, IncidentState.RESOLVED),
        (IncidentState.ESCALATED, IncidentEvent.CLEARED, IncidentState.RESOLVED),
        (IncidentState.ESCALATED, IncidentEvent.RECOVERED, IncidentState.RESOLVED),
        (IncidentState.ESCALATED, IncidentEvent.STRUCK_ANEW, IncidentState.OPEN),
    ],
)
def test_an_incident_takes_the_way_of_the_table(
    state: IncidentState, event: IncidentEvent, expected: IncidentState
) -> None:
    before = incident(state=state)

    moved = advance(before, event, at=after(5), note="because")

    assert (moved.state, moved.changed_at, moved.note) == (expected, after(5), "because")
    assert TRANSITIONS[state, event] is expected


def test_the_table_holds_no_more_than_the_ways_tested_above() -> None:
    assert len(TRANSITIONS) == 23


@pytest.mark.parametrize(
    ("state", "event"),
    [pytest.param(*pair, id=f"{pair[0].value} {pair[1].value}") for pair in EVERY_PAIR if pair not in TRANSITIONS],
)
def test_every_other_way_raises_and_changes_nothing(state: IncidentState, event: IncidentEvent) -> None:
    before = incident(state=state)
    copy = replace(before)

    with pytest.raises(IllegalTransitionError, match=f"{state.value} cannot take {event.value}"):
        advance(before, event, at=after(5), note="because")

    assert before == copy


def test_every_state_can_be_reached_from_open() -> None:
    reached = {IncidentState.OPEN}
    while True:
        further = reached | {next_state(*pair) for pair in TRANSITIONS if pair[0] in reached}
        if further == reached:
            break
        reached = further

    assert reached == set(IncidentState)


def test_final_states_are_final_and_every_other_state_has_a_way_out() -> None:
    leaving = {state for state, _ in TRANSITIONS}

    assert leaving.isdisjoint(FINAL)
    assert leaving == OPEN_STATES
    assert OPEN_STATES.isdisjoint(FINAL)


@pytest.mark.parametrize(
    ("state", "event"), [pytest.param(*pair, id=f"{pair[0].value} {pair[1].value}") for pair in TRANSITIONS]
)
def test_the_closing_time_is_set_by_a_final_state_only(state: IncidentState, event: IncidentEvent) -> None:
    moved = advance(incident(state=state), event, at=after(5), note="")

    assert (moved.closed_at == after(5)) is (moved.state in FINAL)
    assert moved.is_open is (moved.state not in FINAL)


@pytest.mark.parametrize(
    ("state", "event"), [pytest.param(*pair, id=f"{pair[0].value} {pair[1].value}") for pair in TRANSITIONS]
)
def test_only_what_is_planned_anew_forgets_its_plan(state: IncidentState, event: IncidentEvent) -> None:
    moved = advance(incident(state=state, plan=PlanId("PLAN-1"), plan_count=1), event, at=after(5), note="")

    anew = {
        IncidentEvent.SUPERSEDED,
        IncidentEvent.REPAIR_FAILED,
        IncidentEvent.NOT_WELL,
        IncidentEvent.RELAPSED,
        IncidentEvent.STRUCK_ANEW,
    }
    assert (moved.plan is None) is (event in anew)
    assert moved.plan_count == 1


def test_whoever_was_paged_is_asked_for_the_first_step_and_else_hears_what_became_of_ours() -> None:
    believed = Hypothesis(
        statement="leaf switch s0 failed", culprits=(), at_fault=AtFault.FABRIC, family=Family.FABRIC,
        first_action=FirstAction.INVESTIGATE_FABRIC, confidence=0.9, affected_nodes=frozenset(), evidence_for=(),
        evidence_against=(), alternatives=(), settled_by="",
    )  # fmt: skip
    paged = incident(hypothesis=believed, note="a person was paged: leaf switch s0 failed")

    assert asked_of_person(paged).startswith("look at the fabric")
    assert asked_of_person(replace(paged, hypothesis=None)) == paged.note
    assert asked_of_person(replace(paged, note="the reset did not help")) == "the reset did not help"


def test_every_first_action_is_said_in_words() -> None:
    assert set(FIRST_STEPS) == set(FirstAction)


@pytest.mark.parametrize("is_driver_first", [True, False])
@pytest.mark.parametrize(
    ("drives", "beside"),
    [
        pytest.param(79, 31, id="a lost GPU beside an application error"),
        pytest.param(48, 31, id="an uncorrectable error beside an application error"),
        pytest.param(95, 13, id="an uncontained error beside an application error"),
        pytest.param(79, 48, id="a reboot beside a reset"),
        pytest.param(79, 54, id="a reboot beside what calls for a look"),
    ],
)
def test_headline_and_hypothesis_are_of_the_finding_that_drives_whichever_came_first(
    drives: int, beside: int, is_driver_first: bool
) -> None:
    strong = xid(drives, seconds_ago=60 if is_driver_first else 10)
    weak = xid(beside, seconds_ago=10 if is_driver_first else 60)

    told = incident(*sorted((strong, weak), key=lambda each: each.found_at))

    belief = diagnose(told, topology=topology())
    assert belief is not None
    assert told.cause == strong.explanation
    assert (belief.statement, belief.first_action) == (strong.explanation.partition("; ")[0], strong.first_action)


@pytest.mark.parametrize(
    ("said_better", "also_shown"),
    [
        pytest.param(xid(79), gpu_missing(seconds_ago=60), id="an event before a condition"),
        pytest.param(xid(48), verdict(2, seconds_ago=60), id="the fault before the driver's wish"),
        pytest.param(xid(79), telemetry_stale(seconds_ago=60), id="a repair before silent metrics"),
    ],
)
def test_of_what_calls_for_as_much_the_event_says_it_best(said_better: Finding, also_shown: Finding) -> None:
    assert incident(also_shown, said_better).cause == said_better.explanation
