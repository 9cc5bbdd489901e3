"""Requests runs for what is due: remediation, the verification of repaired nodes, a pass over rollouts. Never acts.

The remediation sensor is a long poll of the ledger, which the fault sensor fills; what is worth a run is judged by
`remediate.due` and `rollouts.cycle`.
"""

from dataclasses import dataclass, replace
from datetime import timedelta

import dagster as dg

from ops_pipelines.acting_jobs import advance_rollouts, remediate, verify_nodes
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import HeldLease, LedgerState
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import NO_NODE
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.due import (
    Due,
    due_moment,
    due_remediation,
    due_takeover,
    due_verification,
    epoch_of_key,
    under_epoch,
)
from ops_pipelines.remediate.oversight import rules_changed_at
from ops_pipelines.remediate.snapshot import EVIDENCE_AT_ONCE
from ops_pipelines.rollouts.cycle import due_rollout
from ops_pipelines.run_lanes import ACTING_SIDE_BY_SIDE, ACTING_TAGS, ROLLOUT_TAGS, VERIFYING_TAGS
from ops_pipelines.run_share import REQUESTED_TAG, footprints_of, shares_under_way
from ops_pipelines.sensors.runs import (
    LOOK_EVERY_SECONDS,
    POLL_FOR,
    count_runs_under_way,
    hold_epoch,
    is_run_under_way,
    leave_beat,
    note_of,
    one_at_a_time,
    request,
    why_not_held,
)

_LOOK_BESIDE_EVERY = timedelta(seconds=1)
"""Where a run is under way: what it leaves is read from Dagster's storage, the plans and the evidence."""
_LOOK_AT_JOBS_EVERY = timedelta(seconds=2)
"""Where a plan waits for a job's checkpoint: each second later is a second of the whole job done twice."""


@dg.sensor(job_name=remediate.name, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
@one_at_a_time
def remediation_sensor(context: dg.SensorEvaluationContext, cluster: dg.ResourceParam[Cluster]) -> dg.SensorResult:
    """Requests a run when there is new evidence, or when an open incident is due for its next step.

    Beside a run under way only for what that leaves: no evidence of its nodes, no incident of its own, nothing whose
    nodes it needs. The cursor is the evidence up to which a run was requested, and the key of the last request: Dagster
    starts a key once, so asking again would only end the tick. A key of another epoch shows that the lease has changed
    hands since: what was half-way then is continued at once.
    """
    result = _look(context, cluster)
    leave_beat(context, cluster, name="remediation_sensor", note=note_of(result))
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cursor:
    """What Dagster keeps between ticks."""

    recorded_through: int = 0
    """The evidence up to which a run was requested."""
    last_key: str = ""
    left_from: int = 0
    """The first evidence since then that was left to a run under way, which may have looked before it came; 0: none."""

    @classmethod
    def read(cls, text: str | None) -> "_Cursor":
        head, last_key, left_from = [*(text or "0").split(" "), "", ""][:3]
        return cls(recorded_through=int(head), last_key=last_key, left_from=int(left_from or "0"))

    def __str__(self) -> str:
        left = f" {self.left_from}" if self.left_from else ""
        return f"{self.recorded_through} {self.last_key}{left}"


def _look(context: dg.SensorEvaluationContext, cluster: Cluster) -> dg.SensorResult:
    cursor = _Cursor.read(context.cursor)
    recorded_through = cursor.recorded_through if not cursor.left_from else cursor.left_from - 1
    stop_at = cluster.clock.now() + POLL_FOR
    skip = "nothing new and nothing due"
    held: HeldLease | None = None
    look_at_jobs_at = look_beside_at = cluster.clock.now()
    changed_at = rules_changed_at(cluster)

    def due_in(state: LedgerState, *, recorded_through: int) -> Due | None:
        return due_remediation(
            state,
            cluster.ledger.conditions(),
            recorded_through=recorded_through,
            retry_after=cluster.rules.policy.durations.retry_after,
            rules_changed_at=changed_at,
            now=now,
        )

    while True:
        now, left_from = cluster.clock.now(), 0
        are_jobs_due = now >= look_at_jobs_at
        state = cluster.ledger.read_state(now)
        due = due_in(state, recorded_through=recorded_through)
        if due is not None and due.evidence_after is not None and cursor.left_from:
            # The run beside which it was left was asked for under the same evidence, maybe a moment ago.
            due = replace(due, run_key=f"{due.run_key}:left")
        if due is None and are_jobs_due:
            due, look_at_jobs_at = due_moment(cluster, state), now + _LOOK_AT_JOBS_EVERY
        if held is None:
            held = hold_epoch(cluster)
        if held is None:
            return dg.SensorResult(skip_reason=why_not_held(cluster), cursor=context.cursor)
        if due is None and epoch_of_key(cursor.last_key) != held.epoch:
            due = due_takeover(state, epoch=held.epoch, now=now)
        if due is not None and (count := count_runs_under_way(context.instance, lease_token=held.token)):
            skip = f"{due.reason}; a run is under way already"
            due = rest = None
            if count < ACTING_SIDE_BY_SIDE and now >= look_beside_at:
                look_beside_at = now + _LOOK_BESIDE_EVERY
                rest = _rest_of(state, cursor, context.instance, cluster)
            if rest is not None:
                state, left_from = rest
                due = due_in(state, recorded_through=cursor.recorded_through)
                if due is None and are_jobs_due:
                    due, look_at_jobs_at = due_moment(cluster, state), now + _LOOK_AT_JOBS_EVERY
        due = None if due is None else under_epoch(due, held.epoch)
        if due is not None and due.run_key != cursor.last_key:
            tags = {**ACTING_TAGS, REQUESTED_TAG: now.isoformat()}
            run = request(due, job_name=remediate.name, lease_token=held.token, tags=tags)
            asked = _Cursor(recorded_through=state.evidence_head, last_key=due.run_key, left_from=left_from)
            return dg.SensorResult(run_requests=[run], cursor=str(asked))
        if (cluster.clock.now() - stop_at).total_seconds() > -LOOK_EVERY_SECONDS:
            return dg.SensorResult(skip_reason=skip, cursor=context.cursor)
        cluster.clock.wait(LOOK_EVERY_SECONDS)


def _rest_of(
    state: LedgerState, cursor: _Cursor, instance: dg.DagsterInstance, cluster: Cluster
) -> tuple[LedgerState, int] | None:
    """Return what the runs under way leave to one beside them, and the first evidence that is left to them; 0: none.

    None while one of them has yet to look: it will see what is new itself. What names no node may be anybody's, and a
    storm is one run's.
    """
    shares = shares_under_way(instance)
    if any(each.plans is None for each in shares):
        return None
    theirs = [each for found in footprints_of(shares, cluster).values() for each in found]
    nodes = {name for each in theirs for name in each.nodes}
    incidents = tuple(
        each
        for each in state.incidents
        if not each.nodes & nodes and all(each.incident != other.incident for other in theirs)
    )
    seen_through = min(cursor.recorded_through, state.decided_through)
    evidence = cluster.ledger.evidence_after(seen_through, limit=EVIDENCE_AT_ONCE)
    if len(evidence) == EVIDENCE_AT_ONCE:
        return None
    left = [each.seq for each in evidence if each.observation.node in {*nodes, NO_NODE}]
    head = seen_through if len(left) == len(evidence) else state.evidence_head
    left_from = min((each for each in (cursor.left_from, *left) if each), default=0)
    return replace(state, incidents=incidents, evidence_head=head), left_from


_WATCHED = frozenset({IncidentState.ACTING, IncidentState.VERIFYING, IncidentState.PROBATION, IncidentState.IN_REPAIR})


@dg.sensor(job_name=verify_nodes.name, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
@one_at_a_time
def drained_node_sensor(context: dg.SensorEvaluationContext, cluster: dg.ResourceParam[Cluster]) -> dg.SensorResult:
    """Looks at the nodes that we drained; one that restarted, or has been quiet long enough, is due for its proof."""
    result = _look_at_drained(context, cluster)
    leave_beat(context, cluster, name="drained_node_sensor", note=note_of(result))
    return result


def _look_at_drained(context: dg.SensorEvaluationContext, cluster: Cluster) -> dg.SensorResult:
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


@dg.sensor(job_name=advance_rollouts.name, minimum_interval_seconds=5, default_status=dg.DefaultSensorStatus.RUNNING)
@one_at_a_time
def rollout_sensor(context: dg.SensorEvaluationContext, cluster: dg.ResourceParam[Cluster]) -> dg.SensorResult:
    """Looks at the ledger alone: what is under way there says when the next look at the world is worth a run."""
    result = _look_at_rollouts(context, cluster)
    leave_beat(context, cluster, name="rollout_sensor", note=note_of(result))
    return result


def _look_at_rollouts(context: dg.SensorEvaluationContext, cluster: Cluster) -> dg.SensorResult:
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
