"""What the operator allows: nonsense is refused with the key named, and the defaults are the safe ones."""

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta

import pytest

from ops_pipelines.core.policy import (
    BlastCaps,
    DrainBudget,
    Durations,
    FreezeWindow,
    LadderLimits,
    MassEvent,
    Mode,
    Policy,
    PolicyError,
    RecoveryLimits,
)


@pytest.mark.parametrize("key", ["max_out_count", "max_out_per_rack_count", "max_new_per_hour_count"])
def test_a_count_below_zero_is_refused_and_zero_means_plan_nothing(key: str) -> None:
    with pytest.raises(PolicyError, match=f"drain_budget.{key} is -1"):
        DrainBudget(**{key: -1})

    assert getattr(DrainBudget(**{key: 0}), key) == 0


@pytest.mark.parametrize(
    ("ratio", "is_accepted"),
    [
        pytest.param(-0.01, False, id="just below 0"),
        pytest.param(0.0, True, id="0"),
        pytest.param(1.0, True, id="1"),
        pytest.param(1.01, False, id="just above 1"),
        pytest.param(80.0, False, id="percent"),
        pytest.param(float("nan"), False, id="not a number"),
        pytest.param(float("inf"), False, id="infinite"),
    ],
)
def test_a_ratio_lies_between_0_and_1(ratio: float, is_accepted: bool) -> None:
    if is_accepted:
        assert DrainBudget(min_in_service_ratio=ratio).min_in_service_ratio == ratio
    else:
        with pytest.raises(PolicyError, match=r"drain_budget\.min_in_service_ratio"):
            DrainBudget(min_in_service_ratio=ratio)


@pytest.mark.parametrize(("count", "is_accepted"), [(0, False), (1, False), (2, True), (3, True)])
def test_one_node_is_no_mass_event(count: int, is_accepted: bool) -> None:
    if is_accepted:
        assert MassEvent(min_node_count=count).min_node_count == count
    else:
        with pytest.raises(PolicyError, match=r"mass_event\.min_node_count"):
            MassEvent(min_node_count=count)


@pytest.mark.parametrize(("seconds", "is_accepted"), [(-1, False), (0, False), (1, True)])
def test_a_mass_event_needs_a_window(seconds: int, is_accepted: bool) -> None:
    if is_accepted:
        assert MassEvent(window=timedelta(seconds=seconds)).window == timedelta(seconds=seconds)
    else:
        with pytest.raises(PolicyError, match=r"mass_event\.window_seconds"):
            MassEvent(window=timedelta(seconds=seconds))


@pytest.mark.parametrize("key", [field.name for field in fields(Durations)])
def test_no_duration_is_negative(key: str) -> None:
    with pytest.raises(PolicyError, match=f"durations.{key}_seconds"):
        Durations(**{key: timedelta(microseconds=-1)})


@pytest.mark.parametrize(("seconds", "is_accepted"), [(0, False), (0.999, False), (1, True), (1.001, True)])
def test_retries_keep_at_least_a_second_apart(seconds: float, is_accepted: bool) -> None:
    if is_accepted:
        assert Durations(retry_after=timedelta(seconds=seconds)).retry_after == timedelta(seconds=seconds)
    else:
        with pytest.raises(PolicyError, match=r"durations\.retry_after_seconds"):
            Durations(retry_after=timedelta(seconds=seconds))


@pytest.mark.parametrize(("seconds", "is_accepted"), [(-1, False), (0, True), (1, True)])
def test_a_brake_may_be_left_out_and_never_looks_ahead(seconds: int, is_accepted: bool) -> None:
    if is_accepted:
        assert MassEvent(brake_window=timedelta(seconds=seconds)).brake_window == timedelta(seconds=seconds)
    else:
        with pytest.raises(PolicyError, match=r"mass_event\.brake_window_seconds"):
            MassEvent(brake_window=timedelta(seconds=seconds))


DAY = timedelta(hours=24)
TINY = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("make", "key"),
    [
        pytest.param(lambda: LadderLimits(max_reboots_count=0), None, id="never reboot"),
        pytest.param(lambda: LadderLimits(max_reboots_count=-1), "ladder.max_reboots_count", id="fewer than never"),
        pytest.param(lambda: LadderLimits(memory=TINY), None, id="a short memory"),
        pytest.param(lambda: LadderLimits(memory=timedelta(0)), "ladder.memory_seconds", id="no memory"),
        pytest.param(lambda: LadderLimits(memory=DAY), None, id="a day"),
        pytest.param(lambda: LadderLimits(memory=DAY + TINY), "ladder.memory_seconds", id="more than a day"),
        pytest.param(lambda: LadderLimits(cool_down=-TINY), "ladder.cool_down_seconds", id="negative cool-down"),
        pytest.param(lambda: RecoveryLimits(requeue_window=DAY), None, id="a day's requeues"),
        pytest.param(lambda: RecoveryLimits(requeue_window=DAY + TINY), "recovery.requeue_window", id="a longer one"),
        pytest.param(lambda: RecoveryLimits(default_min_serving_ratio=1.0), None, id="all must serve"),
        pytest.param(
            lambda: RecoveryLimits(default_min_serving_ratio=1.01), "recovery.default_min_serving_ratio", id="more"
        ),
        pytest.param(lambda: BlastCaps(max_out_per_partition_ratio=0.01), None, id="a small share"),
        pytest.param(
            lambda: BlastCaps(max_out_per_partition_ratio=0.0), "blast_caps.max_out_per_partition_ratio", id="no share"
        ),
        pytest.param(lambda: BlastCaps(max_on_probation_count=1), None, id="one on probation"),
        pytest.param(
            lambda: BlastCaps(max_on_probation_count=0), "blast_caps.max_on_probation_count", id="none on probation"
        ),
        pytest.param(lambda: BlastCaps(max_out_per_leaf_count=-1), "blast_caps.max_out_per_leaf_count", id="less"),
        pytest.param(
            lambda: FreezeWindow(name="a", begins_at=datetime(2026, 1, 1, tzinfo=UTC), ends_at=datetime(2026, 1, 2)),
            "without a zone",
            id="a window without a zone",
        ),
    ],
)
def test_limits_are_checked_at_their_borders(make: Callable[[], object], key: str | None) -> None:
    if key is None:
        make()
    else:
        with pytest.raises(PolicyError, match=key):
            make()


def test_without_a_word_from_the_operator_nothing_is_done() -> None:
    assert Policy().mode is Mode.OBSERVE
