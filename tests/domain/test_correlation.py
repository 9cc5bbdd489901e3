"""Findings become incidents: one a cause, whatever the order, and none is lost or acted on twice."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.domain.diagnosis.correlation import correlate, gpus_to_reset
from ops_pipelines.domain.fault import Family
from ops_pipelines.domain.identity import PlanId
from ops_pipelines.domain.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.domain.meaning.finding import REPAIRS, Finding, Response
from ops_pipelines.domain.observation import JobState
from ops_pipelines.domain.policy import MassEvent
from tests.domain.builders import (
    GPU,
    NODE,
    NOW,
    OTHER_GPU,
    OTHER_NODE,
    ago,
    attempt,
    conditions_of,
    gpu_missing,
    incident,
    job,
    node_names,
    policy,
    telemetry_stale,
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


# -- one cause, one incident ------------------------------------------------------------------------------------


def test_all_that_a_lost_gpu_causes_on_a_node_is_one_incident() -> None:
    findings = [xid(79), verdict(2), gpu_missing(), unreachable(), xid(43), telemetry_stale()]

    (opened,) = correlate(findings, [], world(conditions=conditions_of(*findings)))

    assert opened.nodes == {NODE}
    assert opened.gpus == {GPU}
    assert len(opened.findings) == len(findings)


def test_faults_on_two_nodes_are_two_incidents() -> None:
    opened = correlate([xid(79), xid(79, node=OTHER_NODE)], [], world())

    assert [(each.incident, each.nodes) for each in opened] == [("INC-0001", {NODE}), ("INC-0002", {OTHER_NODE})]


def test_incidents_are_numbered_on_from_those_there_ever_were() -> None:
    (opened,) = correlate([xid(79)], [], world(incident_count=41))

    assert opened.incident == "INC-0042"


def test_evidence_taken_in_twice_changes_nothing() -> None:
    open_one = incident(xid(79))

    assert correlate([xid(79)], [open_one], world()) == ()


def test_what_is_only_watched_opens_nothing() -> None:
    assert correlate([xid(43), verdict(0)], [], world(jobs=[job()])) == ()


def test_jobs_on_the_node_are_victims() -> None:
    (opened,) = correlate([xid(79)], [], world(jobs=[job("42"), job("43"), job("44", nodes=(OTHER_NODE,))]))

    assert opened.victims == {attempt("42"), attempt("43")}


def test_a_second_page_of_the_same_rule_joins_the_first() -> None:
    paged = incident(xid(54, seconds_ago=60), state=IncidentState.ESCALATED, plan=PlanId("PLAN-1"), plan_count=1)

    (changed,) = correlate([xid(54)], [paged], world())

    assert (changed.incident, len(changed.findings)) == (paged.incident, 2)


# -- the job's own errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [pytest.param(1, id="error first"), pytest.param(-1, id="lost GPU first")])
def test_an_application_error_on_a_node_that_lost_a_gpu_is_its_victim(order: int) -> None:
    findings = [xid(31, seconds_ago=1), xid(79)][::order]

    (opened,) = correlate(findings, [], world(jobs=[job("42")]))

    assert opened.response is Response.REBOOT_NODE
    assert opened.victims == {attempt("42")}
    assert len(opened.findings) == 2


def test_an_application_error_does_not_make_its_gpu_a_culprit() -> None:
    (opened,) = correlate([xid(48), xid(31, gpu=OTHER_GPU)], [], world(jobs=[job()]))

    assert gpus_to_reset(opened.findings) == {GPU}


def test_an_application_error_names_its_job_and_no_node() -> None:
    (opened,) = correlate([xid(31)], [], world(jobs=[job("42")]))

    assert (opened.response, opened.nodes, opened.victims) == (Response.NOTIFY_OWNER, frozenset(), {attempt("42")})


def test_further_errors_of_one_attempt_join_and_those_of_the_next_do_not() -> None:
    first = incident(xid(31, seconds_ago=60), nodes=frozenset(), victims=frozenset({attempt("42")}))

    (joined,) = correlate([xid(31)], [first], world(jobs=[job("42")]))
    (opened,) = correlate([xid(31)], [first], world(jobs=[job("42", started_at=ago(30))], incident_count=1))

    assert (joined.incident, len(joined.findings)) == ("INC-0001", 2)
    assert (opened.incident, opened.victims) == ("INC-0002", {attempt("42", started_at=ago(30))})


@pytest.mark.parametrize(
    ("seconds_since_end", "state", "is_named"),
    [
        pytest.param(599, JobState.FAILED, True, id="just before ten minutes"),
        pytest.param(600, JobState.FAILED, True, id="exactly ten minutes"),
        pytest.param(601, JobState.FAILED, False, id="just after ten minutes"),
        pytest.param(1, JobState.COMPLETED, False, id="a job that succeeded"),
        pytest.param(1, JobState.PENDING, False, id="a job that waits"),
        pytest.param(1, JobState.NODE_FAIL, True, id="a job that lost its node"),
    ],
)
def test_an_application_error_names_a_job_that_died_moments_ago(
    seconds_since_end: float, state: JobState, is_named: bool
) -> None:
    dead = job("42", state=state, ended_at=ago(seconds_since_end))

    opened = correlate([xid(31)], [], world(jobs=[dead]))

    assert [each.victims for each in opened] == ([{attempt("42")}] if is_named else [])


def test_an_application_error_without_a_job_is_no_incident() -> None:
    assert correlate([xid(31)], [], world(jobs=[job("42", nodes=(OTHER_NODE,))])) == ()


# -- order ------------------------------------------------------------------------------------------------------

any_finding = st.builds(
    lambda make, name, seconds, gpu: make(name, seconds, gpu),
    st.sampled_from(
        [
            *(
                lambda name, seconds, gpu, code=code: xid(code, node=name, seconds_ago=seconds, gpu=gpu)
                for code in (13, 31, 43, 48, 54, 79, 95, 999)
            ),
            *(
                lambda name, seconds, gpu, code=code: verdict(code, node=name, seconds_ago=seconds, gpu=gpu)
                for code in (0, 1, 2, 3, 77)
            ),
            lambda name, seconds, _gpu: gpu_missing(node=name, seconds_ago=seconds),
            lambda name, seconds, _gpu: unreachable(node=name, seconds_ago=seconds),
            lambda name, seconds, _gpu: telemetry_stale(node=name, seconds_ago=seconds),
        ]
    ),
    st.sampled_from(node_names(6)),
    st.sampled_from([0, 1, 119, 120, 121, 3600]),
    st.sampled_from([GPU, OTHER_GPU]),
)
JOBS = [job("42", nodes=node_names(6)[:2]), job("43", nodes=node_names(6)[2:3])]


@settings(max_examples=80, deadline=None)
@given(data=st.data(), findings=st.lists(any_finding, max_size=8), old=st.lists(any_finding, max_size=4))
def test_shuffled_findings_give_the_same_incidents(
    data: st.DataObject, findings: list[Finding], old: list[Finding]
) -> None:
    around = world(jobs=JOBS, conditions=conditions_of(*findings, *old), policy_=SMALL_MASS)
    present = [each for each in correlate(old, [], around) if each.is_open]
    around = replace(around, incident_count=len(present))
    shuffled = data.draw(st.permutations(findings))

    assert correlate(shuffled, present[::-1], around) == correlate(findings, present, around)


@settings(max_examples=80, deadline=None)
@given(findings=st.lists(any_finding, max_size=8))
def test_no_call_for_repair_or_for_a_person_is_lost(findings: list[Finding]) -> None:
    opened = correlate(findings, [], world(jobs=JOBS, conditions=conditions_of(*findings), policy_=SMALL_MASS))

    kept = {
        each for incident in opened if incident.is_open for finding in incident.findings for each in finding.evidence
    }
    for finding in findings:
        if finding.response in REPAIRS or finding.response is Response.PAGE:
            assert set(finding.evidence) <= kept
    for node in node_names(6):
        assert sum(each.is_open and node in each.nodes and each.response in REPAIRS for each in opened) <= 1


# -- mass events ------------------------------------------------------------------------------------------------


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


def test_a_node_that_a_person_returned_closes_its_incident_before_a_new_fault_is_placed() -> None:
    left = incident(xid(79, seconds_ago=3600), state=IncidentState.ESCALATED, plan_count=1)

    closed, opened = correlate([xid(79)], [left], world(returned=frozenset({left.incident}), incident_count=1))

    assert (closed.incident, closed.state) == (left.incident, IncidentState.RESOLVED)
    assert (opened.state, opened.nodes) == (IncidentState.OPEN, {NODE})


def test_what_is_still_worked_on_is_not_closed_as_returned() -> None:
    acting = incident(xid(79), state=IncidentState.ACTING, plan_count=1)

    changed = correlate([], [acting], world(returned=frozenset({acting.incident}), incident_count=1))

    assert changed == ()


def test_an_owner_who_was_told_is_not_told_again_of_the_same_attempt() -> None:
    running = job("42")

    again = correlate([xid(31)], [], world(jobs=[running], told=frozenset({attempt("42")})))
    other = correlate([xid(31)], [], world(jobs=[running], told=frozenset({attempt("43")})))

    assert again == ()
    assert len(other) == 1


def test_after_a_mass_event_a_new_repair_stands_for_itself() -> None:
    mass = incident(*broken(4), response=Response.PAGE_MASS_EVENT, state=IncidentState.RESOLVED)

    (changed,) = correlate([xid(79, node="gpu009")], [mass], world(policy_=SMALL_MASS, incident_count=1))

    assert (changed.response, changed.nodes) == (Response.REBOOT_NODE, {"gpu009"})


def test_a_mass_event_names_what_its_nodes_share() -> None:
    changed = correlate(broken(4), [], world(policy_=SMALL_MASS))

    (mass,) = [each for each in changed if each.is_mass_event]
    assert mass.note == "4 nodes look broken within 120 s; all stand at rack r00"


# -- clearing ---------------------------------------------------------------------------------------------------


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


# -- growing stronger -------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("findings", "gpus"),
    [
        pytest.param([xid(48)], {GPU}, id="one"),
        pytest.param([xid(48), xid(95, gpu=OTHER_GPU)], {GPU, OTHER_GPU}, id="two"),
        pytest.param([xid(48), xid(13, gpu=OTHER_GPU)], {GPU}, id="a job's own error beside it"),
        pytest.param([xid(48), xid(54, gpu=OTHER_GPU)], {GPU}, id="a page beside it"),
        pytest.param([xid(48), verdict(3)], set[str](), id="the driver wants a person"),
        pytest.param([unreachable()], set[str](), id="no GPU named"),
    ],
)
def test_only_gpus_with_a_cause_are_reset(findings: Sequence[Finding], gpus: set[str]) -> None:
    assert gpus_to_reset(findings) == gpus


def test_nodes_of_another_cluster_make_no_mass_event() -> None:
    strangers = [xid(79, node=f"elsewhere{number}") for number in range(9)]

    changed = correlate([*strangers, xid(79)], [], world(policy_=SMALL_MASS))

    assert not any(each.is_mass_event for each in changed)
    assert {node for each in changed for node in each.nodes} >= {NODE}


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
