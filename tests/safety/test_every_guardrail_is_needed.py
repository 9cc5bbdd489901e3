"""With each single guardrail taken out a hostile plan breaks exactly the rule that it holds; with it in place, none."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.safety.hostile_plans import HOSTILE_PLANS, attempt_to_send
from tests.safety.mutations import ELSEWHERE, RELAXATIONS, without, without_in_ledger
from tests.safety.stage import Stage

GUARDED_TWICE = [
    pytest.param(case, kept, id=f"{case} but {kept}") for case, plan in HOSTILE_PLANS.items() for kept in plan.also
]

KEPT_BY_VERIFICATION = {"proven"}
"""Rules of the judge that no guardrail keeps: a hostile plan that returns a node has passed by its proof."""


@contextmanager
def stage_of(case: str, directory: Path, *taken_out: str) -> Iterator[Stage]:
    with without(*taken_out):
        stage = Stage(directory, HOSTILE_PLANS[case].setting, dress=without_in_ledger(*taken_out))
        yield stage
        stage.close()


def guardrail_of(case: str) -> str:
    return case.split(" ", 1)[0]


@pytest.mark.parametrize("case", HOSTILE_PLANS)
def test_hostile_plan_breaks_no_rule_while_every_guardrail_stands(case: str, tmp_path: Path) -> None:
    with stage_of(case, tmp_path) as stage:
        attempt_to_send(HOSTILE_PLANS[case].arrange(stage), stage)

        assert stage.judge.violations == []


@pytest.mark.parametrize("case", HOSTILE_PLANS)
def test_hostile_plan_breaks_just_the_rule_whose_guardrail_is_taken_out(case: str, tmp_path: Path) -> None:
    plan, guardrail = HOSTILE_PLANS[case], guardrail_of(case)

    with stage_of(case, tmp_path, guardrail, *plan.also) as stage:
        attempt_to_send(plan.arrange(stage), stage)

        assert stage.judge.broken_rules - KEPT_BY_VERIFICATION == {guardrail}


@pytest.mark.parametrize(("case", "kept"), GUARDED_TWICE)
def test_where_two_checks_refuse_the_same_either_is_enough(case: str, kept: str, tmp_path: Path) -> None:
    plan, guardrail = HOSTILE_PLANS[case], guardrail_of(case)
    other_gone = {*plan.also, guardrail} - {kept}
    for number, taken_out in enumerate((other_gone, {kept})):
        with stage_of(case, tmp_path / str(number), *taken_out) as stage:
            attempt_to_send(plan.arrange(stage), stage)

            assert stage.judge.violations == []


def test_every_guardrail_has_a_hostile_plan() -> None:
    tried = {guardrail_of(case) for case in HOSTILE_PLANS} | {
        name for plan in HOSTILE_PLANS.values() for name in plan.also
    }

    assert tried == RELAXATIONS.keys() | ELSEWHERE
