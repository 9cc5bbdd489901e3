"""Forgets what Dagster keeps of turns that found nothing and of runs that are long over. Requests no run.

Dagster purges ticks by whole days (dagster.yaml), of which sensors leave 80,000 each, and runs it never purges. What
was seen, decided and done stands in the ledger and the lake, of which this touches nothing.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import dagster as dg
from dagster._core.scheduler.instigation import TickStatus
from dagster._core.storage.event_log.sqlite import SqliteEventLogStorage

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.sensors.runs import hold_lease, one_at_a_time

NAME = "records_sensor"
EVERY = timedelta(minutes=10)
IDLE_TURNS_KEPT = timedelta(hours=3)
"""Of turns that requested nothing; those of others are dagster.yaml's."""
FLEETING_RUNS_KEPT = timedelta(days=2)
RUNS_KEPT = timedelta(days=60)
"""Of all others, and of those that failed. An hour of the lake whose run is forgotten stays in the lake; Dagster's page
of its asset calls it missing."""
FLEETING = ("remediate", "verify_nodes", "advance_rollouts", "report_shift", "keep_lake", "warn_of_idle")
"""Jobs that run often, and whose work the ledger tells."""
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_AT_ONCE = 100
"""So many runs of a kind in one turn: it must not hold up a database, and the next turn comes soon."""


@dg.sensor(
    name=NAME, minimum_interval_seconds=int(EVERY.total_seconds()), default_status=dg.DefaultSensorStatus.RUNNING
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
