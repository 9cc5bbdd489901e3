"""The composition root that Dagster loads: assets, checks, sensors, jobs and schedules on one cluster's ports.

The cluster is named by the environment variable OPS_PIPELINES_CLUSTER (a path to cluster.yaml), else by
cluster.yaml in the working directory. Importing this reads neither; nothing is opened before the first run or sensor
turn needs it.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import cast

import dagster as dg

from ops_pipelines.assets import (
    act,
    advice,
    capacity,
    costs,
    daily_peaks,
    demand,
    fleet_versions,
    history,
    incident_reports,
    interruptions,
    jobs,
    meaning,
    observe,
    placement,
    policy_comparison,
    quotas,
    remediation_page,
    report,
    rollouts,
    telemetry,
    understand,
    verify,
    weekly_review,
)
from ops_pipelines.assets.cluster_zone import cluster_file, zone_of_days
from ops_pipelines.assets.hours import LAKE_IO
from ops_pipelines.assets.partitions import began_at, first_hour
from ops_pipelines.assets.pictures import describe_hours
from ops_pipelines.assets.readers import for_readers
from ops_pipelines.automation import JOBS, schedules_in
from ops_pipelines.checks.data_quality import build_quality_checks, write_beside
from ops_pipelines.checks.declared_teams import teams_are_declared
from ops_pipelines.checks.plan_safety import plan_safety
from ops_pipelines.checks.quota_proofs import quota_proofs
from ops_pipelines.core.cluster import Cluster, Observatory
from ops_pipelines.core.lake import LakeKeeper
from ops_pipelines.core.sources import LiveCycle
from ops_pipelines.lake.schema import TELEMETRY_TABLES
from ops_pipelines.remediation_jobs import HANDED_ON
from ops_pipelines.review.replay import PolicyDesk
from ops_pipelines.sensors.alerts import alert_sensor
from ops_pipelines.sensors.fault import fault_sensor
from ops_pipelines.sensors.ledger_mark import keep_seen_beside
from ops_pipelines.sensors.live_cycle import live_cycle_sensor
from ops_pipelines.sensors.messages import message_sensor
from ops_pipelines.sensors.records import records_sensor
from ops_pipelines.sensors.remediation import remediation_sensor
from ops_pipelines.sensors.returning import drained_node_sensor
from ops_pipelines.sensors.rollouts import rollout_sensor
from ops_pipelines.teams.desk import TeamsDesk

LAKE_ASSETS = (
    *TELEMETRY_TABLES,
    *("job_accounting", "job_allocations", "job_steps", "job_logs", "kernel_events"),
    *("inventory", "gpu_efficiency", "monitoring_coverage", "gpu_demand"),
)
"""The assets that are hours of the lake; each is the table of its name."""


class ClusterPorts(dg.ConfigurableResource[Cluster]):
    """Scheduler, fleet, telemetry, logs, ledger and notifier, opened once a process; each tick and run is given rules
    anew.
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

None has a setting: what a resource can be told, a form in the web interface can override, and nobody who may launch a
job may thereby point it at another cluster.yaml, whose commands would be run."""


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
            [
                *(remediation_page, incident_reports, report),
                *(telemetry, jobs, meaning, history, interruptions, weekly_review, policy_comparison, rollouts),
                *(fleet_versions, advice, capacity, costs, daily_peaks, demand, quotas, placement),
            ],
        ),
        # What acts, and what leads to it, is done by a job, and reported: nobody materialises it.
        *(observe.validated_observations, understand.health_findings, understand.incidents),
        *(act.remediation_plan, act.action_log, verify.verifications),
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
