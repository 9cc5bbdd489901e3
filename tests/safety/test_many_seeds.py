"""Half a hundred stories, whatever happens in them: no unsafe act; and enough acts for that to mean something."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ops_pipelines.core.action import MESSAGES, Verb
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.policy import LadderLimits, Mode
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.scenario import JobSpec
from tests.safety.directed_stories import PASS, break_by, wait
from tests.safety.hostile_plans import WIDE
from tests.safety.many_seeds import Tally, count, lines_of, play_all
from tests.safety.moves import Move, MoveKind, make
from tests.safety.quick_ledger import QuickLedger
from tests.safety.stage import Setting, Stage
from tests.safety.stories import Story, draw_story, play
from tests.scenarios.small_autopilot import SmallAutopilot

SEED_COUNT = 50
SEEDS_ON_DISK = (20122, 20151, 20192)
"""Approvals, crashes and a rollout among them."""
LEAST_COMMAND_COUNTS = {
    Verb.DRAIN: 20,
    Verb.RESERVE: 2,
    Verb.HOLD: 5,
    Verb.MARK: 1,
    Verb.EXCLUDE: 5,
    Verb.UNRESERVE: 2,
    Verb.RELEASE: 3,
    Verb.REBOOT: 2,
    Verb.RESET_GPU: 1,
    Verb.POWER_OFF: 1,
    Verb.DECLARE_DOWN: 1,
    Verb.POWER_ON: 1,
    Verb.CHECK: 5,
    Verb.PUT_LAST: 1,
    Verb.RESUME: 3,
    Verb.INSTALL: 2,
}
SELDOM = {Verb.REIMAGE, Verb.PUT_BACK, Verb.RELOAD_DRIVER, Verb.UNMARK}
"""Too seldom for so few stories; the story of the whole ladder has them, and rollouts of drivers."""
WHOLE_LADDER = Story(
    setting=Setting(
        budget=WIDE,
        ladder=LadderLimits(max_reimages_count=1, cool_down=timedelta(0)),
        probation_seconds=8.0,
    ),
    moves=(
        break_by(FaultKind.UNCORRECTABLE_ECC, 3, course=2),
        *[PASS, wait(10)] * 8,
        Move(kind=MoveKind.REPAIR_DONE),
        *[wait(10), PASS] * 4,
    ),
)


@pytest.fixture(scope="module")
def tally() -> Tally:
    return count(play_all(range(SEED_COUNT), job_count=1))


def test_no_story_leads_to_an_unsafe_act(tally: Tally) -> None:
    assert [(verdict.seed, verdict.violations) for verdict in tally.broken] == []


@pytest.mark.parametrize("verb", LEAST_COMMAND_COUNTS, ids=lambda verb: verb.value)
def test_stories_make_the_autopilot_act(tally: Tally, verb: Verb) -> None:
    assert tally.commands[verb] >= LEAST_COMMAND_COUNTS[verb]


def test_every_verb_that_is_sent_to_a_cluster_is_counted() -> None:
    assert LEAST_COMMAND_COUNTS.keys() == set(Verb) - MESSAGES - {Verb.FENCE} - SELDOM


def test_story_climbs_the_whole_ladder_to_hands_and_back_over_probation() -> None:
    verdict = play(WHOLE_LADDER)

    climbed = (Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_OFF, Verb.REIMAGE, Verb.PUT_LAST, Verb.RESUME, Verb.PUT_BACK)
    assert verdict.violations == ()
    assert [verdict.commands[verb] for verb in climbed] == [1] * len(climbed)


def test_ledger_with_a_memory_answers_as_the_ledger_does(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Setting(mode=Mode.APPROVE))
    for move in (break_by(FaultKind.GPU_FELL_OFF_BUS, 3), PASS, Move(kind=MoveKind.APPROVE, number=2), PASS):
        make(move, stage)
        now = stage.own_clock.now()

        assert isinstance(stage.ledger, QuickLedger)
        assert stage.ledger.read_state(now) == stage.ledger.plain.read_state(now)

    assert stage.judge.watched[Verb.DRAIN] == 1
    stage.close()


class StageOnDisk(Stage):
    """A stage whose processes ask their ledger itself, in a file and through all of SQLAlchemy."""

    def _begin(self, directory: Path, *jobs: JobSpec, **options: Any) -> SmallAutopilot:
        return SmallAutopilot(directory, *jobs, **options)

    def _quick(self, autopilot: SmallAutopilot) -> Ledger:
        return autopilot.cluster.ledger


@pytest.mark.parametrize("seed", SEEDS_ON_DISK)
def test_story_is_written_as_it_would_be_on_disk(seed: int, tmp_path: Path) -> None:
    story = draw_story(seed)
    written = []
    for kind in (Stage, StageOnDisk):
        stage = kind(tmp_path / kind.__name__, story.setting)
        for move in story.moves:
            assert isinstance(move, Move)
            make(move, stage)
        ledger = stage.ledger
        written.append((ledger.entries(after=0, limit=10_000), ledger.evidence_after(0, limit=10_000)))
        assert stage.faults_at_the_end() == []
        stage.processes["first"].cluster.ledger.close()
        stage.close()

    in_memory, on_disk = written
    assert in_memory == on_disk


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


def test_stories_are_late_in_each_way_with_and_without_a_start_guard(tally: Tally) -> None:
    settings = [draw_story(seed).setting for seed in range(SEED_COUNT)]

    assert all(tally.moves[kind] >= 5 for kind in (MoveKind.LINGER, MoveKind.LATE_RUN, MoveKind.SUSPEND))
    given_up_soon = [each for each in settings if each.slurmd_timeout_seconds <= 60]
    assert {each.has_start_guard for each in given_up_soon} == {True, False}


@pytest.mark.parametrize(
    "seed",
    [
        # A rollout once had the node; a job that ran there in between is kept off it, which the rules took for a wrong.
        pytest.param(33598, id="a node that was put back and drained again in our words is nobody's of ours"),
        pytest.param(34432, id="a node that was given up between the reading of nodes and that of jobs"),
        pytest.param(36382, id="a drain that the scheduler took and did not show is not forgotten"),
    ],
)
def test_story_that_once_broke_a_rule_breaks_none(seed: int) -> None:
    assert play(draw_story(seed), seed=seed).violations == ()
