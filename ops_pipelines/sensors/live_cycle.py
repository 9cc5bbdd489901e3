"""Keeps the live cycle running beside the code server: a child process that fills the lake. Requests no run.

Switching this sensor off in the UI ends the live cycle within a minute; hours are then filled from the store alone.
"""

import dagster as dg

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.sources import LiveCycle
from ops_pipelines.sensors.runs import hold_lease, leave_beat, one_at_a_time, why_not_held


@dg.sensor(minimum_interval_seconds=10, default_status=dg.DefaultSensorStatus.RUNNING)
@one_at_a_time
def live_cycle_sensor(
    context: dg.SensorEvaluationContext, cluster: dg.ResourceParam[Cluster], live_cycle: dg.ResourceParam[LiveCycle]
) -> dg.SkipReason:
    """Starts and watches the process that reads every source each cycle and writes the lake."""
    if hold_lease(cluster) is None:
        return dg.SkipReason(why_not_held(cluster))
    news = live_cycle.tend()
    leave_beat(context, cluster, name="live_cycle_sensor", note=news.note)
    if not news.is_running:
        context.log.warning("live cycle does not run: %s", news.note)
    return dg.SkipReason(news.note)
