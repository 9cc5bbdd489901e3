"""Plans: the golden order of the verbs, what waits, and what is left to a person."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.fault import Family, FirstAction
from ops_pipelines.core.finding import Finding, Hazard, Response
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.core.observation import Checkpointing, JobState, JobStatus
from ops_pipelines.core.plan import IncidentPlan, Moment
from ops_pipelines.core.policy import BlastCaps, DrainBudget, Mode, Policy
from ops_pipelines.core.proof import Patience, Refusal
from ops_pipelines.remediate.guardrails.facts import ClusterFacts, drain_owner
from ops_pipelines.remediate.planning import plan_remediation
from tests.domain.builders import (
    GPU,
    NODE,
    NOW,
    OTHER_GPU,
    OTHER_NODE,
    action,
    after,
    ago,
    attempt,
    begun,
    ended,
    facts,
    foreign_node,
    gpu_missing,
    held_job,
    incident,
    job,
    node,
    node_names,
    our_drain,
    our_node,
    policy,
    telemetry_stale,
    topology,
    unreachable,
    verdict,
    xid,
)

SILENT = node(is_responding=False)


def planned(what: Incident, known: ClusterFacts, *, by: Policy | None = None) -> IncidentPlan:
    plan = plan_remediation(what, known, policy=by or policy(), topology=topology())
    assert isinstance(plan, IncidentPlan), plan
    return plan


def refused(what: Incident, known: ClusterFacts, *, by: Policy | None = None) -> Refusal:
    refusal = plan_remediation(what, known, policy=by or policy(), topology=topology())
    assert isinstance(refusal, Refusal), refusal
    return refusal


def steps(plan: IncidentPlan) -> list[str]:
    """Return the plan as a person would say it: `hold 42`, `reset_gpu gpu001 0000:1b:00`."""
    return [_step(each) for each in plan.actions]


def _step(each: Action) -> str:
    parts = [each.verb.value, each.attempt.job if each.attempt else None, each.node, each.gpu]
    return " ".join(part for part in parts if part is not None)


def silent_incident(**changes: Any) -> Incident:
    return incident(unreachable(seconds_ago=60), **changes)


# -- the golden orders ------------------------------------------------------------------------------------------


def test_a_reset_moves_the_job_first() -> None:
    plan = planned(incident(xid(48)), facts(jobs=[job("42")]))

    assert steps(plan) == [
        "drain gpu001",
        "notify_owner 42",
        "reserve 42",
        "hold 42",
        "fence 42",
        "exclude 42 gpu001",
        "unreserve 42",
        "release 42",
        "reset_gpu gpu001 0000:1b:00",
    ]


def test_a_reset_of_two_gpus_resets_both() -> None:
    plan = planned(incident(xid(48), xid(95, gpu=OTHER_GPU)), facts())

    assert steps(plan) == ["drain gpu001", f"reset_gpu gpu001 {GPU}", f"reset_gpu gpu001 {OTHER_GPU}"]


def test_a_gpu_that_was_only_mentioned_is_not_reset() -> None:
    plan = planned(incident(xid(48), xid(31, gpu=OTHER_GPU)), facts())

    assert steps(plan) == ["drain gpu001", f"reset_gpu gpu001 {GPU}"]


def test_a_reboot_moves_the_job_first() -> None:
    plan = planned(incident(xid(79)), facts(jobs=[job("42")]))

    assert steps(plan) == [
        "drain gpu001",
        "notify_owner 42",
        "reserve 42",
        "hold 42",
        "fence 42",
        "exclude 42 gpu001",
        "unreserve 42",
        "release 42",
        "reboot gpu001",
    ]


def test_a_silent_node_loses_its_power_before_it_is_declared_down() -> None:
    plan = planned(silent_incident(), facts(nodes=[SILENT], jobs=[job("42", nodes=(NODE, OTHER_NODE))]))

    assert steps(plan) == [
        "hold 42",
        "drain gpu001",
        "notify_owner 42",
        "reserve 42",
        "power_off gpu001",
        "declare_down gpu001",
        "fence 42",
        "exclude 42 gpu001",
        "unreserve 42",
        "release 42",
        "power_on gpu001",
    ]


def test_the_jobs_of_a_silent_node_are_held_although_there_is_no_budget_for_its_drain() -> None:
    broke = Policy(mode=Mode.AUTO, drain_budget=DrainBudget(max_out_count=0))

    plan = planned(silent_incident(), facts(nodes=[SILENT], jobs=[job("42")]), by=broke)

    assert steps(plan)[:2] == ["hold 42", "drain gpu001"]


def test_several_jobs_go_through_each_stage_together() -> None:
    plan = planned(incident(xid(79)), facts(jobs=[job("43"), job("42"), job("44", nodes=(OTHER_NODE,))]))

    assert steps(plan) == [
        "drain gpu001",
        "notify_owner 42",
        "notify_owner 43",
        "reserve 42",
        "reserve 43",
        "hold 42",
        "hold 43",
        "fence 42",
        "fence 43",
        "exclude 42 gpu001",
        "exclude 43 gpu001",
        "unreserve 42",
        "unreserve 43",
        "release 42",
        "release 43",
        "reboot gpu001",
    ]


def test_a_job_that_must_not_be_requeued_is_told_and_left_running() -> None:
    plan = planned(incident(xid(79)), facts(jobs=[job("42", is_requeueable=False), job("43")]))

    assert steps(plan) == [
        "drain gpu001",
        "notify_owner 42",
        "notify_owner 43",
        "reserve 43",
        "hold 43",
        "fence 43",
        "exclude 43 gpu001",
        "unreserve 43",
        "release 43",
        "reboot gpu001",
    ]
    assert "left running" in plan.actions[1].text


def test_a_silent_node_with_a_job_that_must_not_be_requeued_is_left_to_a_person() -> None:
    plan = planned(silent_incident(), facts(nodes=[SILENT], jobs=[job("42", is_requeueable=False), job("43")]))

    assert steps(plan) == ["drain gpu001", "notify_owner 42", "notify_owner 43", "page_human"]


@pytest.mark.parametrize(
    "spent",
    [
        pytest.param([], id="it keeps no checkpoints"),
        pytest.param(
            [
                ended(action(Verb.HOLD, of=attempt("42", started_at=ago(3600 * n)), incident=f"INC-000{n}"))
                for n in (3, 4, 5)
            ],
            id="it was moved as often as allowed",
        ),
    ],
)
def test_our_own_limits_leave_no_job_of_a_silent_node_without_a_fence(spent: list[ActionRecord]) -> None:
    keeps = Checkpointing.UNKNOWN if spent else Checkpointing.NO
    jobs = [job("42", checkpointing=keeps), job("43")]

    plan = planned(silent_incident(), facts(nodes=[SILENT], jobs=jobs, records=spent))

    verbs = [each.verb for each in plan.actions if each.attempt is None or each.attempt.job == "42"]
    assert verbs[0] is Verb.HOLD
    assert verbs.index(Verb.POWER_OFF) < verbs.index(Verb.FENCE) < verbs.index(Verb.RELEASE)
    assert Verb.PAGE_HUMAN not in verbs


def test_an_application_error_tells_the_owner_and_touches_nothing() -> None:
    what = incident(xid(31), nodes=frozenset(), victims=frozenset({attempt("42")}))

    plan = planned(what, facts(jobs=[job("42")]))

    assert steps(plan) == ["notify_owner 42"]
    assert "No node is at fault" in plan.actions[0].text


@pytest.mark.parametrize(
    "present",
    [
        pytest.param(held_job("42"), id="requeued meanwhile"),
        pytest.param(job("42", started_at=ago(5)), id="on its next attempt"),
        pytest.param(job("42", state=JobState.FAILED, ended_at=NOW), id="ended"),
    ],
)
def test_an_application_error_names_the_attempt_that_was_hit(present: JobStatus) -> None:
    what = incident(xid(31), nodes=frozenset(), victims=frozenset({attempt("42")}))

    (told,) = planned(what, facts(jobs=[present])).actions

    assert told.attempt == attempt("42")


def test_an_application_error_of_a_forgotten_job_tells_nobody() -> None:
    what = incident(xid(31), nodes=frozenset(), victims=frozenset({attempt("42")}))

    assert refused(what, facts()).guardrail == "empty_plan"


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(incident(xid(54)), id="hands are needed"),
        pytest.param(incident(xid(999)), id="unknown code"),
        pytest.param(incident(xid(79), verdict(3)), id="the driver asks for a person"),
        pytest.param(incident(xid(79), xid(79, node=OTHER_NODE), response=Response.PAGE_MASS_EVENT), id="mass event"),
        pytest.param(incident(telemetry_stale(seconds_ago=60)), id="metrics stopped"),
    ],
)
def test_a_page_touches_nothing(what: Incident) -> None:
    assert steps(planned(what, facts(jobs=[job("42")]))) == ["page_human"]


def test_on_a_foreign_drain_the_jobs_are_moved_and_the_node_is_left() -> None:
    plan = planned(incident(xid(79)), facts(nodes=[foreign_node()], jobs=[job("42")]))

    assert steps(plan) == [
        "notify_owner 42",
        "reserve 42",
        "hold 42",
        "fence 42",
        "exclude 42 gpu001",
        "unreserve 42",
        "release 42",
        "page_human",
    ]


def test_a_plan_that_leaves_its_node_to_a_foreign_drain_says_whose_it_is() -> None:
    theirs, ours = foreign_node(), planned(incident(xid(79)), facts())

    plan = planned(incident(xid(79)), facts(nodes=[theirs], jobs=[job("42")]))

    assert theirs.reason
    assert (plan.left_to, ours.left_to) == (theirs.reason, "")
    assert theirs.reason not in plan.actions[-1].text  # What others wrote goes into no message.


def test_on_a_silent_node_with_a_foreign_drain_nothing_is_moved() -> None:
    plan = planned(silent_incident(), facts(nodes=[foreign_node(is_responding=False)], jobs=[job("42")]))

    assert steps(plan) == ["notify_owner 42", "page_human"]


# -- jobs in unusual states -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "leaving",
    [
        pytest.param(
            job("42", state=JobState.COMPLETING, started_at=None), id="requeued by somebody: no attempt is shown"
        ),
        pytest.param(job("42", state=JobState.COMPLETING, ended_at=NOW), id="ended by itself"),
    ],
)
def test_a_job_that_is_leaving_is_waited_for_and_not_held(leaving: JobStatus) -> None:
    reset = planned(incident(xid(79)), facts(jobs=[leaving]))
    cut = planned(silent_incident(), facts(nodes=[SILENT], jobs=[leaving]))

    assert steps(reset) == ["drain gpu001", "reboot gpu001"]
    assert steps(cut) == ["drain gpu001", "power_off gpu001", "declare_down gpu001", "power_on gpu001"]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(job("42", state=JobState.UNKNOWN, started_at=None), id="a state without a word"),
        pytest.param(job("42", started_at=None), id="running without a start"),
        pytest.param(job("42", state=JobState.SUSPENDED, started_at=None), id="suspended without a start"),
    ],
)
def test_a_job_that_cannot_be_named_is_never_moved_nor_cut_off(odd: JobStatus) -> None:
    reset = planned(incident(xid(79)), facts(jobs=[odd]))
    cut = planned(silent_incident(), facts(nodes=[SILENT], jobs=[odd]))

    assert steps(reset) == ["drain gpu001", "reboot gpu001"]
    assert steps(cut) == ["drain gpu001", "page_human"]


def superseded(*findings: Finding) -> Incident:
    acting = incident(*findings, state=IncidentState.ACTING, plan_count=1)
    return advance(acting, IncidentEvent.SUPERSEDED, at=NOW, note="")


HOLD = action(Verb.HOLD, of=attempt("42"))


@pytest.mark.parametrize(
    "present",
    [
        pytest.param(held_job("42"), id="pending"),
        pytest.param(job("42", state=JobState.COMPLETING, started_at=None, is_held=True), id="still ending"),
    ],
)
def test_a_plan_releases_what_its_superseded_forerunner_held(present: JobStatus) -> None:
    known = facts(nodes=[our_node()], jobs=[present], records=[our_drain(), ended(HOLD)])

    plan = planned(superseded(xid(48), xid(79)), known)

    assert steps(plan) == ["drain gpu001", "fence 42", "exclude 42 gpu001", "release 42", "reboot gpu001"]
    assert {each.attempt for each in plan.actions if each.attempt} == {attempt("42")}
    assert all(each.try_number == 2 for each in plan.actions)


@pytest.mark.parametrize(
    ("present", "records"),
    [
        pytest.param(
            held_job("42"),
            [ended(HOLD), ended(action(Verb.RELEASE, of=attempt("42")))],
            id="released and held by its owner",
        ),
        pytest.param(held_job("42", is_held=False), [ended(HOLD)], id="released by its owner"),
        pytest.param(
            held_job("42"),
            [ended(action(Verb.HOLD, of=attempt("42"), incident="INC-0009"))],
            id="held for another cause",
        ),
        pytest.param(held_job("42"), [], id="held by its owner"),
        pytest.param(job("42", nodes=(OTHER_NODE,), started_at=ago(5)), [ended(HOLD)], id="runs again"),
        pytest.param(held_job("43"), [ended(HOLD)], id="forgotten by the scheduler"),
    ],
)
def test_nobody_elses_hold_is_released(present: JobStatus, records: Sequence[ActionRecord]) -> None:
    known = facts(nodes=[our_node()], jobs=[present], records=[our_drain(), *records])

    assert steps(planned(superseded(xid(48), xid(79)), known)) == ["drain gpu001", "reboot gpu001"]


def test_a_hold_that_did_not_take_is_tried_again() -> None:
    known = facts(nodes=[our_node()], jobs=[job("42")], records=[our_drain(), begun(HOLD)])

    assert "hold 42" in steps(planned(superseded(xid(48), xid(79)), known))


def test_a_page_says_which_jobs_stay_held() -> None:
    known = facts(
        nodes=[our_node(is_responding=False)],
        jobs=[held_job("42"), job("43", is_requeueable=False)],
        records=[our_drain(), ended(HOLD)],
    )

    plan = planned(replace(superseded(xid(48)), response=Response.POWER_CYCLE), known)

    assert plan.actions[-1].text.endswith("it is left to you; job(s) 42 stay held")


# -- confirmation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "is_believed"),
    [
        pytest.param(59, False, id="just before"),
        pytest.param(60, True, id="exactly"),
        pytest.param(61, True, id="just after"),
    ],
)
@pytest.mark.parametrize("make", [unreachable, gpu_missing, telemetry_stale])
def test_a_condition_is_believed_after_it_lasted(
    make: Callable[..., Finding], seconds: float, is_believed: bool
) -> None:
    result = plan_remediation(
        incident(make(seconds_ago=seconds)), facts(nodes=[SILENT]), policy=policy(), topology=topology()
    )

    if is_believed:
        assert isinstance(result, IncidentPlan)
    else:
        assert isinstance(result, Refusal)
        assert (result.guardrail, result.patience) == ("confirmation", Patience.WAIT)


@pytest.mark.parametrize("logged", [xid(48), xid(79), verdict(1)])
def test_a_logged_event_needs_no_confirmation(logged: Finding) -> None:
    assert planned(incident(logged), facts())
    assert planned(incident(logged, gpu_missing(seconds_ago=0), response=logged.response), facts())


@pytest.mark.parametrize("earlier", [gpu_missing(seconds_ago=600), xid(48, seconds_ago=600), xid(79)])
@pytest.mark.parametrize(
    ("silent_seconds", "is_believed"), [pytest.param(59, False, id="just before"), pytest.param(60, True, id="exactly")]
)
def test_silence_is_confirmed_by_itself_whatever_else_is_wrong(
    earlier: Finding, silent_seconds: float, is_believed: bool
) -> None:
    """Power is not cut after one second of silence because a GPU was lost ten minutes ago."""
    result = plan_remediation(
        incident(earlier, unreachable(seconds_ago=silent_seconds)),
        facts(nodes=[SILENT]),
        policy=policy(),
        topology=topology(),
    )

    assert isinstance(result, IncidentPlan) is is_believed


def test_silence_that_went_and_came_again_is_confirmed_anew() -> None:
    flapping = incident(xid(48, seconds_ago=900), unreachable(seconds_ago=900), unreachable(seconds_ago=5))

    assert refused(flapping, facts(nodes=[SILENT])).guardrail == "confirmation"


def test_a_second_gpu_that_vanishes_does_not_put_off_the_first() -> None:
    first = gpu_missing(seconds_ago=60)
    second = replace(
        gpu_missing(), evidence=tuple(replace(each, gpu=OTHER_GPU) for each in gpu_missing().evidence), gpu=OTHER_GPU
    )

    assert planned(incident(first, second), facts())


# -- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "known", "by"),
    [
        pytest.param(
            incident(xid(79), nodes=frozenset()),
            facts(),
            policy(),
            id="no culprit is not all",
        ),
        pytest.param(
            incident(xid(79), xid(79, node=OTHER_NODE)),
            facts(),
            policy(),
            id="two culprits",
        ),
        pytest.param(
            incident(xid(79, node="stranger")),
            facts(nodes=[node("stranger")]),
            policy(),
            id="not declared",
        ),
        pytest.param(
            incident(xid(79)),
            replace(facts(), nodes={OTHER_NODE: node(OTHER_NODE)}),
            policy(),
            id="not known to the scheduler",
        ),
        pytest.param(
            incident(xid(79)),
            facts(nodes=[foreign_node()], jobs=[job()]),
            policy(untouchable_nodes=frozenset({NODE})),
            id="untouchable, and its jobs with it",
        ),
    ],
)
@pytest.mark.parametrize("mode", list(Mode))
def test_what_may_never_be_touched_is_left_to_a_human_in_every_mode(
    what: Incident, known: ClusterFacts, by: Policy, mode: Mode
) -> None:
    plan = planned(what, known, by=replace(by, mode=mode))

    assert [action.verb for action in plan.actions] == [Verb.PAGE_HUMAN]
    assert "Nothing is done" in plan.actions[0].text


def test_page_about_a_node_that_left_our_hands_names_the_job_that_an_earlier_plan_holds() -> None:
    hold = ended(action(Verb.HOLD, of=attempt()), seconds_ago=60)
    known = facts(nodes=[our_node()], jobs=[held_job()], records=[our_drain(), hold])

    plan = planned(incident(xid(79)), known, by=policy(untouchable_nodes=frozenset({NODE})))

    assert "Still held by an earlier plan, to be released by you: job 42." in plan.actions[0].text


@pytest.mark.parametrize(
    ("what", "known", "by", "rule", "patience"),
    [
        pytest.param(incident(xid(43)), facts(), policy(), "response", Patience.WAIT, id="only watched"),
        pytest.param(incident(xid(79)), facts(is_paused=True), policy(), "pause", Patience.WAIT, id="paused"),
        pytest.param(
            incident(xid(79)),
            facts(),
            policy(drain_budget=DrainBudget(max_out_count=0)),
            "drain_budget",
            Patience.WAIT,
            id="no budget",
        ),
    ],
)
@pytest.mark.parametrize("mode", list(Mode))
def test_what_could_not_begin_is_a_refusal_in_every_mode(
    what: Incident, known: ClusterFacts, by: Policy, rule: str, patience: Patience, mode: Mode
) -> None:
    refusal = refused(what, known, by=replace(by, mode=mode))

    assert (refusal.guardrail, refusal.patience) == (rule, patience)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("what", [incident(xid(79)), incident(xid(48)), incident(xid(54))])
def test_every_mode_plans_the_same(mode: Mode, what: Incident) -> None:
    known = facts(jobs=[job("42")])

    assert planned(what, known, by=policy(mode)) == planned(what, known, by=policy(Mode.AUTO))


# -- the plan's name --------------------------------------------------------------------------------------------


def test_the_same_state_gives_the_same_plan() -> None:
    once = planned(incident(xid(79)), facts(jobs=[job("42"), job("43")]))
    again = planned(incident(xid(79)), replace(facts(jobs=[job("43"), job("42")]), taken_at=NOW))

    assert once.plan == again.plan
    assert once == again


@pytest.mark.parametrize(
    ("what", "known"),
    [
        pytest.param(incident(xid(79)), facts(jobs=[job("42"), job("43")]), id="another job"),
        pytest.param(incident(xid(79)), facts(jobs=[job("42", started_at=ago(5))]), id="another attempt"),
        pytest.param(incident(xid(48)), facts(jobs=[job("42")]), id="another repair"),
        pytest.param(incident(xid(79), plan_count=1), facts(jobs=[job("42")]), id="another try"),
        pytest.param(incident(xid(79), name="INC-0002"), facts(jobs=[job("42")]), id="another cause"),
        pytest.param(incident(xid(79)), facts(nodes=[foreign_node()], jobs=[job("42")]), id="another drain"),
    ],
)
def test_a_plan_that_would_do_something_else_has_another_name(what: Incident, known: ClusterFacts) -> None:
    approved = planned(incident(xid(79)), facts(jobs=[job("42")]))

    assert planned(what, known).plan != approved.plan


def test_new_evidence_that_changes_nothing_keeps_the_name() -> None:
    approved = planned(incident(xid(79)), facts(jobs=[job("42")]))

    assert planned(incident(xid(79), xid(43), xid(79, position="again")), facts(jobs=[job("42")])).plan == approved.plan


# -- effects ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jobs", "effects"),
    [
        pytest.param([], ("no job runs on it",), id="idle"),
        pytest.param(
            [job("42", gpu_count=16, checkpointed_at=ago(1800))],
            ("job 42 (16 GPUs) is set back 1800 s to its last checkpoint: 8.00 GPU-hours",),
            id="known checkpoint",
        ),
        pytest.param(
            [job("42", checkpointed_at=None)],
            ("job 42 (8 GPUs) is requeued; the age of its checkpoint is unknown",),
            id="unknown checkpoint",
        ),
        pytest.param(
            [job("42", checkpointed_at=ago(-5))],
            ("job 42 (8 GPUs) is set back 0 s to its last checkpoint: 0.00 GPU-hours",),
            id="a checkpoint from a clock ahead",
        ),
        pytest.param(
            [job("42", is_requeueable=False)],
            ("job 42 (8 GPUs) is not touched; the repair waits until it ends: it may not be requeued",),
            id="not requeueable",
        ),
        pytest.param(
            [job("42", state=JobState.COMPLETING, started_at=None)],
            ("job 42 is ending already; the repair waits until it is gone",),
            id="leaving",
        ),
    ],
)
def test_effects_name_what_it_costs_whom(jobs: list[JobStatus], effects: tuple[str, ...]) -> None:
    assert planned(incident(xid(79)), facts(jobs=jobs)).effects == effects


def test_a_silent_node_rejects_to_be_declared_down_first() -> None:
    plan = planned(silent_incident(), facts(nodes=[SILENT]))

    assert any("second copy" in rejected for rejected in plan.rejected_alternatives)


def test_the_drivers_wish_is_named_against_the_table() -> None:
    plan = planned(incident(xid(79), verdict(1)), facts())

    assert plan.rejected_alternatives == ("reboot node: reset gpu instead, because the driver itself asks for it",)


def test_our_drain_reason_makes_the_drain_ours() -> None:
    drain = planned(incident(xid(79)), facts()).actions[0]
    record = ended(drain, OutcomeKind.DONE, witnessed_at=NOW)

    status = node(is_drained=True, reason=drain.text, reason_set_at=NOW)
    assert drain_owner(status, (record,)) == drain.incident


def test_what_only_the_metrics_showed_is_not_believed_while_they_are_down() -> None:
    lost = incident(gpu_missing(seconds_ago=600))

    refusal = refused(lost, facts(is_telemetry_available=False))

    assert (refusal.guardrail, refusal.patience) == ("confirmation", Patience.WAIT)
    assert planned(lost, facts()).actions


@pytest.mark.parametrize(("seconds", "is_told"), [(59, False), (60, True)])
def test_an_owner_is_told_of_a_hang_once_no_cause_has_shown_itself(seconds: float, is_told: bool) -> None:
    hang = replace(xid(31), family=Family.STALL, first_action=FirstAction.RESTART_JOB)
    waiting = replace(incident(hang, nodes=frozenset(), victims=frozenset({attempt("42")})), opened_at=ago(seconds))

    planned = plan_remediation(waiting, facts(jobs=[job("42")]), policy=policy(), topology=topology())

    assert isinstance(planned, IncidentPlan) is is_told


def test_where_moving_its_jobs_would_lose_too_much_the_node_takes_no_new_work_all_the_same() -> None:
    late = job("42", gpu_count=8, checkpointed_at=ago(3600), started_at=ago(7200), checkpointing=Checkpointing.YES)
    mild = (Hazard(family=None, first_action=None, ends_job_per_hour=5.0, slowdown_ratio=0.0, source="test"),)
    known = replace(facts(jobs=[late]), hazards=mild)
    capped = replace(policy(), blast_caps=BlastCaps(max_gpu_hours_per_plan=1.0))

    plan = planned(incident(xid(48)), known, by=capped)

    assert "hold 42" in steps(planned(incident(xid(48)), known))
    assert steps(plan) == ["drain gpu001", "notify_owner 42", "reset_gpu gpu001 0000:1b:00"]
    assert "pass the limits" in plan.effects[0]


def test_the_order_in_which_jobs_save_gives_a_plan_no_other_name() -> None:
    def jobs(first: int, second: int) -> list[JobStatus]:
        return [job("42", checkpointed_at=ago(first)), job("43", checkpointed_at=ago(second))]

    names = {planned(incident(xid(79)), facts(jobs=jobs(*ages))).plan for ages in ((60, 600), (600, 60))}

    assert len(names) == 1


@pytest.mark.parametrize(
    ("max_out_count", "others", "jobs", "rule"),
    [
        pytest.param(4, 2, 1, None, id="a place is left"),
        pytest.param(4, 3, 1, "drain_budget", id="the last place"),
        pytest.param(4, 3, 0, None, id="the last place, and no job to wait for"),
        pytest.param(1, 0, 1, None, id="a budget of one"),
    ],
)
def test_drains_that_only_wait_for_jobs_leave_a_place_for_what_cannot_wait(
    max_out_count: int, others: int, jobs: int, rule: str | None
) -> None:
    out = [node(name, is_drained=True, reason="by hand") for name in node_names(40)[8 : 8 + others]]
    stays = [job("42", gpu_count=8, is_requeueable=True, checkpointed_at=ago(60), ends_by=after(60))][:jobs]
    harmless = (Hazard(family=None, first_action=None, ends_job_per_hour=0.0, slowdown_ratio=0.0, source="test"),)
    known = replace(facts(nodes=out, jobs=stays), hazards=harmless)
    by = policy(drain_budget=DrainBudget(max_out_count=max_out_count, max_out_per_rack_count=9))

    plan = plan_remediation(incident(xid(48)), known, policy=by, topology=topology())

    found = plan.guardrail if isinstance(plan, Refusal) else None
    assert found == rule
    assert isinstance(plan, Refusal) or [each.moment for each in plan.timings] == [Moment.JOB_END] * jobs
