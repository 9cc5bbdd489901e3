"""The composition root that Dagster loads: assets, checks, sensors, jobs and schedules on one cluster's ports.

The cluster is named by the environment variable OPS_PIPELINES_CLUSTER (a path to cluster.yaml), else by
cluster.yaml in the working directory. Nothing is opened before the first run or sensor turn needs it.
"""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

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
from ops_pipelines.assets.hours import LAKE_IO
from ops_pipelines.assets.pictures import describe_hours
from ops_pipelines.automation import JOBS, SCHEDULES
from ops_pipelines.checks.data_quality import build_quality_checks, write_beside
from ops_pipelines.checks.declared_teams import teams_are_declared
from ops_pipelines.checks.plan_safety import plan_safety
from ops_pipelines.checks.quota_proofs import quota_proofs
from ops_pipelines.core.cluster import Cluster, Observatory
from ops_pipelines.core.lake import LakeKeeper
from ops_pipelines.core.sources import LiveCycle
from ops_pipelines.lake.schema import TELEMETRY_TABLES
from ops_pipelines.remediation_jobs import HANDED_ON
from ops_pipelines.review.replay.replay import PolicyDesk
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

CLUSTER_VARIABLE = "OPS_PIPELINES_CLUSTER"
DEFAULT_CLUSTER_FILE = "cluster.yaml"
LAKE_ASSETS = (
    *TELEMETRY_TABLES,
    *("job_accounting", "job_allocations", "job_steps", "job_logs", "kernel_events"),
    *("inventory", "gpu_efficiency", "monitoring_coverage", "gpu_demand"),
)
"""The assets that are hours of the lake; each is the table of its name."""


def cluster_resource(cluster_file: Path) -> dg.ResourceDefinition:
    """Return the ports of one cluster as a resource, opened once a process; each tick and run is given rules anew."""

    def open_when_needed(context: dg.InitResourceContext) -> Cluster:
        from ops_pipelines.wiring import open_cluster

        cluster = open_cluster(cluster_file.resolve())
        if context.instance is not None:
            keep_seen_beside(cluster, context.instance)
        return cluster

    return dg.ResourceDefinition(
        open_when_needed, description=f"Scheduler, fleet, telemetry, logs, ledger and notifier of {cluster_file.name}."
    )


def observatory_resource(cluster_file: Path) -> dg.ResourceDefinition:
    """Return the sources of one cluster's lake as a resource, opened once a process, when first needed."""

    def open_when_needed(_: dg.InitResourceContext) -> Observatory:
        from ops_pipelines.wiring import open_observatory

        return open_observatory(cluster_file.resolve())

    return dg.ResourceDefinition(
        open_when_needed, description=f"Metrics, accounting, logs and the lake of {cluster_file.name}."
    )


def lake_keeper_resource(cluster_file: Path) -> dg.ResourceDefinition:
    """Return who keeps the lake small."""

    def open_when_needed(_: dg.InitResourceContext) -> LakeKeeper:
        from ops_pipelines.wiring import open_lake_keeper

        return open_lake_keeper(cluster_file.resolve())

    return dg.ResourceDefinition(open_when_needed, description="Aggregates and deletes as cluster.yaml says.")


def lake_io_resource(cluster_file: Path) -> dg.IOManagerDefinition:
    """Return how assets are stored: whole hours of the lake."""

    def open_when_needed(_: dg.InitResourceContext) -> dg.IOManager:
        from ops_pipelines.clock import SystemClock
        from ops_pipelines.resources.lake.io_manager import LakeIOManager
        from ops_pipelines.wiring import config_in_force, open_lake

        lake = open_lake(config_in_force(cluster_file.resolve()))
        return LakeIOManager(lake, clock=SystemClock(), describe=describe_hours)

    return dg.IOManagerDefinition(open_when_needed, description="The lake: one Parquet file an hour and table.")


def policy_desk_resource(cluster_file: Path) -> dg.ResourceDefinition:
    """Return where proposed policies are compared with history."""

    def open_when_needed(_: dg.InitResourceContext) -> PolicyDesk:
        from ops_pipelines.wiring import open_policy_desk

        return open_policy_desk(cluster_file.resolve())

    return dg.ResourceDefinition(open_when_needed, description="History to replay, and proposed policies to read.")


def teams_desk_resource(cluster_file: Path) -> dg.ResourceDefinition:
    """Return what is known of the teams of one cluster as a resource, opened once a process, when first needed."""

    def open_when_needed(_: dg.InitResourceContext) -> TeamsDesk:
        from ops_pipelines.wiring import open_teams_desk

        return open_teams_desk(cluster_file.resolve())

    return dg.ResourceDefinition(
        open_when_needed, description=f"Agreements, limits, prices and what is installed of {cluster_file.name}."
    )


def live_cycle_resource(cluster_file: Path) -> dg.ResourceDefinition:
    """Return the live cycle's process, one a code server."""

    @cache
    def hold() -> LiveCycle:
        from ops_pipelines.resources.live_process import LiveProcess

        return LiveProcess(cluster_file.resolve())

    return dg.ResourceDefinition(lambda _: hold(), description="The process that fills the lake each cycle.")


def resources_of(cluster_file: Path) -> dict[str, object]:
    """Return every resource, bound to the cluster that `cluster_file` describes."""
    return {
        "cluster": cluster_resource(cluster_file),
        "observatory": observatory_resource(cluster_file),
        "lake_keeper": lake_keeper_resource(cluster_file),
        LAKE_IO: lake_io_resource(cluster_file),
        "policy_desk": policy_desk_resource(cluster_file),
        "teams_desk": teams_desk_resource(cluster_file),
        "live_cycle": live_cycle_resource(cluster_file),
    }


def build_defs(resources: Mapping[str, object]) -> dg.Definitions:
    """Return the definitions on the given resources; tests bring a cluster of their own."""
    return dg.Definitions(
        assets=[
            *dg.load_assets_from_modules(
                [
                    *(remediation_page, incident_reports, report),
                    *(telemetry, jobs, meaning, history, interruptions, weekly_review, policy_comparison, rollouts),
                    fleet_versions,
                    advice,
                    capacity,
                    costs,
                    daily_peaks,
                    demand,
                    quotas,
                    placement,
                ],
            ),
            # What acts, and what leads to it, is done by a job, and reported: nobody materialises it.
            *(observe.validated_observations, understand.health_findings, understand.incidents),
            *(act.remediation_plan, act.action_log, verify.verifications),
            rollouts.rollout_pass,
            quotas.applied_quotas,
        ],
        asset_checks=[
            plan_safety,
            quota_proofs,
            teams_are_declared,
            *build_quality_checks(assets={name: (name,) for name in LAKE_ASSETS}, write_page=write_beside),
        ],
        jobs=JOBS,
        schedules=SCHEDULES,
        sensors=[
            *(fault_sensor, remediation_sensor, drained_node_sensor, live_cycle_sensor),
            *(alert_sensor, message_sensor, rollout_sensor, records_sensor),
        ],
        resources={HANDED_ON: dg.mem_io_manager, **resources},
        # One process a run, back-fills from the UI included: a process a step would import great-expectations for each.
        executor=dg.in_process_executor,
    )


defs = build_defs(resources_of(Path(os.environ.get(CLUSTER_VARIABLE, DEFAULT_CLUSTER_FILE))))
