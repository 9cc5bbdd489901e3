"""The job's clock: time is conserved, and work is lost only since the newest durable checkpoint."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines_lab.whatif.training import (
    Cause,
    CheckpointRegime,
    Training,
    Wait,
    WorkClock,
    best_interval,
    best_regime,
)

REGIME = CheckpointRegime(interval_seconds=99.0, block_seconds=1.0, save_seconds=50.0)


def new_training(horizon: float = 10_000.0) -> Training:
    return Training(clock=WorkClock(horizon_seconds=horizon, regime=REGIME))


@pytest.mark.parametrize(("ran", "lost"), [(0, 0), (149, 149), (150, 50), (249, 149), (250, 50)])
def test_a_crash_loses_what_is_newer_than_the_newest_durable_checkpoint(ran: float, lost: float) -> None:
    job = new_training()
    job.pass_time(ran, slowdown_ratio=0.0)

    job.crash([Wait(Cause.START, 10.0)])

    assert job.clock.lost[Cause.LOST_WORK] == pytest.approx(lost * 0.99)
    assert job.interruption_count == 1


def test_a_second_stop_while_it_stands_takes_no_more_work_and_makes_the_first_void() -> None:
    job = new_training()
    job.pass_time(1_000.0, slowdown_ratio=0.0)
    job.crash([Wait(Cause.DETECT, math.inf)])
    first, lost = job.stop_count, job.clock.lost[Cause.LOST_WORK]

    job.crash([Wait(Cause.START, 5.0)])

    assert (job.stop_count, job.interruption_count) == (first + 1, 1)
    assert job.clock.lost[Cause.LOST_WORK] == lost


def test_a_wait_without_an_end_lasts_until_it_is_lifted() -> None:
    job = new_training()
    job.crash([Wait(Cause.SPARE_WAIT, math.inf), Wait(Cause.START, 5.0)])

    assert not job.pass_time(500.0, slowdown_ratio=0.0)
    assert not job.lift(Cause.SPARE_WAIT)
    assert job.pass_time(5.0, slowdown_ratio=0.0)
    assert job.is_running()


def test_what_was_computed_since_it_was_corrupted_is_thrown_away_checkpoints_included() -> None:
    job = new_training()
    job.pass_time(1_000.0, slowdown_ratio=0.0)
    job.begin_to_corrupt()
    job.pass_time(2_000.0, slowdown_ratio=0.0)

    job.roll_back()

    assert job.clock.productive == pytest.approx(900.0 * 0.99)
    assert job.clock.run_seconds == 0.0


def test_a_planned_stop_loses_no_work() -> None:
    job = new_training()
    job.pass_time(149.0, slowdown_ratio=0.0)

    job.stop_saved([Wait(Cause.START, 10.0)])

    assert job.clock.lost[Cause.LOST_WORK] == 0.0
    assert job.saved_at == 149.0


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["run", "crash", "stop", "corrupt", "back"]), st.floats(0.0, 5_000.0)), max_size=30
    )
)
def test_every_second_is_productive_or_lost_to_one_cause(steps: list[tuple[str, float]]) -> None:
    job = new_training(horizon=20_000.0)

    for what, seconds in steps:
        match what:
            case "run":
                job.pass_time(min(seconds, job.until_change), slowdown_ratio=0.1)
            case "crash":
                job.crash([Wait(Cause.DETECT, seconds), Wait(Cause.START, 1.0)])
            case "stop":
                job.stop_saved([Wait(Cause.SCHEDULE, seconds)])
            case "corrupt":
                job.begin_to_corrupt()
            case _:
                job.roll_back()

    clock = job.clock
    assert clock.productive >= 0.0
    assert clock.now <= clock.horizon_seconds
    assert clock.productive + sum(clock.lost.values()) == pytest.approx(clock.now, abs=1e-6)


def test_checkpoints_are_as_far_apart_as_daly_says_and_never_closer_than_durable() -> None:
    assert best_interval(2.0, 10_000.0) == pytest.approx(198.67, abs=0.1)
    assert best_interval(2.0, 1.0) == 1.0
    assert best_regime(60.0).interval_seconds == 51.06
