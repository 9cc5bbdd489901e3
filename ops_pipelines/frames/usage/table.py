"""The usage ledger as a table, and back. One row for each line; nothing is summed up or left out."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa

from ops_pipelines.core.identity import parse_node_name
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.domain.cost.usage import Fate, Owner, UsageLine

SCHEMA = pa.schema(
    [
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("node", pa.string(), nullable=False),
        pa.field("gpu_type", pa.string(), nullable=False),
        pa.field("fate", pa.string(), nullable=False),
        pa.field("team", pa.string()),
        pa.field("project", pa.string()),
        pa.field("job", pa.string(), nullable=False),
        pa.field("attempt", pa.string(), nullable=False),
        pa.field("cause", pa.string(), nullable=False),
        pa.field("gpu_seconds", pa.int64(), nullable=False),
        pa.field("used_gpu_seconds", pa.int64()),
    ]
)
"""`team` and `project` are null of what no team held; `used_gpu_seconds` where nobody measured."""


def usage_table(lines: Sequence[UsageLine]) -> pa.Table:
    """Return the lines as a table, in their order."""
    rows = [_row(line) for line in lines]
    columns = {name: pa.array([row[name] for row in rows], SCHEMA.field(name).type) for name in SCHEMA.names}
    return pa.table(columns, schema=SCHEMA)


def usage_lines(table: pa.Table) -> tuple[UsageLine, ...]:
    """Return the lines of a table that `usage_table` made."""
    return tuple(_line(row) for row in table.select(SCHEMA.names).cast(SCHEMA).to_pylist())


def _row(line: UsageLine) -> dict[str, object]:
    return {
        "time": line.since,
        "node": line.node,
        "gpu_type": line.gpu_type,
        "fate": line.fate.value,
        "team": None if line.owner is None else line.owner.team,
        "project": None if line.owner is None else line.owner.project,
        "job": line.job,
        "attempt": line.attempt,
        "cause": line.cause,
        "gpu_seconds": line.gpu_seconds,
        "used_gpu_seconds": line.used_gpu_seconds,
    }


def _line(row: Mapping[str, object]) -> UsageLine:
    time, seconds, used = row["time"], row["gpu_seconds"], row["used_gpu_seconds"]
    assert isinstance(time, datetime), "the schema of the table"
    assert isinstance(seconds, int), "the schema of the table"
    return UsageLine(
        since=time.astimezone(UTC),
        node=parse_node_name(str(row["node"])),
        gpu_type=GpuType(str(row["gpu_type"])),
        fate=Fate(row["fate"]),
        owner=None
        if row["team"] is None
        else Owner(team=TeamName(str(row["team"])), project=str(row["project"] or "")),
        job=str(row["job"]),
        attempt=str(row["attempt"]),
        cause=str(row["cause"]),
        gpu_seconds=seconds,
        used_gpu_seconds=used if isinstance(used, int) else None,
    )
