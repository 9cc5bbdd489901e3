"""Notices new evidence within a fraction of a second and, in the same tick, drains what is broken and marks the jobs of
silent nodes held. Nothing stronger.

A long poll: the daemon's sensor loop turns every 5 s, so a tick looks for 3.8 s and reacts to what it finds without
ending. It looks again without delay while a log pours, soon where one grew, and begins its last look as late as the
looks before allow. Between the end of one tick and the beginning of the next, a good second, a thread looks on at the
logs: else a fault in that second would wait for the next tick. The run that records and does the rest is requested by
`sensors.due_runs`.
"""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache

import dagster as dg

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.sources import SourceError
from ops_pipelines.observe.intake import Intake, take_in_conditions, take_in_logs, wait_for_lines
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.remediate.overlaps import see_to_overlaps
from ops_pipelines.remediate.oversight import page_if_blind, page_if_late, see_to_configuration, tell_ledger_news
from ops_pipelines.remediate.reflex import Attention, react, see_to_marks
from ops_pipelines.remediate.snapshot import begin_reading
from ops_pipelines.remediate.timeliness import note_lease, note_look, note_passing_server, note_refusals, note_silences
from ops_pipelines.sensors.runs import LOOK_EVERY_SECONDS, POLL_FOR, hold_lease, leave_beat, one_at_a_time, why_not_held
from ops_pipelines.sensors.this_process import is_replaced_by_its_caller, this_process

NAME = "fault_sensor"
BETWEEN_TICKS = "between ticks"
"""The thread that looks on."""
_LONGEST_GAP_SECONDS, _LOOK_LASTS_SECONDS = 3.0, 1.0
"""After which nobody looks on where no tick came, and how long a tick waits for the look that is under way."""
_GRACE, _MOST_ROOM = timedelta(seconds=0.2), timedelta(seconds=0.8)
"""By how much the last look may outlast the window, and the most that is left free for it at the window's end: a look
that took longer, for a drain that a scheduler was slow to do, shows nothing of the next."""


@dg.sensor(name=NAME, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
@one_at_a_time
def fault_sensor(context: dg.SensorEvaluationContext, cluster: dg.ResourceParam[Cluster]) -> dg.SensorResult:
    """Takes evidence in, decides on it at once, and drains within the guardrails; everything stronger is a run's."""
    did = _between.end()
    with _collector_at_rest():
        result = _watch(context, cluster, did=did)
    if context.last_tick_completion_time is not None and result.cursor is not None:
        _between.begin(cluster)  # Only where ticks follow each other: who asks once gets one tick.
    return result


class _BetweenTicks:
    """Looks at the logs from the end of a tick to the beginning of the next, which shows what came of it."""

    def __init__(self) -> None:
        self._did: list[str] = []
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, cluster: Cluster) -> None:
        """Begin to look, for a limited time: where no tick follows, nobody is at work here any more."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._is_over = threading.Event()
        looking = threading.Thread(target=self._look_on, args=(cluster, self._is_over), name=BETWEEN_TICKS, daemon=True)
        self._thread = looking
        looking.start()

    def end(self) -> list[str]:
        """End the looks, and return what came of them; one that is at an act is left to it."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(_LOOK_LASTS_SECONDS)
        did, self._did = self._did, []
        return did

    def _look_on(self, cluster: Cluster, is_over: threading.Event) -> None:
        give_up_at = time.monotonic() + _LONGEST_GAP_SECONDS
        attention = Attention(ends_at=cluster.clock.now() + timedelta(seconds=_LONGEST_GAP_SECONDS))
        logs: Intake | None = None
        try:
            with _collector_at_rest():
                while not _wait(cluster, logs, wait=is_over.wait) and time.monotonic() < give_up_at:
                    token = hold_lease(cluster)
                    if token is None:
                        return
                    reading = begin_reading(cluster) if logs is not None and logs.is_pouring else None
                    logs = take_in_logs(cluster)
                    lease = Lease(holder=this_process(), given=token)
                    reaction = react(cluster, lease=lease, attention=attention, reading=reading)
                    self._did += [str(reaction)] if reaction is not None and reaction.is_worth_telling else []
        except (SourceError, LedgerError) as problem:  # The next tick meets it again, or reports it.
            self._did.append(f"a look between ticks failed: {problem}")


_between = _BetweenTicks()


def _watch(context: dg.SensorEvaluationContext, cluster: Cluster, *, did: list[str]) -> dg.SensorResult:
    tell_ledger_news(cluster)
    if is_replaced_by_its_caller():
        note_passing_server(cluster)
    note_refusals(cluster)
    note_lease(cluster)
    looked_at = datetime.fromisoformat(context.cursor) if context.cursor else None
    stop_at = cluster.clock.now() + POLL_FOR
    answers: dict[str, str | None] = {}
    attention = Attention(ends_at=stop_at)
    room, is_pouring, has_seen_to_configuration = timedelta(0), False, False
    seen: Intake | None = None  # What the last look at the conditions saw, and nobody has seen to yet.
    while True:
        now = cluster.clock.now()
        token = hold_lease(cluster)
        if token is None:
            note = why_not_held(cluster)
            leave_beat(context, cluster, name=NAME, note=note)
            return dg.SensorResult(skip_reason=note, cursor=context.cursor)
        lease = Lease(holder=this_process(), given=token)
        if not has_seen_to_configuration:
            see_to_configuration(cluster, lease=lease)
            has_seen_to_configuration = True
        began_at, has_decided = cluster.clock.now(), False
        # Asked while the logs are read, but only where they are known to hold something: a scheduler is not to be asked
        # five times a second for nothing.
        reading = begin_reading(cluster) if is_pouring else None
        logs = take_in_logs(cluster)
        is_pouring = logs.is_pouring
        answers |= logs.answers
        try:
            reaction = react(cluster, lease=lease, attention=attention, reading=reading)
        except SourceError as problem:
            answers["scheduler"] = str(problem)
        else:
            has_decided = reaction is not None
            did += [str(reaction)] if reaction is not None and reaction.is_worth_telling else []
        if seen is not None:  # It is decided on by now, so that each silence has its incident.
            try:
                marked = see_to_marks(cluster, lease=lease)
            except SourceError as problem:
                answers["scheduler"] = str(problem)
            else:
                did += [marked] if marked else []
            see_to_overlaps(cluster, seen, lease=lease)
            seen = None
        room = cluster.clock.now() - began_at if has_decided else room
        # Metrics answer late: what the logs say does not wait for them, and the next look decides on what they show.
        # Not once the window is over: on a starved host each look lasts until the next is due, and no tick would end.
        is_time = looked_at is None or now - looked_at >= cluster.rules.policy.durations.look_every
        are_conditions_due = is_time and now < stop_at
        if are_conditions_due:
            conditions = take_in_conditions(cluster)
            answers |= conditions.answers
            note_look(cluster)
            note_silences(cluster, conditions.nodes or ())
            page_if_blind(cluster, conditions, lease=lease)
            page_if_late(cluster, lease=lease)
            looked_at, seen = now, conditions
        left = (stop_at - cluster.clock.now() - _beyond_grace(room)).total_seconds()
        if left <= 0 and not are_conditions_due:
            break
        _wait(cluster, None if are_conditions_due else logs, wait=cluster.clock.wait, at_most_seconds=left)
    note = "; ".join(did) or "nothing new"
    leave_beat(context, cluster, name=NAME, note=note, answers=answers)
    for source, answer in sorted(answers.items()):
        if answer is not None:
            context.log.warning("source=%s did not answer: %s", source, answer)
    return dg.SensorResult(skip_reason=note, cursor=None if looked_at is None else looked_at.isoformat())


def _wait(
    cluster: Cluster,
    logs: Intake | None,
    *,
    wait: Callable[[float], object],
    at_most_seconds: float = LOOK_EVERY_SECONDS,
) -> bool:
    """Wait for the next look after one that found `logs`; None: it is due now. Return whether nobody waits any more.

    After a look without a line a log that grows is looked at within a fraction of the time. One that always grows is
    not: a look costs a hundred times what a glance does.
    """
    if logs is None or logs.is_pouring:
        return bool(wait(0.0))
    seconds = min(LOOK_EVERY_SECONDS, at_most_seconds)
    return bool(wait(seconds)) if logs.line_count else wait_for_lines(cluster, seconds, wait=wait)


def _beyond_grace(room: timedelta) -> timedelta:
    """Return how long before the window's end a look has to begin that will take `room`."""
    return max(timedelta(0), min(room, _MOST_ROOM) - _GRACE)


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Keep Python's collector of cyclic garbage out of a tick.

    A storm makes hundreds of thousands of values, none of them cyclic, and the collector would go through them, and
    through all that Dagster has loaded, again and again: half of a storm's time (measured).
    """
    _set_apart_what_is_loaded()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def _set_apart_what_is_loaded() -> None:
    """Take what lives as long as the process out of every later collection; once a process."""
    gc.collect()
    gc.freeze()
