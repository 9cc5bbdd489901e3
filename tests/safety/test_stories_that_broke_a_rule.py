"""The smallest stories in which the program once did something unsafe; each stands for many seeds."""

import pytest

from ops_pipelines.domain.policy import DrainBudget
from tests.safety.directed_stories import PASS, lose_gpu, number_of
from tests.safety.hostile_plans import WIDE
from tests.safety.lies import TelemetryLie
from tests.safety.moves import Move, MoveKind
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
