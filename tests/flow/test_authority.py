"""On whose word a plan continues: an approval that holds, or one on which something was started that needed it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from ops_pipelines.core.action import Action, ActionRecord, Verb
from ops_pipelines.core.entries import AUTOPILOT, Approval, LedgerState
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import PlanId
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy
from ops_pipelines.core.proof import Authority
from ops_pipelines.remediate.due import awaited_act
from ops_pipelines.remediate.judgement import authority_of
from tests.domain.builders import INCIDENT, NODE, action, ago, attempt, begun, ended, incident, policy, xid

PLAN = PlanId("PLAN-1")
DRAIN, REBOOT = action(Verb.DRAIN, on=NODE), action(Verb.REBOOT, on=NODE)
HOLD, RELEASE = action(Verb.HOLD, of=attempt()), action(Verb.RELEASE, of=attempt())
OFF = action(Verb.POWER_OFF, on=NODE)
YES = Approval(plan=PLAN, actor="ada", given_at=ago(600), expires_at=ago(300))


def state(*records: ActionRecord, live: tuple[Approval, ...] = (), past: tuple[Approval, ...] = ()) -> LedgerState:
    return LedgerState(
        head_seq=1, decided_through=0, evidence_head=0, incidents=(), incident_count=1, last_change_seq={},
        records=records, approvals=live, pause=None, past_approvals=past,
    )  # fmt: skip


def under(mode: Mode = Mode.AUTO, **consents: str) -> Policy:
    return policy(mode, consents={ActionClass(kind): Consent(word) for kind, word in consents.items()})


@pytest.mark.parametrize(
    ("known", "by", "is_approved"),
    [
        pytest.param(state(), under(Mode.APPROVE), False, id="nobody reported anything"),
        pytest.param(state(live=(YES,)), under(Mode.APPROVE), True, id="an approval that holds"),
        pytest.param(
            state(live=(replace(YES, plan=PlanId("PLAN-2")),)),
            under(Mode.APPROVE),
            False,
            id="an approval to another plan",
        ),
        pytest.param(state(past=(YES,)), under(Mode.APPROVE), False, id="expired before anything was started"),
        pytest.param(
            state(begun(DRAIN, seconds_ago=301), past=(YES,)), under(Mode.APPROVE), True, id="started while it held"
        ),
        pytest.param(
            state(begun(DRAIN, seconds_ago=300), past=(YES,)),
            under(Mode.APPROVE),
            False,
            id="started when it had ended",
        ),
        pytest.param(
            state(begun(DRAIN, seconds_ago=301), past=(YES,)),
            under(reboot="approve"),
            False,
            id="a drain needed no yes",
        ),
        pytest.param(
            state(begun(REBOOT, seconds_ago=301), past=(YES,)), under(reboot="approve"), True, id="the reboot did"
        ),
        pytest.param(
            state(begun(DRAIN, seconds_ago=600), past=(YES,)),
            under(Mode.APPROVE),
            True,
            id="started at the approval",
        ),
        pytest.param(
            state(begun(DRAIN, seconds_ago=601), past=(YES,)),
            under(Mode.APPROVE),
            False,
            id="started before the approval",
        ),
        pytest.param(
            state(begun(HOLD, seconds_ago=601), past=(YES,)),
            under(power="approve"),
            False,
            id="held before anybody approved the power switch",
        ),
        pytest.param(
            state(begun(DRAIN)), under(Mode.APPROVE), False, id="started in auto, before the mode was changed"
        ),
        pytest.param(
            state(begun(HOLD, seconds_ago=301), past=(YES,)),
            under(power="approve"),
            True,
            id="held, to be released by power",
        ),
        pytest.param(
            state(begun(HOLD, seconds_ago=301), ended(RELEASE), past=(YES,)),
            under(power="approve"),
            False,
            id="released before the power switch",
        ),
    ],
)
def test_plan_goes_on_by_itself_only_on_a_yes_that_something_of_it_needed(
    known: LedgerState, by: Policy, is_approved: bool
) -> None:
    found = authority_of(PLAN, known, by, actor=AUTOPILOT)

    assert found is (Authority.APPROVED_PLAN if is_approved else Authority.AUTOPILOT)
    assert authority_of(None, known, by, actor=AUTOPILOT) is Authority.AUTOPILOT
    assert authority_of(PLAN, known, by, actor="ada") is Authority.PERSON


def plan_of(*actions: Action) -> IncidentPlan:
    return IncidentPlan(
        plan=PLAN, incident=INCIDENT, response=Response.REBOOT_NODE, actions=actions, reason="", effects=(),
        rejected_alternatives=(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stands", "known", "by", "expected"),
    [
        (IncidentState.ACTING, state(ended(DRAIN)), under(reboot="approve"), Verb.REBOOT),
        (IncidentState.ACTING, state(), under(reboot="approve"), None),
        (IncidentState.ACTING, state(), under(Mode.APPROVE), Verb.DRAIN),
        (IncidentState.ACTING, state(), under(Mode.OBSERVE, reboot="approve"), None),
        (IncidentState.ACTING, state(ended(DRAIN), live=(YES,)), under(reboot="approve"), None),
        (IncidentState.ACTING, state(ended(DRAIN), begun(REBOOT)), under(reboot="approve"), None),
        (IncidentState.VERIFYING, state(ended(REBOOT)), under(return_node="approve"), Verb.RESUME),
        (IncidentState.VERIFYING, state(ended(REBOOT)), under(check="approve"), Verb.CHECK),
        (IncidentState.VERIFYING, state(ended(REBOOT)), under(reboot="approve"), None),
        (IncidentState.ESCALATED, state(ended(DRAIN)), under(reboot="approve"), None),
    ],
)
def test_who_is_waited_for_shows_in_the_ledger_alone(
    stands: IncidentState, known: LedgerState, by: Policy, expected: Verb | None
) -> None:
    in_force = incident(xid(79), state=stands, plan=PLAN, plan_count=1)

    found = awaited_act(in_force, plan_of(DRAIN, REBOOT), known, by)

    assert (None if found is None else found.verb) is expected


def test_return_waits_for_the_yes_to_the_mark_that_comes_before_it() -> None:
    """A node on probation is marked first, and marking is of the class of drains."""
    verifying = incident(xid(79), state=IncidentState.VERIFYING, plan=PLAN, plan_count=1)
    watched, plain = under(isolate="approve"), under(isolate="approve")
    watched = replace(watched, durations=replace(watched.durations, probation=timedelta(hours=1)))
    plain = replace(plain, durations=replace(plain.durations, probation=timedelta(0)))
    tested = state(ended(DRAIN), ended(REBOOT))

    marks = [awaited_act(verifying, plan_of(DRAIN, REBOOT), tested, each) for each in (watched, plain)]

    assert [None if each is None else each.verb for each in marks] == [Verb.PUT_LAST, None]


def test_plan_that_was_superseded_waits_for_nobody() -> None:
    other = incident(xid(79), state=IncidentState.ACTING, plan=PlanId("PLAN-2"), plan_count=2)

    assert awaited_act(other, plan_of(DRAIN, REBOOT), state(ended(DRAIN)), under(reboot="approve")) is None


def test_hold_that_only_the_power_switch_ends_waits_for_the_yes_to_that() -> None:
    in_force = incident(xid(79), state=IncidentState.ACTING, plan=PLAN, plan_count=1)

    found = awaited_act(in_force, plan_of(DRAIN, HOLD, OFF, RELEASE), state(ended(DRAIN)), under(power="approve"))

    assert found == HOLD
