"""Every contradiction between a plan and its snapshot is found, and our planner makes none."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from ops_pipelines.domain.action import Action, ActionRecord, Verb
from ops_pipelines.domain.decision import Rules, Snapshot, decide
from ops_pipelines.domain.finding import Response
from ops_pipelines.domain.identity import NodeName, PlanId
from ops_pipelines.domain.incident import IncidentState
from ops_pipelines.domain.plan_proof import (
    PROOFS,
    find_acts_in_mass_event,
    find_aimless_repairs,
    find_broken_order,
    find_overspent_budget,
    find_unknown_targets,
)
from ops_pipelines.domain.policy import DrainBudget, Mode
from ops_pipelines.domain.remediation import IncidentPlan
from tests.domain.builders import (
    GPU,
    INCIDENT,
    NODE,
    OTHER_NODE,
    action,
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


def drains(*names: NodeName) -> list[IncidentPlan]:
    return [plan(action(Verb.DRAIN, on=name)) for name in names]


@pytest.mark.parametrize(
    ("new_count", "contradictions"),
    [
        pytest.param(1, (), id="one left"),
        pytest.param(2, (), id="the last one"),
        pytest.param(3, ("5 nodes would be out of service; max_out_count is 4",), id="one too many"),
    ],
)
def test_an_overspent_budget_is_found(new_count: int, contradictions: tuple[str, ...]) -> None:
    names = node_names(40)
    state = snapshot(nodes=[foreign_node(name) for name in names[20:22]])

    found = find_overspent_budget(
        drains(*names[:new_count]), state, rules(policy(drain_budget=DrainBudget(max_out_count=4)))
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

    assert bool(found) is (response not in (Response.RESET_GPU, Response.REBOOT_NODE, Response.POWER_CYCLE))


def test_every_proof_has_a_name_and_says_what_must_hold() -> None:
    assert {function for _, function in PROOFS.values()} == {
        find_unknown_targets,
        find_broken_order,
        find_overspent_budget,
        find_acts_in_mass_event,
        find_aimless_repairs,
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
