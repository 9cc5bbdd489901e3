"""Findings become incidents: one a cause, whatever the order, and none is lost or acted on twice."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.finding import REPAIRS, Finding, Response
from ops_pipelines.core.identity import PlanId
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.policy import MassEvent
from ops_pipelines.diagnose.correlate import correlate
from ops_pipelines.diagnose.hypothesis import gpus_to_reset
from tests.domain.builders import (
    GPU,
    NODE,
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


def test_an_owner_who_was_told_is_not_told_again_of_the_same_attempt() -> None:
    running = job("42")

    again = correlate([xid(31)], [], world(jobs=[running], told=frozenset({attempt("42")})))
    other = correlate([xid(31)], [], world(jobs=[running], told=frozenset({attempt("43")})))

    assert again == ()
    assert len(other) == 1


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
