"""The limits: each at its boundary, and what is not ours is never touched."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.action import (
    DESTRUCTIVE_VERBS,
    MESSAGES,
    NOT_NEEDED,
    Action,
    ActionRecord,
    Outcome,
    OutcomeKind,
    Verb,
)
from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.observation import HAS_PROCESSES, JobState, JobStatus, NodeState, NodeStatus
from ops_pipelines.core.policy import DrainBudget, Mode, Policy
from ops_pipelines.core.proof import Authority, Patience, Refusal
from ops_pipelines.remediate.guardrails.facts import ClusterFacts, drain_owner, drain_reason, nodes_out_of_service
from ops_pipelines.remediate.guardrails.judge import is_moot, judge
from tests.domain.builders import (
    GPU,
    INCIDENT,
    NODE,
    NOW,
    OTHER_NODE,
    action,
    after,
    ago,
    attempt,
    begun,
    ended,
    facts,
    foreign_node,
    held_job,
    job,
    node,
    node_names,
    our_drain,
    our_node,
    policy,
    topology,
)

WIDE = DrainBudget(max_out_count=99, max_out_per_rack_count=99, max_new_per_hour_count=99, min_in_service_ratio=0.0)
DRAIN = action(Verb.DRAIN, on=NODE)


def judged(
    what: Action, known: ClusterFacts, *, by: Policy | None = None, authority: Authority = Authority.AUTOPILOT
) -> Refusal | None:
    return judge(what, known, policy=by or policy(), topology=topology(), authority=authority)


def rule_of(refusal: Refusal | None) -> str | None:
    return None if refusal is None else refusal.guardrail


def any_action(verb: Verb, *, on: str = NODE) -> Action:
    return action(verb, on=on, of=attempt(), gpu=GPU)


# -- the drain budget -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out_count", "rule"),
    [
        pytest.param(2, None, id="one left"),
        pytest.param(3, None, id="the last one"),
        pytest.param(4, "drain_budget", id="one too many"),
    ],
)
@pytest.mark.parametrize(
    "out",
    [
        pytest.param(foreign_node, id="drained by others"),
        pytest.param(lambda name: node(name, state=NodeState.DOWN), id="down"),
        pytest.param(lambda name: node(name, is_responding=False), id="silent"),
    ],
)
def test_the_budget_counts_whoever_is_out(out: Callable[[str], NodeStatus], out_count: int, rule: str | None) -> None:
    budget = replace(WIDE, max_out_count=4)
    known = facts(nodes=[out(name) for name in node_names(40)[20 : 20 + out_count]])

    assert rule_of(judged(DRAIN, known, by=policy(drain_budget=budget))) == rule


def test_a_budget_of_zero_means_drain_nothing() -> None:
    refusal = judged(DRAIN, facts(), by=policy(drain_budget=replace(WIDE, max_out_count=0)))

    assert refusal is not None
    assert (refusal.guardrail, refusal.patience) == ("drain_budget", Patience.WAIT)


@pytest.mark.parametrize(
    ("begun_count", "rule"),
    [pytest.param(3, None, id="the last one"), pytest.param(4, "drain_budget", id="one too many")],
)
def test_a_drain_begun_without_an_outcome_counts_as_spent(begun_count: int, rule: str | None) -> None:
    records = [begun(action(Verb.DRAIN, on=name)) for name in node_names(40)[20 : 20 + begun_count]]

    known = facts(records=records)

    assert rule_of(judged(DRAIN, known, by=policy(drain_budget=replace(WIDE, max_out_count=4)))) == rule
    assert len(nodes_out_of_service(known, topology())) == begun_count


def test_a_drain_with_an_outcome_counts_as_the_cluster_shows_it() -> None:
    records = [ended(action(Verb.DRAIN, on=name)) for name in node_names(8)]

    assert nodes_out_of_service(facts(records=records), topology()) == frozenset()


@pytest.mark.parametrize(
    ("out_in_rack", "rule"),
    [
        pytest.param(0, None, id="none out"),
        pytest.param(1, None, id="the last one"),
        pytest.param(2, "drain_budget", id="one too many"),
    ],
)
def test_a_rack_keeps_its_nodes(out_in_rack: int, rule: str | None) -> None:
    budget = replace(WIDE, max_out_per_rack_count=2)
    elsewhere = [foreign_node(name) for name in node_names(40)[4:10]]
    here = [foreign_node(name) for name in node_names(40)[1 : 1 + out_in_rack]]

    assert rule_of(judged(DRAIN, facts(nodes=[*here, *elsewhere]), by=policy(drain_budget=budget))) == rule


@pytest.mark.parametrize(
    ("out_count", "rule"),
    [
        pytest.param(6, None, id="above the ratio"),
        pytest.param(7, None, id="exactly at it"),
        pytest.param(8, "drain_budget", id="below it"),
    ],
)
def test_a_share_of_the_nodes_stays_in_service(out_count: int, rule: str | None) -> None:
    budget = replace(WIDE, min_in_service_ratio=0.8)  # 32 of 40
    out = [foreign_node(name) for name in node_names(40)[8 : 8 + out_count]]

    assert rule_of(judged(DRAIN, facts(nodes=out), by=policy(drain_budget=budget))) == rule


@given(st.integers(2, 60), st.data())
def test_a_ratio_that_is_met_exactly_is_met(node_count: int, data: st.DataObject) -> None:
    out_count = data.draw(st.integers(1, node_count))
    budget = replace(WIDE, min_in_service_ratio=(node_count - out_count) / node_count)
    out = [foreign_node(name) for name in node_names(node_count)[1:out_count]]

    refusal = judge(
        DRAIN,
        facts(nodes=out, node_count=node_count),
        policy=policy(drain_budget=budget),
        topology=topology(node_count),
        authority=Authority.AUTOPILOT,
    )

    assert refusal is None


@pytest.mark.parametrize(
    ("seconds_ago", "rule"),
    [
        pytest.param(3599, "drain_rate", id="within the hour"),
        pytest.param(3600, None, id="exactly an hour ago"),
        pytest.param(3601, None, id="longer ago"),
    ],
)
def test_no_more_than_so_many_new_drains_an_hour(seconds_ago: float, rule: str | None) -> None:
    budget = replace(WIDE, max_new_per_hour_count=2)
    first, second = (ended(action(Verb.DRAIN, on=name), seconds_ago=10) for name in node_names(40)[20:22])
    old = replace(second, begun_at=ago(seconds_ago))

    assert rule_of(judged(DRAIN, facts(records=[first, old]), by=policy(drain_budget=budget))) == rule


def test_the_hourly_rate_counts_nodes_and_not_tries() -> None:
    budget = replace(WIDE, max_new_per_hour_count=2)
    tries = [ended(action(Verb.DRAIN, on=OTHER_NODE, try_number=number)) for number in range(1, 9)]

    assert judged(DRAIN, facts(records=tries), by=policy(drain_budget=budget)) is None


def test_draining_again_what_we_drained_costs_nothing() -> None:
    """Otherwise a superseded plan, whose jobs are held, could wait for room in the budget for ever."""
    out = [our_node(), *(foreign_node(name) for name in node_names(40)[8:14])]
    known = facts(nodes=out, records=[our_drain()])

    assert judged(action(Verb.DRAIN, on=NODE, try_number=2), known) is None


# -- mode, pause, authority -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "authority", "rule"),
    [
        (Mode.OBSERVE, Authority.AUTOPILOT, "mode"),
        (Mode.OBSERVE, Authority.APPROVED_PLAN, "mode"),
        (Mode.OBSERVE, Authority.PERSON, None),
        (Mode.APPROVE, Authority.AUTOPILOT, "approval"),
        (Mode.APPROVE, Authority.APPROVED_PLAN, None),
        (Mode.APPROVE, Authority.PERSON, None),
        (Mode.AUTO, Authority.AUTOPILOT, None),
        (Mode.AUTO, Authority.APPROVED_PLAN, None),
        (Mode.AUTO, Authority.PERSON, None),
    ],
)
def test_who_may_act_in_which_mode(mode: Mode, authority: Authority, rule: str | None) -> None:
    assert rule_of(judged(DRAIN, facts(), by=policy(mode), authority=authority)) == rule


@pytest.mark.parametrize("verb", sorted(set(Verb) - MESSAGES, key=attrgetter("value")))
@pytest.mark.parametrize("authority", [Authority.AUTOPILOT, Authority.APPROVED_PLAN])
def test_nothing_is_begun_while_paused(verb: Verb, authority: Authority) -> None:
    refusal = judged(any_action(verb), facts(is_paused=True, jobs=[job()]), authority=authority)

    assert refusal is not None
    assert (refusal.guardrail, refusal.patience) == ("pause", Patience.WAIT)


def test_a_pause_does_not_bind_a_person() -> None:
    assert judged(DRAIN, facts(is_paused=True), authority=Authority.PERSON) is None


@pytest.mark.parametrize("mode", list(Mode))
def test_a_page_passes_always(mode: Mode) -> None:
    assert judged(action(Verb.PAGE_HUMAN), facts(is_paused=True), by=policy(mode)) is None


@pytest.mark.parametrize(("mode", "rule"), [(Mode.OBSERVE, "mode"), (Mode.APPROVE, None), (Mode.AUTO, None)])
def test_owners_are_told_unless_we_only_observe(mode: Mode, rule: str | None) -> None:
    told = action(Verb.NOTIFY_OWNER, of=attempt())

    assert rule_of(judged(told, facts(is_paused=True, jobs=[job()]), by=policy(mode))) == rule


@pytest.mark.parametrize("authority", list(Authority))
@pytest.mark.parametrize("rule", ["drain_budget", "known_node", "untouchable", "foreign_drain"])
def test_nobody_is_above_the_other_guardrails(authority: Authority, rule: str) -> None:
    what, known, by = {
        "drain_budget": (DRAIN, facts(), policy(drain_budget=replace(WIDE, max_out_count=0))),
        "known_node": (action(Verb.DRAIN, on="stranger"), facts(), policy()),
        "untouchable": (DRAIN, facts(), policy(untouchable_nodes=frozenset({NODE}))),
        "foreign_drain": (DRAIN, facts(nodes=[foreign_node()]), policy()),
    }[rule]

    assert rule_of(judged(what, known, by=by, authority=authority)) == rule


# -- targets ----------------------------------------------------------------------------------------------------

ON_NODES = sorted(set(Verb) - MESSAGES - {Verb.HOLD, Verb.FENCE, Verb.RELEASE}, key=attrgetter("value"))


@pytest.mark.parametrize("verb", ON_NODES)
def test_a_node_that_is_not_declared_is_never_touched(verb: Verb) -> None:
    refusal = judged(any_action(verb, on="stranger"), facts(nodes=[node("stranger")], jobs=[job()]))

    assert refusal is not None
    assert (refusal.guardrail, refusal.patience) == ("known_node", Patience.NEVER)


@pytest.mark.parametrize("verb", ON_NODES)
def test_a_node_that_the_scheduler_does_not_know_is_never_touched(verb: Verb) -> None:
    known = replace(facts(jobs=[job()]), nodes={OTHER_NODE: node(OTHER_NODE)})

    assert rule_of(judged(any_action(verb), known)) == "known_node"


@pytest.mark.parametrize("verb", ON_NODES)
def test_an_untouchable_node_is_never_touched(verb: Verb) -> None:
    by = policy(untouchable_nodes=frozenset({NODE}))

    refusal = judged(any_action(verb), facts(nodes=[our_node()], records=[our_drain()], jobs=[job()]), by=by)

    assert refusal is not None
    assert (refusal.guardrail, refusal.patience) == ("untouchable", Patience.NEVER)


@pytest.mark.parametrize("verb", [Verb.HOLD, Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE])
def test_a_job_that_the_scheduler_forgot_is_never_touched(verb: Verb) -> None:
    assert rule_of(judged(any_action(verb), facts())) == "known_job"


@pytest.mark.parametrize(
    "verb", sorted(DESTRUCTIVE_VERBS - {Verb.INSTALL, Verb.RELOAD_DRIVER}, key=attrgetter("value"))
)
def test_without_eyes_nothing_beyond_a_drain_and_a_look_is_done(verb: Verb) -> None:
    blind = facts(nodes=[our_node()], records=[our_drain()], jobs=[job()], is_telemetry_available=False)

    rule = rule_of(judged(any_action(verb), blind))

    assert rule == {Verb.DRAIN: None, Verb.CHECK: "idle_node"}.get(verb, "fresh_telemetry")


# -- ours or foreign --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "records", "is_ours"),
    [
        pytest.param(our_node(), [our_drain()], True, id="our token and our time"),
        pytest.param(our_node(), [], False, id="our token without a record"),
        pytest.param(our_node(reason_set_at=after(1)), [our_drain()], False, id="our token at another time"),
        pytest.param(our_node(incident="INC-0002"), [our_drain()], False, id="the token of another incident"),
        pytest.param(our_node(incident="INC-00010"), [our_drain()], False, id="a token that begins alike"),
        pytest.param(our_node(OTHER_NODE), [our_drain()], False, id="our drain of another node"),
        pytest.param(foreign_node(), [our_drain()], False, id="somebody else's reason"),
        pytest.param(our_node(reason=None), [our_drain()], False, id="no reason"),
        pytest.param(our_node(is_drained=False), [our_drain()], False, id="not drained"),
        pytest.param(our_node(), [begun(DRAIN)], True, id="started, and not yet witnessed"),
        pytest.param(our_node(reason_set_at=None), [our_drain()], True, id="the scheduler gives no time"),
        pytest.param(
            our_node(reason_set_at=after(9)),
            [our_drain(), ended(action(Verb.DECLARE_DOWN, on=NODE), witnessed_at=after(9))],
            True,
            id="declared down by us since",
        ),
        pytest.param(
            our_node(reason_set_at=after(9)),
            [our_drain(), ended(action(Verb.POWER_OFF, on=NODE), witnessed_at=after(9))],
            False,
            id="another verb of ours is no drain",
        ),
    ],
)
def test_a_drain_is_ours_by_token_and_time(status: NodeStatus, records: list[ActionRecord], is_ours: bool) -> None:
    assert (drain_owner(status, tuple(records)) is not None) is is_ours


@pytest.mark.parametrize("status", [foreign_node(), our_node(reason_set_at=after(1)), our_node(incident="INC-0009")])
@pytest.mark.parametrize(
    ("verb", "rule"),
    [
        (Verb.DRAIN, "foreign_drain"),
        (Verb.RESET_GPU, "our_drain"),
        (Verb.REBOOT, "our_drain"),
        (Verb.POWER_OFF, "our_drain"),
        (Verb.DECLARE_DOWN, "our_drain"),
        (Verb.POWER_ON, "our_drain"),
        (Verb.RESUME, "our_drain"),
    ],
)
def test_a_foreign_drain_is_never_overwritten_repaired_or_resumed(status: NodeStatus, verb: Verb, rule: str) -> None:
    silent = replace(status, is_responding=False)
    off = ended(action(Verb.POWER_OFF, on=NODE))

    refusal = judged(any_action(verb), facts(nodes=[silent], records=[our_drain(), off], jobs=[held_job()]))

    assert refusal is not None
    assert (refusal.guardrail, refusal.patience) == (rule, Patience.NEVER)


@pytest.mark.parametrize("verb", [Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_OFF, Verb.POWER_ON, Verb.RESUME])
def test_a_node_that_somebody_returned_is_left_alone(verb: Verb) -> None:
    returned = node(is_responding=False)

    assert (
        rule_of(judged(any_action(verb), facts(nodes=[returned], records=[our_drain()], jobs=[held_job()])))
        == "our_drain"
    )


@given(st.text(max_size=300))
def test_a_drain_reason_is_one_short_line_that_begins_with_our_token(why: str) -> None:
    reason = drain_reason(IncidentId(INCIDENT), why)

    assert reason.startswith(f"ops_pipelines {INCIDENT}:")
    assert len(reason) <= 200
    assert len(reason.splitlines()) == 1


# -- repairs wait for jobs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [Verb.RESET_GPU, Verb.REBOOT])
@pytest.mark.parametrize("state", list(JobState))
def test_a_repair_waits_for_whatever_may_still_run(verb: Verb, state: JobState) -> None:
    known = facts(nodes=[our_node()], records=[our_drain()], jobs=[job(state=state)])

    refusal = judged(any_action(verb), known)

    if state in HAS_PROCESSES or state is JobState.UNKNOWN:
        assert refusal is not None
        assert (refusal.guardrail, refusal.patience) == ("idle_node", Patience.WAIT)
    else:
        assert refusal is None


@pytest.mark.parametrize("verb", [Verb.RESET_GPU, Verb.REBOOT])
def test_a_repair_does_not_wait_for_jobs_elsewhere(verb: Verb) -> None:
    known = facts(nodes=[our_node()], records=[our_drain()], jobs=[job(nodes=(OTHER_NODE,))])

    assert judged(any_action(verb), known) is None


# -- fencing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", list(JobState))
def test_power_is_cut_only_once_the_jobs_are_held(state: JobState) -> None:
    silent = our_node(is_responding=False)

    refusal = judged(any_action(Verb.POWER_OFF), facts(nodes=[silent], records=[our_drain()], jobs=[job(state=state)]))

    is_held_first = state in (JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN)
    assert rule_of(refusal) == ("held_first" if is_held_first else None)


def test_power_is_cut_only_from_a_silent_node() -> None:
    refusal = judged(any_action(Verb.POWER_OFF), facts(nodes=[our_node()], records=[our_drain()], jobs=[held_job()]))

    assert refusal is not None
    assert (refusal.guardrail, refusal.patience) == ("answers_again", Patience.NEVER)


OFF = action(Verb.POWER_OFF, on=NODE)


@pytest.mark.parametrize(
    ("records", "rule"),
    [
        pytest.param([], "off_first", id="power never cut"),
        pytest.param([begun(OFF)], "off_first", id="started only"),
        pytest.param([ended(OFF, OutcomeKind.FAILED)], "off_first", id="failed"),
        pytest.param([ended(OFF, OutcomeKind.UNKNOWN)], "off_first", id="unknown"),
        pytest.param([ended(action(Verb.POWER_OFF, on=OTHER_NODE))], "off_first", id="another node"),
        pytest.param([ended(action(Verb.POWER_OFF, on=NODE, incident="INC-0002"))], "off_first", id="another incident"),
        pytest.param([ended(OFF)], None, id="witnessed off"),
    ],
)
def test_down_is_declared_only_after_the_power_is_witnessed_off(records: list[ActionRecord], rule: str | None) -> None:
    silent = our_node(is_responding=False)

    refusal = judged(
        any_action(Verb.DECLARE_DOWN), facts(nodes=[silent], records=[our_drain(), *records], jobs=[held_job()])
    )

    assert rule_of(refusal) == rule


RELEASE = action(Verb.RELEASE, of=attempt())
FENCE = action(Verb.FENCE, of=attempt())
EXCLUDE = action(Verb.EXCLUDE, of=attempt(), on=NODE)
HOLD = action(Verb.HOLD, of=attempt())
HELD = ended(HOLD, attempt_nodes=frozenset({NODE}))
NOT_HELD = begun(HOLD, outcome=Outcome(kind=OutcomeKind.DONE, witness=f"{NOT_NEEDED}it waits", finished_at=NOW))


@pytest.mark.parametrize(
    ("records", "rule"),
    [
        pytest.param([], "fenced_first", id="never fenced"),
        pytest.param([begun(FENCE)], "fenced_first", id="fence started only"),
        pytest.param([ended(FENCE, OutcomeKind.FAILED)], "fenced_first", id="fence failed"),
        pytest.param([ended(action(Verb.FENCE, of=attempt("43")))], "fenced_first", id="another job"),
        pytest.param(
            [ended(action(Verb.FENCE, of=attempt(started_at=ago(9))))], "fenced_first", id="another attempt of the job"
        ),
        pytest.param(
            [ended(action(Verb.FENCE, of=attempt(), incident="INC-0002"))], "fenced_first", id="another incident"
        ),
        pytest.param([ended(FENCE)], None, id="witnessed"),
        pytest.param([ended(replace(FENCE, try_number=2))], None, id="witnessed by a later plan"),
    ],
)
def test_a_job_is_released_only_after_its_fence(records: Iterable[ActionRecord], rule: str | None) -> None:
    assert rule_of(judged(RELEASE, facts(jobs=[held_job()], records=[HELD, *records]))) == rule


@pytest.mark.parametrize(
    ("holds", "patience"),
    [
        pytest.param([], Patience.NEVER, id="held by somebody else"),
        pytest.param([ended(HOLD)], Patience.NEVER, id="held when it waited already"),
        pytest.param([NOT_HELD], Patience.NEVER, id="not needed"),
        pytest.param([ended(HOLD, OutcomeKind.FAILED)], Patience.NEVER, id="failed"),
        pytest.param(
            [ended(replace(HOLD, incident=IncidentId("INC-0002")), attempt_nodes=frozenset({NODE}))],
            Patience.NEVER,
            id="held by another incident",
        ),
        pytest.param([begun(HOLD, attempt_nodes=frozenset({NODE}))], None, id="ours, without an answer"),
        pytest.param([HELD], None, id="ours"),
    ],
)
def test_only_what_we_held_while_it_ran_is_released(holds: list[ActionRecord], patience: Patience | None) -> None:
    refusal = judged(RELEASE, facts(jobs=[held_job()], records=[*holds, ended(FENCE)]))

    assert (None if refusal is None else refusal.patience) is patience


@pytest.mark.parametrize(
    ("status", "records", "rule"),
    [
        pytest.param(our_node(), [], None, id="the node answers"),
        pytest.param(our_node(is_responding=False), [], "silent_node", id="it fell silent"),
        pytest.param(our_node(is_responding=False), [begun(OFF)], "silent_node", id="its power is being cut"),
        pytest.param(our_node(is_responding=False), [ended(OFF)], None, id="its power is off"),
        pytest.param(
            our_node(is_responding=False), [ended(OFF, seconds_ago=1)], "silent_node", id="it was off before the hold"
        ),
    ],
)
def test_a_job_stays_held_while_its_node_is_silent_with_the_power_on(
    status: NodeStatus, records: list[ActionRecord], rule: str | None
) -> None:
    """Slurm calls the job pending once it gives the node up, while the old processes still write."""
    known = facts(
        nodes=[status], jobs=[held_job()], records=[our_drain(), HELD, ended(FENCE), ended(EXCLUDE), *records]
    )

    assert rule_of(judged(RELEASE, known)) == rule


OTHER_INCIDENT = "INC-0002"
OFF_BY_OTHER = action(Verb.POWER_OFF, on=OTHER_NODE, incident=OTHER_INCIDENT)


@pytest.mark.parametrize(
    ("fenced", "patience"),
    [
        pytest.param([], Patience.WAIT, id="drained by the other incident"),
        pytest.param([begun(OFF_BY_OTHER)], Patience.WAIT, id="its power is being cut"),
        pytest.param([ended(OFF_BY_OTHER, OutcomeKind.FAILED)], Patience.NEVER, id="its power could not be cut"),
        pytest.param([ended(OFF_BY_OTHER)], None, id="its power is off"),
    ],
)
def test_a_job_on_two_broken_nodes_waits_for_the_fence_of_the_silent_one(
    fenced: list[ActionRecord], patience: Patience | None
) -> None:
    held = ended(HOLD, attempt_nodes=frozenset({NODE, OTHER_NODE}))
    silent = our_node(OTHER_NODE, incident=OTHER_INCIDENT, is_responding=False)
    drains = [our_drain(), our_drain(OTHER_NODE, incident=OTHER_INCIDENT)]

    known = facts(
        nodes=[our_node(), silent], jobs=[held_job()], records=[*drains, held, ended(FENCE), ended(EXCLUDE), *fenced]
    )
    refusal = judged(RELEASE, known)

    assert rule_of(refusal) == (None if patience is None else "silent_node")
    assert (None if refusal is None else refusal.patience) is patience


@pytest.mark.parametrize(
    ("verb", "status", "rule"),
    [
        pytest.param(Verb.HOLD, job(), None, id="hold"),
        pytest.param(Verb.HOLD, job(is_requeueable=False), "requeueable", id="hold of a job that must not be requeued"),
        pytest.param(Verb.HOLD, job(started_at=ago(5)), "same_attempt", id="hold of the next attempt"),
        pytest.param(Verb.HOLD, held_job(), None, id="hold of a job that waits"),
        pytest.param(Verb.RELEASE, job(started_at=ago(5)), "same_attempt", id="release of the next attempt"),
    ],
)
def test_only_the_attempt_that_was_meant_is_held_or_released(verb: Verb, status: JobStatus, rule: str | None) -> None:
    refusal = judged(any_action(verb), facts(jobs=[status], records=[HELD, ended(FENCE)]))

    assert rule_of(refusal) == rule
    assert refusal is None or refusal.patience is Patience.NEVER


# -- what lost its object ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "rule"),
    [
        pytest.param(node(OTHER_NODE), None, id="the other node answers"),
        pytest.param(node(OTHER_NODE, is_responding=False), "silent_node", id="the other node fell silent"),
        pytest.param(None, "silent_node", id="the other node is unknown"),
    ],
)
def test_every_node_of_an_attempt_must_be_clear_before_its_release(other: NodeStatus | None, rule: str | None) -> None:
    held = ended(action(Verb.HOLD, of=attempt()), attempt_nodes=frozenset({NODE, OTHER_NODE}))
    nodes = [our_node(), *([other] if other is not None else [])]

    known = replace(
        facts(nodes=nodes, jobs=[held_job()], records=[our_drain(), held, ended(FENCE), ended(EXCLUDE)]),
        nodes={each.node: each for each in nodes},
    )

    assert rule_of(judged(RELEASE, known)) == rule


@pytest.mark.parametrize(
    ("minutes_ago", "counts"),
    [
        pytest.param(9, True, id="just before the limit"),
        pytest.param(10, True, id="at the limit"),
        pytest.param(11, False, id="the flag itself reports by now"),
    ],
)
def test_a_drain_begun_without_an_outcome_spends_the_budget_for_a_while(minutes_ago: int, counts: bool) -> None:
    entry = begun(action(Verb.DRAIN, on=OTHER_NODE), seconds_ago=60.0 * minutes_ago)

    out = nodes_out_of_service(facts(records=[entry]), topology())

    assert (OTHER_NODE in out) is counts


@pytest.mark.parametrize("verb", [Verb.HOLD, Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE])
@pytest.mark.parametrize(
    ("jobs", "why"),
    [
        pytest.param([], "has ended", id="unknown to the scheduler"),
        pytest.param([job(state=JobState.COMPLETED)], "has ended", id="ended well"),
        pytest.param([job(state=JobState.NODE_FAIL)], "has ended", id="lost"),
        pytest.param([job(started_at=ago(5))], "another attempt", id="runs again"),
        pytest.param([job()], None, id="runs"),
        pytest.param([job(state=JobState.COMPLETING, started_at=None)], None, id="ends"),
        pytest.param([held_job()], None, id="waits"),
        pytest.param([job(state=JobState.UNKNOWN, started_at=None)], None, id="nobody can tell"),
    ],
)
def test_an_act_on_a_job_is_moot_once_the_attempt_is_over(verb: Verb, jobs: list[JobStatus], why: str | None) -> None:
    reason = is_moot(any_action(verb), facts(jobs=jobs, records=[HELD]))

    assert reason is None if why is None else why in str(reason)


SILENTLY_HELD = job(is_held=True)  # As Slurm shows a held job of a silent node: running, with the mark.


@pytest.mark.parametrize(
    ("verb", "status", "records", "is_needed"),
    [
        pytest.param(Verb.HOLD, job(), [], True, id="hold of what runs"),
        pytest.param(Verb.HOLD, held_job(), [], False, id="hold of what somebody holds"),
        pytest.param(Verb.HOLD, SILENTLY_HELD, [], False, id="hold of what is held on a silent node"),
        pytest.param(Verb.HOLD, held_job(is_held=False), [], False, id="hold of what waits"),
        pytest.param(Verb.HOLD, held_job(), [begun(HOLD)], True, id="our hold, without an answer"),
        pytest.param(
            Verb.HOLD, held_job(), [ended(replace(HOLD, incident=IncidentId("INC-2")))], False, id="another's"
        ),
        pytest.param(Verb.RESERVE, held_job(), [], False, id="room for what somebody holds"),
        pytest.param(Verb.FENCE, held_job(), [], False, id="fence without a hold"),
        pytest.param(Verb.EXCLUDE, held_job(), [], False, id="exclusion without a hold"),
        pytest.param(Verb.RELEASE, held_job(), [], False, id="release without a hold"),
        pytest.param(Verb.RELEASE, held_job(), [NOT_HELD], False, id="release of what needed no hold"),
        pytest.param(Verb.RELEASE, held_job(), [ended(HOLD, OutcomeKind.FAILED)], False, id="after a failed hold"),
        pytest.param(Verb.RELEASE, held_job(), [HELD], True, id="release of ours"),
    ],
)
def test_a_job_that_others_hold_is_theirs(
    verb: Verb, status: JobStatus, records: list[ActionRecord], is_needed: bool
) -> None:
    assert (is_moot(any_action(verb), facts(jobs=[status], records=records)) is None) is is_needed


def test_a_message_is_never_moot() -> None:
    assert is_moot(action(Verb.NOTIFY_OWNER, of=attempt()), facts()) is None
    assert is_moot(action(Verb.PAGE_HUMAN), facts()) is None


@pytest.mark.parametrize(
    ("verb", "is_responding", "is_cut", "why"),
    [
        (Verb.POWER_OFF, False, False, None),
        (Verb.POWER_OFF, True, False, "answers again"),
        (Verb.POWER_OFF, True, True, None),
        (Verb.DECLARE_DOWN, False, False, "never cut"),
        (Verb.DECLARE_DOWN, True, False, "answers again"),
        (Verb.DECLARE_DOWN, False, True, None),
        (Verb.POWER_ON, False, False, "never cut"),
        (Verb.POWER_ON, True, False, "answers again"),
        (Verb.POWER_ON, False, True, None),
        (Verb.REBOOT, True, False, None),
        (Verb.DRAIN, True, False, None),
    ],
)
def test_power_is_left_alone_if_the_node_answers_before_it_was_cut(
    verb: Verb, is_responding: bool, is_cut: bool, why: str | None
) -> None:
    known = facts(
        nodes=[our_node(is_responding=is_responding)], records=[our_drain(), *([begun(OFF)] if is_cut else [])]
    )

    reason = is_moot(action(verb, on=NODE), known)

    assert reason is None if why is None else why in str(reason)


@given(
    verb=st.sampled_from(Verb),
    state=st.sampled_from(JobState),
    is_drained=st.booleans(),
    is_responding=st.booleans(),
    started_at=st.sampled_from([None, ago(3600), ago(5)]),
    mode=st.sampled_from(Mode),
    authority=st.sampled_from(Authority),
)
def test_judging_never_raises_and_always_gives_its_reason(
    verb: Verb,
    state: JobState,
    is_drained: bool,
    is_responding: bool,
    started_at: datetime | None,
    mode: Mode,
    authority: Authority,
) -> None:
    known = facts(
        nodes=[our_node(is_drained=is_drained, is_responding=is_responding)],
        jobs=[job(state=state, started_at=started_at)],
        records=[our_drain(), ended(FENCE)],
        taken_at=NOW + timedelta(seconds=1),
    )

    for on in (NODE, NodeName("stranger")):
        refusal = judged(any_action(verb, on=on), known, by=policy(mode), authority=authority)
        assert refusal is None or refusal.reason


@pytest.mark.parametrize(
    ("in_use_count", "jobs", "rule"),
    [
        pytest.param(0, [], None, id="idle"),
        pytest.param(1, [], "hidden_work", id="a GPU in use by a job that the scheduler hides"),
        pytest.param(8, [job()], "idle_node", id="in use by a job that is shown"),
    ],
)
def test_a_node_whose_gpus_are_in_use_is_not_restarted(
    in_use_count: int, jobs: list[JobStatus], rule: str | None
) -> None:
    known = facts(nodes=[our_node(gpu_in_use_count=in_use_count)], jobs=jobs, records=[our_drain()])

    assert rule_of(judged(action(Verb.REBOOT, on=NODE), known)) == rule


@pytest.mark.parametrize("verb", [Verb.REBOOT, Verb.RESUME, Verb.POWER_ON])
def test_the_drain_of_another_incident_of_ours_is_foreign(verb: Verb) -> None:
    other = "INC-0099"
    known = facts(nodes=[our_node(incident=other)], records=[our_drain(incident=other)])

    assert rule_of(judged(action(verb, on=NODE), known)) == "our_drain"
