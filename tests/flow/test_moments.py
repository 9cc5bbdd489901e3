"""A job that waits for its moment is held when that has come, when waiting is in vain, and not before."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ops_pipelines.core.action import Verb
from ops_pipelines.core.fault import Family, FirstAction
from ops_pipelines.core.finding import Hazard, Response
from ops_pipelines.core.identity import PlanId
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import JobState, JobStatus
from ops_pipelines.core.plan import IncidentPlan, JobTiming, Moment
from ops_pipelines.remediate.due import is_begun, why_it_waits
from tests.domain.builders import NODE, action, after, ago, attempt, begun, ended, facts, incident, job, xid

ATTEMPT = attempt("42")
HAZARDS = tuple(
    Hazard(family=Family.GPU, first_action=first, ends_job_per_hour=rate, slowdown_ratio=0.0, source="test")
    for first, rate in ((FirstAction.RESET_GPU_AT_JOB_END, 0.05), (FirstAction.REBOOT_NODE, float("inf")))
)


def mild() -> Incident:
    """Return an incident whose fault lets jobs continue, acted on since a minute."""
    finding = replace(xid(48, seconds_ago=90), first_action=FirstAction.RESET_GPU_AT_JOB_END)
    return incident(finding, state=IncidentState.ACTING, changed_at=ago(60))


def plan(moment: Moment = Moment.NEXT_CHECKPOINT, **changes: Any) -> IncidentPlan:
    timing = JobTiming(
        attempt=ATTEMPT,
        moment=moment,
        options=(),
        decided_at=ago(60),
        checkpointed_at=ago(600),
        until=after(300),
        reason="a test",
    )
    return IncidentPlan(
        plan=PlanId("PLAN-1"),
        incident=mild().incident,
        response=Response.RESET_GPU,
        actions=(),
        reason="a test",
        effects=(),
        rejected_alternatives=(),
        timings=(replace(timing, **changes),),
    )


def waits(what: IncidentPlan, *jobs: JobStatus, of: Incident | None = None, **changes: Any) -> bool:
    read = facts(jobs=jobs, hazards=HAZARDS, **changes)
    return why_it_waits(what, of or mild(), ATTEMPT, read) is not None


def saved(seconds_ago: float, **changes: Any) -> JobStatus:
    return job(checkpointed_at=ago(seconds_ago), **changes)


@pytest.mark.parametrize(
    ("work", "is_waiting"),
    [
        pytest.param(saved(600), True, id="no newer checkpoint"),
        pytest.param(saved(61), True, id="one from before the plan began"),
        pytest.param(saved(60), True, id="one of that very moment"),
        pytest.param(saved(59), False, id="one since"),
        pytest.param(saved(-1), True, id="one of the future"),
        pytest.param(job(checkpointed_at=None), True, id="none known"),
        pytest.param(saved(600, started_at=ago(5)), False, id="it is on another attempt"),
        pytest.param(saved(600, state=JobState.CANCELLED, ended_at=ago(5)), False, id="it has ended"),
        pytest.param(saved(600, state=JobState.COMPLETING, ended_at=ago(5)), False, id="it is ending"),
    ],
)
def test_a_checkpoint_is_waited_for_until_it_is_there_or_cannot_come(work: JobStatus, is_waiting: bool) -> None:
    assert waits(plan(), work, records=[begun(action(Verb.DRAIN, on=NODE), seconds_ago=60)]) is is_waiting


def test_a_job_that_the_scheduler_forgot_is_not_waited_for() -> None:
    assert not waits(plan())


@pytest.mark.parametrize(("seconds", "is_waiting"), [(-1, False), (0, False), (1, True)])
def test_no_wait_goes_on_beyond_its_limit(seconds: float, is_waiting: bool) -> None:
    assert waits(plan(until=after(seconds)), saved(600)) is is_waiting


@pytest.mark.parametrize("moment", [Moment.NOW, Moment.JOB_END, Moment.NEVER])
def test_only_checkpoints_and_owners_are_waited_for(moment: Moment) -> None:
    assert not waits(plan(moment), saved(600))


def test_a_fault_that_turns_worse_ends_the_wait_for_a_checkpoint_and_not_the_time_to_save() -> None:
    worse = replace(mild(), findings=(*mild().findings, xid(79, seconds_ago=1)))

    assert not waits(plan(), saved(600), of=worse)
    assert waits(plan(Moment.AFTER_NOTICE), saved(600), of=worse)


@pytest.mark.parametrize(
    ("told_seconds_ago", "until", "is_waiting"),
    [
        pytest.param(None, after(-1), True, id="nobody was notified yet"),
        pytest.param(60, after(1), True, id="a second is left"),
        pytest.param(60, after(0), False, id="the time is over"),
        pytest.param(30, after(0), True, id="reported late: the time counts from then"),
        pytest.param(30, after(-30), False, id="reported late, and over"),
    ],
)
def test_time_to_save_counts_from_the_notice(told_seconds_ago: float | None, until: Any, is_waiting: bool) -> None:
    told = [] if told_seconds_ago is None else [told_at(told_seconds_ago)]

    assert waits(plan(Moment.AFTER_NOTICE, until=until), saved(600), records=told) is is_waiting


def told_at(seconds_ago: float) -> Any:
    return ended(action(Verb.NOTIFY_OWNER, of=ATTEMPT), seconds_ago=seconds_ago)


@pytest.mark.parametrize(("verb", "expected"), [(Verb.HOLD, True), (Verb.RESERVE, True), (Verb.NOTIFY_OWNER, False)])
def test_what_has_begun_is_not_put_off_again(verb: Verb, expected: bool) -> None:
    records = (begun(action(verb, of=ATTEMPT)),)

    assert is_begun(plan(), ATTEMPT, records) is expected
    assert not is_begun(replace(plan(), plan=PlanId("PLAN-2")), ATTEMPT, records)
    assert waits(plan(), saved(600), records=records) is not expected


def test_what_is_waited_for_is_said_with_its_limit() -> None:
    why = why_it_waits(plan(), mild(), ATTEMPT, facts(jobs=[saved(600)], hazards=HAZARDS))

    assert why == "moment: job 42 waits for its next checkpoint, until 07:35:00 UTC at the latest"
    assert after(300) - ago(0) == timedelta(minutes=5)
