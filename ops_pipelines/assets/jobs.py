"""Group `jobs`: what the accounting says of every attempt, and what jobs and kernels wrote."""

from collections.abc import Iterator, Mapping

import dagster as dg

from ops_pipelines.assets.hours import (
    LAKE_IO,
    ONE_RUN,
    POOL,
    Sums,
    by_partition,
    covered,
    hour_of_key,
    keep_rejected,
    tell,
)
from ops_pipelines.assets.partitions import HOURS
from ops_pipelines.core.cluster import Observatory
from ops_pipelines.core.lake import Computed, Rows
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.observe.hours import Filled, fill_accounting, fill_job_logs, fill_kernel_events

GROUP = "jobs"
_HELD = "job_allocations"
_ACCOUNTING = ("job_accounting", "job_allocations", "job_steps")


@dg.multi_asset(
    name="accounting_of_all_jobs",
    outs={
        name: dg.AssetOut(
            group_name=GROUP,
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
        # Who held a node in an hour is told anew each time, and as a whole; what ended stays ended.
        told = {key: Computed(rows=rows.get(key)) for key in context.partition_keys} if name == _HELD else rows
        yield dg.Output(told, output_name=name, metadata=shown)


@dg.asset(
    group_name=GROUP,
    kinds={"log", "parquet"},
    io_manager_key=LAKE_IO,
    partitions_def=HOURS,
    backfill_policy=ONE_RUN,
    pool=POOL,
    code_version="1",
)
def job_logs(
    context: dg.AssetExecutionContext, observatory: dg.ResourceParam[Observatory]
) -> dg.Output[Mapping[str, Rows]]:
    """Lines that jobs wrote, matched against the table of log signatures."""
    start, end = covered(context)
    filled = fill_job_logs(observatory, start=start, end=end)
    return _lines(context, filled, observatory, name="job_logs")


@dg.asset(
    group_name=GROUP,
    kinds={"log", "parquet"},
    io_manager_key=LAKE_IO,
    partitions_def=HOURS,
    backfill_policy=ONE_RUN,
    pool=POOL,
    code_version="1",
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
