"""The lake's tables as Arrow datasets that know the hour of each file, so that a query on `time` opens only its hours.

A closed hour is one file. The cycles of an open hour are read as they are where no two can hold the same row, and are
merged in memory otherwise. Columns that files lack are null. Every dataset has `date` and `hour` besides.
"""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import cast

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from upath import UPath

from ops_pipelines.lake.hours import AGGREGATES, layout_of
from ops_pipelines.resources.lake.files import is_local, read_time_span
from ops_pipelines.resources.lake.listing import HOUR, HourFiles, day_file, list_days, list_hours
from ops_pipelines.resources.lake.parquet_lake import ParquetLake

_DAY = timedelta(days=1)
_FORMAT = ds.ParquetFileFormat()
_TIME = ds.field("time")


def scan_schema(table_name: str) -> pa.Schema:
    """Return the columns of a table or an aggregate as queries see them."""
    schema = layout_of(table_name).schema.append(pa.field("date", pa.date32()))
    return schema if table_name in AGGREGATES else schema.append(pa.field("hour", pa.int64()))


def scan(lake: ParquetLake, table_name: str) -> ds.Dataset:
    """Return a table, or an aggregate (`gpu_telemetry_5m`), as a dataset. Lists files; opens those of open hours only.

    Raises LakeError where the lake cannot be listed or an open hour is damaged.
    """
    schema, filesystem = scan_schema(table_name), _filesystem(lake.root)
    if table_name in AGGREGATES:
        fragments = [
            _fragment(day_file(lake.root, table_name, day), filesystem, start=_midnight(day.isoformat()), span=_DAY)
            for day in list_days(lake.root, table_name)
        ]
        return ds.FileSystemDataset(fragments, schema, _FORMAT, filesystem)
    fragments, merged = [], []
    for files in list_hours(lake.root, table_name):
        if files.is_closed or _are_apart(files):
            fragments += [_fragment(path, filesystem, start=files.hour, span=HOUR) for path in files.read_from]
        else:
            merged.append(_with_hour(lake.read_hour(table_name, files.hour), files.hour, schema))
    found = ds.FileSystemDataset(fragments, schema, _FORMAT, filesystem)
    return ds.UnionDataset(schema, [found, ds.InMemoryDataset(merged, schema)]) if merged else found


def _fragment(path: UPath, filesystem: pafs.FileSystem, *, start: datetime, span: timedelta) -> ds.Fragment:
    begin, end = (pa.scalar(each, pa.timestamp("us", tz="UTC")) for each in (start, start + span))
    known = (begin <= _TIME) & (end > _TIME) & (ds.field("date") == pa.scalar(start.date(), pa.date32()))
    if span == HOUR:
        known &= ds.field("hour") == pa.scalar(start.hour, pa.int64())
    return _FORMAT.make_fragment(path.path, filesystem, partition_expression=known)


def _are_apart(files: HourFiles) -> bool:
    """Return whether the times of the cycles do not overlap, so that no row can be in two of them."""
    try:
        spans = sorted(span for path in files.read_from if (span := read_time_span(path)) is not None)
    except FileNotFoundError:  # closed and cleaned since it was listed
        return False
    return all(before[1] < after[0] for before, after in pairwise(spans))


def _with_hour(rows: object, hour: datetime, schema: pa.Schema) -> pa.Table:
    table = cast("pa.Table", rows)
    table = table.append_column(schema.field("date"), pa.repeat(pa.scalar(hour.date(), pa.date32()), table.num_rows))
    return table.append_column(schema.field("hour"), pa.repeat(pa.scalar(hour.hour, pa.int64()), table.num_rows))


def _filesystem(root: UPath) -> pafs.FileSystem:
    return pafs.LocalFileSystem() if is_local(root) else pafs.PyFileSystem(pafs.FSSpecHandler(root.fs))


def _midnight(day: str) -> datetime:
    return datetime.fromisoformat(day).replace(tzinfo=UTC)
