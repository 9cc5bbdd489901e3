"""The whole loop in a hostile world: safe with every guardrail, and just one rule broken with just one taken out."""

import pytest

from tests.safety.directed_stories import DIRECTED_STORIES, PROVEN_FIRST, UNREACHABLE
from tests.safety.hostile_plans import HOSTILE_PLANS
from tests.safety.mutations import ELSEWHERE, RELAXATIONS, without, without_in_ledger
from tests.safety.stories import Verdict, play


def play_without(guardrail: str, *taken_out: str) -> Verdict:
    with without(*taken_out):
        return play(DIRECTED_STORIES[guardrail], dress=without_in_ledger(*taken_out))


@pytest.mark.parametrize("guardrail", DIRECTED_STORIES)
def test_loop_is_safe_in_a_hostile_world(guardrail: str) -> None:
    assert play_without(guardrail).violations == ()


@pytest.mark.parametrize("guardrail", DIRECTED_STORIES)
def test_loop_without_one_guardrail_breaks_just_its_rule(guardrail: str) -> None:
    proven = ("judge_proof",) if guardrail in PROVEN_FIRST else ()
    verdict = play_without(guardrail, guardrail, *HOSTILE_PLANS[guardrail].also, *proven)

    assert verdict.broken_rules == {guardrail}


@pytest.mark.parametrize("guardrail", sorted(PROVEN_FIRST))
@pytest.mark.parametrize("kept", ["the guardrail", "the proof"])
def test_a_limit_that_is_proven_too_holds_with_either_of_the_two(guardrail: str, kept: str) -> None:
    taken_out = "judge_proof" if kept == "the guardrail" else guardrail

    assert play_without(guardrail, taken_out).violations == ()


def test_every_guardrail_is_met_by_the_loop_or_stands_behind_the_planner() -> None:
    assert DIRECTED_STORIES.keys() | UNREACHABLE.keys() == RELAXATIONS.keys() | (ELSEWHERE & DIRECTED_STORIES.keys())
    assert not DIRECTED_STORIES.keys() & UNREACHABLE.keys()
