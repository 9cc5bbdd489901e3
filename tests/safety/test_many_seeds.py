"""A few score of stories, whatever happens in them: no unsafe act; and enough acts for that to mean something."""

import pytest

from ops_pipelines.domain.action import MESSAGES, Verb
from tests.safety.many_seeds import Tally, count, lines_of, play_all
from tests.safety.moves import MoveKind
from tests.safety.stories import draw_story

SEED_COUNT = 100
LEAST_COMMAND_COUNTS = {
    Verb.DRAIN: 40,
    Verb.HOLD: 20,
    Verb.EXCLUDE: 20,
    Verb.RELEASE: 20,
    Verb.REBOOT: 10,
    Verb.RESET_GPU: 10,
    Verb.POWER_OFF: 5,
    Verb.DECLARE_DOWN: 5,
    Verb.POWER_ON: 5,
    Verb.RESUME: 20,
}


@pytest.fixture(scope="module")
def tally() -> Tally:
    return count(play_all(range(SEED_COUNT), job_count=1))


def test_no_story_leads_to_an_unsafe_act(tally: Tally) -> None:
    assert [(verdict.seed, verdict.violations) for verdict in tally.broken] == []


@pytest.mark.parametrize("verb", LEAST_COMMAND_COUNTS, ids=lambda verb: verb.value)
def test_stories_make_the_autopilot_act(tally: Tally, verb: Verb) -> None:
    assert tally.commands[verb] >= LEAST_COMMAND_COUNTS[verb]


def test_every_verb_that_is_sent_to_a_cluster_is_counted() -> None:
    assert LEAST_COMMAND_COUNTS.keys() == set(Verb) - MESSAGES - {Verb.FENCE}


def test_stories_contain_every_kind_of_trouble(tally: Tally) -> None:
    assert [kind for kind in MoveKind if tally.moves[kind] == 0] == []
    assert tally.crash_count > 0
    assert tally.failure_count > 0


def test_one_seed_is_one_story() -> None:
    assert draw_story(7) == draw_story(7)
    assert draw_story(7) != draw_story(8)


def test_table_names_every_verb_and_the_seeds_of_violations(tally: Tally) -> None:
    table = "\n".join(lines_of(tally))

    assert all(verb.value in table for verb in LEAST_COMMAND_COUNTS)
    assert f"violations: {len(tally.broken)}" in table
