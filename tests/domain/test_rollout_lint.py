"""Limits of rollouts that forbid everything or limit nothing by accident are refused; what should be meant is
reported."""

from dataclasses import replace
from datetime import time, timedelta

import pytest

from ops_pipelines.core.policy import ActionClass, Consent, DrainBudget, Policy, RolloutLimits, WeeklyWindow
from ops_pipelines.core.release import Claims
from ops_pipelines.remediate.guardrails.lints import USUAL_CLAIM, caution_about_rollouts, lint_policy
from tests.domain.builders import policy, topology

NIGHT = WeeklyWindow(name="night", days=frozenset({1}), begins=time(22), ends=time(4), timezone="UTC")
ASKED = {ActionClass.UPDATE: Consent.APPROVE}


def limits(**changes: object) -> Policy:
    return policy(rollouts=replace(RolloutLimits(), **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "key"),
    [
        pytest.param(policy(), None, id="the defaults"),
        pytest.param(policy(drain_budget=DrainBudget(max_out_count=1)), None, id="the default beside a small budget"),
        pytest.param(limits(max_out_count=3), None, id="below the budget"),
        pytest.param(limits(max_out_count=4), None, id="the whole budget"),
        pytest.param(limits(max_out_count=5), "rollouts.max_out_count", id="more than the budget"),
        pytest.param(
            replace(limits(max_out_count=5), drain_budget=DrainBudget(max_out_count=0)), None, id="nothing is drained"
        ),
        pytest.param(limits(install_limit=timedelta(0)), "rollouts.install_limit_seconds", id="no time to install"),
        pytest.param(limits(verify_limit=timedelta(0)), "rollouts.verify_limit_seconds", id="no time to verify"),
        pytest.param(limits(verify_limit=timedelta(seconds=60)), "rollouts.verify_limit_seconds", id="no third read"),
        pytest.param(limits(verify_limit=timedelta(seconds=61)), None, id="three reads"),
        pytest.param(policy(maintenance_windows=()), "maintenance_windows", id="never"),
        pytest.param(policy(maintenance_windows=(NIGHT,)), None, id="a window"),
        pytest.param(
            policy(maintenance_windows=(), maintenance_calendars=("/x.ics",)), None, id="windows of a calendar"
        ),
    ],
)
def test_an_accident_is_told_by_its_key(given: Policy, key: str | None) -> None:
    reasons = lint_policy(given, topology(40))

    assert [reason.split(" ", 1)[0].rstrip(":") for reason in reasons] == ([] if key is None else [key])


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        pytest.param(policy(), [], id="nothing is stated of rollouts"),
        pytest.param(policy(consents=ASKED), ["maintenance_windows"], id="at any time"),
        pytest.param(policy(consents=ASKED, maintenance_windows=(NIGHT,)), [], id="a window"),
        pytest.param(policy(consents=ASKED, maintenance_calendars=("/x.ics",)), [], id="a calendar"),
        pytest.param(
            limits(soak=timedelta(hours=6), soak_limit=timedelta(hours=7)),
            ["maintenance_windows"],
            id="long enough to find a failure",
        ),
        pytest.param(
            limits(soak=timedelta(hours=6), soak_limit=timedelta(hours=7) - timedelta(seconds=1)),
            ["maintenance_windows", "rollouts.soak_limit_seconds"],
            id="every wave of a release with the usual claims undecided",
        ),
        pytest.param(limits(max_out_count=3), ["maintenance_windows"], id="a place is left to faults"),
        pytest.param(limits(max_out_count=4), ["maintenance_windows", "rollouts.max_out_count"], id="none is left"),
        pytest.param(
            replace(limits(max_out_count=4), consents={ActionClass.UPDATE: Consent.FORBID}), [], id="none is started"
        ),
    ],
)
def test_what_should_be_meant_is_said(given: Policy, keys: list[str]) -> None:
    assert [each.split(" ", 1)[0] for each in caution_about_rollouts(given)] == keys


def test_the_usual_claim_is_the_one_of_a_release_that_claims_nothing() -> None:
    assert Claims().slowest_failure == USUAL_CLAIM
