"""Group `telemetry`: metrics of every layer of the cluster, an hour a partition, filled in again at will."""

from collections.abc import Iterator

import dagster as dg

from ops_pipelines.assets.hours import (
    HOURS,
    LAKE_IO,
    ONE_RUN,
    covered,
    intake_metadata,
    keep_rejected,
    tell,
    told_by_partition,
)
from ops_pipelines.flow.fill import fill_metrics
from ops_pipelines.flow.observatory import Observatory
from ops_pipelines.frames.schema import TABLES, TELEMETRY_TABLES

GROUP = "telemetry"


@dg.multi_asset(
    name="telemetry_of_all_layers",
    outs={
        name: dg.AssetOut(
            group_name=GROUP,
            kinds={"prometheus", "parquet"},
            description=f"{TABLES[name].meaning}.",
            io_manager_key=LAKE_IO,
            is_required=False,
            code_version="1",
        )
        for name in TELEMETRY_TABLES
    },
    can_subset=True,
    partitions_def=HOURS,
    backfill_policy=ONE_RUN,
)
def telemetry_of_all_layers(
    context: dg.AssetExecutionContext, observatory: dg.ResourceParam[Observatory]
) -> Iterator[dg.Output[object]]:
    """What the live cycle kept of an hour, completed from the store of metrics, validated and compacted."""
    start, end = covered(context)
    chosen = sorted(context.op_execution_context.selected_output_names)
    filled = fill_metrics(observatory, tables=chosen, start=start, end=end)
    tell(context, filled)
    keep_rejected(context, filled, observatory)
    for name in chosen:
        told = told_by_partition(context, filled, name=name)
        yield dg.Output(told, output_name=name, metadata=intake_metadata(filled))
