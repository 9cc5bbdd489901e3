"""Whose yes an act needs: by class, never for what gives back, and what is left of a plan where a part is forbidden."""

from collections.abc import Mapping
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.action import JOB_VERBS, MESSAGES, SOFT, Action, Verb
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy
from ops_pipelines.core.proof import Authority, Patience
from ops_pipelines.remediate.guardrails.consents import CLASS_OF, lacks_consent, needs_yes
from ops_pipelines.remediate.guardrails.facts import Case, ClusterFacts
from ops_pipelines.remediate.guardrails.judge import judge
from ops_pipelines.remediate.guardrails.lints import lint_policy
from ops_pipelines.remediate.plan_proof import find_forbidden_acts
from ops_pipelines.remediate.planning import plan_remediation
from ops_pipelines.remediate.repair_steps import is_forbidden
from tests.domain.builders import (
    GPU,
    NODE,
    action,
    attempt,
    begun,
    facts,
    held_job,
    incident,
    job,
    node,
    our_drain,
    our_node,
    policy,
    rules,
    snapshot,
    topology,
    unreachable,
    xid,
)

SILENT = node(is_responding=False)
ACTS: Mapping[Verb, Action] = {
    verb: action(
        verb,
        on=NODE if verb not in JOB_VERBS or verb is Verb.EXCLUDE else None,
        of=attempt() if verb in JOB_VERBS else None,
        gpu=GPU if verb is Verb.RESET_GPU else None,
    )
    for verb in Verb
}


def under(mode: Mode = Mode.AUTO, **consents: str) -> Policy:
    return policy(mode, consents={ActionClass(kind): Consent(word) for kind, word in consents.items()})


def asked(
    verb: Verb, by: Policy, *, authority: Authority = Authority.AUTOPILOT, known: ClusterFacts | None = None
) -> str | None:
    """Return the guardrail that refuses for want of consent."""
    case = Case(
        action=ACTS[verb], facts=known or facts(jobs=[job()]), policy=by, topology=topology(), authority=authority
    )
    refusal = lacks_consent(case)
    return None if refusal is None else refusal.guardrail


# -- by class --


def test_every_verb_but_messages_has_its_class_and_quotas_have_no_verb() -> None:
    assert CLASS_OF.keys() == set(Verb) - MESSAGES
    assert set(CLASS_OF.values()) == set(ActionClass) - {ActionClass.QUOTAS}


@pytest.mark.parametrize(
    ("mode", "word", "authority", "refused_by"),
    [
        (Mode.AUTO, None, Authority.AUTOPILOT, None),
        (Mode.AUTO, "auto", Authority.AUTOPILOT, None),
        (Mode.AUTO, "approve", Authority.AUTOPILOT, "approval"),
        (Mode.AUTO, "approve", Authority.APPROVED_PLAN, None),
        (Mode.AUTO, "forbid", Authority.APPROVED_PLAN, "consent"),
        (Mode.APPROVE, None, Authority.AUTOPILOT, "approval"),
        (Mode.APPROVE, None, Authority.APPROVED_PLAN, None),
        (Mode.APPROVE, "auto", Authority.AUTOPILOT, None),
        (Mode.APPROVE, "forbid", Authority.APPROVED_PLAN, "consent"),
        (Mode.AUTO, "forbid", Authority.PERSON, None),
    ],
)
@pytest.mark.parametrize("verb", [Verb.DRAIN, Verb.HOLD, Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_OFF, Verb.RESUME])
def test_named_class_goes_by_its_own_word_and_others_by_the_mode(
    verb: Verb, mode: Mode, word: str | None, authority: Authority, refused_by: str | None
) -> None:
    by = under(mode) if word is None else under(mode, **{CLASS_OF[verb].value: word})

    assert asked(verb, by, authority=authority) == refused_by


@pytest.mark.parametrize("verb", sorted(set(Verb) - MESSAGES, key=lambda each: each.value))
def test_who_observes_never_acts_whatever_consents_say(verb: Verb) -> None:
    refusal = judge(
        ACTS[verb],
        facts(jobs=[job()]),
        policy=under(Mode.OBSERVE, **{kind.value: "auto" for kind in ActionClass}),
        topology=topology(),
        authority=Authority.APPROVED_PLAN,
    )

    assert refusal is not None
    assert refusal.guardrail == "mode"


def test_refusal_names_the_key_and_whether_waiting_helps() -> None:
    by = under(reboot="approve", reimage="forbid")
    known = facts(nodes=[our_node()], records=[our_drain()])

    def refusal_of(verb: Verb) -> tuple[str, Patience]:
        refusal = judge(ACTS[verb], known, policy=by, topology=topology(), authority=Authority.AUTOPILOT)
        assert refusal is not None
        return refusal.reason, refusal.patience

    assert refusal_of(Verb.REBOOT) == (
        "policy.yaml says consents.reboot: approve, and nobody has approved this plan yet",
        Patience.WAIT,
    )
    assert refusal_of(Verb.REIMAGE) == (
        "policy.yaml says consents.reimage: forbid; reimage of gpu001 is left to you",
        Patience.NEVER,
    )


# -- what is brought to its end --

GIVES_BACK = [
    (Verb.FENCE, Verb.HOLD),
    (Verb.EXCLUDE, Verb.HOLD),
    (Verb.RELEASE, Verb.HOLD),
    (Verb.DECLARE_DOWN, Verb.POWER_OFF),
    (Verb.POWER_ON, Verb.POWER_OFF),
    (Verb.PUT_BACK, Verb.PUT_LAST),
]


@pytest.mark.parametrize(("verb", "begun_by"), GIVES_BACK)
@pytest.mark.parametrize("word", ["approve", "forbid"])
def test_what_gives_back_needs_no_yes_once_its_beginning_is_ours(verb: Verb, begun_by: Verb, word: str) -> None:
    by = under(**{CLASS_OF[verb].value: word})
    ours, theirs = (
        begun(ACTS[begun_by]),
        begun(action(begun_by, on=ACTS[begun_by].node, of=ACTS[begun_by].attempt, incident="INC-0002")),
    )

    assert asked(verb, by, known=facts(jobs=[held_job()], records=[ours])) is None
    assert asked(verb, by, known=facts(jobs=[held_job()], records=[theirs])) is not None
    assert asked(verb, by, known=facts(jobs=[held_job()])) is not None


def test_room_is_handed_over_without_a_yes_and_not_kept_for_a_move_that_waits_for_one() -> None:
    by = under(move_jobs="approve")

    assert asked(Verb.UNRESERVE, by) is None
    assert asked(Verb.RESERVE, by) == "approval"
    assert asked(Verb.RESERVE, by, authority=Authority.APPROVED_PLAN) is None


@pytest.mark.parametrize(
    ("on", "consents", "refused_by"),
    [
        (node(), {"power": "forbid"}, None),
        (SILENT, {"power": "forbid"}, "consent"),
        (SILENT, {"power": "approve"}, "approval"),
        (SILENT, {"power": "auto", "move_jobs": "approve"}, "approval"),
        (SILENT, {"reboot": "forbid"}, None),
    ],
)
def test_job_of_a_silent_node_is_held_only_where_it_could_be_let_go(
    on: object, consents: Mapping[str, str], refused_by: str | None
) -> None:
    known = facts(nodes=[on], jobs=[job()])  # type: ignore[list-item] # parametrised values are objects to mypy

    assert asked(Verb.HOLD, under(**consents), known=known) == refused_by


# -- what is left of a plan --


def planned(what: Incident, known: ClusterFacts, by: Policy) -> IncidentPlan:
    plan = plan_remediation(what, known, policy=by, topology=topology())
    assert isinstance(plan, IncidentPlan), plan
    return plan


def verbs(plan: IncidentPlan) -> list[str]:
    return [each.verb.value for each in plan.actions if each.verb not in SOFT]


def test_forbidden_repair_leaves_the_node_drained_its_jobs_moved_and_a_person_asked_by_name() -> None:
    plan = planned(incident(xid(79)), facts(jobs=[job()]), under(reboot="forbid"))

    assert verbs(plan) == ["drain", "notify_owner", "hold", "fence", "exclude", "release", "page_human"]
    assert "policy.yaml says consents.reboot: forbid, so reboot of gpu001 is left to you" in plan.actions[-1].text
    assert plan.proof is not None


def test_where_jobs_may_not_be_moved_they_stay_and_the_repair_waits_for_their_end() -> None:
    plan = planned(incident(xid(79)), facts(jobs=[job()]), under(move_jobs="forbid"))

    assert verbs(plan) == ["drain", "notify_owner", "reboot"]
    assert "left running" in plan.actions[1].text
    assert any("policy.yaml says consents.move_jobs: forbid" in each for each in plan.effects)


def test_silent_node_whose_power_may_not_be_cut_is_drained_and_no_job_is_held() -> None:
    what = incident(unreachable(seconds_ago=60))

    with_job = planned(what, facts(nodes=[SILENT], jobs=[job()]), under(power="forbid"))
    without = planned(what, facts(nodes=[SILENT]), under(power="forbid"))

    assert verbs(with_job) == ["drain", "notify_owner", "page_human"]
    assert "consents.power: forbid" in with_job.actions[-1].text
    assert verbs(without) == ["drain", "page_human"]
    assert "consents.power: forbid, so power off of gpu001 is left to you" in without.actions[-1].text


def test_silent_node_is_drained_at_once_where_only_its_power_waits_for_a_yes() -> None:
    what, known = incident(unreachable(seconds_ago=60)), facts(nodes=[SILENT], jobs=[job()])

    asking = planned(what, known, under(power="approve"))
    asking_for_all = planned(what, known, under(Mode.APPROVE))

    assert verbs(asking)[:2] == ["drain", "hold"]
    assert verbs(asking_for_all)[0] == "hold"
    hold = next(each for each in asking.actions if each.verb is Verb.HOLD)
    assert needs_yes(hold, under(power="approve"), among=asking.actions)
    assert not needs_yes(hold, under(power="approve"))


def test_where_nodes_may_not_be_isolated_nothing_is_done_and_a_person_is_asked() -> None:
    plan = planned(incident(xid(79)), facts(jobs=[job()]), under(isolate="forbid"))

    assert verbs(plan) == ["page_human"]
    assert "consents.isolate: forbid, so drain of gpu001 is left to you" in plan.actions[0].text


def test_what_needs_a_yes_is_planned_like_any_other() -> None:
    known = facts(jobs=[job()])

    asking = planned(incident(xid(79)), known, under(reboot="approve", isolate="auto"))

    assert asking.plan == planned(incident(xid(79)), known, under()).plan


words = st.sampled_from([None, *Consent])
policies = st.builds(
    lambda mode, each: policy(mode, consents={k: w for k, w in zip(ActionClass, each, strict=True) if w is not None}),
    st.sampled_from([Mode.AUTO, Mode.APPROVE]),
    st.tuples(*[words for _ in ActionClass]),
)
troubles = st.sampled_from([xid(79), xid(48), unreachable(seconds_ago=60)])
lives = st.sampled_from([(node(), [job()]), (node(), []), (SILENT, [job()]), (SILENT, []), (our_node(), [job()])])


@given(by=policies, trouble=troubles, life=lives)
def test_no_plan_holds_what_is_forbidden_nor_a_hold_that_it_could_not_let_go(
    by: Policy, trouble: object, life: tuple[object, list[JobStatus]]
) -> None:
    known = facts(nodes=[life[0]], jobs=life[1], records=[our_drain()])  # type: ignore[list-item] # as above
    plan = plan_remediation(incident(trouble), known, policy=by, topology=topology())  # type: ignore[arg-type]

    if not isinstance(plan, IncidentPlan):
        return
    held = {each.attempt for each in plan.actions if each.verb is Verb.HOLD}
    released = {each.attempt for each in plan.actions if each.verb is Verb.RELEASE}
    assert not any(is_forbidden(each, by) for each in plan.actions)
    assert find_forbidden_acts([plan], snapshot(), rules(by)) == ()
    assert held <= released
    assert Verb.DRAIN in {each.verb for each in plan.actions} or not held


# -- policies without sense --


@pytest.mark.parametrize(
    ("consents", "said"),
    [
        ({}, None),
        ({"reboot": "approve", "reimage": "forbid"}, None),
        ({"reset_gpu": "forbid", "reboot": "forbid", "power": "forbid", "reimage": "forbid"}, None),
        ({"return_node": "forbid"}, None),
        ({"isolate": "approve", "move_jobs": "auto"}, None),
        ({kind.value: "forbid" for kind in ActionClass}, "consents forbid every class"),
        ({"isolate": "forbid"}, "consents.isolate is forbid while others are not"),
        ({"isolate": "forbid", "move_jobs": "auto"}, "move_jobs: auto"),
        ({kind.value: "forbid" for kind in ActionClass if kind is not ActionClass.QUOTAS}, None),
        (
            {kind.value: "forbid" for kind in ActionClass if kind not in (ActionClass.QUOTAS, ActionClass.CHECK)},
            "while others are not (check: auto)",
        ),
    ],
)
def test_policy_that_could_do_nothing_is_refused_with_words(consents: Mapping[str, str], said: str | None) -> None:
    found = lint_policy(under(**consents), topology())

    assert found == () if said is None else any(said in each for each in found)


def test_needs_yes_goes_by_class_and_mode() -> None:
    expected = {
        (Mode.AUTO, Verb.REBOOT): True,
        (Mode.AUTO, Verb.DRAIN): False,
        (Mode.APPROVE, Verb.REBOOT): True,
        (Mode.APPROVE, Verb.DRAIN): True,
    }

    found = {
        (mode, verb): needs_yes(ACTS[verb], under(mode, reboot="approve"))
        for mode, verb in product((Mode.AUTO, Mode.APPROVE), (Verb.REBOOT, Verb.DRAIN))
    }

    assert found == expected
    assert not needs_yes(ACTS[Verb.PAGE_HUMAN], under(Mode.APPROVE))
