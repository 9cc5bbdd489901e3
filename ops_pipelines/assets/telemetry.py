"""Group `telemetry`: metrics of every layer of the cluster, an hour a partition, filled in again at will."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import dagster as dg

from ops_pipelines.assets.hours import LAKE_IO, ONE_RUN, POOL, Sums, hour_of_key, keep_rejected, tell
from ops_pipelines.assets.partitions import HOURS
from ops_pipelines.assets.spool import Spool
from ops_pipelines.core.cluster import HOUR, Observatory
from ops_pipelines.core.lake import Told
from ops_pipelines.lake.schema import TABLES, TELEMETRY_TABLES
from ops_pipelines.observe.hours import fill_metrics

GROUP = "telemetry"


@dg.multi_asset(
    name="telemetry_of_all_layers",
    outs={
        name: dg.AssetOut(
            group_name=GROUP,
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
        spools = {name: Spool[Told](Path(directory) / name) for name in chosen}
        # Hour by hour, and from the spool again table by table: a long stretch never lies in memory at once.
        for key in context.partition_keys:
            hour = hour_of_key(key)
            filled = fill_metrics(observatory, tables=chosen, start=hour, end=hour + HOUR)
            tell(context, filled)
            keep_rejected(filled, observatory, hours=(hour,))
            sums.add(filled)
            for name in chosen:
                spools[name].put(key, Told(rows=filled.tables.get(name), retold=filled.retold))
        for name in chosen:
            yield dg.Output(spools[name], output_name=name, metadata=sums.metadata(of="all_layers"))
