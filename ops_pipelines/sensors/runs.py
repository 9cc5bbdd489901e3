"""What the sensors share: one tick at a time, this code server's lease, whether a run is on its way, one instance.

Dagster makes an instance for each tick of a sensor that has resources, and with it opens its storage: on SQLite it
reads every migration script of its own to see that none is missing. That was 72 % of what a code server used while
nothing happened (measured). An instance may be shared by threads: the daemon and the web page do.

How far the ledger was seen is kept in Dagster's storage too: there it outlives the state directory with all in it. What
is compared, and what follows, is the ledger's (`Ledger.compare_seen`); asked before each tick and each run.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import wraps
from typing import ParamSpec, TypeVar

import dagster as dg
from dagster._core.instance.ref import InstanceRef

from ops_pipelines.assets.loop import EVIDENCE_TAG
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import HeldLease, LedgerError
from ops_pipelines.remediate.due import Due
from ops_pipelines.remediate.judgement import TTL
from ops_pipelines.remediate.oversight import beat
from ops_pipelines.run_lanes import ACTING_TAGS
from ops_pipelines.run_share import LEASE_TAG, UNDER_WAY
from ops_pipelines.sensors.this_process import is_gone, this_process

P = ParamSpec("P")
T = TypeVar("T")
POLL_FOR = timedelta(seconds=3.8)
"""How long a tick looks. The daemon's loop turns every 5 s and leaves out a sensor whose last tick has not ended then:
at 4.8 s every other turn was lost, at 4.2 s still one in four while runs kept two cores busy (measured)."""
LOOK_EVERY_SECONDS = 0.25
_RENEWED_EVERY = timedelta(seconds=1)
"""A lease renewed less long ago is looked at only: a renewal waits for the disk, and a tick looks often."""
_HANGS_AFTER_SECONDS = 300.0
"""Each source has limits of seconds: no tick works for so long, however starved."""
_BEGUN = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED)
STARTED_AT = time.time()
"""Before any run of this code server: its runs are processes that it starts."""


def one_at_a_time(tick: Callable[P, T]) -> Callable[P, T | dg.SkipReason]:
    """Return a tick that is left out while the one before still works in this process.

    The daemon gives a tick up after a minute and asks for the next one; the thread of the first works on. On a host
    with too little CPU four were at it side by side, each later for the others, and nobody looked for ten minutes. One
    that hangs for good keeps the others out for `_HANGS_AFTER_SECONDS`.
    """
    lock = threading.Lock()
    begun_at: list[float] = []

    @wraps(tick)
    def turn(*args: P.args, **kwargs: P.kwargs) -> T | dg.SkipReason:
        began = time.monotonic()
        with lock:
            if any(began - each < _HANGS_AFTER_SECONDS for each in begun_at):
                return dg.SkipReason("the tick before still works: too little CPU here, or a source hangs")
            begun_at.append(began)
        try:
            return tick(*args, **kwargs)
        finally:
            with lock:
                begun_at.remove(began)

    return turn


def why_not_held(cluster: Cluster) -> str:
    """Return why this process does not get the right to act, in words."""
    refused = cluster.ledger.why_refused()
    return "another process holds the lease; it acts, this one watches" if refused is None else refused.words


def hold_lease(cluster: Cluster) -> str | None:
    """Take or renew the right to act for this process; None while another process holds it."""
    held = hold_epoch(cluster)
    return None if held is None else held.token


def hold_epoch(cluster: Cluster) -> HeldLease | None:
    """Take or renew the right to act for this process, and return it; None while another process holds it.

    One that is provably gone is not waited for: a code server that was killed is followed at once by the next.
    """
    now, us = cluster.clock.now(), this_process()
    held = cluster.ledger.held_lease(now)
    if held is not None and held.holder == us and abs(held.expires_at - TTL - now) < _RENEWED_EVERY:
        return held
    token = cluster.ledger.take_lease(holder=us, ttl=TTL, is_gone=is_gone, now=now)
    held = cluster.ledger.held_lease(now)
    return held if held is not None and held.token == token else None


def is_run_under_way(instance: dg.DagsterInstance, *, lease_token: str, tags: Mapping[str, str] = ACTING_TAGS) -> bool:
    """Return whether a run of the same lane is queued, starting or running: it will see what is new itself."""
    return count_runs_under_way(instance, lease_token=lease_token, tags=tags) > 0


def count_runs_under_way(
    instance: dg.DagsterInstance, *, lease_token: str, tags: Mapping[str, str] = ACTING_TAGS
) -> int:
    """Return how many runs of a lane are queued, starting or running under the lease of this process.

    A run under another one can do nothing any more, and most likely died with the code server that started it, of which
    Dagster never hears (tried: a killed code server, its runs with it). It is ended here, also one that is yet to
    begin: else its lane would be held by what is refused whatever it tries.
    """
    under_way = dg.RunsFilter(statuses=list(UNDER_WAY), tags=dict(tags))
    if instance.get_runs_count(under_way) == 0:
        return 0
    for run in instance.get_runs(under_way):
        if run.tags.get(LEASE_TAG, lease_token) == lease_token:
            continue
        why = "the lease that it was asked for under went to another code server"
        if run.status in _BEGUN:
            instance.report_run_failed(run, why)
        else:
            instance.report_run_canceled(run, why)
    return instance.get_runs_count(under_way)


def end_left_behind(instance: dg.DagsterInstance, *, before: float) -> int:
    """End the runs that the code server before this one had started, and return how many. Asked once, with the lease.

    They died with it, and Dagster never hears of that (tried: a code server killed while it filled an hour of the lake;
    its run then held the lake's pool for good, and no hour was filled again). `before` is when this process started, in
    seconds since the epoch.
    """
    started = instance.get_run_records(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    left = [each for each in started if (each.start_time or each.create_timestamp.timestamp()) < before]
    for record in left:
        instance.report_run_failed(record.dagster_run, "the code server that started it is gone")
    return len(left)


def request(due: Due, *, job_name: str, lease_token: str, tags: Mapping[str, str] = ACTING_TAGS) -> dg.RunRequest:
    """Return the request for what is due. The key shows what is asked for once; the token proves the right to act.

    The key is one of `under_epoch`: what was asked for in another's time, and may have died with it, is asked for
    again.
    """
    evidence = {} if due.evidence_after is None else {EVIDENCE_TAG: str(due.evidence_after)}
    return dg.RunRequest(
        run_key=due.run_key,
        job_name=job_name,
        tags={**tags, LEASE_TAG: lease_token, **evidence, "reason": due.reason},
    )


def leave_beat(
    context: dg.SensorEvaluationContext,
    cluster: Cluster,
    *,
    name: str,
    note: str,
    answers: Mapping[str, str | None] | None = None,
) -> None:
    """Write the heartbeat of a tick; one that cannot be written must not cost what the tick found."""
    try:
        beat(cluster, name=name, holder=this_process(), note=note, answers=answers or {})
    except LedgerError as problem:
        context.log.warning("heartbeat=%s not written: %s", name, problem)


def note_of(result: dg.SensorResult) -> str:
    """Return what came of a tick, in words, for its heartbeat."""
    if result.run_requests:
        return f"requested a run: {result.run_requests[0].tags.get('reason', '')}"
    return (result.skip_reason.skip_message if result.skip_reason is not None else None) or "nothing to do"


KEPT_EVERY = timedelta(seconds=30)
"""It may lag; the one in the state directory is newer."""
_kept_at: dict[str, datetime] = {}


def seen_key(cluster: Cluster) -> str:
    """Return the key under which Dagster keeps it."""
    return f"ops_pipelines/ledger_seen/{cluster.name}"


def keep_seen_beside(cluster: Cluster, instance: dg.DagsterInstance) -> None:
    """Compare with what Dagster keeps, and keep there what is newer, every now and then.

    A ledger that cannot be read says so elsewhere.
    """
    key, storage = seen_key(cluster), instance.daemon_cursor_storage
    kept = storage.get_cursor_values({key}).get(key)
    with suppress(LedgerError):
        seen = cluster.ledger.compare_seen(kept)
        now = cluster.clock.now()
        last = _kept_at.get(key)
        is_due = kept is None or last is None or abs(now - last) >= KEPT_EVERY
        if seen is not None and seen != kept and is_due:
            storage.set_cursor_values({key: seen})
            _kept_at[key] = now


_turn = threading.Lock()
_kept: list[tuple[InstanceRef, dg.DagsterInstance]] = []
"""The one instance and what it was made from, or nothing yet."""
_makes_its_own = dg.SensorEvaluationContext.instance.fget  # type: ignore[attr-defined]  # Dagster's decorator hides it


def share_one_instance() -> None:
    """Let the ticks of this process share an instance, unless a test hands one in. To call it twice changes nothing."""
    dg.SensorEvaluationContext.instance = property(_instance_of)  # type: ignore[method-assign,assignment]  # that is the point


def _instance_of(context: dg.SensorEvaluationContext) -> dg.DagsterInstance:
    if context._instance is None and context.instance_ref is not None:
        context._instance = _shared(context.instance_ref)
    return _makes_its_own(context)  # type: ignore[no-any-return]  # as above


def _shared(ref: InstanceRef) -> dg.DagsterInstance:
    """Return the instance of `ref`: the one that is kept, unless the daemon by now names another."""
    with _turn:
        if not _kept or _kept[0][0] != ref:
            _kept[:] = [(ref, dg.DagsterInstance.from_ref(ref))]
        return _kept[0][1]


share_one_instance()  # Every sensor imports this module.
