"""One broker owns a node: a rollout that has it, or an incident that is at work on it, and never both."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.action import JOB_VERBS, MESSAGES, Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import NodeName, RolloutId, cause_of
from ops_pipelines.core.observation import NodeStatus
from ops_pipelines.core.policy import (
    ActionClass,
    BlastCaps,
    Consent,
    DrainBudget,
    FreezeWindow,
    LadderLimits,
    MassEvent,
    Mode,
    Policy,
    RolloutLimits,
)
from ops_pipelines.core.proof import Authority, Patience, Refusal
from ops_pipelines.core.rollout import times_of_change, under_change
from ops_pipelines.remediate.guardrails.consents import holder_of
from ops_pipelines.remediate.guardrails.facts import ClusterFacts
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

ROLLOUT, OTHER_ROLLOUT = RolloutId("ROLL-0001"), RolloutId("ROLL-0002")
WIDE = DrainBudget(max_out_count=99, max_out_per_rack_count=99, max_new_per_hour_count=99, min_in_service_ratio=0.0)
AMPLE = policy(drain_budget=WIDE, rollouts=RolloutLimits(max_out_count=40))


def of_rollout(verb: Verb, *, on: str = NODE, by: str = ROLLOUT, try_number: int = 1) -> Action:
    of = attempt() if verb in JOB_VERBS else None
    gpu = GPU if verb is Verb.RESET_GPU else None
    return action(verb, on=on, incident=by, gpu=gpu, of=of, try_number=try_number)


DRAIN = of_rollout(Verb.DRAIN)
ITS_DRAIN = our_drain(incident=ROLLOUT, seconds_ago=600)


def in_hand(
    *records: ActionRecord, status: NodeStatus | None = None, on: str = NODE, by: RolloutId = ROLLOUT, **changes: object
) -> ClusterFacts:
    """Return facts of a node that a rollout has drained and has in hand."""
    return replace(
        facts(
            nodes=[status or our_node(on, incident=by)],
            records=[our_drain(on, incident=by, seconds_ago=600), *records],
        ),
        **{"owned": {NodeName(on): by}, **changes},  # type: ignore[arg-type]
    )


def taken_on_paper(*records: ActionRecord, nodes: Iterable[NodeStatus] = (), **changes: object) -> ClusterFacts:
    """Return facts of a node that a rollout means to take, and whose drain has not started."""
    return replace(facts(nodes=nodes, records=records), **{"owned": {NODE: ROLLOUT}, **changes})  # type: ignore[arg-type]


def judged(
    what: Action, known: ClusterFacts, *, by: Policy = AMPLE, authority: Authority = Authority.AUTOPILOT
) -> Refusal | None:
    return judge(what, known, policy=by, topology=topology(), authority=authority)


def answer(refusal: Refusal | None) -> tuple[str, Patience] | None:
    return None if refusal is None else (refusal.guardrail, refusal.patience)


OWNED_WAIT, OWNED_NEVER = ("owned", Patience.WAIT), ("owned", Patience.NEVER)


# -- others on a node of a rollout ------------------------------------------------------------------------------------


@pytest.mark.parametrize("authority", list(Authority))
@pytest.mark.parametrize("verb", [Verb.DRAIN, Verb.REBOOT, Verb.RESET_GPU, Verb.POWER_OFF, Verb.CHECK, Verb.RESUME])
def test_nobody_else_acts_on_a_node_that_a_rollout_has(verb: Verb, authority: Authority) -> None:
    refusal = judged(action(verb, on=NODE, gpu=GPU), in_hand(), authority=authority)

    assert answer(refusal) == OWNED_WAIT
    assert refusal is not None
    assert f"{NODE} is being updated by ROLL-0001" in refusal.reason


@pytest.mark.parametrize("verb", sorted(MESSAGES, key=lambda each: each.value))
def test_people_are_told_of_a_node_that_a_rollout_has(verb: Verb) -> None:
    assert judged(action(verb, on=NODE, of=attempt()), in_hand()) is None


def test_no_job_is_held_for_the_sake_of_a_node_that_a_rollout_has() -> None:
    known = replace(in_hand(), jobs={job().job: job(nodes=[NODE, OTHER_NODE])})

    refusal = judge(
        action(Verb.HOLD, of=attempt()), known, policy=AMPLE, topology=topology(), authority=Authority.AUTOPILOT,
        origin=frozenset({NODE}),
    )  # fmt: skip

    assert answer(refusal) == OWNED_WAIT


@pytest.mark.parametrize(
    ("records", "has_it"),
    [
        pytest.param([], False, id="its drain waits"),
        pytest.param([begun(DRAIN)], True, id="its drain was started"),
        pytest.param([ended(DRAIN, OutcomeKind.FAILED)], False, id="its drain failed"),
        pytest.param([ended(DRAIN, OutcomeKind.UNKNOWN)], True, id="nobody knows whether it is drained"),
        pytest.param([ITS_DRAIN], True, id="drained"),
        pytest.param([ITS_DRAIN, begun(of_rollout(Verb.RESUME))], True, id="its return was started"),
        pytest.param([ITS_DRAIN, ended(of_rollout(Verb.RESUME))], False, id="returned"),
        pytest.param([ITS_DRAIN, ended(of_rollout(Verb.RESUME), OutcomeKind.FAILED)], True, id="its return failed"),
        pytest.param(
            [
                ITS_DRAIN,
                ended(of_rollout(Verb.RESUME), seconds_ago=300),
                begun(of_rollout(Verb.DRAIN, try_number=2), seconds_ago=10),
            ],
            True,
            id="drained once more",
        ),
        pytest.param([our_drain(incident=OTHER_ROLLOUT)], False, id="drained by another rollout"),
    ],
)
def test_a_rollout_has_a_node_from_its_drain_to_the_return_that_is_seen(
    records: list[ActionRecord], has_it: bool
) -> None:
    known = taken_on_paper(*records)

    assert (holder_of(NODE, known) == ROLLOUT) is has_it
    assert (answer(judged(action(Verb.DRAIN, on=NODE), known)) == OWNED_WAIT) is has_it


def test_a_node_that_nobody_owns_has_no_holder_however_it_was_drained() -> None:
    assert holder_of(NODE, facts(nodes=[our_node(incident=ROLLOUT)], records=[ITS_DRAIN])) is None


# -- a rollout --------------------------------------------------------------------------------------------------------

ON_A_NODE = [Verb.INSTALL, Verb.RELOAD_DRIVER, Verb.REBOOT, Verb.POWER_OFF, Verb.CHECK, Verb.PUT_LAST, Verb.RESUME]


@pytest.mark.parametrize("verb", ON_A_NODE)
def test_a_rollout_acts_on_the_idle_node_that_it_has_drained(verb: Verb) -> None:
    assert judged(of_rollout(verb), in_hand()) is None


@pytest.mark.parametrize(
    ("verb", "owned"),
    [
        *product([Verb.DRAIN, *ON_A_NODE], [{NODE: OTHER_ROLLOUT}]),
        # What soaks is not in hand, and is marked again: PUT_LAST is no row here.
        *product([Verb.DRAIN, *ON_A_NODE[:5], Verb.RESUME], [{}, {OTHER_NODE: ROLLOUT}]),
    ],
)
def test_a_rollout_acts_on_no_node_that_it_has_not_in_hand(verb: Verb, owned: dict[NodeName, RolloutId]) -> None:
    assert answer(judged(of_rollout(verb), in_hand(owned=owned))) == OWNED_NEVER


@pytest.mark.parametrize("verb", [Verb.PUT_BACK, Verb.PUT_LAST, Verb.EXCLUDE])
def test_a_node_that_works_again_is_still_marked_and_spared(verb: Verb) -> None:
    known = replace(facts(jobs=[held_job()]), owned={})

    assert judged(of_rollout(verb), known) is None
    assert answer(judged(of_rollout(verb), replace(known, owned={NODE: OTHER_ROLLOUT}))) == OWNED_NEVER


@pytest.mark.parametrize(
    "verb", [Verb.HOLD, Verb.RELEASE, Verb.FENCE, Verb.RESERVE, Verb.RESET_GPU, Verb.REIMAGE, Verb.DECLARE_DOWN]
)
def test_a_rollout_takes_no_job_away_and_repairs_nothing(verb: Verb) -> None:
    known = replace(in_hand(), jobs={job().job: job()})

    assert answer(judged(of_rollout(verb), known)) == OWNED_NEVER


@pytest.mark.parametrize("verb", [Verb.INSTALL, Verb.RELOAD_DRIVER])
def test_nothing_but_a_rollout_installs(verb: Verb) -> None:
    known = facts(nodes=[our_node()], records=[our_drain()])

    assert answer(judged(action(verb, on=NODE), known)) == OWNED_NEVER


@pytest.mark.parametrize("verb", [Verb.INSTALL, Verb.RELOAD_DRIVER, Verb.REBOOT, Verb.POWER_OFF, Verb.CHECK])
@pytest.mark.parametrize(
    ("status", "jobs", "rule"),
    [
        pytest.param(None, [job()], "idle_node", id="a job runs there"),
        pytest.param(our_node(incident=ROLLOUT, gpu_in_use_count=1), [], "hidden_work", id="a GPU is in use"),
        pytest.param(node(), [], "our_drain", id="somebody returned it"),
        pytest.param(foreign_node(), [], "our_drain", id="somebody else drained it since"),
        pytest.param(our_node(incident=ROLLOUT, reason_set_at=after(1)), [], "our_drain", id="drained again by others"),
    ],
)
def test_a_rollout_ends_nothing_that_runs(verb: Verb, status: NodeStatus | None, jobs: list, rule: str) -> None:
    known = replace(in_hand(status=status), jobs={each.job: each for each in jobs})

    refusal = judged(of_rollout(verb), known)

    assert refusal is not None
    assert refusal.guardrail == rule


@pytest.mark.parametrize("verb", [Verb.INSTALL, Verb.RELOAD_DRIVER, Verb.REBOOT, Verb.POWER_OFF])
def test_a_rollout_changes_nothing_without_eyes(verb: Verb) -> None:
    refusal = judged(of_rollout(verb), in_hand(is_telemetry_available=False))

    assert answer(refusal) == ("fresh_telemetry", Patience.WAIT)


def test_a_rollout_cuts_the_power_of_a_node_that_answers_and_it_is_not_moot() -> None:
    off, on = of_rollout(Verb.POWER_OFF), of_rollout(Verb.POWER_ON)

    assert is_moot(off, in_hand()) is None
    assert is_moot(on, in_hand(ended(off))) is None
    assert is_moot(action(Verb.POWER_OFF, on=NODE), in_hand()) == f"{NODE} answers again"


# -- a fault before an update -----------------------------------------------------------------------------------------


def test_no_node_with_an_open_incident_is_begun() -> None:
    known = taken_on_paper(in_trouble={NODE: INCIDENT})

    assert answer(judged(DRAIN, known)) == OWNED_WAIT
    assert judged(DRAIN, taken_on_paper(in_trouble={OTHER_NODE: INCIDENT})) is None
    assert judged(action(Verb.DRAIN, on=NODE), known) is None


@pytest.mark.parametrize(
    ("others", "status", "jobs", "may_begin"),
    [
        pytest.param([], node(), [], True, id="nobody is at work"),
        pytest.param([begun(action(Verb.DRAIN, on=NODE))], node(), [], False, id="its drain was just started"),
        pytest.param([our_drain()], our_node(), [], False, id="drained by an incident"),
        pytest.param([ended(action(Verb.DRAIN, on=NODE), OutcomeKind.FAILED)], node(), [], True, id="its drain failed"),
        pytest.param(
            [ended(action(Verb.HOLD, of=attempt()), attempt_nodes=frozenset({NODE}))],
            node(),
            [held_job()],
            False,
            id="it holds a job of the node",
        ),
        pytest.param(
            [ended(action(Verb.HOLD, of=attempt()), attempt_nodes=frozenset({NODE}))],
            node(),
            [],
            True,
            id="the job that it held is gone",
        ),
        pytest.param(
            [ended(action(Verb.HOLD, of=attempt()), attempt_nodes=frozenset({OTHER_NODE}))],
            node(),
            [held_job()],
            True,
            id="it holds a job of another node",
        ),
    ],
)
def test_a_rollout_waits_for_an_incident_that_is_at_work_also_on_its_way_back(
    others: list[ActionRecord], status: NodeStatus, jobs: list, may_begin: bool
) -> None:
    touched = [
        our_drain(incident=ROLLOUT, seconds_ago=9000),
        ended(of_rollout(Verb.INSTALL), seconds_ago=8000),
        ended(of_rollout(Verb.RESUME), seconds_ago=7000),
    ]
    known = taken_on_paper(*touched, *others, nodes=[status], in_trouble={NODE: INCIDENT})
    known = replace(known, jobs={each.job: each for each in jobs})

    refusal = judged(of_rollout(Verb.DRAIN, try_number=2), known)

    assert answer(refusal) == (None if may_begin else OWNED_WAIT)


# -- counts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out_count", "rule"), [(0, None), (1, None), (2, ("rollout_share", Patience.WAIT))], ids=["none", "last", "over"]
)
def test_rollouts_have_a_part_of_the_drain_budget_of_their_own(
    out_count: int, rule: tuple[str, Patience] | None
) -> None:
    names = node_names(40)[20 : 20 + out_count]
    waiting = node_names(40)[30:36]  # In hand of another rollout by name alone: their drains wait.
    known = replace(
        facts(
            nodes=[our_node(each, incident=OTHER_ROLLOUT) for each in names],
            records=[our_drain(each, incident=OTHER_ROLLOUT) for each in names],
        ),
        owned={NODE: ROLLOUT, **dict.fromkeys((*names, *waiting), OTHER_ROLLOUT)},
    )

    assert answer(judged(DRAIN, known, by=replace(AMPLE, rollouts=RolloutLimits(max_out_count=2)))) == rule


def test_drains_that_rollouts_have_begun_count_before_they_show() -> None:
    records = [begun(of_rollout(Verb.DRAIN, on=name)) for name in node_names(4)[1:3]]
    owned = dict.fromkeys(node_names(3), ROLLOUT)

    refusal = judged(DRAIN, replace(facts(records=records), owned=owned), by=policy(drain_budget=WIDE))

    assert answer(refusal) == ("rollout_share", Patience.WAIT)


def test_what_incidents_have_out_is_not_the_rollouts_share_but_the_budgets() -> None:
    out = node_names(40)[20:23]
    known = taken_on_paper(nodes=[foreign_node(each) for each in out])
    tight = replace(WIDE, max_out_count=3)

    assert judged(DRAIN, known, by=policy(drain_budget=WIDE)) is None
    assert answer(judged(DRAIN, known, by=policy(drain_budget=tight))) == ("drain_budget", Patience.WAIT)


def test_a_partition_keeps_its_nodes_from_rollouts_too() -> None:
    every = [node(name, partitions=frozenset({"p"})) for name in node_names(40)[:4]]
    known = taken_on_paper(nodes=[*every[:2], *(replace(each, is_drained=True, reason="x") for each in every[2:])])
    capped = replace(AMPLE, blast_caps=BlastCaps(max_out_per_partition_ratio=0.5))

    assert answer(judged(DRAIN, known, by=capped)) == ("partition_cap", Patience.WAIT)


def test_a_rollout_is_bound_by_no_count_of_repair_and_counts_in_none() -> None:
    """Drains of the hour, the storm brake, tries and cool-down are about faults."""
    many = node_names(40)[5:35]
    by_incidents = [begun(action(Verb.REBOOT, on=each, incident=f"INC-1{each[3:]}"), seconds_ago=60) for each in many]
    drained = [our_drain(each, incident=f"INC-1{each[3:]}", seconds_ago=60) for each in many]
    strict = replace(
        AMPLE,
        drain_budget=replace(WIDE, max_new_per_hour_count=1),
        mass_event=MassEvent(min_node_count=2),
        ladder=LadderLimits(max_reboots_count=1),
    )
    tried = ended(action(Verb.REBOOT, on=NODE, incident="INC-0009"), seconds_ago=120)

    assert judged(DRAIN, taken_on_paper(*by_incidents, *drained), by=strict) is None
    assert judged(of_rollout(Verb.REBOOT), in_hand(tried, *by_incidents), by=strict) is None

    by_rollouts = [begun(of_rollout(verb, on=each)) for each, verb in product(many, (Verb.DRAIN, Verb.REBOOT))]
    done = [replace(each, outcome=our_drain().outcome) for each in by_rollouts]
    repair = action(Verb.REBOOT, on=NODE)
    rebooted = ended(of_rollout(Verb.REBOOT), seconds_ago=60)

    assert judged(action(Verb.DRAIN, on=NODE), facts(records=done), by=strict) is None
    assert judged(repair, facts(nodes=[our_node()], records=[our_drain(), rebooted, *done]), by=strict) is None


def test_nodes_that_soak_are_on_no_probation_of_repair() -> None:
    soaking = node_names(40)[10:14]
    nodes = [our_node(), *(node(each, is_last_choice=True) for each in soaking)]
    capped = replace(AMPLE, blast_caps=BlastCaps(max_on_probation_count=1))
    back = action(Verb.RESUME, on=NODE)
    marks = [
        ended(of_rollout(verb, on=each), seconds_ago=60) for each in soaking for verb in (Verb.PUT_LAST, Verb.RESUME)
    ]
    known = facts(nodes=nodes, records=[our_drain()])

    assert answer(judged(back, known, by=capped)) == ("probation_cap", Patience.WAIT)
    assert judged(back, facts(nodes=nodes, records=[our_drain(), *marks]), by=capped) is None
    assert judged(back, replace(known, in_begun_waves=frozenset(soaking)), by=capped) is None
    repaired = ended(action(Verb.PUT_LAST, on=soaking[0], incident="INC-0009"), seconds_ago=30)
    relapsing = facts(nodes=nodes, records=[our_drain(), repaired])
    assert judged(back, replace(relapsing, in_begun_waves=frozenset(soaking)), by=capped) is not None


def test_a_rollout_returns_its_node_whatever_is_on_probation() -> None:
    watched = [node(each, is_last_choice=True) for each in node_names(40)[10:14]]
    capped = replace(AMPLE, blast_caps=BlastCaps(max_on_probation_count=1))
    known = in_hand()
    known = replace(known, nodes={**known.nodes, **{each.node: each for each in watched}})

    assert judged(of_rollout(Verb.RESUME), known, by=capped) is None


# -- words and times --------------------------------------------------------------------------------------------------

AFTERWARDS = [Verb.INSTALL, Verb.REBOOT, Verb.CHECK, Verb.RESUME]


@pytest.mark.parametrize(
    ("word", "authority", "expected"),
    [
        (Consent.AUTO, Authority.AUTOPILOT, None),
        (Consent.APPROVE, Authority.AUTOPILOT, ("approval", Patience.WAIT)),
        (Consent.APPROVE, Authority.APPROVED_PLAN, None),
        (Consent.FORBID, Authority.APPROVED_PLAN, ("consent", Patience.WAIT)),
    ],
)
def test_update_is_the_word_for_all_that_a_rollout_does(
    word: Consent, authority: Authority, expected: tuple[str, Patience] | None
) -> None:
    others = dict.fromkeys(set(ActionClass) - {ActionClass.UPDATE}, Consent.FORBID)
    by = replace(AMPLE, consents={**others, ActionClass.UPDATE: word})

    assert answer(judged(DRAIN, taken_on_paper(), by=by, authority=authority)) == expected
    for verb in AFTERWARDS:
        assert judged(of_rollout(verb), in_hand(), by=by, authority=authority) is None


def test_observing_and_pausing_stop_a_rollout_and_give_no_node_up() -> None:
    for what, known in ((DRAIN, taken_on_paper()), (of_rollout(Verb.INSTALL), in_hand())):
        assert answer(judged(what, known, by=replace(AMPLE, mode=Mode.OBSERVE))) == ("mode", Patience.WAIT)
        assert answer(judged(what, replace(known, is_paused=True))) == ("pause", Patience.WAIT)


@pytest.mark.parametrize(
    ("begins", "ends", "is_frozen"), [(-10, 0, False), (-10, 1, True), (0, 10, True), (1, 10, False)]
)
def test_a_freeze_lets_no_node_be_begun_and_every_begun_one_be_finished(
    begins: float, ends: float, is_frozen: bool
) -> None:
    window = FreezeWindow(name="visit", begins_at=after(begins), ends_at=after(ends))
    by = replace(AMPLE, freeze_windows=(window,))

    assert (judged(DRAIN, taken_on_paper(), by=by) is not None) is is_frozen
    for verb in AFTERWARDS:
        assert judged(of_rollout(verb), in_hand(), by=by) is None


def test_an_untouchable_node_is_left_alone() -> None:
    by = replace(AMPLE, untouchable_nodes=frozenset({NODE}))

    assert answer(judged(DRAIN, taken_on_paper(), by=by)) == ("untouchable", Patience.NEVER)


# -- when a node is being changed -------------------------------------------------------------------------------------


def test_a_node_is_changed_from_its_first_installation_until_it_is_returned() -> None:
    visit = [
        our_drain(incident=ROLLOUT, seconds_ago=1000),
        ended(of_rollout(Verb.INSTALL), seconds_ago=800),
        ended(of_rollout(Verb.RESUME), seconds_ago=400),
    ]
    owned = {NODE: ROLLOUT}

    assert times_of_change(owned, visit[:1]) == {NODE: ()}
    assert under_change(owned, visit[:2]) == {NODE}
    assert under_change({}, visit[:2]) == frozenset()
    (time,) = times_of_change(owned, visit)[NODE]
    assert [time.holds(ago(each)) for each in (801, 800, 400, 399)] == [False, True, True, False]
    # Its rollback waits for jobs: a fault there is one like any other.
    drained_again = our_drain(incident=ROLLOUT, seconds_ago=100)
    assert under_change(owned, [*visit, drained_again]) == frozenset()
    back = ended(of_rollout(Verb.INSTALL, try_number=2), seconds_ago=50)
    assert under_change(owned, [*visit, drained_again, back]) == {NODE}


def test_a_node_that_was_pulled_out_is_no_longer_being_changed() -> None:
    visit = [our_drain(incident=ROLLOUT, seconds_ago=1000), ended(of_rollout(Verb.INSTALL), seconds_ago=800)]

    (time,) = times_of_change({}, visit)[NODE]

    assert time.ended_at == ago(800)


# -- never two --------------------------------------------------------------------------------------------------------

CAUSES = [INCIDENT, "INC-0002", cause_of(ROLLOUT), cause_of(OTHER_ROLLOUT)]
ACTS = [each for each in Verb if each not in MESSAGES]
TAKING = frozenset(
    {
        Verb.DRAIN, Verb.INSTALL, Verb.RELOAD_DRIVER, Verb.REBOOT, Verb.POWER_OFF, Verb.POWER_ON, Verb.RESET_GPU,
        Verb.REIMAGE, Verb.DECLARE_DOWN, Verb.CHECK, Verb.RESUME,
    }
)  # fmt: skip
OUTCOMES = st.sampled_from([None, *OutcomeKind])


@st.composite
def histories(draw: st.DrawFn) -> ClusterFacts:
    """Return any state of one node, whatever was started on it by whom, and anyone who is stated to have it in hand."""
    records = []
    for seconds in range(draw(st.integers(0, 5)), 0, -1):
        what = action(
            draw(st.sampled_from([Verb.DRAIN, Verb.INSTALL, Verb.RESUME, Verb.REBOOT, Verb.POWER_OFF, Verb.HOLD])),
            on=NODE,
            of=attempt(),
            incident=draw(st.sampled_from(CAUSES)),
            try_number=draw(st.integers(1, 2)),
        )
        kind = draw(OUTCOMES)
        of_job = {"attempt_nodes": frozenset({NODE})} if what.verb is Verb.HOLD else {}
        at = seconds * 60
        record = begun(what, seconds_ago=at) if kind is None else ended(what, kind, seconds_ago=at, witnessed_at=NOW)
        records.append(replace(record, **of_job))
    drained = st.sampled_from(CAUSES).map(lambda cause: our_node(incident=cause))
    status = draw(st.one_of(st.just(node()), st.just(foreign_node()), drained))
    jobs = draw(st.sampled_from([[], [held_job()], [job()]]))
    return replace(
        facts(nodes=[replace(status, is_responding=draw(st.booleans()))], jobs=jobs, records=records),
        owned=draw(st.sampled_from([{}, {NODE: ROLLOUT}, {NODE: OTHER_ROLLOUT}])),
        in_trouble=draw(st.sampled_from([{}, {NODE: INCIDENT}])),
    )


@given(known=histories(), one=st.sampled_from(ACTS), other=st.sampled_from(ACTS), authority=st.sampled_from(Authority))
def test_no_act_of_two_causes_on_one_node_ever_passes(
    known: ClusterFacts, one: Verb, other: Verb, authority: Authority
) -> None:
    """What one cause begins is in the ledger before another is judged, so that it is judged on that."""
    for first, second in product(CAUSES, CAUSES):
        is_mixed = (first in CAUSES[2:]) or (second in CAUSES[2:])
        if first == second or not is_mixed or one not in TAKING or other not in TAKING:
            continue
        before = of_rollout(one, by=first)
        if judged(before, known, authority=authority) is not None:
            continue
        beside = of_rollout(other, by=second)
        then = replace(known, records=(*known.records, begun(before)))

        assert judged(beside, then, authority=authority) is not None


@given(known=histories())
def test_a_node_is_never_kept_from_everybody(known: ClusterFacts) -> None:
    """Of a rollout and an incident that want the same undrained node one may begin: neither waits for the other."""
    known = replace(known, nodes={**known.nodes, NODE: node()}, owned={NODE: ROLLOUT}, records=(), jobs={})

    may_begin = [judged(each, known) is None for each in (DRAIN, action(Verb.DRAIN, on=NODE))]

    assert any(may_begin)
