"""Notices drained nodes that are back from their repair and requests their verification. Never acts."""

import dagster as dg

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.due import due_verification, under_epoch
from ops_pipelines.remediation_jobs import verify_nodes
from ops_pipelines.run_lanes import VERIFYING_TAGS
from ops_pipelines.sensors.runs import hold_epoch, is_run_under_way, leave_beat, note_of, one_at_a_time, request

_WATCHED = frozenset({IncidentState.ACTING, IncidentState.VERIFYING, IncidentState.PROBATION, IncidentState.IN_REPAIR})


@dg.sensor(job_name=verify_nodes.name, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
@one_at_a_time
def drained_node_sensor(context: dg.SensorEvaluationContext, cluster: dg.ResourceParam[Cluster]) -> dg.SensorResult:
    """Looks at the nodes that we drained; one that restarted, or has been quiet long enough, is due for its proof."""
    result = _look(context, cluster)
    leave_beat(context, cluster, name="drained_node_sensor", note=note_of(result))
    return result


def _look(context: dg.SensorEvaluationContext, cluster: Cluster) -> dg.SensorResult:
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    waiting = [each for each in state.incidents if each.state in _WATCHED]
    if not waiting:
        return dg.SensorResult(skip_reason="no drained node of ours waits for its proof")
    try:
        nodes = cluster.scheduler.read_nodes()
    except SourceError as problem:
        return dg.SensorResult(skip_reason=f"the scheduler did not answer: {problem}")
    durations = cluster.rules.policy.durations
    conditions = cluster.ledger.conditions()
    due = due_verification(state, nodes, conditions, durations=durations, retry_after=durations.retry_after, now=now)
    if due is None:
        return dg.SensorResult(skip_reason=f"{len(waiting)} node(s) still in repair, soaking or on probation")
    held = hold_epoch(cluster)
    if held is None or is_run_under_way(context.instance, lease_token=held.token, tags=VERIFYING_TAGS):
        return dg.SensorResult(
            skip_reason=f"{due.reason}; a run is under way already, or another process holds the lease"
        )
    run = request(under_epoch(due, held.epoch), job_name=verify_nodes.name, lease_token=held.token, tags=VERIFYING_TAGS)
    return dg.SensorResult(run_requests=[run])
