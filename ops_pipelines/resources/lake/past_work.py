"""What the lake keeps of jobs: opens the files of the hours that are asked for, and of those only the rows wanted.

Implements `core.lake.PastWork`. Imports Arrow when it is asked, not before: the command line passes through here.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, time, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.lake import LakeError

if TYPE_CHECKING:
    import pyarrow as pa
    from upath import UPath

    from ops_pipelines.resources.lake.parquet_lake import ParquetLake

ALLOCATION_COLUMNS = (
    *("job", "attempt", "node", "time", "name", "user", "account", "state", "started_at", "ended_at", "node_count"),
)
STEP_COLUMNS = ("node", "device", "time", "step_seconds")
_STEPS, _STEPS_BY_FIVE_MINUTES = "application_telemetry", "application_telemetry_5m"
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)


class LakePastWork:
    """Reads the lake that `open_lake` opens when it is first asked."""

    def __init__(self, open_lake: "Callable[[], ParquetLake]") -> None:
        self._open_lake = open_lake

    def allocations(self, *, nodes: Collection[NodeName], start: datetime, end: datetime) -> "pa.Table":
        """Return who held these nodes; see `core.lake`."""
        paths: list[UPath] = []
        hour = _hour_of(start)
        while hour < end:
            paths += self._files_of_hour("job_allocations", hour)
            hour += _HOUR
        return self._rows(
            "job_allocations",
            paths,
            key="node",
            names=nodes,
            columns=ALLOCATION_COLUMNS,
            start=_hour_of(start),
            end=end,
        )

    def steps(self, *, jobs: Collection[JobId], start: datetime, end: datetime) -> "pa.Table":
        """Return how long the steps of these jobs took; see `core.lake`."""
        import pyarrow as pa

        raw: list[UPath] = []
        by_day: list[UPath] = []
        day = datetime.combine(start.astimezone(UTC).date(), time(), UTC)
        while day < end:
            aggregated = self._file_of_day(_STEPS_BY_FIVE_MINUTES, day)
            if aggregated is not None:
                by_day.append(aggregated)
            else:
                hours = (day + number * _HOUR for number in range(24))
                asked = [hour for hour in hours if hour < end and hour + _HOUR > start]
                raw += [path for hour in asked for path in self._files_of_hour(_STEPS, hour)]
            day += _DAY
        names = [f"job:{job}" for job in jobs]
        found = [
            self._rows(table, paths, key="device", names=names, columns=STEP_COLUMNS, start=start, end=end)
            for table, paths in ((_STEPS_BY_FIVE_MINUTES, by_day), (_STEPS, raw))
        ]
        return pa.concat_tables(found)

    @cached_property
    def _lake(self) -> "ParquetLake":
        return self._open_lake()

    def _files_of_hour(self, table: str, hour: datetime) -> "Sequence[UPath]":
        from ops_pipelines.resources.lake.listing import files_of_hour

        return files_of_hour(self._lake.root, table, hour).read_from

    def _file_of_day(self, aggregate: str, day: datetime) -> "UPath | None":
        from ops_pipelines.resources.lake.listing import day_file, names_in

        path = day_file(self._lake.root, aggregate, day.date())
        return path if path.name in names_in(path.parent) else None

    def _rows(
        self,
        table: str,
        paths: "Sequence[UPath]",
        *,
        key: str,
        names: Collection[str],
        columns: Sequence[str],
        start: datetime,
        end: datetime,
    ) -> "pa.Table":
        import pyarrow as pa
        import pyarrow.dataset as ds
        import pyarrow.fs as pafs

        from ops_pipelines.lake.hours import layout_of
        from ops_pipelines.resources.lake.files import is_local

        whole = layout_of(table).schema
        wanted_columns = pa.schema([whole.field(name) for name in columns])
        if not paths or not names:
            return wanted_columns.empty_table()
        root = self._lake.root
        filesystem = pafs.LocalFileSystem() if is_local(root) else pafs.PyFileSystem(pafs.FSSpecHandler(root.fs))
        moment = pa.timestamp("us", tz="UTC")
        wanted = (
            ds.field(key).isin(sorted(set(names)))
            & (ds.field("time") >= pa.scalar(start.astimezone(UTC), moment))
            & (ds.field("time") < pa.scalar(end.astimezone(UTC), moment))
        )
        try:
            return ds.dataset(
                [path.path for path in paths], schema=whole, format="parquet", filesystem=filesystem
            ).to_table(columns=list(columns), filter=wanted)
        except (OSError, pa.ArrowException) as exc:
            raise LakeError(f"{table} cannot be read from {start:%Y-%m-%d %H:%M} UTC on: {exc}") from exc


def _hour_of(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
