"""Tells people: composes what is new and hands it to the channels. Requests no run, holds up none.

Switched off in the UI, messages wait in the outbox; pages of plans go out all the same.
"""

from datetime import timedelta

import dagster as dg

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.people.compose import tell
from ops_pipelines.people.delivery import deliver, forget_old
from ops_pipelines.sensors.runs import hold_lease, leave_beat, one_at_a_time, why_not_held

_DELIVER_FOR = timedelta(seconds=3)
"""Then the next tick goes on: a channel that hangs costs this sensor's own thread, and no other's."""


@dg.sensor(minimum_interval_seconds=5, default_status=dg.DefaultSensorStatus.RUNNING)
@one_at_a_time
def message_sensor(context: dg.SensorEvaluationContext, cluster: dg.ResourceParam[Cluster]) -> dg.SkipReason:
    """Tells owners, teams and the on-call what changed, grouped and within their limits."""
    if hold_lease(cluster) is None:
        return dg.SkipReason(why_not_held(cluster))
    try:
        told_count = tell(cluster)
        report = deliver(cluster, stop_at=cluster.clock.now() + _DELIVER_FOR)
        forget_old(cluster)
    except LedgerError as problem:
        context.log.warning("messages wait, the ledger did not answer: %s", problem)
        return dg.SkipReason(f"the ledger did not answer: {problem}")
    note = (
        f"{told_count} note(s) composed, {report.sent_count} message(s) sent, {report.failed_count} not taken; "
        f"{report.waiting_count} note(s) waited"
    )
    if report.failed_count:
        context.log.warning("messages not taken=%d given up=%d", report.failed_count, report.given_up_count)
    leave_beat(context, cluster, name="message_sensor", note=note)
    return dg.SkipReason(note)
