from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.lake.rates import rates

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
GAP = timedelta(seconds=60)


def counter(*series: Sequence[tuple[float, float | None]], node: str = "gpu001") -> pa.Table:
    """Return a table with one device for each series of (seconds since the start, value)."""
    rows = [
        {"node": node, "device": f"d{number}", "time": START + timedelta(seconds=seconds), "count": value}
        for number, points in enumerate(series)
        for seconds, value in points
    ]
    schema = pa.schema(
        [
            ("node", pa.string()),
            ("device", pa.string()),
            ("time", pa.timestamp("us", tz="UTC")),
            ("count", pa.float64()),
        ]
    )
    return pa.Table.from_pylist(rows, schema=schema)


def boots(*seconds: float, node: str = "gpu001") -> pa.Table:
    return pa.table(
        {
            "node": pa.array([node] * len(seconds), pa.string()),
            "boot_time_seconds": pa.array([START.timestamp() + each for each in seconds], pa.float64()),
        }
    )


def increases(table: pa.Table) -> list[float | None]:
    found: list[float | None] = table.column("increase").to_pylist()
    return found


def test_the_first_sample_has_no_rate_and_later_ones_have() -> None:
    rated = rates(counter([(0, 10), (15, 40), (30, 40)]), "count", max_gap=GAP)

    assert increases(rated) == [None, 30, 0]
    assert rated.column("per_second").to_pylist() == [None, 2, 0]
    assert rated.column("elapsed_seconds").to_pylist() == [None, 15, 15]
    assert rated.column("is_reset").to_pylist() == [None, False, False]


@pytest.mark.parametrize(("value", "increase", "is_reset"), [(11.0, 1.0, False), (10.0, 0.0, False), (9.0, 9.0, True)])
def test_a_value_below_the_one_before_began_at_zero(value: float, increase: float, is_reset: bool) -> None:
    rated = rates(counter([(0, 10), (15, value)]), "count", max_gap=GAP)

    assert increases(rated) == [None, increase]
    assert rated.column("is_reset").to_pylist() == [None, is_reset]


@pytest.mark.parametrize(("seconds", "increase"), [(59.999, 5.0), (60.0, 5.0), (60.001, None)])
def test_nobody_knows_what_a_counter_did_in_a_long_gap(seconds: float, increase: float | None) -> None:
    rated = rates(counter([(0, 10), (seconds, 15)]), "count", max_gap=GAP)

    assert increases(rated) == [None, increase]


def test_each_device_has_its_own_counter_and_missing_values_are_passed_over() -> None:
    rated = rates(counter([(0, 10), (15, None), (30, 12)], [(0, 100), (15, 130)]), "count", max_gap=GAP)

    assert rated.column("device").to_pylist() == ["d0", "d0", "d1", "d1"]
    assert increases(rated) == [None, 2, None, 30]
    assert rated.column("elapsed_seconds").to_pylist() == [None, 30, None, 15]


def test_rows_may_come_in_any_order() -> None:
    table = counter([(0, 10), (15, 40), (30, 45)])

    turned = table.take([2, 0, 1])

    assert rates(turned, "count").equals(rates(table, "count"))


@pytest.mark.parametrize(("booted", "increase"), [(-0.5, 2.0), (0.0, 2.0), (0.5, 12.0), (15.0, 12.0), (15.5, 2.0)])
def test_a_boot_between_two_samples_is_a_restart_although_the_counter_passed_its_old_value(
    booted: float, increase: float
) -> None:
    rated = rates(counter([(0, 10), (15, 12)]), "count", max_gap=GAP, boots=boots(booted))

    assert increases(rated) == [None, increase]


def test_the_boot_of_another_node_restarts_nothing() -> None:
    rated = rates(counter([(0, 10), (15, 12)]), "count", max_gap=GAP, boots=boots(5, node="gpu002"))

    assert increases(rated) == [None, 2]


def test_an_empty_table_has_no_rates() -> None:
    assert rates(counter(), "count").num_rows == 0


_STEPS = st.lists(st.integers(0, 1000), min_size=1, max_size=30)
_WHOLE_COUNTERS = st.lists(st.integers(0, 10**6), min_size=0, max_size=30)


def grid(values: Sequence[float]) -> list[tuple[float, float | None]]:
    return [(15.0 * number, value) for number, value in enumerate(values)]


@given(_WHOLE_COUNTERS)
def test_an_increase_is_never_negative(values: list[int]) -> None:
    rated = rates(counter(grid(values)), "count", max_gap=GAP)

    assert all(increase is None or increase >= 0 for increase in increases(rated))
    assert rated.num_rows == len(values)


@given(_STEPS, st.sets(st.integers(1, 29)))
def test_resets_whose_zero_was_sampled_lose_nothing(steps: list[int], resets: set[int]) -> None:
    values, count, truth = [0.0], 0, 0
    for number, step in enumerate(steps, start=1):
        if number in resets:
            count = 0
            values.append(0.0)
        count += step
        truth += step
        values.append(float(count))

    rated = rates(counter(grid(values)), "count", max_gap=GAP)

    assert sum(increase or 0 for increase in increases(rated)) == truth


@given(_STEPS, st.sets(st.integers(1, 29)))
def test_a_reset_to_zero_at_a_sample_changes_no_increase_after_it(steps: list[int], resets: set[int]) -> None:
    whole = [0]
    for step in steps:
        whole.append(whole[-1] + step)
    base, broken = 0, []
    for number, value in enumerate(whole):
        base = value if number in resets else base
        broken.append(float(value - base))

    smooth = increases(rates(counter(grid(whole)), "count", max_gap=GAP))
    torn = increases(rates(counter(grid(broken)), "count", max_gap=GAP))

    for number in range(1, len(whole)):
        expected = smooth[number]
        if number in resets:
            assert torn[number] == 0
        else:
            assert torn[number] == expected
