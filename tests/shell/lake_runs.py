"""Runs of the lake's assets as Dagster makes them, on whatever sources a test brings."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import cast

import dagster as dg

from ops_pipelines.assets.hours import describe_hours, key_of_hour
from ops_pipelines.clock import Clock
from ops_pipelines.core.cluster import Cluster, Observatory
from ops_pipelines.definitions import RESOURCES, build_defs
from ops_pipelines.resources.lake.io_manager import LakeIOManager
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.desk import TeamsDesk

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
"""The tags by which Dagster's daemon reports a run which partitions it covers."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What became of a run."""

    is_success: bool
    stored: dict[str, list[dg.AssetMaterialization]]
    """Asset -> what was materialised, hour by hour."""
    checks: dict[tuple[str, str], bool]
    errors: dict[str, str]
    """Step -> why it failed."""
    logged: str

    def metadata(self, asset: str) -> dict[str, object]:
        return {name: value.value for name, value in self.stored[asset][-1].metadata.items()}


def lake_definitions(observatory: Observatory, *, clock: Clock, agreements: Agreements | None = None) -> dg.Definitions:
    """Return the definitions on an observatory; the rest fails as soon as it is asked for."""
    lake = observatory.lake
    assert isinstance(lake, ParquetLake)
    # What fills hours asks the observatory alone: there is no cluster to act on.
    desk = TeamsDesk(cluster=cast("Cluster", None), observatory=observatory, agreements=agreements)
    given = {
        name: dg.ResourceDefinition.hardcoded_resource(value)
        for name, value in {"observatory": observatory, "lake": lake, "teams_desk": desk}.items()
    }
    io_manager = LakeIOManager(lake, clock=clock, describe=describe_hours)
    hours = dg.IOManagerDefinition.hardcoded_io_manager(io_manager)
    return build_defs({**RESOURCES, **given, "lake_io_manager": hours})


def fill(
    observatory: Observatory,
    *hours: datetime,
    clock: Clock,
    assets: Sequence[str] | None = None,
    instance: dg.DagsterInstance | None = None,
    agreements: Agreements | None = None,
) -> Run:
    """Run the job of the lake over one hour, or over all hours from the first to the last in one run."""
    keys = [key_of_hour(hour) for hour in hours]
    with dg.DagsterInstance.ephemeral() if instance is None else nullcontext(instance) as opened:
        # Definitions remember the instance that was current last: they are built while this one is.
        job = lake_definitions(observatory, clock=clock, agreements=agreements).resolve_job_def("fill_hour")
        result = job.execute_in_process(
            instance=opened,
            partition_key=keys[0] if len(keys) == 1 else None,
            tags=None if len(keys) == 1 else {RANGE_START: keys[0], RANGE_END: keys[-1]},
            asset_selection=None if assets is None else [dg.AssetKey(name) for name in assets],
            raise_on_error=False,
        )
        logged = "\n".join(entry.user_message for entry in opened.all_logs(result.run_id))
    stored: dict[str, list[dg.AssetMaterialization]] = {}
    for event in result.get_asset_materialization_events():
        stored.setdefault(event.materialization.asset_key.to_user_string(), []).append(event.materialization)
    return Run(
        is_success=result.success,
        stored=stored,
        checks={
            (check.asset_key.to_user_string(), check.check_name): check.passed
            for check in result.get_asset_check_evaluations()
        },
        errors={
            event.step_key or "": str(event.step_failure_data.error)
            for event in result.all_events
            if event.is_step_failure
        },
        logged=logged,
    )


def files_below(root: Path) -> dict[str, bytes]:
    """Return the files of rows below a directory."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*.parquet"))}
