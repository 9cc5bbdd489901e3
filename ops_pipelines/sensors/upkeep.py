"""Sensors that request no run: alerts and silences, messages to people, the live cycle, Dagster's own records.

Switched off in the UI: messages wait in the outbox while pages of plans go out all the same; the live cycle ends within
a minute, and hours are then filled from the store alone; runs that a killed code server left behind are not ended.

Dagster purges ticks by whole days (dagster.yaml), of which sensors leave 80,000 each, and runs it never purges. What
was seen, decided and done is in the ledger and the lake, of which nothing here is touched.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import dagster as dg
from dagster._core.scheduler.instigation import TickStatus
from dagster._core.storage.event_log.sqlite import SqliteEventLogStorage

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.sources import LiveCycle
from ops_pipelines.observe.alerts import forget_untold
from ops_pipelines.people.compose import tell
from ops_pipelines.people.delivery import deliver, forget_old
from ops_pipelines.people.planned_work import keep_silences
from ops_pipelines.sensors.runs import STARTED_AT, end_left_behind, hold_lease, leave_beat, one_at_a_time, why_not_held
from ops_pipelines.sensors.this_process import is_replaced_by_its_caller

ALERT_SENSOR = "alert_sensor"
ALERTS_EVERY = timedelta(seconds=20)
"""A drained node alerts after a minute or more (`for:` of its rules): its silence is there before."""


@dg.sensor(
    name=ALERT_SENSOR,
    minimum_interval_seconds=int(ALERTS_EVERY.total_seconds()),
    default_status=dg.DefaultSensorStatus.RUNNING,
)
@one_at_a_time
def alert_sensor(context: dg.SensorEvaluationContext, cluster: dg.ResourceParam[Cluster]) -> dg.SkipReason:
    """Never requests a run: what it does is cheap, and waits for nobody."""
    note = _alert_turn(cluster)
    leave_beat(context, cluster, name=ALERT_SENSOR, note=note)
    return dg.SkipReason(note)


def _alert_turn(cluster: Cluster) -> str:
    if hold_lease(cluster) is None:
        return why_not_held(cluster)
    forgotten = forget_untold(cluster)
    told = [f"forgot {len(forgotten)} alert(s) that were not reported for a day"] if forgotten else []
    if cluster.silencer is None:
        return "; ".join(told) or "no Alertmanager is notified of planned work"
    return "; ".join([*told, keep_silences(cluster.silencer, cluster)])


_DELIVER_FOR = timedelta(seconds=3)
"""Then the next tick continues: a channel that hangs costs this sensor's own thread, and no other's."""


@dg.sensor(minimum_interval_seconds=5, default_status=dg.DefaultSensorStatus.RUNNING)
@one_at_a_time
def message_sensor(context: dg.SensorEvaluationContext, cluster: dg.ResourceParam[Cluster]) -> dg.SkipReason:
    """Notifies owners, teams and the on-call what changed, grouped and within their limits."""
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


_SWEPT_UNDER: set[str] = set()
"""Leases of this process under which it has ended what was left behind: none is left behind while it lives."""


@dg.sensor(minimum_interval_seconds=10, default_status=dg.DefaultSensorStatus.RUNNING)
@one_at_a_time
def live_cycle_sensor(
    context: dg.SensorEvaluationContext, cluster: dg.ResourceParam[Cluster], live_cycle: dg.ResourceParam[LiveCycle]
) -> dg.SkipReason:
    """Starts and watches the process that reads every source each cycle and writes the lake."""
    lease = hold_lease(cluster)
    if lease is None:
        return dg.SkipReason(why_not_held(cluster))
    # A code server that is replaced while it lives may have runs that live as well.
    if lease not in _SWEPT_UNDER and not is_replaced_by_its_caller():
        if left_count := end_left_behind(context.instance, before=STARTED_AT):
            context.log.warning("ended runs=%d that a code server before this one left behind", left_count)
        _SWEPT_UNDER.add(lease)
    news = live_cycle.tend()
    leave_beat(context, cluster, name="live_cycle_sensor", note=news.note)
    if not news.is_running:
        context.log.warning("live cycle does not run: %s", news.note)
    return dg.SkipReason(news.note)


RECORDS_SENSOR = "records_sensor"
RECORDS_EVERY = timedelta(minutes=10)
IDLE_TURNS_KEPT = timedelta(hours=3)
"""Of turns that requested nothing; those of others are dagster.yaml's."""
FLEETING_RUNS_KEPT = timedelta(days=2)
RUNS_KEPT = timedelta(days=60)
"""Of all others, and of those that failed. An hour of the lake whose run is forgotten stays in the lake; Dagster's page
of its asset calls it missing."""
FLEETING = ("remediate", "verify_nodes", "advance_rollouts", "report_shift", "keep_lake", "warn_of_idle")
"""Jobs that run often, and whose work the ledger shows."""
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_AT_ONCE = 100
"""So many runs of a kind in one turn: it must not hold up a database, and the next turn comes soon."""


@dg.sensor(
    name=RECORDS_SENSOR,
    minimum_interval_seconds=int(RECORDS_EVERY.total_seconds()),
    default_status=dg.DefaultSensorStatus.RUNNING,
)
@one_at_a_time
def records_sensor(context: dg.SensorEvaluationContext, cluster: dg.ResourceParam[Cluster]) -> dg.SkipReason:
    """Keeps Dagster's own records small."""
    if hold_lease(cluster) is None:
        return dg.SkipReason("another process holds the lease; its code server forgets")
    now = cluster.clock.now()
    _forget_idle_turns(context.instance, before=now - IDLE_TURNS_KEPT)
    count = 0
    for record in _over_for_long(context.instance, now=now):
        _forget_run(context.instance, record.dagster_run.run_id)
        count += 1
    return dg.SkipReason(f"forgot {count} run(s) that were over for long, and turns that found nothing")


def _forget_idle_turns(instance: dg.DagsterInstance, *, before: datetime) -> None:
    for state in instance.all_instigator_state():
        instance.purge_ticks(
            state.instigator_origin_id,
            state.selector_id,
            before=before.timestamp(),
            tick_statuses=[TickStatus.SKIPPED],
        )


def _over_for_long(instance: dg.DagsterInstance, *, now: datetime) -> Iterator[dg.RunRecord]:
    asked = [
        dg.RunsFilter(job_name=name, statuses=[dg.DagsterRunStatus.SUCCESS], created_before=now - FLEETING_RUNS_KEPT)
        for name in FLEETING
    ]
    for each in (*asked, dg.RunsFilter(statuses=_ENDED, created_before=now - RUNS_KEPT)):
        yield from instance.get_run_records(each, limit=_AT_ONCE, ascending=True)


def _forget_run(instance: dg.DagsterInstance, run_id: str) -> None:
    """Delete a run, what it logged and what it printed; on SQLite also the file of its events, which Dagster leaves."""
    instance.delete_run(run_id)
    instance.compute_log_manager.delete_logs(prefix=[run_id])
    events = instance.event_log_storage
    if isinstance(events, SqliteEventLogStorage):
        shard = Path(events.path_for_shard(run_id))
        for path in (shard, Path(f"{shard}-wal"), Path(f"{shard}-shm")):
            with suppress(FileNotFoundError):
                path.unlink()
