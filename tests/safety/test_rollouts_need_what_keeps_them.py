"""A slip in what a rollout rests on breaks just one rule, and none where a guardrail is behind it."""

from contextlib import ExitStack

import pytest

from tests.safety.mutations import OF_ROLLOUTS, RELAXATIONS, without
from tests.safety.slips_of_rollouts import ROLLOUT_SLIPS
from tests.safety.stories import Verdict, play

KEPT_TWICE = [name for name, slip in ROLLOUT_SLIPS.items() if slip.kept_by]


def _played(name: str, *, errs: bool, is_guarded: bool) -> Verdict:
    slip = ROLLOUT_SLIPS[name]
    with ExitStack() as stack:
        if errs:
            stack.enter_context(slip.happens())
        if not is_guarded:
            stack.enter_context(without(*slip.kept_by))
        return play(slip.story)


@pytest.mark.parametrize("name", ROLLOUT_SLIPS)
def test_rollout_without_a_slip_is_safe(name: str) -> None:
    assert _played(name, errs=False, is_guarded=False).violations == ()


@pytest.mark.parametrize("name", KEPT_TWICE)
def test_guardrail_alone_keeps_what_a_slip_would_break(name: str) -> None:
    assert _played(name, errs=True, is_guarded=True).violations == ()


@pytest.mark.parametrize("name", ROLLOUT_SLIPS)
def test_rollout_with_a_slip_breaks_just_the_rule_that_it_must(name: str) -> None:
    verdict = _played(name, errs=True, is_guarded=False)

    assert verdict.broken_rules == {ROLLOUT_SLIPS[name].breaks}, verdict.violations


def test_every_guardrail_of_rollouts_is_taken_out_somewhere() -> None:
    taken_out = {each for slip in ROLLOUT_SLIPS.values() for each in slip.kept_by}

    assert OF_ROLLOUTS.keys() <= taken_out <= OF_ROLLOUTS.keys() | RELAXATIONS.keys()
