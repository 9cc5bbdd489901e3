"""Follows one log: reads what is new after a place in it, has it observed, and keeps evidence and place together.

Whoever reads the same log for another purpose has a place of its own. What lines mean is the caller's business.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.observation import Observation, Rejected, as_history, is_history
from ops_pipelines.core.sources import LogBatch, Logs

Told: TypeAlias = tuple[tuple[Observation, ...], tuple[Rejected, ...]]
"""What lines mean, and those that were not believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What came of one reading."""

    line_count: int
    new_count: int
    """Observations that were not evidence before."""
    rejected: tuple[Rejected, ...]
    is_full: bool
    """There may be more lines: as many came as were asked for."""


def follow(
    logs: Logs,
    cluster: Cluster,
    *,
    place: str,
    max_lines: int,
    now: datetime,
    observe: Callable[[LogBatch, str | None], Told],
) -> Followed:
    """Take in what is new in a log since the ledger's cursor named `place`, and move that.

    `observe` is given the batch and the cursor that it was read from; what it keeps elsewhere is kept before the cursor
    moves, so that after a crash a line comes twice, and none is lost. Raises what the log, `observe` and the ledger do.
    """
    before = cluster.ledger.cursor(place)
    batch = logs.read_new(before, max_lines=max_lines)
    is_full = len(batch.lines) == max_lines
    observations, rejected = observe(batch, before)
    observations, past = _without_history(observations, batch, cluster, source=place, before=before, is_full=is_full)
    if not batch.lines and batch.cursor == before:
        return Followed(line_count=0, new_count=0, rejected=(), is_full=False)
    rejected += past
    new_count = cluster.ledger.take_in(
        source=place, observations=observations, rejected=rejected, cursor=batch.cursor, now=now
    )
    return Followed(line_count=len(batch.lines), new_count=new_count, rejected=rejected, is_full=is_full)


def _without_history(
    observations: tuple[Observation, ...],
    batch: LogBatch,
    cluster: Cluster,
    *,
    source: str,
    before: str | None,
    is_full: bool,
) -> tuple[tuple[Observation, ...], tuple[Rejected, ...]]:
    """Return what happened since the ledger lives, and the rest as rejected (the ledger would not take it as evidence).

    A line that says no time may be as old as its file, until a source that was never read before, or whose cursor is
    gone, has been read to its end once.
    """
    reading = f"{source}/first reading"
    noted = cluster.ledger.cursor(reading) or ""
    if not batch.lines and batch.cursor == before and not noted:
        return observations, ()
    until = cluster.ledger.history_until()
    if until is None:
        return observations, ()
    is_first = before is None or (bool(noted) and noted == before)
    goes_on_at = batch.cursor if is_first and is_full else ""
    if is_first and goes_on_at != noted:  # Before the cursor moves: whoever dies in between reads a first time again.
        now = cluster.clock.now()
        cluster.ledger.take_in(source=reading, observations=(), rejected=(), cursor=goes_on_at, now=now)
    undated = {line.position for line in batch.lines if is_first and line.written_at is None}
    kept: list[Observation] = []
    past: list[Observation] = []
    for each in observations:
        (past if each.position in undated or is_history(each, until) else kept).append(each)
    return tuple(kept), tuple(map(as_history, past))
