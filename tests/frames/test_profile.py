"""The profile says what plain Python counts, and survives every table that is not as it should be."""

import math
from datetime import timedelta
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.lake.expectations import Measure, expectations_of
from ops_pipelines.lake.profile import Profile, booted_nodes_of, expected_devices_of, profile_hour, rows_with
from ops_pipelines.lake.schema import TABLES
from tests.frames.good_hours import HOUR, Row, good_hour

TABLE = "storage_telemetry"


def profile_of(rows: pa.Table, *, table: str = TABLE, expected: int | None = None) -> Profile:
    return profile_hour(rows, table=table, hour=HOUR, step_seconds=15, expected_devices=expected)


def row(seconds: float, device: str = "sda", **values: object) -> Row:
    return {"node": "node1", "device": device, "time": HOUR + timedelta(seconds=seconds), **values}


VALUES = st.one_of(
    st.none(),
    st.floats(min_value=-100, max_value=400, allow_nan=False).map(lambda value: round(value, 1)),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.0, 2.55]),
)
ROWS = st.lists(
    st.tuples(st.sampled_from(["sda", "sdb"]), st.integers(-2, 242), VALUES, VALUES), min_size=1, max_size=12
)


@settings(max_examples=25, deadline=None)
@given(rows=ROWS)
def test_the_profile_counts_what_plain_python_counts(rows: list[tuple[str, int, float | None, float | None]]) -> None:
    ordered = sorted(rows, key=lambda each: each[:2])
    table = TABLES[TABLE].from_rows(
        row(15 * cycle, device, wear_ratio=wear, media_error_count=errors) for device, cycle, wear, errors in ordered
    )

    found = {what: value or 0.0 for what, value in profile_of(table).values().items()}

    wear = [value for *_, value, _ in ordered if value is not None]
    errors = [value for *_, value in ordered if value is not None]
    places = [each[:2] for each in ordered]
    assert found["wear_ratio", Measure.NULL_COUNT] == len(ordered) - len(wear)
    finite = [value for value in wear if math.isfinite(value)]
    assert found.get(("wear_ratio", Measure.MIN), 0.0) == min(finite, default=0.0)
    assert found.get(("wear_ratio", Measure.MAX), 0.0) == max(finite, default=0.0)
    assert found["media_error_count", Measure.NOT_WHOLE] == sum(
        math.isfinite(each) and each != math.floor(each) for each in errors
    )
    assert found["media_error_count", Measure.FALLS] == sum(_falls(ordered, device) for device in ("sda", "sdb"))
    assert found["", Measure.DUPLICATES] == len(places) - len(set(places))
    assert found["", Measure.OUT_OF_HOUR] == sum(not 0 <= cycle < 240 for _, cycle in places)
    assert found["", Measure.UNSORTED] == 0


def _falls(rows: list[tuple[str, int, float | None, float | None]], device: str) -> int:
    values = [value for name, _, _, value in rows if name == device and value is not None and math.isfinite(value)]
    return sum(before * 0.5 < value < before for before, value in pairwise(values))


@pytest.mark.parametrize(("after", "falls"), [(100.0, 0), (99.0, 1), (51.0, 1), (50.0, 0), (0.0, 0)])
def test_a_counter_may_start_again_but_not_go_back(after: float, falls: int) -> None:
    rows = TABLES[TABLE].from_rows([row(0, read_bytes=100.0), row(15), row(30, read_bytes=after)])

    assert profile_of(rows).values()["read_bytes", Measure.FALLS] == falls


def test_a_counter_is_compared_within_its_series_only() -> None:
    rows = TABLES[TABLE].from_rows([row(0, "sda", read_bytes=100.0), row(0, "sdb", read_bytes=90.0)])

    assert profile_of(rows).values()["read_bytes", Measure.FALLS] == 0


def test_rows_out_of_order_are_counted_and_still_compared_in_order() -> None:
    rows = TABLES[TABLE].from_rows([row(15, read_bytes=90.0), row(0, read_bytes=80.0), row(0, read_bytes=80.0)])

    found = profile_of(rows).values()

    assert (found["", Measure.UNSORTED], found["", Measure.DUPLICATES], found["read_bytes", Measure.FALLS]) == (1, 1, 0)


@pytest.mark.parametrize("table", TABLES)
def test_an_hour_without_rows_has_a_profile(table: str) -> None:
    profile = profile_of(TABLES[table].from_rows([]), table=table)

    assert profile.row_count == 0
    assert {(each.column, each.measure) for each in expectations_of(table) if each.measure} <= profile.values().keys()


def test_a_table_of_another_kind_is_counted_and_never_raises() -> None:
    profile = profile_of(pa.table({"time": ["yesterday"], "node": [3], "odd": [1], "read_bytes": ["many"]}))

    found = profile.values()

    assert found["", Measure.STRANGE_COLUMNS] == 1
    assert all(found[column, Measure.TYPE_DIFFERS] == 1 for column in TABLES[TABLE].by_name)
    assert found["time", Measure.NULL_COUNT] == 1


def test_a_column_named_twice_differs_from_its_type() -> None:
    rows = good_hour(TABLE).rows
    twice = rows.append_column("wear_ratio", rows.column("wear_ratio"))

    assert profile_of(twice).values()["wear_ratio", Measure.TYPE_DIFFERS] == 1


@pytest.mark.parametrize(("seconds", "age", "cycles"), [((0, 3585), 15.0, 2 / 240), ((0,), 3600.0, 1 / 240)])
def test_age_and_cycles_are_measured_against_the_hour(seconds: tuple[int, ...], age: float, cycles: float) -> None:
    rows = TABLES[TABLE].from_rows([row(each) for each in seconds])

    found = profile_of(rows, expected=4).values()

    assert found["", Measure.NEWEST_AGE] == age
    assert found["", Measure.CYCLE_SHARE] == pytest.approx(cycles)
    assert found["", Measure.DEVICE_SHARE] == 0.25


def test_a_column_without_any_value_is_not_measured() -> None:
    found = profile_of(TABLES[TABLE].from_rows([row(0)])).values()

    assert ("wear_ratio", Measure.MIN) not in found
    assert found["read_bytes", Measure.FALLS] is None


def test_examples_name_the_rows_that_broke_it() -> None:
    rows = TABLES[TABLE].from_rows([row(0, media_error_count=1.0), row(15, media_error_count=9.5)])

    examples = profile_of(rows).examples

    assert examples == {("media_error_count", Measure.NOT_WHOLE): ("node1/sda @ 03:00:15: 9.5",)}


@pytest.mark.parametrize(
    ("value", "example"),
    [
        (9.5, "node1/sda @ 03:00:15: 9.5"),
        (math.nan, "node1/sda @ 03:00:30: nan"),
        (None, "node1/sda @ 03:00:45"),
    ],
)
def test_rows_are_found_by_the_value_that_broke_it(value: float | None, example: str) -> None:
    given = [row(0, wear_ratio=0.1), row(15, wear_ratio=9.5), row(30, wear_ratio=math.nan), row(45)]
    rows = TABLES[TABLE].from_rows(given)

    assert rows_with(rows, table=TABLE, column="wear_ratio", values=[value]) == (example,)


@pytest.mark.parametrize(("later", "booted"), [(1_000.0, set()), (1_060.0, set()), (1_061.0, {"node1"})])
def test_a_node_booted_if_its_boot_time_moved_by_more_than_a_clock_does(later: float, booted: set[str]) -> None:
    rows = TABLES["node_telemetry"].from_rows(
        [row(0, "", boot_time_seconds=1_000.0), row(15, ""), row(30, "", boot_time_seconds=later)]
    )

    assert booted_nodes_of(rows) == booted


def test_the_inventory_leads_us_to_expect_its_gpus_and_nothing_of_what_it_does_not_list() -> None:
    rows = TABLES["inventory"].from_rows(
        {"node": "node1", "device": f"GPU-{number}", "time": HOUR + timedelta(minutes=minute), "kind": "gpu"}
        for number in range(8)
        for minute in range(2)
    )

    assert expected_devices_of(rows, table="gpu_telemetry") == 8
    assert expected_devices_of(rows, table="fabric_telemetry") is None
    assert expected_devices_of(rows, table="application_telemetry") is None
    assert expected_devices_of(rows.slice(0, 0), table="gpu_telemetry") is None
