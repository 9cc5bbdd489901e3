"""When a job saves its work next: what was seen and declared is taken, what is unknown is never guessed as fresh."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.observation import Checkpointing, Workload
from ops_pipelines.remediate.timing import CheckpointForecast, forecast_checkpoints, remaining_seconds
from tests.domain.builders import NOW, after, ago, job

HOUR = timedelta(hours=1)
MINUTE = 60.0
TIMES = st.none() | st.floats(-1e6, 1e6).map(ago)


def forecast(**changes: Any) -> CheckpointForecast:
    return forecast_checkpoints(job(started_at=ago(10 * 3600), **changes), now=NOW)


def test_a_declared_interval_says_when_the_next_one_is_due() -> None:
    found = forecast(checkpointed_at=ago(20 * MINUTE), checkpoint_every=HOUR)

    assert (found.unsaved_seconds, found.is_age_known) == (20 * MINUTE, True)
    assert (found.next_in_seconds, found.every_seconds) == (40 * MINUTE, 60 * MINUTE)


@pytest.mark.parametrize(
    ("age_minutes", "wait_minutes", "comes"),
    [(59, 1, 0.95), (60, 15, 0.95), (74, 15, 0.95), (75, 45, 0.5), (76, 44, 0.5), (136, 44, 1 / 3)],
)
def test_a_checkpoint_that_was_missed_is_relied_upon_less(
    age_minutes: float, wait_minutes: float, comes: float
) -> None:
    found = forecast(checkpointed_at=ago(age_minutes * MINUTE), checkpoint_every=HOUR)

    assert found.next_in_seconds == pytest.approx(wait_minutes * MINUTE)
    assert found.comes_probability == pytest.approx(comes)


def test_a_checkpoint_of_the_future_counts_as_one_of_this_moment() -> None:
    assert forecast(checkpointed_at=after(500), checkpoint_every=HOUR).unsaved_seconds == 0


def test_what_was_saved_before_the_attempt_began_bounds_nothing_but_its_own_work() -> None:
    assert forecast(checkpointed_at=ago(90 * 3600), checkpoint_every=HOUR).unsaved_seconds == 10 * 3600


def test_an_unknown_age_is_the_whole_attempt() -> None:
    found = forecast(checkpointed_at=None, checkpointing=Checkpointing.YES, checkpoint_every=HOUR)

    assert (found.unsaved_seconds, found.is_age_known) == (10 * 3600, False)
    assert found.comes_probability == pytest.approx(4 / 15)


def test_the_first_checkpoint_of_an_attempt_is_due_one_interval_after_its_start() -> None:
    young = job(started_at=ago(600), checkpointed_at=None, checkpointing=Checkpointing.YES, checkpoint_every=HOUR)

    assert forecast_checkpoints(young, now=NOW).next_in_seconds == 50 * MINUTE


def test_an_unknown_interval_is_no_shorter_than_the_age() -> None:
    intervals = {each.every_seconds for each in forecast(checkpointed_at=ago(30 * MINUTE)).nexts}

    assert intervals == {2_400.0, 5_400.0, 10_800.0}


def test_an_unknown_interval_is_no_longer_than_from_the_start_to_the_checkpoint() -> None:
    early = job(started_at=ago(25 * MINUTE), checkpointed_at=ago(5 * MINUTE))

    assert {each.every_seconds for each in forecast_checkpoints(early, now=NOW).nexts} == {300.0, 600.0, 1_200.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpointed_at": None},
        {"checkpointing": Checkpointing.NO},
        {"checkpointing": Checkpointing.NO, "checkpoint_every": HOUR},
        {"workload": Workload.INFERENCE},
    ],
)
def test_no_checkpoint_is_waited_for_that_was_neither_seen_nor_declared(changes: dict[str, Any]) -> None:
    assert forecast(**changes).nexts == ()


def test_a_job_goes_on_to_its_limit_and_without_one_as_others_of_its_age() -> None:
    assert remaining_seconds(job(ends_by=after(50)), now=NOW) == (50,)
    assert remaining_seconds(job(ends_by=ago(50)), now=NOW) == (0,)
    assert remaining_seconds(job(started_at=ago(3600)), now=NOW) == pytest.approx((720, 3_600, 18_000))


@given(
    started_at=TIMES,
    checkpointed_at=TIMES,
    every=st.none() | st.timedeltas(),
    checkpointing=st.sampled_from(Checkpointing),
    workload=st.sampled_from(Workload),
)
def test_a_forecast_is_of_sound_numbers_whatever_is_told(
    started_at: datetime | None,
    checkpointed_at: datetime | None,
    every: timedelta | None,
    checkpointing: Checkpointing,
    workload: Workload,
) -> None:
    told = job(
        started_at=started_at,
        checkpointed_at=checkpointed_at,
        checkpoint_every=every,
        checkpointing=checkpointing,
        workload=workload,
    )

    found = forecast_checkpoints(told, now=NOW)

    assert found.unsaved_seconds >= 0
    assert 0 <= found.comes_probability <= 1
    assert all(each.in_seconds >= 0 and each.every_seconds > 0 for each in found.nexts)
    assert not found.nexts or sum(each.probability for each in found.nexts) == pytest.approx(1)
