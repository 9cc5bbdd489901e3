"""Requests a pass over the rollouts as soon as one is worth it: a wave has soaked, a node is on its way. Never acts."""

import dagster as dg

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.remediate.due import under_epoch
from ops_pipelines.rollout_jobs import advance_rollouts
from ops_pipelines.rollouts.cycle import due_rollout
from ops_pipelines.run_lanes import ROLLOUT_TAGS
from ops_pipelines.sensors.runs import (
    hold_epoch,
    is_run_under_way,
    leave_beat,
    note_of,
    one_at_a_time,
    request,
    why_not_held,
)


@dg.sensor(job_name=advance_rollouts.name, minimum_interval_seconds=5, default_status=dg.DefaultSensorStatus.RUNNING)
@one_at_a_time
def rollout_sensor(context: dg.SensorEvaluationContext, cluster: dg.ResourceParam[Cluster]) -> dg.SensorResult:
    """Looks at the ledger alone: what is under way there says when the next look at the world is worth a run."""
    result = _look(context, cluster)
    leave_beat(context, cluster, name="rollout_sensor", note=note_of(result))
    return result


def _look(context: dg.SensorEvaluationContext, cluster: Cluster) -> dg.SensorResult:
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    due = due_rollout(state, cluster.ledger, limits=cluster.rules.policy.rollouts, now=now)
    if due is None:
        return dg.SensorResult(skip_reason="no rollout is due", cursor=context.cursor)
    held = hold_epoch(cluster)
    if held is None:
        return dg.SensorResult(skip_reason=why_not_held(cluster), cursor=context.cursor)
    due = under_epoch(due, held.epoch)
    if due.run_key == context.cursor:
        return dg.SensorResult(skip_reason="no rollout is due", cursor=context.cursor)
    if is_run_under_way(context.instance, lease_token=held.token, tags=ROLLOUT_TAGS):
        return dg.SensorResult(skip_reason=f"{due.reason}; a pass is under way already", cursor=context.cursor)
    run = request(due, job_name=advance_rollouts.name, lease_token=held.token, tags=ROLLOUT_TAGS)
    return dg.SensorResult(run_requests=[run], cursor=due.run_key)
