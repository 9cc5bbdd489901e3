"""Rows for the tests of the lake: few columns of a real table, at times of one known hour."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from ops_pipelines.lake.schema import TABLES

TABLE = "gpu_telemetry"
HOUR = datetime(2026, 11, 21, 7, tzinfo=UTC)
Row = Mapping[str, object]


def gpu(node: str, seconds: float, **cells: object) -> Row:
    """Return a row of GPU 0 of a node, `seconds` into the hour."""
    return {"node": node, "device": "GPU-0", "time": HOUR + timedelta(seconds=seconds), **cells}


def table(*rows: Row, name: str = TABLE) -> pa.Table:
    """Return rows as an Arrow table, in the order given."""
    return TABLES[name].from_rows(rows)


def cells(rows: object, *columns: str) -> list[tuple[object, ...]]:
    """Return these columns of every row; all columns that hold a value, if none is named."""
    assert isinstance(rows, pa.Table)
    names = columns or [name for name in rows.schema.names if rows.column(name).null_count < rows.num_rows]
    return list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))


def watts(rows: object) -> list[tuple[object, ...]]:
    """Return node, seconds into the hour and power of every row."""
    found = cells(rows, "node", "time", "power_watts")
    return [(node, (at - HOUR).total_seconds(), power) for node, at, power in found if isinstance(at, datetime)]


def many(nodes: Iterable[str], seconds: Iterable[int]) -> pa.Table:
    """Return a row per node and time, with a power that distinguishes them."""
    times = list(seconds)
    return table(
        *(
            gpu(node, second, power_watts=100.0 * place + second / 100, gpu_model="H100", energy_joules=float(second))
            for place, node in enumerate(nodes)
            for second in times
        )
    )
