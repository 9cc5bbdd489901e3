"""How much the lake holds, per table. Footers are read, never rows; of many files only some, and the rest estimated."""

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from upath import UPath

from ops_pipelines.lake.hours import AGGREGATES
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.lake.files import read_row_count
from ops_pipelines.resources.lake.listing import day_file, list_days, list_hours
from ops_pipelines.resources.lake.parquet_lake import ParquetLake

_COUNTED_FILES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescription:
    """One table or aggregate."""

    name: str
    row_count: int
    """Rows in files; those of an open hour before they are merged."""
    is_row_count_estimated: bool
    hour_count: int
    open_hour_count: int
    oldest: datetime
    """Start of the oldest hour (or day, of an aggregate)."""
    newest: datetime
    """Time of the newest row; the end of the newest day, of an aggregate."""
    size_bytes: int


def describe_lake(lake: ParquetLake) -> tuple[TableDescription, ...]:
    """Return the tables that have files, then the aggregates. Raises LakeError."""
    tables = [_table(lake, name) for name in TABLES]
    aggregates = [_aggregate(lake, name) for name in AGGREGATES]
    return tuple(each for each in (*tables, *aggregates) if each is not None)


def _table(lake: ParquetLake, name: str) -> TableDescription | None:
    hours = list_hours(lake.root, name)
    if not hours:
        return None
    rows, is_estimated, size = _count([path for files in hours for path in files.read_from])
    return TableDescription(
        name=name,
        row_count=rows,
        is_row_count_estimated=is_estimated,
        hour_count=len(hours),
        open_hour_count=sum(not files.is_closed for files in hours),
        oldest=hours[0].hour,
        newest=lake.newest_time(name) or hours[-1].hour,
        size_bytes=size,
    )


def _aggregate(lake: ParquetLake, name: str) -> TableDescription | None:
    days = list_days(lake.root, name)
    if not days:
        return None
    rows, is_estimated, size = _count([day_file(lake.root, name, day) for day in days])
    return TableDescription(
        name=name,
        row_count=rows,
        is_row_count_estimated=is_estimated,
        hour_count=24 * len(days),
        open_hour_count=0,
        oldest=datetime.combine(days[0], time(), UTC),
        newest=datetime.combine(days[-1], time(), UTC) + timedelta(days=1),
        size_bytes=size,
    )


def _count(paths: list[UPath]) -> tuple[int, bool, int]:
    """Return rows, whether they are estimated (from the sizes of files), and bytes. A file that goes is left out."""
    size = counted_rows = counted_size = 0
    step = -(-len(paths) // _COUNTED_FILES)
    for number, path in enumerate(paths):
        try:
            each = path.stat().st_size
            if number % step == 0:
                counted_rows += read_row_count(path)
                counted_size += each
        except FileNotFoundError:
            continue
        size += each
    rows = counted_rows if step <= 1 else round(counted_rows * size / max(counted_size, 1))
    return rows, step > 1, size
