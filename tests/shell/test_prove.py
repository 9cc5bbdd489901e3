"""`ops-pipelines prove`: the stored proof of a plan, found again from its snapshot."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ops_pipelines.core.identity import PlanId
from ops_pipelines.core.policy import DrainBudget
from tests.shell.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_proof_is_computed_anew_and_holds(desk: Desk) -> None:
    plan = desk.lose_gpu("gpu002")

    answer = desk.run("prove", plan, columns=200)

    assert answer.exit_code == 0
    assert f"{plan} for INC-0001: the proof holds" in answer.stdout
    assert "rack r1" in answer.stdout
    assert "max_out_per_rack_count is 2" in answer.stdout
    assert "storm_brake" in answer.stdout


def test_its_json_has_every_part(desk: Desk) -> None:
    plan = desk.lose_gpu("gpu002")

    view = json.loads(desk.run("prove", plan, "--json").stdout)

    assert (view["plan"], view["holds"], view["problems"], view["notes"]) == (plan, True, [], [])
    assert {each["kind"] for each in view["proof"]["remaining"]} >= {"cluster", "rack", "leaf_switch"}
    assert [each["says"] for each in view["guardrails"] if each["guardrail"] == "drain_budget"] == [[]]


def test_a_plan_that_breaks_the_limits_of_today_ends_with_1_and_says_why(desk: Desk) -> None:
    plan = desk.lose_gpu("gpu002")
    rules = desk.cluster.rules
    strict = replace(rules.policy, drain_budget=DrainBudget(max_out_count=0))
    desk.cluster = replace(desk.cluster, rules=replace(rules, policy=strict))

    answer = desk.run("prove", plan)

    assert answer.exit_code == 1
    assert "THE PROOF DOES NOT HOLD" in answer.stdout
    assert "max_out_count is 0" in answer.stderr


def test_a_plan_of_a_version_that_kept_no_proof_is_said_to_have_none(desk: Desk) -> None:
    name = desk.lose_gpu("gpu002")
    real = desk.cluster.ledger

    class WithoutProofs:
        def __getattr__(self, attribute: str) -> object:
            return getattr(real, attribute)

        def plan(self, plan: PlanId) -> object:
            found = real.plan(plan)
            return None if found is None else replace(found, proof=None)

    desk.cluster = replace(desk.cluster, ledger=WithoutProofs())  # type: ignore[arg-type]  # a fake

    answer = desk.run("prove", name, columns=200)

    assert answer.exit_code == 1
    assert "no proof was stored with it" in answer.stdout
    assert "DOES NOT HOLD" not in answer.stdout


def test_rules_that_changed_since_are_noted(desk: Desk) -> None:
    plan = desk.lose_gpu("gpu002")
    desk.cluster = replace(desk.cluster, rules_digest="0" * 64)

    assert "have changed since" in desk.run("prove", plan, columns=200).stdout


def test_an_unknown_plan_is_refused(desk: Desk) -> None:
    answer = desk.run("prove", "PLAN-000000000000")

    assert answer.exit_code == 4
    assert "there is no plan PLAN-000000000000" in answer.stderr
