"""Every contradiction between a plan and its snapshot is found, and our planner makes none."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops_pipelines.core.action import Action, ActionRecord, Verb
from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.identity import NodeName, PlanId, digest_of
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.plan import IncidentPlan, JobTiming, Moment, Option, Rules, Snapshot
from ops_pipelines.core.policy import ActionClass, BlastCaps, Consent, DrainBudget, FreezeWindow, Mode, Policy
from ops_pipelines.remediate.decide import decide, re_prove
from ops_pipelines.remediate.plan_proof import (
    PROOFS,
    find_acts_in_freeze,
    find_acts_in_mass_event,
    find_aimless_repairs,
    find_broken_order,
    find_forbidden_acts,
    find_overspent_budget,
    find_passed_blast_caps,
    find_unknown_targets,
    find_unserved_services,
    prove_plans,
)
from tests.domain.builders import (
    GPU,
    INCIDENT,
    NODE,
    NOW,
    OTHER_NODE,
    action,
    after,
    attempt,
    ended,
    foreign_node,
    incident,
    job,
    node,
    node_names,
    our_drain,
    our_node,
    policy,
    rules,
    snapshot,
    xid,
)
from tests.domain.snapshots import cases

DRAIN = action(Verb.DRAIN, on=NODE)
REBOOT = action(Verb.REBOOT, on=NODE)
HOLD = action(Verb.HOLD, of=attempt())
FENCE = action(Verb.FENCE, of=attempt())
EXCLUDE = action(Verb.EXCLUDE, of=attempt(), on=NODE)
RELEASE = action(Verb.RELEASE, of=attempt())
OFF = action(Verb.POWER_OFF, on=NODE)
DOWN = action(Verb.DECLARE_DOWN, on=NODE)
PAGE = action(Verb.PAGE_HUMAN)


def plan(*actions: Action, response: Response = Response.REBOOT_NODE) -> IncidentPlan:
    return IncidentPlan(
        plan=PlanId("PLAN-1"),
        incident=INCIDENT,
        response=response,
        actions=actions,
        reason="test",
        effects=(),
        rejected_alternatives=(),
    )


@pytest.mark.parametrize(
    ("act", "given_rules", "state", "contradiction"),
    [
        pytest.param(DRAIN, rules(), snapshot(), None, id="a known node"),
        pytest.param(PAGE, rules(), snapshot(), None, id="a page has no target"),
        pytest.param(HOLD, rules(), snapshot(jobs=[job()]), None, id="a known job"),
        pytest.param(
            action(Verb.DRAIN, on="stranger"),
            rules(),
            snapshot(nodes=[node("stranger")]),
            "PLAN-1: stranger is not in cluster.yaml",
            id="not declared",
        ),
        pytest.param(
            DRAIN,
            rules(),
            snapshot(node_count=0),
            "PLAN-1: the scheduler does not know gpu001",
            id="not in the scheduler",
        ),
        pytest.param(
            DRAIN,
            rules(policy(untouchable_nodes=frozenset({NODE}))),
            snapshot(),
            "PLAN-1: gpu001 is untouchable",
            id="untouchable",
        ),
        pytest.param(HOLD, rules(), snapshot(), "PLAN-1: the scheduler does not know job 42", id="unknown job"),
        pytest.param(
            EXCLUDE,
            rules(policy(untouchable_nodes=frozenset({NODE}))),
            snapshot(jobs=[job()]),
            "PLAN-1: gpu001 is untouchable",
            id="a job kept off an untouchable node",
        ),
    ],
)
def test_an_unknown_target_is_found(
    act: Action, given_rules: Rules, state: Snapshot, contradiction: str | None
) -> None:
    found = find_unknown_targets([plan(act)], state, given_rules)

    assert found == (() if contradiction is None else (contradiction,))


@pytest.mark.parametrize(
    ("actions", "records", "is_broken"),
    [
        pytest.param([DRAIN, HOLD, FENCE, EXCLUDE, RELEASE, REBOOT], [], False, id="golden"),
        pytest.param([DRAIN, HOLD, OFF, DOWN, FENCE, EXCLUDE, RELEASE], [], False, id="golden power cycle"),
        pytest.param([DRAIN, REBOOT], [], False, id="no job"),
        pytest.param([DRAIN, FENCE, HOLD, EXCLUDE, RELEASE], [], True, id="fence before hold"),
        pytest.param([DRAIN, HOLD, FENCE, RELEASE, EXCLUDE], [], True, id="release before exclude"),
        pytest.param([DRAIN, OFF, HOLD, FENCE, RELEASE], [], True, id="power off before hold"),
        pytest.param([DRAIN, HOLD, DOWN, OFF, FENCE, RELEASE], [], True, id="down before power off"),
        pytest.param([DRAIN, HOLD, EXCLUDE, RELEASE], [], True, id="release without fence"),
        pytest.param([DRAIN, FENCE, EXCLUDE, RELEASE], [], True, id="release without hold"),
        pytest.param([DRAIN, FENCE, EXCLUDE, RELEASE], [ended(HOLD)], False, id="held by the plan before"),
        pytest.param(
            [DRAIN, FENCE, EXCLUDE, RELEASE],
            [ended(action(Verb.HOLD, of=attempt(), incident="INC-0002"))],
            True,
            id="held for another cause",
        ),
        pytest.param([DRAIN, RELEASE], [ended(HOLD), ended(FENCE)], True, id="held before but not fenced again"),
        pytest.param([HOLD, action(Verb.FENCE, of=attempt("43")), RELEASE], [], True, id="another job is fenced"),
        pytest.param([REBOOT], [], True, id="reboot without drain"),
        pytest.param([REBOOT, DRAIN], [], True, id="reboot before drain"),
        pytest.param([action(Verb.RESET_GPU, on=NODE, gpu=GPU)], [], True, id="reset without drain"),
        pytest.param([HOLD, OFF], [], True, id="power off without drain"),
    ],
)
def test_a_broken_order_is_found(actions: Sequence[Action], records: Sequence[ActionRecord], is_broken: bool) -> None:
    found = find_broken_order([plan(*actions)], snapshot(records=tuple(records)), rules())

    assert bool(found) is is_broken


RESERVE = action(Verb.RESERVE, of=attempt())
UNRESERVE = action(Verb.UNRESERVE, of=attempt())


@pytest.mark.parametrize(
    ("actions", "is_broken"),
    [
        pytest.param([DRAIN, RESERVE, HOLD, FENCE, EXCLUDE, UNRESERVE, RELEASE], False, id="in order"),
        pytest.param([DRAIN, HOLD, RESERVE, OFF, DOWN, FENCE, EXCLUDE, UNRESERVE, RELEASE], False, id="silent node"),
        pytest.param([DRAIN, HOLD, FENCE, RESERVE, EXCLUDE, UNRESERVE, RELEASE], True, id="reserved after the fence"),
        pytest.param([DRAIN, RESERVE, HOLD, FENCE, EXCLUDE, RELEASE, UNRESERVE], True, id="handed over too late"),
        pytest.param([DRAIN, RESERVE, HOLD, FENCE, EXCLUDE, RELEASE], True, id="never handed over"),
        pytest.param([DRAIN, HOLD, FENCE, RELEASE, OFF, action(Verb.POWER_ON, on=NODE)], False, id="cycled at the end"),
        pytest.param(
            [
                DRAIN,
                HOLD,
                FENCE,
                RELEASE,
                action(Verb.HOLD, of=attempt("43")),
                action(Verb.FENCE, of=attempt("43")),
                action(Verb.RELEASE, of=attempt("43")),
                REBOOT,
            ],
            False,
            id="one job after the other",
        ),
        pytest.param([action(Verb.REIMAGE, on=NODE)], True, id="installed again without a drain"),
        pytest.param([action(Verb.CHECK, on=NODE)], True, id="tested without a drain"),
    ],
)
def test_spare_nodes_are_kept_before_the_hold_and_handed_over_before_the_release(
    actions: Sequence[Action], is_broken: bool
) -> None:
    assert bool(find_broken_order([plan(*actions)], snapshot(), rules())) is is_broken


@pytest.mark.parametrize(
    ("begins", "ends", "allows_drains", "act", "is_found"),
    [
        pytest.param(-9, 9, False, DRAIN, True, id="a drain"),
        pytest.param(-9, 9, True, DRAIN, False, id="a drain that is allowed"),
        pytest.param(-9, 9, True, HOLD, True, id="a hold"),
        pytest.param(-9, 9, False, PAGE, False, id="a page"),
        pytest.param(0, 9, False, DRAIN, True, id="as it begins"),
        pytest.param(-9, 0, False, DRAIN, False, id="as it ends"),
    ],
)
def test_a_plan_that_begins_in_a_freeze_window_is_found(
    begins: float, ends: float, allows_drains: bool, act: Action, is_found: bool
) -> None:
    window = FreezeWindow(name="visit", begins_at=after(begins), ends_at=after(ends), allows_drains=allows_drains)
    frozen = rules(policy(freeze_windows=(window,)))

    assert bool(find_acts_in_freeze([plan(act)], snapshot(jobs=[job()]), frozen)) is is_found
    owed = snapshot(jobs=[job()], records=(ended(HOLD),))
    assert find_acts_in_freeze([plan(act)], owed, frozen) == ()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(("good", "unknown", "spends too much")), min_size=1, max_size=9))
def test_of_many_plans_just_those_that_are_contradicted_do_not_pass(kinds: list[str]) -> None:
    """The budget has room for the good ones: anyone who is contradicted spends nothing of it."""
    names = iter(node_names(40))
    good = kinds.count("good")
    held = rules(policy(drain_budget=DrainBudget(max_out_count=good, max_out_per_rack_count=9)))
    acts = {
        "good": lambda: [next(names)],
        "unknown": lambda: [NodeName("stranger")],
        "spends too much": lambda: [next(names) for _ in range(good + 1)],
    }
    plans = [
        replace(plan(*(action(Verb.DRAIN, on=name) for name in acts[kind]())), plan=PlanId(f"PLAN-{number}"))
        for number, kind in enumerate(kinds)
    ]

    proofs = prove_plans(
        plans, snapshot(), held, inputs=digest_of("inputs"), contents=[digest_of(each.plan) for each in plans]
    )

    assert [each.plan for each in proofs] == [each.plan for each in plans]
    assert [not each.contradictions for each in proofs] == [kind == "good" for kind in kinds]


def test_all_plans_together_keep_the_caps() -> None:
    capped = rules(policy(blast_caps=BlastCaps(max_out_per_leaf_count=1)))
    names = node_names(40)

    assert find_passed_blast_caps(drains(names[0], names[8]), snapshot(), capped) == ()
    (found,) = find_passed_blast_caps(drains(names[0], names[1]), snapshot(), capped)
    assert found.startswith("2 of 8 nodes of leaf switch s0 would be out")


def test_two_replicas_are_not_held_at_once_where_one_must_serve() -> None:
    jobs = [
        job(name, nodes=(node_,), service="chat", min_serving_count=1) for name, node_ in (("42", NODE), ("43", NODE))
    ]
    both = plan(DRAIN, HOLD, action(Verb.HOLD, of=attempt("43")), FENCE, RELEASE)
    in_turn = plan(DRAIN, HOLD, FENCE, RELEASE, action(Verb.HOLD, of=attempt("43")))

    assert find_unserved_services([both], snapshot(jobs=jobs), rules()) == (
        "PLAN-1: 0 of chat would serve, and 1 must",
    )
    assert find_unserved_services([in_turn], snapshot(jobs=jobs), rules()) == ()


def test_a_stored_proof_is_found_again_and_a_forged_one_is_not() -> None:
    state = snapshot(*xid(79).evidence, jobs=[job()])
    (made,) = decide(state, rules()).plans
    assert made.proof is not None

    assert re_prove(made, state, rules()) == ()
    forged = replace(made, proof=replace(made.proof, lost_gpu_hours=made.proof.lost_gpu_hours + 1, teams=()))
    assert [each.split(":")[0] for each in re_prove(forged, state, rules())] == ["teams", "lost gpu hours"]
    missing = ("no proof is stored with it, although it touches the cluster",)
    assert re_prove(replace(made, proof=None), state, rules()) == missing
    assert re_prove(replace(made, proof=None, actions=(DRAIN,)), state, rules()) == missing
    assert re_prove(replace(made, proof=None, actions=(action(Verb.PAGE_HUMAN),)), state, rules()) == ()


def test_the_proof_of_the_second_plan_of_a_decision_counts_the_first() -> None:
    state = snapshot(*(each for name in (NODE, "gpu005") for each in xid(79, node=name).evidence))

    first, second = decide(state, rules()).plans

    assert re_prove(first, state, rules()) == re_prove(second, state, rules()) == ()


def test_a_plan_is_proven_by_the_limits_of_today() -> None:
    state = snapshot(*xid(79).evidence)
    (made,) = decide(state, rules()).plans

    found = re_prove(made, state, rules(policy(drain_budget=DrainBudget(max_out_count=0))))

    assert found[0] == "it breaks a limit: 1 of 40 nodes of the cluster would be out; max_out_count is 0"


def drains(*names: NodeName) -> list[IncidentPlan]:
    return [plan(action(Verb.DRAIN, on=name)) for name in names]


@pytest.mark.parametrize(
    ("new_count", "contradictions"),
    [
        pytest.param(1, (), id="one left"),
        pytest.param(2, (), id="the last one"),
        pytest.param(3, ("5 of 40 nodes of the cluster would be out; max_out_count is 4",), id="one too many"),
    ],
)
def test_an_overspent_budget_is_found(new_count: int, contradictions: tuple[str, ...]) -> None:
    names = node_names(40)
    state = snapshot(nodes=[foreign_node(name) for name in names[20:22]])

    found = find_overspent_budget(
        drains(*names[:new_count]),
        state,
        rules(policy(drain_budget=DrainBudget(max_out_count=4, max_out_per_rack_count=9))),
    )

    assert found == contradictions


def test_draining_again_what_is_out_spends_nothing() -> None:
    state = snapshot(nodes=[our_node()], records=(our_drain(),))

    assert find_overspent_budget(drains(NODE), state, rules(policy(drain_budget=DrainBudget(max_out_count=0)))) == ()


@pytest.mark.parametrize(
    ("state", "act", "is_found"),
    [
        pytest.param(IncidentState.OPEN, DRAIN, True, id="a drain"),
        pytest.param(IncidentState.ESCALATED, REBOOT, True, id="a reboot"),
        pytest.param(IncidentState.ESCALATED, PAGE, False, id="a page"),
        pytest.param(IncidentState.RESOLVED, DRAIN, False, id="a mass event that is over"),
        pytest.param(IncidentState.OPEN, action(Verb.DRAIN, on="gpu020"), False, id="a node beside it"),
    ],
)
def test_an_act_in_a_mass_event_is_found(state: IncidentState, act: Action, is_found: bool) -> None:
    mass = incident(xid(79), xid(79, node=OTHER_NODE), response=Response.PAGE_MASS_EVENT, state=state)

    assert bool(find_acts_in_mass_event([plan(act)], snapshot(incidents=(mass,)), rules())) is is_found


@pytest.mark.parametrize("response", list(Response))
def test_a_touch_without_a_call_for_repair_is_found(response: Response) -> None:
    found = find_aimless_repairs([plan(DRAIN, PAGE, response=response)], snapshot(), rules())

    assert bool(found) is (response not in REPAIRS)


FREEZE = FreezeWindow(name="visit", begins_at=after(-9), ends_at=after(9))
TWINS = [job(name, nodes=(on,), service="chat", min_serving_count=1) for name, on in (("42", NODE), ("43", NODE))]
MASS = incident(xid(79), xid(79, node=OTHER_NODE), response=Response.PAGE_MASS_EVENT, name="INC-0009")
BUGS = {
    "targets_are_known": (plan(DRAIN), snapshot(), rules(policy(untouchable_nodes=frozenset({NODE})))),
    "order_is_hold_fence_exclude_release": (plan(DRAIN, HOLD, EXCLUDE, RELEASE), snapshot(jobs=[job()]), rules()),
    "stays_within_drain_budget": (
        plan(DRAIN),
        snapshot(),
        rules(policy(drain_budget=DrainBudget(max_out_count=0))),
    ),
    "stays_within_blast_caps": (
        plan(DRAIN),
        snapshot(),
        rules(policy(blast_caps=BlastCaps(max_out_per_leaf_count=0))),
    ),
    "keeps_freeze_windows": (plan(DRAIN), snapshot(), rules(policy(freeze_windows=(FREEZE,)))),
    "keeps_services_serving": (
        plan(DRAIN, HOLD, action(Verb.HOLD, of=attempt("43"))),
        snapshot(jobs=TWINS),
        rules(),
    ),
    "keeps_consents": (plan(DRAIN), snapshot(), rules(policy(consents={ActionClass.ISOLATE: Consent.FORBID}))),
    "mass_event_is_left_alone": (plan(DRAIN), snapshot(incidents=(MASS,)), rules()),
    "only_repairs_touch_nodes": (plan(DRAIN, response=Response.PAGE), snapshot(), rules()),
}
"""For each check a plan that a planner with one fault makes, and that no other check sees."""


@pytest.mark.parametrize("name", PROOFS)
def test_a_planner_with_one_fault_is_caught_by_one_check_alone(name: str) -> None:
    made, state, held = BUGS[name]

    found = [check for check, (_, find) in PROOFS.items() if find([made], state, held)]

    assert found == [name]


def test_every_proof_has_a_name_and_says_what_must_hold() -> None:
    assert {function for _, function in PROOFS.values()} == {
        find_unknown_targets,
        find_broken_order,
        find_overspent_budget,
        find_acts_in_mass_event,
        find_aimless_repairs,
        find_passed_blast_caps,
        find_acts_in_freeze,
        find_unserved_services,
        find_forbidden_acts,
    }
    assert all(words for words, _ in PROOFS.values())


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_no_plan_of_ours_contradicts_its_proof(case: tuple[Snapshot, Rules]) -> None:
    """A contradiction blocks every run: one would stop the autopilot for the whole cluster."""
    state, given_rules = case
    plans = decide(state, given_rules).plans

    for find_contradictions in (function for _, function in PROOFS.values()):
        assert find_contradictions(plans, state, given_rules) == ()


def test_who_only_observes_sees_no_plan_beyond_the_budget() -> None:
    seen = [xid(79, node=name).evidence[0] for name in ("gpu001", "gpu005", "gpu009")]
    state = snapshot(*seen)
    given_rules = rules(policy(Mode.OBSERVE, drain_budget=DrainBudget(max_out_count=2)))

    plans = decide(state, given_rules).plans

    assert len(plans) == 2
    assert find_overspent_budget(plans, state, given_rules) == ()


def test_the_jobs_of_an_untouchable_node_are_in_no_plan() -> None:
    state = snapshot(*xid(79).evidence, nodes=[foreign_node()], jobs=[job()])
    given_rules = rules(policy(untouchable_nodes=frozenset({NODE})))

    (plan,) = decide(state, given_rules).plans

    assert [action.verb for action in plan.actions] == [Verb.PAGE_HUMAN]


def test_an_incident_in_repair_beside_a_mass_event_is_no_contradiction() -> None:
    mass = incident(
        xid(79, node=OTHER_NODE), response=Response.PAGE_MASS_EVENT, state=IncidentState.ESCALATED, name="INC-0002"
    )
    waiting = replace(incident(xid(79)), plan_count=1)
    state = snapshot(incidents=(waiting, mass), incident_count=2)

    plans = decide(state, rules()).plans

    assert find_acts_in_mass_event(plans, state, rules()) == ()


def in_force(made: IncidentPlan) -> Incident:
    return replace(incident(xid(79)), state=IncidentState.ACTING, plan=made.plan, plan_count=1)


def passes(made: IncidentPlan, state: Snapshot, held: Rules) -> bool:
    (proof,) = prove_plans([made], state, held, inputs=digest_of("inputs"), contents=[digest_of("plan")])
    return not proof.contradictions


@pytest.mark.parametrize(
    ("jobs", "given_policy"),
    [
        pytest.param([], policy(), id="a job has left the scheduler"),
        pytest.param([job()], policy(freeze_windows=(FREEZE,)), id="a freeze has started"),
        pytest.param([job()], policy(consents={ActionClass.MOVE_JOBS: Consent.FORBID}), id="a consent was taken back"),
        pytest.param([job()], policy(drain_budget=DrainBudget(max_out_count=0)), id="the budget is spent by its drain"),
        pytest.param([job()], policy(blast_caps=BlastCaps(max_jobs_per_plan_count=0)), id="its job is held already"),
    ],
)
def test_plan_in_force_is_judged_by_what_is_left_of_it(jobs: list[JobStatus], given_policy: Policy) -> None:
    made = plan(DRAIN, HOLD, FENCE, EXCLUDE, RELEASE, REBOOT)
    before = snapshot(jobs=jobs)
    half_way = snapshot(nodes=[our_node()], jobs=jobs, records=(ended(DRAIN), ended(HOLD)), incidents=(in_force(made),))

    assert not passes(made, before, rules(given_policy))
    assert passes(made, half_way, rules(given_policy))
    assert not passes(plan(DRAIN, HOLD, RELEASE), replace(half_way, incidents=(in_force(made),)), rules(given_policy))


def test_node_of_an_incident_about_a_shared_part_is_repaired_for_a_fault_of_its_own() -> None:
    shared = replace(MASS, suspect=Component(kind=ComponentKind.LEAF_SWITCH, name="s0"))

    assert find_acts_in_mass_event([plan(DRAIN)], snapshot(incidents=(MASS,)), rules()) != ()
    assert find_acts_in_mass_event([plan(DRAIN)], snapshot(incidents=(shared,)), rules()) == ()


@pytest.mark.parametrize(("has_ended", "is_passed"), [(False, True), (True, False)])
def test_jobs_that_the_fault_has_ended_are_not_interrupted_by_us(has_ended: bool, is_passed: bool) -> None:
    jobs = [job(str(number)) for number in range(17)]
    holds = [replace(action(Verb.HOLD, of=attempt(each.job)), has_ended=has_ended) for each in jobs]

    found = find_passed_blast_caps([plan(*holds)], snapshot(jobs=jobs), rules())

    assert any("17 jobs would be interrupted" in each for each in found) is is_passed


def held_at(lost_gpu_hours: float) -> IncidentPlan:
    """A plan whose hold cost so much when it was made."""
    option = Option(moment=Moment.NOW, lost_gpu_hours=lost_gpu_hours, why="")
    timing = JobTiming(
        attempt=attempt(),
        moment=Moment.NOW,
        options=(option,),
        decided_at=NOW,
        checkpointed_at=None,
        until=None,
        reason="",
    )
    return replace(plan(HOLD), timings=(timing,))


@pytest.mark.parametrize(("cap", "is_passed"), [(0.25, False), (0.5, True)])
def test_a_plan_may_lose_as_much_as_its_cap_and_no_more(cap: float, is_passed: bool) -> None:
    capped = rules(policy(blast_caps=BlastCaps(max_gpu_hours_per_plan=cap)))

    found = find_passed_blast_caps([held_at(0.5)], snapshot(jobs=[]), capped)

    assert (found == ()) is is_passed, found


@pytest.mark.parametrize("cost_when_made", [0.5, 50.0])
def test_hold_counts_as_the_smaller_of_what_it_cost_when_planned_and_what_it_costs_now(cost_when_made: float) -> None:
    """Now it costs a minute and the restart of 8 GPUs; a cap of 5 GPU-hours is passed by neither."""
    capped = rules(policy(blast_caps=BlastCaps(max_gpu_hours_per_plan=5.0)))

    assert find_passed_blast_caps([held_at(cost_when_made)], snapshot(jobs=[job()]), capped) == ()
