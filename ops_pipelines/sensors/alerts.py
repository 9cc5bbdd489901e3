"""Forgets alerts that are over, and keeps Alertmanager's silences in step with the nodes that are out of service."""

from datetime import timedelta

import dagster as dg

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.observe.alerts import forget_untold
from ops_pipelines.people.silences import keep_silences
from ops_pipelines.sensors.runs import hold_lease, leave_beat, one_at_a_time, why_not_held

NAME = "alert_sensor"
EVERY = timedelta(seconds=20)
"""A drained node alerts after a minute or more (`for:` of its rules): its silence is there before."""


@dg.sensor(
    name=NAME, minimum_interval_seconds=int(EVERY.total_seconds()), default_status=dg.DefaultSensorStatus.RUNNING
)
@one_at_a_time
def alert_sensor(context: dg.SensorEvaluationContext, cluster: dg.ResourceParam[Cluster]) -> dg.SkipReason:
    """Never requests a run: what it does is cheap, and waits for nobody."""
    note = _turn(cluster)
    leave_beat(context, cluster, name=NAME, note=note)
    return dg.SkipReason(note)


def _turn(cluster: Cluster) -> str:
    if hold_lease(cluster) is None:
        return why_not_held(cluster)
    forgotten = forget_untold(cluster)
    told = [f"forgot {len(forgotten)} alert(s) that were not told for a day"] if forgotten else []
    if cluster.silencer is None:
        return "; ".join(told) or "no Alertmanager is told of planned work"
    return "; ".join([*told, keep_silences(cluster.silencer, cluster)])
