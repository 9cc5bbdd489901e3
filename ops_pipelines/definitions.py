"""The composition root that Dagster loads: assets, checks, sensors, jobs and schedules on one cluster's ports.

The cluster is named by the environment variable OPS_PIPELINES_CLUSTER (a path to cluster.yaml), else by
cluster.yaml in the working directory. Nothing is opened before the first run or sensor turn needs it.
"""

import os
from pathlib import Path

import dagster as dg

from ops_pipelines.assets import act, observe, report, understand, verify
from ops_pipelines.automation import JOBS, SCHEDULES
from ops_pipelines.checks.plan_safety import plan_safety
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.sensors.fault import fault_sensor
from ops_pipelines.sensors.remediation import remediation_sensor
from ops_pipelines.sensors.returning import drained_node_sensor

CLUSTER_VARIABLE = "OPS_PIPELINES_CLUSTER"
DEFAULT_CLUSTER_FILE = "cluster.yaml"


def cluster_resource(cluster_file: Path) -> dg.ResourceDefinition:
    """Return the ports of one cluster as a resource, opened once a process, when first needed."""

    def open_when_needed(_: dg.InitResourceContext) -> Cluster:
        from ops_pipelines.wiring import open_cluster

        return open_cluster(cluster_file.resolve())

    return dg.ResourceDefinition(
        open_when_needed, description=f"Scheduler, fleet, telemetry, logs, ledger and notifier of {cluster_file.name}."
    )


def build_defs(cluster: dg.ResourceDefinition) -> dg.Definitions:
    """Return the definitions on the given resource; tests bring a cluster of their own."""
    return dg.Definitions(
        assets=dg.load_assets_from_modules([observe, understand, act, verify, report]),
        asset_checks=[plan_safety],
        jobs=JOBS,
        schedules=SCHEDULES,
        sensors=[fault_sensor, remediation_sensor, drained_node_sensor],
        resources={"cluster": cluster},
    )


defs = build_defs(cluster_resource(Path(os.environ.get(CLUSTER_VARIABLE, DEFAULT_CLUSTER_FILE))))
