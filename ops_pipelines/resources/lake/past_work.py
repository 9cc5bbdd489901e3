"""What the lake remembers for the rest of the program: of a few nodes and jobs in some minutes
(`core.record.Recollection`) and of past work (`core.sources.PastWork`).

Opens the files of the hours that are asked for, and of those only the rows requested. Imports Arrow when it is asked,
not before: the command line passes through here.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, time, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from ops_pipelines.core.identity import JobId, NodeName, listed
from ops_pipelines.core.record import Recalled, RecalledLine
from ops_pipelines.core.sources import LakeError

if TYPE_CHECKING:
    import pyarrow as pa
    from upath import UPath

    from ops_pipelines.resources.lake.parquet_lake import ParquetLake

# -- nodes and jobs in some minutes --


_LABELS = ("pci_address", "gpu_index", "gpu_model", "driver_version", "gpu_serial", "job")
_QUANTITIES = (
    "temperature_celsius",
    "power_watts",
    "utilisation_ratio",
    "sm_active_ratio",
    "tensor_active_ratio",
    "memory_used_bytes",
    "sm_clock_hertz",
    "nvlink_bandwidth_bytes",
    "nvlink_crc_flit_error_count",
    "nvlink_replay_error_count",
    "pcie_replay_count",
    "ecc_correctable_volatile_count",
    "ecc_uncorrectable_volatile_count",
    "row_remap_pending",
    "recovery_action",
    "xid",
)
"""What a bundle keeps of each GPU: enough to see what it did, small enough to mail."""
_HOUR = timedelta(hours=1)
_LINE_COLUMNS = ("time", "source", "position", "node", "text")


class LakeWindow:
    """Reads windows of the lake that `open_lake` opens when it is first asked."""

    def __init__(self, open_lake: "Callable[[], ParquetLake]") -> None:
        self._open_lake = open_lake

    def recall(
        self,
        *,
        nodes: Collection[NodeName],
        jobs: Collection[JobId],
        start: datetime,
        end: datetime,
        nearest_to: datetime,
        max_lines: int,
    ) -> Recalled:
        """Return what is known of start <= time < end; see `core.record`."""
        missing: list[str] = []
        lines: list[RecalledLine] = []
        for table, key, names in (("kernel_events", "node", nodes), ("job_logs", "job", jobs)):
            rows = self._rows(table, key, names, columns=_columns(table, _LINE_COLUMNS), start=start, end=end)
            if names and (rows is None or not rows.num_rows):
                missing.append(f"{table}: the lake has no line of {_some(names)} {_span(start, end)}")
            if rows is not None:
                lines += _lines(rows)
        columns = _columns("gpu_telemetry", ("time", "node", "device", *_LABELS, *_QUANTITIES))
        telemetry = self._rows("gpu_telemetry", "node", nodes, columns=columns, start=start, end=end)
        if nodes and (telemetry is None or not telemetry.num_rows):
            missing.append(f"gpu_telemetry: the lake has no sample of {_some(nodes)} {_span(start, end)}")
        if len(lines) > max_lines:
            missing.append(f"{len(lines) - max_lines} of {len(lines)} lines: those farthest from the event")
            lines = sorted(lines, key=lambda line: abs(line.written_at - nearest_to))[:max_lines]
        return Recalled(
            lines=tuple(sorted(lines, key=lambda line: (line.written_at, line.node, line.text))),
            telemetry=telemetry,
            missing=tuple(missing),
        )

    @cached_property
    def _lake(self) -> "ParquetLake":
        return self._open_lake()

    def _rows(
        self,
        table: str,
        key: str,
        names: Collection[str],
        *,
        columns: list[str],
        start: datetime,
        end: datetime,
    ) -> "pa.Table | None":
        """Return the rows of `names` in order; None if there is no file. Raises LakeError."""
        import pyarrow as pa

        try:
            try:
                return self._rows_listed(table, key, names, columns=columns, start=start, end=end)
            except FileNotFoundError:  # folded or cleaned since it was listed
                return self._rows_listed(table, key, names, columns=columns, start=start, end=end)
        except (OSError, pa.ArrowException) as exc:
            raise LakeError(f"{table} cannot be read {_span(start, end)}: {exc}") from exc

    def _rows_listed(
        self,
        table: str,
        key: str,
        names: Collection[str],
        *,
        columns: list[str],
        start: datetime,
        end: datetime,
    ) -> "pa.Table | None":
        from ops_pipelines.lake.hours import merge
        from ops_pipelines.resources.lake.files import files_of_hour, hour_of

        if not names or start >= end:
            return None
        lake = self._lake
        paths: list[UPath] = []
        hour = hour_of(start)
        while hour < end:
            paths += [path for path in files_of_hour(lake.root, table, hour).read_from if _may_hold(path, start, end)]
            hour += _HOUR
        if not paths:
            return None
        found = _selected(lake.root, table, paths, key=key, names=names, columns=columns, start=start, end=end)
        return merge(table, [found])


def _columns(table: str, names: Collection[str]) -> list[str]:
    from ops_pipelines.lake.schema import TABLES

    wanted = {*names, *(["job"] if table == "job_logs" else []), *TABLES[table].key}
    return [column.name for column in TABLES[table].columns if column.name in wanted]


def _may_hold(path: "UPath", start: datetime, end: datetime) -> bool:
    """Return whether a file can hold rows of the window: a live cycle's name reports its time, others may hold any."""
    from ops_pipelines.resources.lake.files import is_of_live_cycle

    if not is_of_live_cycle(path.name):
        return True
    stamp = path.name.removeprefix("cycle=")[:16]
    at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    # A cycle brings lines that were written before it, and what was read a little late.
    return start <= at and at - _HOUR < end


def _lines(rows: "pa.Table") -> list[RecalledLine]:
    jobs = rows.column("job").to_pylist() if "job" in rows.column_names else [None] * rows.num_rows
    columns = (rows.column(name).to_pylist() for name in ("time", "node", "source", "text"))
    return [
        RecalledLine(written_at=at, node=NodeName(node or ""), job=job or "", source=source or "", text=text or "")
        for (at, node, source, text), job in zip(zip(*columns, strict=True), jobs, strict=True)
    ]


def _some(names: Collection[str]) -> str:
    return listed(sorted(names), at_most=3)


def _span(start: datetime, end: datetime) -> str:
    return f"between {start.astimezone(UTC):%Y-%m-%d %H:%M:%S} and {end.astimezone(UTC):%H:%M:%S} UTC"


# -- past work --


ALLOCATION_COLUMNS = (
    *("job", "attempt", "node", "time", "name", "user", "account", "state", "started_at", "ended_at", "node_count"),
)
STEP_COLUMNS = ("node", "device", "time", "step_seconds")
_STEPS, _STEPS_BY_FIVE_MINUTES = "application_telemetry", "application_telemetry_5m"
_DAY = timedelta(days=1)


class LakePastWork:
    """Reads the lake that `open_lake` opens when it is first asked."""

    def __init__(self, open_lake: "Callable[[], ParquetLake]") -> None:
        self._open_lake = open_lake

    def allocations(self, *, nodes: Collection[NodeName], start: datetime, end: datetime) -> "pa.Table":
        """Return who held these nodes; see `core.sources`."""
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
        """Return how long the steps of these jobs took; see `core.sources`."""
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
        from ops_pipelines.resources.lake.files import files_of_hour

        return files_of_hour(self._lake.root, table, hour).read_from

    def _file_of_day(self, aggregate: str, day: datetime) -> "UPath | None":
        from ops_pipelines.resources.lake.files import day_file, names_in

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

        from ops_pipelines.lake.hours import layout_of

        if not paths or not names:
            schema = layout_of(table).schema
            return pa.schema([schema.field(name) for name in columns]).empty_table()
        try:
            return _selected(self._lake.root, table, paths, key=key, names=names, columns=columns, start=start, end=end)
        except (OSError, pa.ArrowException) as exc:
            raise LakeError(f"{table} cannot be read from {start:%Y-%m-%d %H:%M} UTC on: {exc}") from exc


def _hour_of(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


# -- both --


def _selected(
    root: "UPath",
    table: str,
    paths: "Sequence[UPath]",
    *,
    key: str,
    names: Collection[str],
    columns: Sequence[str],
    start: datetime,
    end: datetime,
) -> "pa.Table":
    """Return the rows of `names` with start <= time < end that these files hold. Raises as Arrow and the disk do."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.fs as pafs

    from ops_pipelines.lake.hours import layout_of
    from ops_pipelines.resources.lake.files import is_local

    filesystem = pafs.LocalFileSystem() if is_local(root) else pafs.PyFileSystem(pafs.FSSpecHandler(root.fs))
    moment = pa.timestamp("us", tz="UTC")
    is_asked_for = (
        ds.field(key).isin(sorted(set(names)))
        & (ds.field("time") >= pa.scalar(start.astimezone(UTC), moment))
        & (ds.field("time") < pa.scalar(end.astimezone(UTC), moment))
    )
    files = ds.dataset(
        [path.path for path in paths], schema=layout_of(table).schema, format="parquet", filesystem=filesystem
    )
    return files.to_table(columns=list(columns), filter=is_asked_for)
