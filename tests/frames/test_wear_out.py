"""Wear: a date with bounds where readings carry one, and nothing where they do not."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.diagnose.wear import (
    MIN_DAYS,
    MIN_POINTS,
    WEAR_LIMITS,
    Forecast,
    Outlook,
    Readings,
    WearLimit,
    forecast,
    forecast_tables,
    read_series,
    theil_sen,
    widen_by_stretches,
    worst_banks,
)
from ops_pipelines.lake.schema import TABLES

NOW = datetime(2026, 11, 21, tzinfo=UTC)
DAY = timedelta(days=1)
WEAR, REMAPS, SYMBOLS = WEAR_LIMITS


def readings(values: Sequence[float], *, every: timedelta = DAY, until: datetime = NOW) -> Readings:
    """Return readings of which the newest is of `until`."""
    at = [(until - place * every).timestamp() for place in reversed(range(len(values)))]
    return Readings(part="n1/nvme0", at_seconds=np.array(at), values=np.array(values, dtype=np.float64))


def told(values: Sequence[float], limit: WearLimit = WEAR, *, every: timedelta = DAY) -> Forecast:
    return forecast(readings(values, every=every), limit, now=NOW)


def test_a_disk_that_wears_evenly_is_worn_out_when_the_line_says() -> None:
    found = told([0.50 + 0.005 * day for day in range(41)])

    assert found.outlook is Outlook.WEARS_OUT
    assert found.reaches_at is not None
    assert found.earliest_at is not None
    assert found.latest_at is not None
    assert abs(found.reaches_at - (NOW + 60 * DAY)) < DAY
    assert found.earliest_at <= found.reaches_at <= found.latest_at
    assert found.lead_days == pytest.approx(60, abs=1)
    assert "70% rated endurance used" in found.explanation


def test_a_few_wild_readings_do_not_move_the_date() -> None:
    wild = [100 + 2 * day for day in range(41)]
    wild[20] = wild[21]
    wild[30] = wild[31]

    found = told(wild, REMAPS)

    assert found.slope_per_day == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize(("count", "is_enough"), [(MIN_POINTS - 1, False), (MIN_POINTS, True), (MIN_POINTS + 1, True)])
def test_few_readings_say_nothing(count: int, is_enough: bool) -> None:
    found = told([0.5 + 0.01 * place for place in range(count)], every=4 * DAY)

    assert (found.outlook is not Outlook.TOO_LITTLE) is is_enough


@pytest.mark.parametrize(("days", "is_enough"), [(MIN_DAYS - 0.1, False), (MIN_DAYS, True), (MIN_DAYS + 0.1, True)])
def test_a_short_time_says_nothing(days: float, is_enough: bool) -> None:
    found = told([0.5 + 0.001 * place for place in range(21)], every=timedelta(days=days / 20))

    assert (found.outlook is not Outlook.TOO_LITTLE) is is_enough


def test_a_disk_that_does_not_wear_has_no_date() -> None:
    found = told([0.42] * 60)

    assert found.outlook is Outlook.NO_TREND
    assert (found.reaches_at, found.earliest_at, found.lead_days) == (None, None, None)


def test_one_jump_is_no_trend() -> None:
    assert told([3.0] * 30 + [9.0] * 30, REMAPS).outlook is Outlook.NO_TREND


def test_slow_wear_is_told_without_a_date() -> None:
    found = told([0.01 + 0.0001 * day for day in range(60)])

    assert found.outlook is Outlook.FAR_OFF
    assert found.reaches_at is None


@pytest.mark.parametrize(
    ("value", "outlook"), [(0.99, Outlook.WEARS_OUT), (1.0, Outlook.REACHED), (1.01, Outlook.REACHED)]
)
def test_what_is_at_its_limit_is_not_foretold(value: float, outlook: Outlook) -> None:
    found = told([value - 0.01 * day for day in reversed(range(30))])

    assert found.outlook is outlook
    assert (found.lead_days == 0.0) is (outlook is Outlook.REACHED) or found.lead_days is not None


def test_a_replaced_disk_starts_anew() -> None:
    """Without this the fall would hide the new disk's wear, or the old one's wear would be the new one's."""
    old, new = [0.80 + 0.004 * day for day in range(40)], [0.01 + 0.02 * day for day in range(21)]

    found = told([*old, *new])

    assert (found.point_count, found.slope_per_day) == (21, pytest.approx(0.02))
    assert told([*old, *new[:5]]).outlook is Outlook.TOO_LITTLE


def test_readings_of_the_future_are_not_known() -> None:
    seen = readings([0.5 + 0.005 * day for day in range(60)], until=NOW + 40 * DAY)

    assert forecast(seen, WEAR, now=NOW).point_count == 20


def counter(per_hour: Sequence[float]) -> list[float]:
    return [0.0, *np.cumsum(np.array(per_hour) * 24)]


def test_a_link_whose_errors_grow_faster_and_faster_gets_a_date() -> None:
    found = told(counter([2.0 * day for day in range(40)]), SYMBOLS)

    assert found.outlook is Outlook.WEARS_OUT
    assert found.reaches_at is not None
    assert abs(found.reaches_at - (NOW + 21 * DAY)) < 2 * DAY


def test_a_link_with_a_steady_rate_of_errors_has_no_trend() -> None:
    assert told(counter([30.0] * 40), SYMBOLS).outlook is Outlook.NO_TREND


def test_a_counter_that_restarted_is_the_same_link() -> None:
    grown = counter([2.0 * day for day in range(40)])
    restarted = [*grown[:20], *(value - grown[20] for value in grown[20:])]

    found = told(restarted, SYMBOLS)

    assert found.outlook is Outlook.WEARS_OUT
    assert found.point_count == 39
    assert found.reaches_at is not None
    assert abs(found.reaches_at - (NOW + 21 * DAY)) < 2 * DAY


def test_a_part_without_readings_says_so() -> None:
    found = told([])

    assert (found.outlook, found.value, found.point_count) == (Outlook.TOO_LITTLE, None, 0)


# -- the interval -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [30, 60, 90])
def test_the_interval_of_a_sum_holds_the_true_rate_and_sens_alone_does_not(days: int) -> None:
    random = np.random.default_rng(days)
    at, trials, sen, ours = np.arange(days) * 86_400.0, 200, 0, 0

    for _ in range(trials):
        values = np.cumsum(random.poisson(3.0, days)).astype(np.float64)
        slope = theil_sen(at, values)
        wide = widen_by_stretches(slope, at, values)
        sen += slope.low <= 3.0 / 86_400 <= slope.high
        ours += wide.low <= 3.0 / 86_400 <= wide.high

    assert ours >= 0.88 * trials
    assert sen < 0.6 * trials


def test_noise_without_a_trend_gives_hardly_a_date() -> None:
    random = np.random.default_rng(7)

    outlooks = [told(counter(random.poisson(20.0, 60).astype(float)), SYMBOLS).outlook for _ in range(400)]

    assert outlooks.count(Outlook.WEARS_OUT) <= 3


def test_a_slope_needs_three_points() -> None:
    with pytest.raises(ValueError, match="2 points"):
        theil_sen(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    with pytest.raises(ValueError, match="6 points"):
        widen_by_stretches(theil_sen(np.arange(6.0), np.arange(6.0)), np.arange(6.0), np.arange(6.0))
    assert theil_sen(np.arange(3.0), np.arange(3.0)).low == -np.inf


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-1e3, 1e3), min_size=8, max_size=40),
    st.floats(0.1, 10),
    st.floats(-100, 100),
)
def test_the_slope_goes_with_the_units(values: list[float], factor: float, offset: float) -> None:
    at, given_values = np.arange(len(values)) * 3600.0, np.array(values)

    slope, scaled = theil_sen(at, given_values), theil_sen(at, given_values * factor + offset)

    assert slope.low <= slope.median <= slope.high
    assert scaled.median == pytest.approx(slope.median * factor, rel=1e-6, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 0.02), min_size=20, max_size=60))
def test_dates_lie_in_order_and_ahead_of_the_newest_reading(steps: list[float]) -> None:
    found = told(list(np.minimum(np.cumsum(steps), 0.99)))

    if found.outlook is Outlook.WEARS_OUT:
        assert found.earliest_at is not None
        assert found.earliest_at >= NOW
        assert found.reaches_at is None or found.reaches_at >= found.earliest_at
        assert found.latest_at is None or (found.reaches_at is not None and found.latest_at >= found.reaches_at)
    else:
        assert found.reaches_at is None


# -- from the lake ------------------------------------------------------------------------------------------------


def storage(rows: Sequence[tuple[str, float, float | None]]) -> pa.Table:
    """Return rows of (device, days ago, wear)."""
    return TABLES["storage_telemetry"].from_rows(
        {"node": "n1", "device": device, "time": NOW - days * DAY, "wear_ratio": wear} for device, days, wear in rows
    )


def test_disks_are_told_apart_and_the_most_urgent_comes_first() -> None:
    rows = storage(
        [("nvme0", day, 0.9 - 0.004 * day) for day in range(30)]
        + [("nvme1", day, 0.9 - 0.008 * day) for day in range(30)]
        + [("nvme2", day, None) for day in range(30)]
    )

    found = forecast_tables({"storage_telemetry": rows}, now=NOW)

    assert [each.part for each in found] == ["n1/nvme1", "n1/nvme0"]
    assert found[0].lead_days == pytest.approx(12.5, abs=1)


def test_a_gpu_goes_by_its_serial_whatever_slot_it_is_in() -> None:
    moved = [
        {
            "node": "n1" if day > 10 else "n2",
            "device": f"GPU-{day > 10}",
            "time": NOW - day * DAY,
            "gpu_serial": "1650123",
            "row_remap_uncorrectable_count": 400.0 - 3 * day,
        }
        for day in range(30)
    ]
    rows = TABLES["gpu_telemetry"].from_rows(moved)

    (found,) = forecast_tables({"gpu_telemetry": rows}, now=NOW)

    assert (found.part, found.point_count, found.outlook) == ("1650123", 30, Outlook.WEARS_OUT)


def test_of_an_hour_the_last_reading_counts() -> None:
    rows = storage([("nvme0", minute / 1440, 0.5 - 0.001 * minute) for minute in range(1, 50)])

    (series,) = read_series(rows, "wear_ratio")

    assert series.values == pytest.approx([0.499])
    assert list(read_series(rows.drop_columns(["wear_ratio"]), "wear_ratio")) == []
    assert forecast_tables({}, now=NOW) == ()
    assert forecast_tables({"storage_telemetry": storage([])}, now=NOW) == ()


@pytest.mark.parametrize(
    ("low", "none", "worst", "banks"), [(0, 0, None, 0), (1, 0, "low", 1), (3, 2, "none", 2), (None, None, None, 0)]
)
def test_the_worst_bank_is_told_before_the_rows_of_the_gpu_run_out(
    low: int | None, none: int | None, worst: str | None, banks: int
) -> None:
    rows = TABLES["gpu_telemetry"].from_rows(
        {
            "node": "n1",
            "device": "GPU-1",
            "gpu_uuid": "GPU-1",
            "time": NOW - day * DAY,
            "remap_banks_low_count": 0 if day else low,
            "remap_banks_none_count": 0 if day else none,
        }
        for day in range(3)
    )

    found = worst_banks(rows)

    assert [(each.part, each.worst, each.bank_count) for each in found] == ([("GPU-1", worst, banks)] if worst else [])
