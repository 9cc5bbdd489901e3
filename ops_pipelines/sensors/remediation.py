"""Requests one remediation run for whatever is due. Compares, never acts.

A long poll of the ledger, which the fault sensor fills: what is worth a run is `flow.evidence.due`'s judgement.
"""

from datetime import timedelta

import dagster as dg

from ops_pipelines.assets.run_lease import REQUESTED_TAG
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.evidence.due import due_remediation, due_takeover, epoch_of_key, under_epoch
from ops_pipelines.flow.plans.configuration import rules_changed_at
from ops_pipelines.flow.plans.moments import due_moment
from ops_pipelines.ports.ledger import HeldLease
from ops_pipelines.remediation_jobs import remediate
from ops_pipelines.run_lanes import ACTING_TAGS
from ops_pipelines.sensors.runs import (
    LOOK_EVERY_SECONDS,
    POLL_FOR,
    hold_epoch,
    is_run_under_way,
    leave_beat,
    note_of,
    one_at_a_time,
    request,
    why_not_held,
)

_LOOK_AT_JOBS_EVERY = timedelta(seconds=2)
"""Where a plan waits for a job's checkpoint: each second later is a second of the whole job done twice."""


@dg.sensor(job_name=remediate.name, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
@one_at_a_time
def remediation_sensor(context: dg.SensorEvaluationContext, cluster: dg.ResourceParam[Cluster]) -> dg.SensorResult:
    """Requests a run when there is new evidence, or when an open incident is due for its next step.

    The cursor is the evidence up to which a run was requested, and the key of the last request: Dagster starts a key
    once, so asking again would only end the tick. A key of another epoch tells that the lease has changed hands since:
    what was half-way then is gone on with at once.
    """
    result = _look(context, cluster)
    leave_beat(context, cluster, name="remediation_sensor", note=note_of(result))
    return result


def _look(context: dg.SensorEvaluationContext, cluster: Cluster) -> dg.SensorResult:
    head, _, last_key = (context.cursor or "0").partition(" ")
    stop_at = cluster.clock.now() + POLL_FOR
    skip = "nothing new and nothing due"
    held: HeldLease | None = None
    look_at_jobs_at = cluster.clock.now()
    changed_at = rules_changed_at(cluster)
    while True:
        now = cluster.clock.now()
        state = cluster.ledger.read_state(now)
        due = due_remediation(
            state,
            cluster.ledger.conditions(),
            recorded_through=int(head),
            retry_after=cluster.rules.policy.durations.retry_after,
            rules_changed_at=changed_at,
            now=now,
        )
        if due is None and now >= look_at_jobs_at:
            due, look_at_jobs_at = due_moment(cluster, state), now + _LOOK_AT_JOBS_EVERY
        if held is None:
            held = hold_epoch(cluster)
        if held is None:
            return dg.SensorResult(skip_reason=why_not_held(cluster), cursor=context.cursor)
        if due is None and epoch_of_key(last_key) != held.epoch:
            due = due_takeover(state, epoch=held.epoch, now=now)
        due = None if due is None else under_epoch(due, held.epoch)
        if due is not None and due.run_key == last_key:
            due = None
        if due is not None and not is_run_under_way(context.instance, lease_token=held.token):
            tags = {**ACTING_TAGS, REQUESTED_TAG: now.isoformat()}
            run = request(due, job_name=remediate.name, lease_token=held.token, tags=tags)
            return dg.SensorResult(run_requests=[run], cursor=f"{state.evidence_head} {due.run_key}")
        if due is not None:
            skip = f"{due.reason}; a run is under way already"
        if (cluster.clock.now() - stop_at).total_seconds() > -LOOK_EVERY_SECONDS:
            return dg.SensorResult(skip_reason=skip, cursor=context.cursor)
        cluster.clock.wait(LOOK_EVERY_SECONDS)
