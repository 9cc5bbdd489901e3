"""The peer of the latency table: the same job, found by an ordinary sensor; whatever is done is done in the run."""

import dagster as dg

from ops_pipelines.acting_jobs import HANDED_ON, remediate
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.definitions import ClusterPorts
from ops_pipelines.observe.intake import take_in_conditions, take_in_logs
from ops_pipelines.remediate.due import due_remediation
from ops_pipelines.sensors.runs import hold_lease, request


@dg.sensor(job=remediate, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
def ordinary_sensor(context: dg.SensorEvaluationContext, cluster: dg.ResourceParam[Cluster]) -> dg.SensorResult:
    """Looks once a turn of the daemon's loop and requests a run for what is new."""
    token = hold_lease(cluster)
    take_in_logs(cluster)
    take_in_conditions(cluster)
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    due = due_remediation(
        state,
        cluster.ledger.conditions(),
        recorded_through=state.decided_through,
        retry_after=cluster.rules.policy.durations.retry_after,
        now=now,
    )
    if due is None or token is None:
        return dg.SensorResult(skip_reason="nothing new and nothing due")
    return dg.SensorResult(run_requests=[request(due, job_name=remediate.name, lease_token=token)])


defs = dg.Definitions(
    jobs=[remediate],
    sensors=[ordinary_sensor],
    resources={
        "cluster": ClusterPorts(),
        HANDED_ON: dg.mem_io_manager,
    },
)
