"""Groups `telemetry`, `jobs` and `telemetry_meaning`: hours of the lake, filled in again at will.

Metrics of every layer; accounting and lines of jobs and kernels; what is built in, how well it is used, and what we do
not see. What a run has read and not stored yet is on disk: a day of a large cluster fits in no memory.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Generic, TypeVar, cast

import dagster as dg

from ops_pipelines.assets.hours import (
    HOURS,
    LAKE_IO,
    OF_HOURS,
    ONE_RUN,
    POOL,
    Sums,
    by_partition,
    covered,
    hour_before,
    hour_of_key,
    keep_rejected,
    tell,
)
from ops_pipelines.core.cluster import HOUR, Observatory
from ops_pipelines.core.sources import Computed, Rows, WholeHour
from ops_pipelines.lake.schema import TABLES, TELEMETRY_TABLES
from ops_pipelines.observe.hours import (
    Filled,
    fill_accounting,
    fill_job_logs,
    fill_kernel_events,
    fill_metrics,
    read_nodes_now,
)
from ops_pipelines.report.metadata import table

Value = TypeVar("Value")


class Spool(Mapping[str, Value], Generic[Value]):
    """Values by key, each kept in a file of its own until the directory goes. One is in memory at a time."""

    def __init__(self, directory: Path) -> None:
        """`directory` is new and this run's alone: what is read back is what was put in."""
        directory.mkdir()
        self._directory = directory
        self._numbers: dict[str, int] = {}

    def put(self, key: str, value: Value) -> None:
        """Keep a value; a key is put in once."""
        if key in self._numbers:
            raise ValueError(f"{key} is in the spool already")
        self._numbers[key] = len(self._numbers)
        with self._file(key).open("wb") as file:
            pickle.dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)

    def __getitem__(self, key: str) -> Value:
        with self._file(key).open("rb") as file:
            return cast("Value", pickle.load(file))  # noqa: S301 -- our own file, in a directory of this run

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def _file(self, key: str) -> Path:
        return self._directory / f"{self._numbers[key]}.pickle"


TELEMETRY = "telemetry"


@dg.multi_asset(
    name="telemetry_of_all_layers",
    outs={
        name: dg.AssetOut(
            group_name=TELEMETRY,
            kinds={"prometheus", "parquet"},
            description=TABLES[name].description,
            io_manager_key=LAKE_IO,
            is_required=False,
            code_version="1",
        )
        for name in TELEMETRY_TABLES
    },
    can_subset=True,
    partitions_def=HOURS,
    backfill_policy=ONE_RUN,
    pool=POOL,
)
def telemetry_of_all_layers(
    context: dg.AssetExecutionContext, observatory: dg.ResourceParam[Observatory]
) -> Iterator[dg.Output[object]]:
    """What the live cycle kept of an hour, completed from the store of metrics, validated and compacted."""
    chosen = sorted(context.op_execution_context.selected_output_names)
    sums = Sums()
    with TemporaryDirectory(prefix="ops_pipelines_") as directory:
        spools = {name: Spool[WholeHour](Path(directory) / name) for name in chosen}
        # Hour by hour, and from the spool again table by table: a long interval never lies in memory at once.
        for key in context.partition_keys:
            hour = hour_of_key(key)
            filled = fill_metrics(observatory, tables=chosen, start=hour, end=hour + HOUR)
            tell(context, filled)
            keep_rejected(filled, observatory, hours=(hour,))
            sums.add(filled)
            for name in chosen:
                spools[name].put(key, WholeHour(rows=filled.tables.get(name), retold=filled.retold))
        for name in chosen:
            yield dg.Output(spools[name], output_name=name, metadata=sums.metadata(of="all_layers"))


JOBS = "jobs"
_HELD = "job_allocations"
_ACCOUNTING = ("job_accounting", "job_allocations", "job_steps")


@dg.multi_asset(
    name="accounting_of_all_jobs",
    outs={
        name: dg.AssetOut(
            group_name=JOBS,
            kinds={"slurm", "parquet"},
            description=TABLES[name].description,
            io_manager_key=LAKE_IO,
            is_required=False,
            code_version="1",
        )
        for name in _ACCOUNTING
    },
    can_subset=True,
    partitions_def=HOURS,
    backfill_policy=ONE_RUN,
    pool=POOL,
)
def accounting_of_all_jobs(
    context: dg.AssetExecutionContext, observatory: dg.ResourceParam[Observatory]
) -> Iterator[dg.Output[object]]:
    """Every attempt, requeued ones included, as the scheduler's accounting knows it."""
    start, end = covered(context)
    filled = fill_accounting(observatory, start=start, end=end)
    shown = _note(context, filled, observatory, of="accounting")
    for name in sorted(context.op_execution_context.selected_output_names):
        rows = by_partition(context, filled.tables.get(name))
        # Who held a node in an hour is reported again each time, and as a whole; what ended stays ended.
        told = {key: Computed(rows=rows.get(key)) for key in context.partition_keys} if name == _HELD else rows
        yield dg.Output(told, output_name=name, metadata=shown)


@dg.asset(
    group_name=JOBS,
    kinds={"log", "parquet"},
    code_version="1",
    **OF_HOURS,
)
def job_logs(
    context: dg.AssetExecutionContext, observatory: dg.ResourceParam[Observatory]
) -> dg.Output[Mapping[str, Rows]]:
    """Lines that jobs wrote, matched against the table of log signatures."""
    start, end = covered(context)
    filled = fill_job_logs(observatory, start=start, end=end)
    return _lines(context, filled, observatory, name="job_logs")


@dg.asset(
    group_name=JOBS,
    kinds={"log", "parquet"},
    code_version="1",
    **OF_HOURS,
)
def kernel_events(
    context: dg.AssetExecutionContext, observatory: dg.ResourceParam[Observatory]
) -> dg.Output[Mapping[str, Rows]]:
    """Lines of kernels, drivers and fabric managers, matched against the table of log signatures."""
    start, end = covered(context)
    filled = fill_kernel_events(observatory, start=start, end=end)
    return _lines(context, filled, observatory, name="kernel_events")


def _lines(
    context: dg.AssetExecutionContext, filled: Filled, observatory: Observatory, *, name: str
) -> dg.Output[Mapping[str, Rows]]:
    shown = _note(context, filled, observatory, of="logs")
    return dg.Output(by_partition(context, filled.tables.get(name)), metadata=shown)


def _note(
    context: dg.AssetExecutionContext, filled: Filled, observatory: Observatory, *, of: str
) -> dict[str, dg.MetadataValue]:
    """Keep what was rejected, tell what the sources warned of, and return what the page shows of both."""
    tell(context, filled)
    keep_rejected(filled, observatory, hours=[hour_of_key(key) for key in context.partition_keys])
    sums = Sums()
    sums.add(filled)
    return sums.metadata(of=of)


MEANING = "telemetry_meaning"
Hours = Mapping[str, Rows]
"""Partition key -> rows of that hour."""


def _read_when_asked_for(*names: str) -> dict[str, dg.AssetIn]:
    """Return inputs whose type Dagster does not look into: looking would read every hour of a run."""
    return {name: dg.AssetIn(key=name, dagster_type=dg.Any) for name in names}


@dg.asset(
    group_name=MEANING,
    kinds={"parquet"},
    ins=_read_when_asked_for("gpu_telemetry"),
    code_version="1",
    **OF_HOURS,
)
def inventory(
    context: dg.AssetExecutionContext, observatory: dg.ResourceParam[Observatory], gpu_telemetry: Hours
) -> dg.Output[Hours]:
    """Nodes and GPUs with serials, UUIDs, driver, VBIOS and place, as the hour's own metrics and the scheduler show."""
    from ops_pipelines.lake.inventory import build_inventory, moves_between

    nodes = read_nodes_now(observatory)
    found: dict[str, Rows] = {}
    moves: list[Mapping[str, object]] = []
    for key in sorted(context.partition_keys):
        hour = hour_of_key(key)
        before = hour_before(key, found=found, name="inventory", lake=observatory.lake)
        found[key] = build_inventory(
            gpu_telemetry[key],
            hour=hour,
            topology=observatory.topology,
            # What the scheduler says now was so in the last closed hour; of earlier hours it says nothing.
            nodes=nodes if observatory.clock.now() - hour < 2 * HOUR else None,
        )
        moves += moves_between(before, found[key])
    return dg.Output(found, metadata={"gpus_that_moved": table(moves)})


@dg.asset(
    group_name=MEANING,
    kinds={"parquet"},
    ins=_read_when_asked_for("gpu_telemetry", "fabric_telemetry", "job_allocations"),
    code_version="1",
    **OF_HOURS,
)
def gpu_efficiency(
    context: dg.AssetExecutionContext, gpu_telemetry: Hours, fabric_telemetry: Hours, job_allocations: Hours
) -> dg.Output[Mapping[str, Computed]]:
    """Utilisation read in context: what bounds each job on each node, with the rule and the numbers that decided."""
    from ops_pipelines.efficiency.verdicts import count_verdicts, read_efficiency

    found = {
        key: read_efficiency(
            gpu_telemetry[key],
            fabric=fabric_telemetry[key],
            allocations=job_allocations[key],
            hour=hour_of_key(key),
        )
        for key in context.partition_keys
    }
    verdicts = count_verdicts(list(found.values()))
    return dg.Output(
        {key: Computed(rows=rows) for key, rows in found.items()},
        metadata={
            "gpus_by_verdict": table({"verdict": verdict, "gpu_hours": hours} for verdict, hours in verdicts.items())
        },
    )


@dg.asset(
    group_name=MEANING,
    kinds={"parquet"},
    ins=_read_when_asked_for(*TELEMETRY_TABLES, "inventory"),
    code_version="1",
    **OF_HOURS,
)
def monitoring_coverage(
    context: dg.AssetExecutionContext,
    observatory: dg.ResourceParam[Observatory],
    inventory: Hours,
    **telemetry: Hours,
) -> dg.Output[Mapping[str, Computed]]:
    """Which series that we expect are missing, and since when: what nobody sees cannot be called healthy."""
    from ops_pipelines.observe.coverage import list_missing, measure_coverage

    found: dict[str, Rows] = {}
    missing: Sequence[Mapping[str, object]] = ()
    for key in sorted(context.partition_keys):
        hour = hour_of_key(key)
        found[key] = measure_coverage(
            {name: hours[key] for name, hours in telemetry.items()},
            inventory=inventory[key],
            before=hour_before(key, found=found, name="monitoring_coverage", lake=observatory.lake),
            hour=hour,
            step_seconds=observatory.step_seconds,
            topology=observatory.topology,
        )
        missing = list_missing(found[key])
    computed = {key: Computed(rows=rows) for key, rows in found.items()}
    return dg.Output(computed, metadata={"missing_at_the_end": table(missing)})
