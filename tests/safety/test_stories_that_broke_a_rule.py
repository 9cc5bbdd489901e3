"""The smallest stories in which the program once did something unsafe; each stands for many seeds."""

import pytest

from ops_pipelines.domain.action import Verb
from ops_pipelines.domain.policy import BlastCaps, DrainBudget
from ops_pipelines.simulator.journal import FaultKind
from tests.safety.deeds import Deed, undeclare
from tests.safety.directed_stories import PASS, break_by, lose_gpu, lower, number_of, wait, waiting_plan
from tests.safety.hostile_plans import WIDE
from tests.safety.lies import TelemetryLie
from tests.safety.moves import FAILING, Lowered, Move, MoveKind
from tests.safety.stage import Setting
from tests.safety.stories import Story, play

ONE_MAY_BE_OUT = DrainBudget(
    max_out_count=1, max_out_per_rack_count=9, min_in_service_ratio=0.0, max_new_per_hour_count=9
)


@pytest.mark.parametrize("lie", [TelemetryLie.OLD, TelemetryLie.AHEAD, TelemetryLie.EMPTY])
def test_store_that_answers_without_a_fresh_sample_is_no_pair_of_eyes(lie: TelemetryLie) -> None:
    bend = Move(kind=MoveKind.BEND_METRICS, number=number_of(lie))

    verdict = play(Story(setting=Setting(budget=WIDE), moves=(bend, lose_gpu(0), PASS, PASS)))

    assert verdict.violations == ()


@pytest.mark.parametrize("during", range(4, 13))
def test_drain_by_hand_in_the_middle_of_a_pass_counts_in_the_budget(during: int) -> None:
    by_hand = Move(kind=MoveKind.DRAIN_BY_HAND, node=2, during=during)

    verdict = play(Story(setting=Setting(budget=ONE_MAY_BE_OUT), moves=(lose_gpu(3), by_hand, PASS)))

    assert verdict.violations == ()


@pytest.mark.parametrize("is_marked", [True, False], ids=["marked", "the scheduler refuses the mark"])
def test_node_on_probation_counts_although_the_scheduler_does_not_know_it(is_marked: bool) -> None:
    refuse = Move(kind=MoveKind.FAIL_CALL, node=1, number=FAILING.index("put_last"))
    mend = Move(kind=MoveKind.MEND_CALLS)
    setting = Setting(budget=WIDE, probation_seconds=600.0, caps=BlastCaps(max_on_probation_count=1))

    verdict = play(Story(setting=setting, moves=(mend if is_marked else refuse, lose_gpu(2), lose_gpu(3), *[PASS] * 4)))

    assert verdict.violations == ()
    assert verdict.commands[Verb.RESUME] == 1


def test_owner_is_told_once_although_each_plan_has_its_notice() -> None:
    useless = break_by(FaultKind.UNCORRECTABLE_ECC, 2, course=1)
    story = Story(setting=Setting(budget=WIDE, has_session=True), moves=(useless, *[PASS] * 5))

    assert play(story).violations == ()


@pytest.mark.parametrize("node", [2, 3])
def test_reset_without_an_answer_that_helps_nothing_is_sent_once_more_at_most(node: int) -> None:
    lose = Move(kind=MoveKind.LOSE_ANSWER, node=node, number=2)
    begun = (lower(Lowered.PROBATION), PASS, lose, *[PASS, wait(12)] * 5)
    story = Story(setting=Setting(budget=WIDE), moves=(break_by(FaultKind.UNCORRECTABLE_ECC, node, course=1), *begun))

    verdict = play(story)

    assert verdict.violations == ()
    assert verdict.commands[Verb.RESET_GPU] <= 2


@pytest.mark.parametrize("where", [{"untouchable": 2}, {"undeclared": 2}])
def test_replica_that_hangs_on_a_node_left_to_people_is_not_counted_on(where: dict[str, int]) -> None:
    """The scheduler calls it running; the other one is all that serves, and must not be held."""
    setting = Setting(node_count=5, replica_count=2, gpus_per_replica=2, **where)
    moves = (lose_gpu(2), PASS, wait(11), break_by(FaultKind.ROW_REMAP_WAITS, 3), PASS)

    verdict = play(Story(setting=setting, moves=moves))

    assert verdict.violations == ()
    assert verdict.commands[Verb.HOLD] == 0


@pytest.mark.parametrize("change", [lower(Lowered.UNTOUCHABLE), undeclare(0)], ids=["untouchable", "undeclared"])
def test_node_that_is_taken_out_of_our_hands_while_its_plan_waits_keeps_its_jobs(change: Move | Deed) -> None:
    """The plan waits for a checkpoint; by then nothing of the node is ours to touch, its jobs neither."""
    verdict = play(waiting_plan(change))

    assert verdict.violations == ()
    assert verdict.commands[Verb.HOLD] == verdict.commands[Verb.RESERVE] == 0
