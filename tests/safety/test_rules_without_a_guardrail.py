"""Rules that no guardrail keeps: a slip in what keeps them breaks just that rule, and without the slip none."""

import pytest

from tests.safety.directed_stories import DIRECTED_STORIES
from tests.safety.hostile_plans import HOSTILE_PLANS
from tests.safety.outdated_plans import OUTDATED_PLANS
from tests.safety.rules import RULES
from tests.safety.slips import SLIPS
from tests.safety.slips_of_rollouts import ROLLOUT_SLIPS
from tests.safety.stories import play

SEEN_BY_THE_JUDGE = {"before_entry", "twice", "fresh_reading", "owned"}
"""Rules of the ledger, of old news and of owners, broken by commands that pass the program by, in `test_judge`."""

SEEN_AT_THE_END = {"stranded", "dead_link", "ownerless"}
"""Of no single command: seen on the stage when a story is over."""


@pytest.mark.parametrize("rule", SLIPS)
def test_program_without_the_slip_is_safe(rule: str) -> None:
    assert play(SLIPS[rule].story).violations == ()


@pytest.mark.parametrize("rule", SLIPS)
def test_program_with_the_slip_breaks_just_the_rule_that_it_must(rule: str) -> None:
    with SLIPS[rule].happens():
        verdict = play(SLIPS[rule].story)

    assert verdict.broken_rules == {rule}


def test_every_rule_is_broken_somewhere() -> None:
    shown = {case.split(" ", 1)[0] for case in HOSTILE_PLANS} | DIRECTED_STORIES.keys() | OUTDATED_PLANS.keys()
    shown |= {each.breaks for each in ROLLOUT_SLIPS.values()}

    assert shown | SLIPS.keys() | SEEN_BY_THE_JUDGE == RULES.keys() | SEEN_AT_THE_END
