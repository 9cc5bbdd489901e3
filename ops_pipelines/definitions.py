"""The composition root that Dagster loads: assets, checks, sensors, jobs and schedules on one cluster's ports.

The cluster is named by the environment variable OPS_PIPELINES_CLUSTER (a path to cluster.yaml), else by cluster.yaml in
the working directory. Importing this reads neither; nothing is opened before the first run or sensor turn needs it.

Owners are the teams that such a site has; a site with other names changes `OWNERS`. An asset that has no row in
`FRESHNESS` is made when something happens, or by hand, so that its age says nothing; what is late in the lake's hours
is shown by the asset `monitoring_coverage`.
"""

from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import cast

import dagster as dg

from ops_pipelines.acting_jobs import HANDED_ON
from ops_pipelines.assets import capacity, history, incident_pages, loop, quotas, reports, rollouts, telemetry
from ops_pipelines.assets import teams as advice
from ops_pipelines.assets import teams as costs
from ops_pipelines.assets.hours import LAKE_IO, began_at, cluster_file, describe_hours, first_hour, zone_of_days
from ops_pipelines.automation import JOBS, schedules_in
from ops_pipelines.checks.data_quality import build_quality_checks, write_beside
from ops_pipelines.checks.proofs import plan_safety, quota_proofs, teams_are_declared
from ops_pipelines.core.cluster import Cluster, Observatory
from ops_pipelines.core.sources import LakeKeeper, LiveCycle
from ops_pipelines.lake.schema import TELEMETRY_TABLES
from ops_pipelines.review.replay import PolicyDesk
from ops_pipelines.sensors.due_runs import drained_node_sensor, remediation_sensor, rollout_sensor
from ops_pipelines.sensors.fault import fault_sensor
from ops_pipelines.sensors.runs import keep_seen_beside
from ops_pipelines.sensors.upkeep import alert_sensor, live_cycle_sensor, message_sensor, records_sensor
from ops_pipelines.teams.desk import TeamsDesk

OPERATIONS, CAPACITY, ACCOUNTING = "team:cluster-operations", "team:capacity-planning", "team:cluster-accounting"
OWNERS: Mapping[str, str] = {
    **dict.fromkeys(("observe", "understand", "act", "verify", "report", "lifecycle", "policy", "history"), OPERATIONS),
    **dict.fromkeys(("telemetry", "jobs", "telemetry_meaning"), OPERATIONS),
    **dict.fromkeys(("capacity", "quotas"), CAPACITY),
    **dict.fromkeys(("costs", "advice"), ACCOUNTING),
}
"""By group."""
_HOURLY = dg.FreshnessPolicy.time_window(warn_window=timedelta(hours=2), fail_window=timedelta(hours=4))
_EACH_SHIFT = dg.FreshnessPolicy.time_window(warn_window=timedelta(hours=9), fail_window=timedelta(hours=17))
_DAILY = dg.FreshnessPolicy.time_window(warn_window=timedelta(hours=26), fail_window=timedelta(hours=50))
_WEEKLY = dg.FreshnessPolicy.time_window(warn_window=timedelta(days=7, hours=6), fail_window=timedelta(days=9))
_MONTHLY = dg.FreshnessPolicy.time_window(warn_window=timedelta(days=31, hours=6), fail_window=timedelta(days=33))
FRESHNESS: Mapping[str, dg.FreshnessPolicy] = {
    **dict.fromkeys(("monitoring_coverage", "gpu_efficiency", "fleet_versions"), _HOURLY),
    "shift_report": _EACH_SHIFT,
    **dict.fromkeys(("gpu_demand_daily", "gpu_quotas", "chargeback", "placement_report"), _DAILY),
    **dict.fromkeys(("lemon_scores", "wear_out", "fleet_defects", "interruption_costs"), _DAILY),
    **dict.fromkeys(("weekly_review", "efficiency_advice"), _WEEKLY),
    "capacity_plan": _MONTHLY,
}
"""By asset: it warns when a turn of its schedule was missed, and fails when the next was missed, too (a month's: two
days later)."""


def for_readers(spec: dg.AssetSpec) -> dg.AssetSpec:
    """Return an asset with its owner, and with its freshness policy if it has one."""
    return spec.replace_attributes(
        owners=[OWNERS[spec.group_name or ""]], freshness_policy=FRESHNESS.get(spec.key.to_user_string())
    )


LAKE_ASSETS = (
    *TELEMETRY_TABLES,
    *("job_accounting", "job_allocations", "job_steps", "job_logs", "kernel_events"),
    *("inventory", "gpu_efficiency", "monitoring_coverage", "gpu_demand"),
)
"""The assets that are hours of the lake; each is the table of its name."""


class ClusterPorts(dg.ConfigurableResource[Cluster]):
    """Scheduler, fleet, telemetry, logs, ledger and notifier, opened once a process; each tick and run is given rules
    again.
    """

    def create_resource(self, context: dg.InitResourceContext) -> Cluster:
        """Open the cluster, and compare its ledger with the one that this instance knows."""
        from ops_pipelines.wiring import open_cluster

        cluster = open_cluster(cluster_file().resolve())
        if context.instance is not None:
            keep_seen_beside(cluster, context.instance)
        return cluster


class ObservatoryPorts(dg.ConfigurableResource[Observatory]):
    """Metrics, accounting, logs and the lake, opened once a process."""

    def create_resource(self, context: dg.InitResourceContext) -> Observatory:
        """Open the sources of the lake."""
        from ops_pipelines.wiring import open_observatory

        return open_observatory(cluster_file().resolve())


class LakeKeeping(dg.ConfigurableResource[LakeKeeper]):
    """Aggregates and deletes hours of the lake as cluster.yaml says."""

    def create_resource(self, context: dg.InitResourceContext) -> LakeKeeper:
        """Open who keeps the lake small."""
        from ops_pipelines.wiring import open_lake_keeper

        return open_lake_keeper(cluster_file().resolve())


class LakeStorage(dg.ConfigurableIOManagerFactory[dg.IOManager]):
    """The lake: one Parquet file an hour and table."""

    def create_io_manager(self, context: dg.InitResourceContext) -> dg.IOManager:
        """Open how assets are stored: whole hours of the lake."""
        from ops_pipelines.clock import SystemClock
        from ops_pipelines.resources.lake.io_manager import LakeIOManager
        from ops_pipelines.wiring import config_in_force, open_lake

        lake = open_lake(config_in_force(cluster_file().resolve()))
        return LakeIOManager(lake, clock=SystemClock(), describe=describe_hours)


class PolicyDeskPorts(dg.ConfigurableResource[PolicyDesk]):
    """History to replay, and proposed policies to read."""

    def create_resource(self, context: dg.InitResourceContext) -> PolicyDesk:
        """Open where proposed policies are compared with history."""
        from ops_pipelines.wiring import open_policy_desk

        return open_policy_desk(cluster_file().resolve())


class TeamsDeskPorts(dg.ConfigurableResource[TeamsDesk]):
    """Agreements, limits, prices and what is installed."""

    def create_resource(self, context: dg.InitResourceContext) -> TeamsDesk:
        """Open what is known of teams; another one once a file of theirs has changed."""
        from ops_pipelines.wiring import open_teams_desk

        return open_teams_desk(cluster_file().resolve())


class LiveCycleProcess(dg.ConfigurableResource[LiveCycle]):
    """The process that fills the lake each cycle, one a code server."""

    def create_resource(self, context: dg.InitResourceContext) -> LiveCycle:
        """Return the process of this code server; it is started when it is first asked for something."""
        return _live_process(cluster_file().resolve())


@cache
def _live_process(named: Path) -> LiveCycle:
    from ops_pipelines.resources.live_process import LiveProcess

    return LiveProcess(named)


RESOURCES: Mapping[str, object] = MappingProxyType(
    {
        "cluster": ClusterPorts(),
        "observatory": ObservatoryPorts(),
        "lake_keeper": LakeKeeping(),
        LAKE_IO: LakeStorage(),
        "policy_desk": PolicyDeskPorts(),
        "teams_desk": TeamsDeskPorts(),
        "live_cycle": LiveCycleProcess(),
    }
)
"""Every resource, on the cluster that the process's environment names when it is first used.

None has a setting: what a resource can be notified, a form in the web interface can override, and nobody who may launch
a job may thereby point it at another cluster.yaml, whose commands would be run."""


def build_defs(resources: Mapping[str, object]) -> dg.Definitions:
    """Return the definitions on the given resources; tests bring a cluster of their own.

    Reads of the environment what Dagster has to know beforehand: the zone in which days begin, and the first hour.
    """
    partitions = began_at(first_hour())

    def as_here(spec: dg.AssetSpec) -> dg.AssetSpec:
        partitions_def = partitions.get(spec.partitions_def, spec.partitions_def)
        return for_readers(spec).replace_attributes(partitions_def=partitions_def)

    declared = (
        *dg.load_assets_from_modules(
            [telemetry, incident_pages, reports, history, rollouts, advice, capacity, costs, quotas]
        ),
        # What acts, and what leads to it, is done by a job, and reported: nobody materialises it.
        *(loop.validated_observations, loop.health_findings, loop.incidents),
        *(loop.remediation_plan, loop.action_log, loop.verifications),
        *(rollouts.rollout_pass, quotas.applied_quotas),
    )
    return dg.Definitions(
        assets=dg.map_asset_specs(as_here, cast("tuple[dg.AssetsDefinition | dg.AssetSpec, ...]", declared)),
        asset_checks=[
            plan_safety,
            quota_proofs,
            teams_are_declared,
            *build_quality_checks(assets={name: (name,) for name in LAKE_ASSETS}, write_page=write_beside),
        ],
        jobs=JOBS,
        schedules=schedules_in(zone_of_days()),
        sensors=[
            *(fault_sensor, remediation_sensor, drained_node_sensor, live_cycle_sensor),
            *(alert_sensor, message_sensor, rollout_sensor, records_sensor),
        ],
        resources={HANDED_ON: dg.mem_io_manager, **resources},
        # One process a run, back-fills from the UI included: a process a step would import great-expectations for each.
        executor=dg.in_process_executor,
    )


@dg.definitions
def defs() -> dg.Definitions:
    """Return what Dagster loads, on the cluster that the environment names."""
    return build_defs(RESOURCES)
