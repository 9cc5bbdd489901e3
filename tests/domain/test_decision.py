"""One entry point decides, and the same snapshot always gives the same decision, within every limit."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops_pipelines.core.action import DESTRUCTIVE_VERBS, MESSAGES, NODE_VERBS, Verb
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import Observation, Signal, Workload
from ops_pipelines.core.plan import Moment, Rules, Snapshot
from ops_pipelines.core.policy import DrainBudget
from ops_pipelines.remediate.decide import Decision, cluster_facts, correlate_all, decide, find_all, plan_all
from ops_pipelines.remediate.guardrails.facts import drain_owner, nodes_out_of_service
from ops_pipelines.resources.catalogue_files import read_hazards
from tests.domain import builders
from tests.domain.builders import GPU, NOW, node_names, observation, our_drain, policy, rules, snapshot
from tests.domain.snapshots import cases

thoroughly = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def lost_gpu(node: str, *, seconds_ago: float = 0.0) -> Observation:
    return observation(Signal.XID, code=79, node=node, gpu=GPU, seconds_ago=seconds_ago)


# -- in examples ------------------------------------------------------------------------------------------------


def test_nothing_seen_means_nothing_decided() -> None:
    assert decide(snapshot(), rules()) == Decision(findings=(), incidents=(), plans=(), refusals=())


def test_a_lost_gpu_is_found_owned_and_planned_for() -> None:
    decision = decide(snapshot(lost_gpu("gpu001")), rules())

    (finding,), (opened,), (plan,) = decision.findings, decision.incidents, decision.plans
    assert (finding.response, opened.nodes) == (Response.REBOOT_NODE, {"gpu001"})
    assert [action.verb for action in plan.actions] == [Verb.DRAIN, Verb.REBOOT]


def test_two_plans_of_one_decision_share_the_budget() -> None:
    seen = [lost_gpu(name) for name in ("gpu001", "gpu005", "gpu009")]
    budget = DrainBudget(max_out_count=2)

    decision = decide(snapshot(*seen), rules(policy(drain_budget=budget)))

    assert [plan.incident for plan in decision.plans] == ["INC-0001", "INC-0002"]
    assert [(name, refusal.guardrail) for name, refusal in decision.refusals] == [("INC-0003", "drain_budget")]


def test_an_escalated_incident_ends_when_a_person_returns_the_node_that_we_drained() -> None:
    left = builders.incident(builders.xid(79, seconds_ago=900), state=IncidentState.ESCALATED, plan_count=1)
    drained = our_drain("gpu001", seconds_ago=600)

    still_drained = decide(
        snapshot(nodes=[builders.our_node()], incidents=[left], records=[drained], incident_count=1), rules()
    )
    returned = decide(snapshot(nodes=[builders.node()], incidents=[left], records=[drained], incident_count=1), rules())
    never_drained = decide(snapshot(nodes=[builders.node()], incidents=[left], incident_count=1), rules())
    forgotten = decide(
        snapshot(
            nodes=[builders.node()],
            incidents=[left],
            records=[drained],
            conditions=builders.conditions_of(builders.gpu_missing()),
            incident_count=1,
        ),
        rules(),
    )

    assert still_drained.incidents == ()
    assert [each.state for each in returned.incidents] == [IncidentState.RESOLVED]
    assert never_drained.incidents == ()
    assert forgotten.incidents == (), "a scheduler that crashed forgets a drain; the node is still seen broken"


def test_a_program_that_errs_on_and_on_is_reported_to_its_owner_once() -> None:
    running = builders.job("42")
    told = builders.ended(builders.action(Verb.NOTIFY_OWNER, of=running.attempt), seconds_ago=60)
    error = observation(Signal.XID, code=31, node="gpu001", gpu=GPU)

    assert decide(snapshot(error, jobs=[running]), rules()).incidents != ()
    assert decide(snapshot(error, jobs=[running], records=[told]), rules()).incidents == ()


def test_an_incident_that_waits_is_planned_for_when_there_is_room() -> None:
    waiting = builders.incident(builders.xid(79), changed_at=NOW)

    (plan,) = decide(snapshot(incidents=(waiting,), incident_count=1), rules()).plans

    assert plan.incident == waiting.incident


def test_only_open_incidents_are_planned_for() -> None:
    incidents = tuple(
        builders.incident(builders.xid(79, node=name), name=f"INC-000{number}", state=state, plan_count=1)
        for number, (name, state) in enumerate(
            zip(node_names(3), [IncidentState.ACTING, IncidentState.VERIFYING, IncidentState.ESCALATED], strict=True)
        )
    )

    decision = decide(snapshot(incidents=incidents, incident_count=3), rules())

    assert (decision.plans, decision.refusals) == ((), ())


def test_a_mass_event_of_one_decision_leaves_its_nodes_alone() -> None:
    decision = decide(snapshot(*(lost_gpu(name) for name in node_names(8))), rules())

    (plan,) = decision.plans
    assert [action.verb for action in plan.actions] == [Verb.PAGE_HUMAN]


# -- in general -------------------------------------------------------------------------------------------------


@thoroughly
@given(cases())
def test_deciding_never_raises_and_is_the_three_stages_composed(case: tuple[Snapshot, Rules]) -> None:
    state, given_rules = case

    decision = decide(state, given_rules)

    findings = find_all(state, given_rules)
    incidents = correlate_all(findings, state, given_rules)
    plans, refusals = plan_all(incidents, state, given_rules)
    assert decision == Decision(findings=findings, incidents=incidents, plans=plans, refusals=refusals)


@thoroughly
@given(cases(), st.data())
def test_the_same_snapshot_gives_the_same_decision_in_whatever_order_it_was_read(
    case: tuple[Snapshot, Rules], data: st.DataObject
) -> None:
    state, given_rules = case
    shuffled = replace(
        state,
        nodes=tuple(data.draw(st.permutations(list(state.nodes)))),
        jobs=tuple(data.draw(st.permutations(list(state.jobs)))),
        conditions=tuple(data.draw(st.permutations(list(state.conditions)))),
        incidents=tuple(data.draw(st.permutations(list(state.incidents)))),
    )

    assert decide(replace(state), given_rules) == decide(state, given_rules)
    assert decide(shuffled, given_rules) == decide(state, given_rules)


@thoroughly
@given(cases())
def test_every_open_incident_has_a_plan_or_a_reason(case: tuple[Snapshot, Rules]) -> None:
    state, given_rules = case

    decision = decide(state, given_rules)

    present = {each.incident: each for each in (*state.incidents, *decision.incidents)}
    answered = [plan.incident for plan in decision.plans] + [name for name, _ in decision.refusals]
    assert sorted(answered) == sorted(name for name, each in present.items() if each.state is IncidentState.OPEN)
    assert all(plan.actions for plan in decision.plans)
    assert all(refusal.reason for _, refusal in decision.refusals)


@thoroughly
@given(cases())
def test_all_plans_together_stay_within_the_drain_budget(case: tuple[Snapshot, Rules]) -> None:
    state, given_rules = case
    facts, topology, budget = cluster_facts(state, given_rules), given_rules.topology, given_rules.policy.drain_budget
    plans = decide(state, given_rules).plans

    asked = {action.node for plan in plans for action in plan.actions if action.verb is Verb.DRAIN and action.node}
    # A silent node is out already: draining it takes nothing away, and its jobs are held before there is budget.
    already_out = nodes_out_of_service(facts, topology)
    new = asked - already_out
    out = already_out | new
    if not new:
        return
    assert len(out) <= budget.max_out_count
    assert (len(topology.places) - len(out)) / len(topology.places) >= budget.min_in_service_ratio
    for name in new:
        rack = {node for node, place in topology.places.items() if place.rack == topology.places[name].rack}
        assert len(out & rack) <= budget.max_out_per_rack_count
    recent = {record.action.node for record in state.records if record.action.verb is Verb.DRAIN}
    assert len(recent | new) <= budget.max_new_per_hour_count


@thoroughly
@given(cases())
def test_no_plan_touches_what_is_unknown_untouchable_or_foreign(case: tuple[Snapshot, Rules]) -> None:
    state, given_rules = case
    known = {each.node: each for each in state.nodes}

    for plan in decide(state, given_rules).plans:
        for action in plan.actions:
            if action.verb in MESSAGES or action.node is None:
                continue
            assert given_rules.topology.knows(action.node)
            assert action.node not in given_rules.policy.untouchable_nodes
            is_foreign = known[action.node].is_drained and drain_owner(known[action.node], state.records) is None
            assert not (is_foreign and action.verb in NODE_VERBS)


@thoroughly
@given(cases())
def test_a_plan_touches_only_the_culprit_and_the_jobs_on_it(case: tuple[Snapshot, Rules]) -> None:
    """An empty selection never means all: without a culprit no node, without a job no hold."""
    state, given_rules = case
    decision = decide(state, given_rules)
    present = {each.incident: each for each in (*state.incidents, *decision.incidents)}
    jobs = {each.job: each for each in state.jobs}

    for plan in decision.plans:
        culprits = present[plan.incident].nodes
        held_before = {record.action.attempt for record in state.records if record.action.incident == plan.incident}
        for action in plan.actions:
            if action.verb in MESSAGES:
                continue
            assert plan.response in REPAIRS  # Of an isolation the incident itself asks for eyes only.
            assert action.node is None or action.node in culprits
            if action.attempt is not None:
                assert culprits & jobs[action.attempt.job].nodes or action.attempt in held_before


@thoroughly
@given(cases())
def test_no_silent_node_is_repaired_and_no_answering_one_loses_its_power(case: tuple[Snapshot, Rules]) -> None:
    state, given_rules = case

    for plan in decide(state, given_rules).plans:
        verbs = {action.verb for action in plan.actions}
        assert (Verb.POWER_OFF in verbs) is (Verb.DECLARE_DOWN in verbs)
        # Who waits for hands after every repair failed is fenced for its jobs' sake, and stays without power.
        is_left_off = plan.response is Response.RETURN_TO_VENDOR
        assert (Verb.POWER_ON in verbs) is (Verb.POWER_OFF in verbs and not is_left_off)
        if plan.response < Response.POWER_CYCLE:
            assert Verb.POWER_OFF not in verbs
        else:
            assert verbs.isdisjoint({Verb.REBOOT, Verb.RESET_GPU})


def test_a_person_at_work_on_a_node_is_never_overtaken() -> None:
    """A drain whose reason was rewritten since is foreign, even under our token."""
    rewritten = builders.our_node(reason_set_at=builders.after(60))
    state = snapshot(lost_gpu("gpu001"), nodes=[rewritten], records=(our_drain(),))

    (plan,) = decide(state, rules()).plans

    assert DESTRUCTIVE_VERBS.isdisjoint(action.verb for action in plan.actions)


def test_a_stranger_among_the_nodes_is_reported_and_never_touched() -> None:
    decision = decide(snapshot(lost_gpu("stranger")), rules())

    (plan,) = decision.plans
    assert [action.verb for action in plan.actions] == [Verb.PAGE_HUMAN]


def test_replicas_on_two_nodes_that_broke_in_one_decision_do_not_count_on_each_other() -> None:
    """What this very decision found counts: the other one may be dead, whatever the scheduler calls it."""
    catalogue = replace(builders.CATALOGUE, hazards=read_hazards())
    first, second = (
        builders.job(
            name,
            nodes=frozenset({node}),
            gpu_count=7,
            workload=Workload.INFERENCE,
            service="chat",
            min_serving_count=1,
        )
        for name, node in (("1", "gpu001"), ("2", "gpu005"))
    )

    decision = decide(
        snapshot(lost_gpu("gpu001"), lost_gpu("gpu005"), jobs=[first, second]), replace(rules(), catalogue=catalogue)
    )

    assert len(decision.plans) == 2
    assert {timing.moment for plan in decision.plans for timing in plan.timings} == {Moment.JOB_END}
