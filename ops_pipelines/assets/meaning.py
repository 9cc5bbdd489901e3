"""Group `telemetry_meaning`: what is built in, how well it is used, and what we do not see."""

from collections.abc import Mapping, Sequence

import dagster as dg

from ops_pipelines.assets.hours import LAKE_IO, ONE_RUN, POOL, hour_before, hour_of_key
from ops_pipelines.assets.partitions import HOURS
from ops_pipelines.core.cluster import HOUR, Observatory
from ops_pipelines.core.lake import Computed, Rows
from ops_pipelines.lake.schema import TELEMETRY_TABLES
from ops_pipelines.observe.hours import read_nodes_now
from ops_pipelines.report.metadata import table

GROUP = "telemetry_meaning"

Hours = Mapping[str, Rows]
"""Partition key -> rows of that hour."""


def _read_when_asked_for(*names: str) -> dict[str, dg.AssetIn]:
    """Return inputs whose type Dagster does not look into: looking would read every hour of a run."""
    return {name: dg.AssetIn(key=name, dagster_type=dg.Any) for name in names}


@dg.asset(
    group_name=GROUP,
    kinds={"parquet"},
    io_manager_key=LAKE_IO,
    partitions_def=HOURS,
    backfill_policy=ONE_RUN,
    pool=POOL,
    code_version="1",
    ins=_read_when_asked_for("gpu_telemetry"),
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
    group_name=GROUP,
    kinds={"parquet"},
    io_manager_key=LAKE_IO,
    partitions_def=HOURS,
    backfill_policy=ONE_RUN,
    pool=POOL,
    code_version="1",
    ins=_read_when_asked_for("gpu_telemetry", "fabric_telemetry", "job_allocations"),
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
    group_name=GROUP,
    kinds={"parquet"},
    io_manager_key=LAKE_IO,
    partitions_def=HOURS,
    backfill_policy=ONE_RUN,
    pool=POOL,
    code_version="1",
    ins=_read_when_asked_for(*TELEMETRY_TABLES, "inventory"),
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
