"""Hours in which everything is as expected, one per table, and the one thing that breaks each expectation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from ops_pipelines.lake.expectations import Expectation, Measure, possible_bounds
from ops_pipelines.lake.expectations import Kind as ExpectationKind
from ops_pipelines.lake.quantities import Kind
from ops_pipelines.lake.schema import TABLES, TELEMETRY_TABLES, Column, ColumnType, Table

HOUR = datetime(2026, 1, 1, 3, tzinfo=UTC)
STEP_SECONDS = 300
CYCLES = 12
DEVICES = 2
RECORDS = 10

BETWEEN = "expect_column_values_to_be_between"
Row = dict[str, object]

_SPECIAL: dict[tuple[str, str], object] = {
    ("gpu_telemetry", "memory_used_bytes"): 10e9,
    ("gpu_telemetry", "memory_free_bytes"): 60e9,
    ("gpu_telemetry", "memory_reserved_bytes"): 1e9,
    ("gpu_telemetry", "memory_total_bytes"): 80e9,
    ("node_telemetry", "memory_total_bytes"): 1e12,
    ("node_telemetry", "memory_available_bytes"): 5e11,
    ("node_telemetry", "filesystem_size_bytes"): 1e12,
    ("node_telemetry", "filesystem_available_bytes"): 5e11,
    ("fabric_telemetry", "link_state"): 4.0,
    ("fabric_telemetry", "physical_state"): 5.0,
    ("fabric_telemetry", "link_layer"): "InfiniBand",
    ("storage_telemetry", "critical_warning"): 0.0,
    ("facility_telemetry", "it_power_watts"): 100.0,
    ("facility_telemetry", "site_power_watts"): 125.0,
    ("facility_telemetry", "pue_ratio"): 1.25,
    ("facility_telemetry", "power_capacity_watts"): 100.0,
    ("job_accounting", "state"): "COMPLETED",
    ("job_accounting", "cancelled_by"): None,
    ("job_accounting", "exit_code"): 0,
    ("job_accounting", "elapsed_seconds"): 600.0,
    ("job_accounting", "submitted_at"): HOUR - timedelta(seconds=60),
    ("job_accounting", "started_at"): HOUR,
    ("job_accounting", "ended_at"): HOUR + timedelta(seconds=600),
    ("job_logs", "level"): "info",
    ("kernel_events", "level"): "err",
    ("inventory", "kind"): "gpu",
    ("rejected_rows", "into"): "gpu_telemetry",
    ("rejected_rows", "reason"): "out_of_range",
}
_WORDS = {
    "gpu_uuid": "GPU-0000000",
    "pci_address": "0000:18:0",
    "mig_profile": "1g.10gb",
    "state": "COMPLETED",
    "text": "a line\twith a tab",
}


def good_rows(table: str) -> list[Row]:
    """Return rows of a good hour, sorted as the lake sorts them."""
    schema = TABLES[table]
    if table in TELEMETRY_TABLES:
        return [_telemetry(schema, device, cycle) for device in range(DEVICES) for cycle in range(CYCLES)]
    return [
        {column.name: _value(schema, column, number, number) for column in schema.columns}
        | {"time": HOUR + timedelta(minutes=number)}
        for number in range(RECORDS)
    ]


def _telemetry(schema: Table, device: int, cycle: int) -> Row:
    row = {column.name: _value(schema, column, device, cycle) for column in schema.columns}
    row |= {"node": f"node{device}", "device": "" if schema.name == "node_telemetry" else f"dev{device}"}
    row["time"] = HOUR + timedelta(seconds=STEP_SECONDS * cycle)
    if schema.name == "gpu_telemetry" and device == 0:
        row |= {"mig_instance": None, "mig_profile": None}
    return row


def _value(schema: Table, column: Column, number: int, cycle: int) -> object:
    if (schema.name, column.name) in _SPECIAL:
        return _SPECIAL[schema.name, column.name]
    if column.type is ColumnType.FLAG:
        return False
    if column.type is ColumnType.TIME:
        return HOUR + timedelta(minutes=1)
    if column.type is ColumnType.TEXT:
        word = _WORDS.get(column.name, column.name)
        many = column.name in schema.key or column.name in ("gpu_uuid", "uuid", "pci_address")
        return f"{word}{number}" if many else word
    if column.quantity is not None and column.quantity.kind is Kind.COUNTER:
        return 1000.0 + 100 * cycle
    return 1 if column.type is ColumnType.WHOLE else 1.0


@dataclass(frozen=True, kw_only=True)
class Hour:
    """What a profile is made of."""

    rows: pa.Table
    expected_devices: int | None = DEVICES


def good_hour(table: str) -> Hour:
    return Hour(rows=TABLES[table].from_rows(good_rows(table)))


BELOW, ABOVE, NOT_FINITE = "below", "above", "not finite"
"""The ways in which a value cannot be."""


def broken_hour(expectations: Sequence[Expectation], how: str = BELOW) -> Hour:
    """Return a good hour in which just that is broken which the expectations, of one table and measure, are about."""
    table, measure = expectations[0].table, expectations[0].measure
    schema = TABLES[table]
    rows = good_rows(table)
    is_of_key = expectations[0].kind is ExpectationKind.NULL
    broken = (
        None
        if is_of_key
        else _BREAKS.get(measure or (how if expectations[0].type == BETWEEN else expectations[0].type))
    )
    if broken is not None:
        for each in expectations:
            broken(schema, rows, each)
    found = schema.from_rows(rows)
    for each in expectations:
        if measure is Measure.STRANGE_COLUMNS:
            found = found.append_column("strange", pa.nulls(len(rows)))
        elif measure is Measure.TYPE_DIFFERS:
            found = _retyped(found, each.column)
        elif is_of_key:
            found = _nullable(found, each.column)
    return Hour(rows=found, expected_devices=DEVICES + (measure is Measure.DEVICE_SHARE))


def _retyped(rows: pa.Table, name: str) -> pa.Table:
    other = {
        pa.string(): pa.large_string(),
        pa.float64(): pa.large_string(),
        pa.int64(): pa.int32(),
        pa.bool_(): pa.int8(),
        pa.timestamp("us", tz="UTC"): pa.timestamp("ms", tz="UTC"),
    }
    at = rows.column_names.index(name)
    column = rows.column(name)
    return rows.set_column(at, pa.field(name, other[column.type]), column.cast(other[column.type]))


def _nullable(rows: pa.Table, name: str) -> pa.Table:
    """Return rows with a null in the first, which is where nulls stand in the order."""
    at = rows.column_names.index(name)
    values = [None, *rows.column(name).to_pylist()[1:]]
    return rows.set_column(
        at, pa.field(name, rows.schema.field(name).type), pa.array(values, rows.schema.field(name).type)
    )


Break = Callable[[Table, list[Row], Expectation], None]


def _duplicate(schema: Table, rows: list[Row], _: Expectation) -> None:
    rows.insert(0, dict(rows[0]))


def _unsort(schema: Table, rows: list[Row], _: Expectation) -> None:
    rows[0], rows[1] = rows[1], rows[0]


def _leave_hour(schema: Table, rows: list[Row], _: Expectation) -> None:
    rows[-1]["time"] = HOUR + timedelta(hours=1)


def _leave_grid(schema: Table, rows: list[Row], _: Expectation) -> None:
    rows[-1]["time"] = HOUR + timedelta(minutes=55, seconds=1)


def _lose_cycle(schema: Table, rows: list[Row], _: Expectation) -> None:
    rows[:] = [row for row in rows if row["time"] != HOUR + timedelta(seconds=5 * STEP_SECONDS)]


def _lose_cells(schema: Table, rows: list[Row], _: Expectation) -> None:
    del rows[1:4]


def _lose_end(schema: Table, rows: list[Row], _: Expectation) -> None:
    rows[:] = [row for row in rows if row["time"] != HOUR + timedelta(seconds=11 * STEP_SECONDS)]


def _sink(schema: Table, rows: list[Row], each: Expectation) -> None:
    low, _ = possible_bounds(schema.name, schema.by_name[each.column])
    rows[-1][each.column] = _as_typed(schema, each, low - 1)


def _soar(schema: Table, rows: list[Row], each: Expectation) -> None:
    _, high = possible_bounds(schema.name, schema.by_name[each.column])
    rows[-1][each.column] = _as_typed(schema, each, high + max(1.0, float(int(high / 10))))


def _as_typed(schema: Table, each: Expectation, value: float) -> float:
    return int(value) if schema.by_name[each.column].type is ColumnType.WHOLE else float(value)


def _blur(schema: Table, rows: list[Row], each: Expectation) -> None:
    rows[-1][each.column] = float("nan")


def _split(schema: Table, rows: list[Row], each: Expectation) -> None:
    _, high = possible_bounds(schema.name, schema.by_name[each.column])
    value = rows[-1][each.column]
    assert isinstance(value, float)
    rows[-1][each.column] = value + 0.5 if value + 0.5 <= high else value - 0.5


def _fall(schema: Table, rows: list[Row], each: Expectation) -> None:
    before = rows[-2][each.column]
    assert isinstance(before, float)
    rows[-1][each.column] = before - 10


def _empty(schema: Table, rows: list[Row], each: Expectation) -> None:
    for row in rows[:3]:
        row[each.column] = None


def _misspell(schema: Table, rows: list[Row], each: Expectation) -> None:
    rows[0][each.column] = "\x01" if each.column == "text" else "?"


def _name_another(schema: Table, rows: list[Row], each: Expectation) -> None:
    rows[-1][each.column] = True if schema.by_name[each.column].type is ColumnType.FLAG else "?"


def _leave_empty(schema: Table, rows: list[Row], each: Expectation) -> None:
    rows[0][each.column] = ""


def _contradict(schema: Table, rows: list[Row], each: Expectation) -> None:
    rows[-1] |= CONTRADICTIONS[schema.name, each.name]


_BREAKS: dict[Measure | str, Break] = {
    Measure.DUPLICATES: _duplicate,
    Measure.UNSORTED: _unsort,
    Measure.OUT_OF_HOUR: _leave_hour,
    Measure.OFF_GRID: _leave_grid,
    Measure.CYCLE_SHARE: _lose_cycle,
    Measure.CELL_SHARE: _lose_cells,
    Measure.NEWEST_AGE: _lose_end,
    BELOW: _sink,
    ABOVE: _soar,
    NOT_FINITE: _blur,
    Measure.NOT_WHOLE: _split,
    Measure.FALLS: _fall,
    "expect_column_values_to_be_in_set": _name_another,
    "expect_column_values_to_not_be_null": _empty,
    "expect_column_value_lengths_to_be_between": _leave_empty,
    "expect_column_values_to_match_regex": _misspell,
    Measure.BROKEN_SHARE: _contradict,
}
_LATER = HOUR + timedelta(seconds=700)
CONTRADICTIONS: dict[tuple[str, str], Row] = {
    ("gpu_telemetry", "memory_used_within_total"): {"memory_used_bytes": 82e9, "memory_free_bytes": None},
    ("gpu_telemetry", "memory_parts_within_total"): {"memory_free_bytes": 75e9},
    ("gpu_telemetry", "work_draws_power"): {"power_watts": 0.0},
    ("gpu_telemetry", "slice_has_profile"): {"mig_profile": None},
    ("gpu_telemetry", "gpu_on_one_node"): {"gpu_uuid": "GPU-00000000"},
    ("daily_peaks", "peak_is_a_number"): {"peak": None},
    ("daily_peaks", "mean_within_peak"): {"mean": 3.0},
    ("daily_peaks", "hours_of_one_day"): {"hour_count": 26},
    ("gpu_demand", "demand_within_ran_and_waited"): {"gpus_demand_avg": 3.0},
    ("gpu_demand", "what_waits_is_wanted"): {"gpus_demand_avg": 0.5},
    ("gpu_demand", "waste_within_ran"): {"gpus_wasted_avg": 2.0},
    ("gpu_demand", "mean_wait_within_most"): {"gpus_pending_max": 0.5},
    ("node_telemetry", "memory_available_within_total"): {"memory_available_bytes": 2e12},
    ("node_telemetry", "filesystem_available_within_size"): {"filesystem_available_bytes": 2e12},
    ("fabric_telemetry", "active_link_is_up"): {"physical_state": 3.0},
    ("fabric_telemetry", "active_link_has_rate"): {"rate_bits_per_second": 0.0},
    ("storage_telemetry", "bytes_need_reads"): {"read_count": 0.0},
    ("storage_telemetry", "healthy_without_warning"): {"critical_warning": 4.0},
    ("facility_telemetry", "power_within_capacity"): {"power_watts": 160.0},
    ("facility_telemetry", "it_power_within_site_power"): {"it_power_watts": 130.0, "pue_ratio": None},
    ("facility_telemetry", "pue_fits_power"): {"pue_ratio": 1.5},
    ("application_telemetry", "latencies_ascend"): {"latency_p50_seconds": 2.0},
    ("job_accounting", "ended_after_started"): {
        "ended_at": HOUR - timedelta(seconds=1),
        "elapsed_seconds": 0.0,
    },
    ("job_accounting", "started_after_submitted"): {"submitted_at": HOUR + timedelta(seconds=1)},
    ("job_accounting", "elapsed_within_times"): {"elapsed_seconds": 603.0},
    ("job_accounting", "elapsed_fills_times"): {"elapsed_seconds": 597.0},
    ("job_accounting", "gpus_fit_nodes"): {"gpu_count": 17},
    ("job_accounting", "completed_has_ended"): {"ended_at": None},
    ("job_accounting", "going_has_not_ended"): {"state": "RUNNING"},
    ("job_accounting", "completed_exits_with_zero"): {"exit_code": 1},
    ("job_accounting", "canceller_of_cancelled"): {"cancelled_by": "1234"},
    ("inventory", "gpu_on_one_node"): {"uuid": "uuid0"},
}
"""What the last row of a good hour says instead, by table and rule."""
