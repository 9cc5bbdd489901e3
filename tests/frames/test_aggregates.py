"""What five minutes and an hour of samples become."""

from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.lake.hours import AGGREGATES, EVERY, aggregate, aggregate_schema, merge
from ops_pipelines.lake.schema import TABLES, TELEMETRY_TABLES
from tests.ports.lake_samples import HOUR, TABLE, cells, gpu, many, table

FIVE_MINUTES = EVERY["5m"]


def test_a_gauge_becomes_mean_least_and_greatest_and_nulls_do_not_count() -> None:
    rows = table(
        gpu("a", 0, power_watts=100.0),
        gpu("a", 15, power_watts=300.0),
        gpu("a", 30),
        gpu("a", 45, power_watts=float("nan")),
    )

    (row,) = aggregate(TABLE, rows, every=FIVE_MINUTES).to_pylist()

    assert (row["time"], row["sample_count"]) == (HOUR, 4)
    assert (row["power_watts"], row["power_watts_min"], row["power_watts_max"]) == (200.0, 100.0, 300.0)
    assert (row["temperature_celsius"], row["temperature_celsius_min"], row["temperature_celsius_max"]) == (None,) * 3


def test_a_counter_a_state_and_a_label_keep_the_last_that_was_said() -> None:
    rows = table(
        gpu("a", 0, energy_joules=5.0, xid=79.0, gpu_model="H100", unknown_node=True),
        gpu("a", 15, energy_joules=7.0, xid=0.0),
        gpu("a", 30),
    )

    (row,) = aggregate(TABLE, rows, every=FIVE_MINUTES).to_pylist()

    assert (row["energy_joules"], row["gpu_model"], row["unknown_node"]) == (7.0, "H100", True)
    assert (row["xid"], row["xid_min"], row["xid_max"]) == (0.0, 0.0, 79.0)
    assert "energy_joules_max" not in row


@pytest.mark.parametrize(
    ("seconds", "start"), [(0, 0), (299.999999, 0), (300, 300), (300.000001, 300), (599.999999, 300), (600, 600)]
)
def test_intervals_are_half_open(seconds: float, start: int) -> None:
    found = aggregate(TABLE, table(gpu("a", seconds)), every=FIVE_MINUTES)

    assert cells(found, "time") == [(HOUR + timedelta(seconds=start),)]


def test_each_device_has_its_own_rows_sorted_by_key_and_time() -> None:
    found = aggregate(TABLE, many(["b", "a"], [0, 15, 300, 3585]), every=FIVE_MINUTES)

    assert cells(found, "node", "sample_count") == [("a", 2), ("a", 1), ("a", 1), ("b", 2), ("b", 1), ("b", 1)]
    assert found.schema.equals(aggregate_schema(TABLE))


def test_infinities_do_not_break_the_mean() -> None:
    rows = table(gpu("a", 0, power_watts=float("inf")), gpu("a", 15, power_watts=float("-inf")))

    (row,) = aggregate(TABLE, rows, every=FIVE_MINUTES).to_pylist()

    assert (row["power_watts_min"], row["power_watts_max"]) == (float("-inf"), float("inf"))


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from("ab"), st.integers(0, 3599)), st.none() | st.floats(-1e9, 1e9, width=32), max_size=20
    )
)
def test_the_mean_lies_between_the_bounds_and_every_sample_is_counted(
    power: dict[tuple[str, int], float | None],
) -> None:
    rows = table(*(gpu(node, second, power_watts=value) for (node, second), value in power.items()))

    for every in EVERY.values():
        found = aggregate(TABLE, rows, every=every).to_pylist()

        assert sum(row["sample_count"] for row in found) == len(power)
        for row in found:
            if row["power_watts"] is not None:
                slack = 1e-6 * max(abs(row["power_watts_min"]), abs(row["power_watts_max"]), 1)
                assert row["power_watts_min"] - slack <= row["power_watts"] <= row["power_watts_max"] + slack


def test_hours_aggregate_apart_as_they_do_together() -> None:
    first, second = many("ab", range(0, 3600, 15)), many("ab", range(3600, 7200, 15))

    together = aggregate(TABLE, pa.concat_tables([first, second]), every=FIVE_MINUTES)

    apart = [aggregate(TABLE, part, every=FIVE_MINUTES) for part in (second, first)]
    assert merge(f"{TABLE}_5m", apart).equals(together)


def test_no_rows_give_no_rows() -> None:
    assert aggregate(TABLE, table(), every=FIVE_MINUTES).num_rows == 0


def test_records_are_not_aggregated() -> None:
    with pytest.raises(ValueError, match="job_accounting holds records"):
        aggregate("job_accounting", TABLES["job_accounting"].from_rows([]), every=FIVE_MINUTES)


def test_no_column_of_an_aggregate_is_named_twice() -> None:
    for name in TELEMETRY_TABLES:
        names = aggregate_schema(name).names
        assert len(set(names)) == len(names), name
    assert all(timedelta(hours=1) % each.every == timedelta() for each in AGGREGATES.values())
