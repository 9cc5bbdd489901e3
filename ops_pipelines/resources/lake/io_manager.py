"""Dagster's way to the lake: assets hand over what they read of each hour, and are handed whole hours.

Built on Dagster's UPath base. An output is a mapping from partition to rows; storing it closes these hours: what the
live cycle kept, late data and what the asset read become one file each, under the lake's own lock.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import dagster as dg

from ops_pipelines.clock import Clock
from ops_pipelines.core.sources import SO_FAR, Computed, Rows, WholeHour
from ops_pipelines.resources.lake.parquet_lake import ParquetLake

if TYPE_CHECKING:
    from upath import UPath

_HOUR = timedelta(hours=1)
PARTITION_FORMAT = "%Y-%m-%d-%H:%M"

Describe = Callable[[str, Mapping[datetime, Rows], Mapping[datetime, int]], Mapping[str, dg.MetadataValue]]
"""Table, its hours, and how many rows each has -> what the asset's page shows."""


def hour_of_partition(key: str) -> datetime:
    """Return the hour that an hourly partition key names."""
    return datetime.strptime(key, PARTITION_FORMAT).replace(tzinfo=UTC)


class LakeIOManager(dg.UPathIOManager):
    """Stores an asset as the table of its name, an hour a partition."""

    def __init__(self, lake: ParquetLake, *, clock: Clock, describe: Describe) -> None:
        super().__init__(base_path=lake.root)
        self._lake = lake
        self._clock = clock
        self._describe = describe

    def get_path_for_partition(
        self, context: dg.InputContext | dg.OutputContext, path: "UPath", partition: str
    ) -> "UPath":
        """Return the file of a closed hour."""
        return self._lake.path_of_hour(_table(context), hour_of_partition(partition))

    def dump_to_path(self, context: dg.OutputContext, obj: WholeHour | Computed, path: "UPath") -> None:
        """Store `obj` in the hour whose file is `path`."""
        hour = _hour_of_paths(self._get_paths_for_partitions(context))[path]
        store_hour(self._lake, _table(context), hour, told=obj, now=self._clock.now())

    def load_from_path(self, context: dg.InputContext, path: "UPath") -> Rows:
        """Return the rows of the hour whose file is `path`, closed or not."""
        return self._lake.read_hour(_table(context), _hour_of_paths(self._get_paths_for_partitions(context))[path])

    def load_input(self, context: dg.InputContext) -> Mapping[str, Rows]:
        """Return partition -> rows, for one partition as for many; an hour is read when it is asked for."""
        table = _table(context)
        hours = {key: hour_of_partition(key) for key in self._get_paths_for_partitions(context)}
        return Hours(hours, read=lambda hour: self._lake.read_hour(table, hour))

    def handle_output(self, context: dg.OutputContext, obj: Mapping[str, Rows | WholeHour | Computed]) -> None:
        """Store every hour of the output, one after the other, and show what came of it."""
        table = _table(context)
        counts: dict[datetime, int] = {}
        newest: dict[datetime, Rows] = {}
        for key in self._get_paths_for_partitions(context):
            given, hour = obj.get(key), hour_of_partition(key)
            told = given if isinstance(given, WholeHour | Computed) else WholeHour(rows=given)
            newest = {hour: store_hour(self._lake, table, hour, told=told, now=self._clock.now())}
            counts[hour] = newest[hour].num_rows
        stored = Hours(
            {hour: hour for hour in counts},
            read=lambda hour: newest[hour] if hour in newest else self._lake.read_hour(table, hour),
        )
        context.add_output_metadata(dict(self._describe(table, stored, counts)))


Key = TypeVar("Key")


class Hours(Mapping[Key, Rows]):
    """Hours of a table, each read when it is asked for: many of them fit in no memory."""

    def __init__(self, hours: Mapping[Key, datetime], *, read: Callable[[datetime], Rows]) -> None:
        self._hours = hours
        self._read = read

    def __getitem__(self, key: Key) -> Rows:
        return self._read(self._hours[key])

    def __iter__(self) -> Iterator[Key]:
        return iter(self._hours)

    def __len__(self) -> int:
        return len(self._hours)


def store_hour(lake: ParquetLake, table: str, hour: datetime, *, told: WholeHour | Computed, now: datetime) -> Rows:
    """Close an hour that is over and return its rows.

    One that runs on gets what was given as a file of its own: cycles are still to come.
    """
    if now >= hour + _HOUR and isinstance(told, Computed):
        return lake.replace_hour(table, hour, told.rows)
    if now >= hour + _HOUR and isinstance(told, WholeHour):
        return lake.close_hour(table, hour, filled=told.rows, retold=told.retold)
    if told.rows is not None:
        lake.write_cycle(table, told.rows, at=hour, part=SO_FAR)
    return lake.read_hour(table, hour)


def _table(context: dg.InputContext | dg.OutputContext) -> str:
    return context.asset_key.path[-1]


def _hour_of_paths(paths: Mapping[str, "UPath"]) -> dict["UPath", datetime]:
    return {path: hour_of_partition(key) for key, path in paths.items()}
