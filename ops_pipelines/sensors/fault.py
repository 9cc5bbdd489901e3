"""Notices new evidence within a fraction of a second and, in the same tick, drains what is broken. Nothing stronger.

A long poll: the daemon's sensor loop turns every 5 s, so a tick looks for 3.8 s and reacts to what it finds without
ending. The run that records and does the rest is requested by `sensors.remediation`.
"""

from datetime import datetime, timedelta

import dagster as dg

from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.intake import take_in_conditions, take_in_logs
from ops_pipelines.flow.lease import Lease
from ops_pipelines.flow.overdue import page_if_blind
from ops_pipelines.flow.reflex import react
from ops_pipelines.ports.source_error import SourceError
from ops_pipelines.sensors.runs import LOOK_EVERY_SECONDS, POLL_FOR, hold_lease, leave_beat, this_process

NAME = "fault_sensor"
_ROOM_TO_REACT = timedelta(seconds=0.8)


@dg.sensor(name=NAME, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
def fault_sensor(context: dg.SensorEvaluationContext, cluster: dg.ResourceParam[Cluster]) -> dg.SensorResult:
    """Takes evidence in, decides on it at once, and drains within the guardrails; everything stronger is a run's."""
    looked_at = datetime.fromisoformat(context.cursor) if context.cursor else None
    stop_at = cluster.clock.now() + POLL_FOR
    answers: dict[str, str | None] = {}
    did: list[str] = []
    while True:
        now = cluster.clock.now()
        token = hold_lease(cluster)
        if token is None:
            note = "another process holds the lease; it acts, this one watches"
            return dg.SensorResult(skip_reason=note, cursor=context.cursor)
        lease = Lease(holder=this_process(), given=token)
        answers |= take_in_logs(cluster).answers
        if looked_at is None or now - looked_at >= cluster.rules.policy.durations.look_every:
            conditions = take_in_conditions(cluster)
            answers |= conditions.answers
            page_if_blind(cluster, conditions, lease=lease)
            looked_at = now
        try:
            reaction = react(cluster, lease=lease)
        except SourceError as problem:
            answers["scheduler"] = str(problem)
        else:
            did += [str(reaction)] if reaction is not None else []
        # What it did took time: a tick that has reacted ends early rather than too late.
        left = stop_at - cluster.clock.now() - (_ROOM_TO_REACT if did else timedelta(0))
        if left.total_seconds() < LOOK_EVERY_SECONDS:
            break
        cluster.clock.wait(LOOK_EVERY_SECONDS)
    note = "; ".join(did) or "nothing new"
    leave_beat(context, cluster, name=NAME, note=note, answers=answers)
    for source, answer in sorted(answers.items()):
        if answer is not None:
            context.log.warning("source=%s did not answer: %s", source, answer)
    return dg.SensorResult(skip_reason=note, cursor=looked_at.isoformat())
