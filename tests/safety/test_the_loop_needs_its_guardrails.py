"""The whole loop in a hostile world: safe with every guardrail, and just one rule broken with just one taken out."""

from collections.abc import Mapping

import pytest

from tests.safety.directed_stories import DIRECTED_STORIES
from tests.safety.mutations import ELSEWHERE, RELAXATIONS, without, without_in_ledger
from tests.safety.outdated_plans import OUTDATED_PLANS, UNREACHABLE
from tests.safety.stories import Story, Verdict, play

STORIES: Mapping[str, Story] = {**DIRECTED_STORIES, **OUTDATED_PLANS}

KEPT_TWICE: Mapping[str, str] = {
    "pause": "ledger_pause",
    "known_job": "is_moot",
    "same_attempt": "is_moot",
    "max_out_count": "judge_proof",
    "max_out_per_rack_count": "judge_proof",
    "min_in_service_ratio": "judge_proof",
    "partition_cap": "judge_proof",
    "leaf_cap": "judge_proof",
    "nvlink_cap": "judge_proof",
}
"""Guardrails of which another check keeps the same: with either of the two in place nothing is sent."""


def play_without(guardrail: str, *taken_out: str) -> Verdict:
    with without(*taken_out):
        return play(STORIES[guardrail], dress=without_in_ledger(*taken_out))


@pytest.mark.parametrize("guardrail", STORIES)
def test_loop_is_safe_in_a_hostile_world(guardrail: str) -> None:
    assert play_without(guardrail).violations == ()


@pytest.mark.parametrize("guardrail", STORIES)
def test_loop_without_one_guardrail_breaks_just_its_rule(guardrail: str) -> None:
    also = [KEPT_TWICE[guardrail]] if guardrail in KEPT_TWICE else []

    verdict = play_without(guardrail, guardrail, *also)

    assert verdict.broken_rules == {guardrail}


@pytest.mark.parametrize("guardrail", KEPT_TWICE)
@pytest.mark.parametrize("kept", ["the guardrail", "the other check"])
def test_what_two_checks_keep_holds_with_either_of_them(guardrail: str, kept: str) -> None:
    taken_out = KEPT_TWICE[guardrail] if kept == "the guardrail" else guardrail

    assert play_without(guardrail, taken_out).violations == ()


def test_every_guardrail_is_met_by_the_loop_or_stands_behind_the_planner() -> None:
    assert STORIES.keys() | UNREACHABLE.keys() == RELAXATIONS.keys() | (ELSEWHERE & STORIES.keys())
    assert not DIRECTED_STORIES.keys() & OUTDATED_PLANS.keys()
    assert not STORIES.keys() & UNREACHABLE.keys()
