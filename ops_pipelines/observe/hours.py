"""Reads intervals of time from the sources, for the lake: what an hour's partition is filled with, live or years later.

A source that does not answer raises: a partition that lacks a source is no partition. Writing is the caller's.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ops_pipelines.core.cluster import Observatory
from ops_pipelines.core.observation import NodeStatus
from ops_pipelines.core.sources import LogLine, Logs, Rows, SourceError
from ops_pipelines.lake.quantities import Parsed

if TYPE_CHECKING:
    from ops_pipelines.observe.logs.tables import Writer

_LINES_AT_ONCE = 50_000
"""Bounds memory while kept logs are read from their beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What the sources gave for an interval of time."""

    tables: Mapping[str, Rows]
    read_count: int
    accepted_count: int
    ignored_count: int
    reasons: Mapping[str, int]
    """Reason -> records rejected for it."""
    notes: tuple[str, ...]
    """Warnings of the sources: what they say may be missing."""
    retold: frozenset[datetime] = frozenset()
    """Grid times of which the stores of metrics reported all that they have (`core.sources.WholeHour`); none if they
    warned."""


def fill_metrics(observatory: Observatory, *, tables: Collection[str], start: datetime, end: datetime) -> Filled:
    """Return the rows of `tables` at the grid times in [start, end) from every source that knows its past."""
    from ops_pipelines.lake.metrics.pages import combine, read_page, rejected_rows, told_times
    from ops_pipelines.lake.node_names import NodeNames

    names = NodeNames(observatory.topology.places)
    queries = [query for query in observatory.queries if query.table is None or query.table in tables]
    first, last = _grid_within(observatory, start=start, end=end)
    parts: list[Parsed] = []
    notes: list[str] = []
    refused: list[Rows] = []
    told: set[datetime] = set()
    if first <= last:
        for source in observatory.metrics:
            if not source.has_history:
                continue
            for page in source.read_range(queries, start=first, end=last, step_seconds=observatory.step_seconds):
                read = read_page(page, names=names)
                parsed = read.parsed
                parts.append(parsed)
                told |= told_times(read.block)
                notes += page.notes
                if parsed.refused:
                    refused.append(rejected_rows(parsed.refused, source=page.source, at=page.start))
    filled = _filled(combine(parts), tables=tables, notes=notes, refused=refused)
    # The store is the truth of an hour: what it has no more of a grid time goes, or the bytes would depend on who was
    # watching. But who says that something is missing cannot take back what was seen.
    return filled if notes else replace(filled, retold=frozenset(told))


def fill_accounting(observatory: Observatory, *, start: datetime, end: datetime) -> Filled:
    """Return attempts: those that ended in [start, end) in full, and who held which node within each hour of it."""
    from ops_pipelines.lake.accounting import read_ended, read_held
    from ops_pipelines.lake.metrics.pages import combine, rejected_rows, settle_nodes
    from ops_pipelines.lake.node_names import NodeNames

    if observatory.accounting is None:
        return _filled(combine(()), tables=(), notes=("no accounting is configured",), refused=())
    accounting = observatory.accounting
    ended: list[Parsed] = []
    refused: list[Rows] = []
    for page in accounting.read_attempts(start=start, end=end):
        parsed = read_ended(page.body, source=page.source, start=start)
        ended.append(parsed)
        if parsed.refused:
            # Rows are known by their line, and pages are distinguished by their beginning.
            refused.append(rejected_rows(parsed.refused, source=accounting.source, at=page.start))
    held = combine(
        read_held(page.body, source=page.source, start=start, end=end)
        for page in accounting.read_overlapping(start=start, end=end)
    )
    whole = combine(ended)
    # The records are those of what ended: what was held is another look at some of them.
    both = replace(whole, tables={**whole.tables, **held.tables})
    names = NodeNames(observatory.topology.places)
    return _filled(settle_nodes(both, names), tables=None, notes=(), refused=refused)


def fill_kernel_events(observatory: Observatory, *, start: datetime, end: datetime) -> Filled:
    """Return the lines that kernels wrote in [start, end) and that the sources still keep, as rows."""
    from ops_pipelines.observe.logs.tables import Writer

    return _fill_lines(observatory.kernel_logs, observatory, writer=Writer.KERNEL, start=start, end=end)


def fill_job_logs(observatory: Observatory, *, start: datetime, end: datetime) -> Filled:
    """Return the lines that jobs wrote in [start, end), as far as they say when, as rows."""
    from ops_pipelines.observe.logs.tables import Writer

    return _fill_lines(observatory.job_logs, observatory, writer=Writer.JOB, start=start, end=end)


def _fill_lines(
    sources: Sequence[Logs], observatory: Observatory, *, writer: "Writer", start: datetime, end: datetime
) -> Filled:
    from ops_pipelines.lake.metrics.pages import combine, rejected_rows, settle_nodes
    from ops_pipelines.lake.node_names import NodeNames
    from ops_pipelines.observe.logs.tables import tabulate_lines

    parts: list[Parsed] = []
    notes: list[str] = []
    refused: list[Rows] = []
    for logs in sources:
        cursor: str | None = None
        while True:
            batch = logs.read_new(cursor, max_lines=_LINES_AT_ONCE)
            notes += batch.notes
            within = [line for line in batch.lines if _is_within(line, start=start, end=end)]
            if within:
                parsed = tabulate_lines(within, source=logs.source, at=start, writer=writer)
                parts.append(parsed)
                if parsed.refused:
                    refused.append(rejected_rows(parsed.refused, source=logs.source, at=start))
            if not batch.lines or batch.cursor == cursor:
                break
            cursor = batch.cursor
    marked = settle_nodes(combine(parts), NodeNames(observatory.topology.places))
    return _filled(marked, tables=None, notes=notes, refused=refused)


def _is_within(line: LogLine, *, start: datetime, end: datetime) -> bool:
    """A line without a time belongs to the hour in which the live cycle met it, and to no other."""
    return line.written_at is not None and start <= line.written_at < end


def _grid_within(observatory: Observatory, *, start: datetime, end: datetime) -> tuple[datetime, datetime]:
    """Return the first and the last grid time in [start, end); the first is later than the last if there is none."""
    first = observatory.grid_time(start)
    if first < start:
        first += observatory.step
    last = observatory.grid_time(end - timedelta(microseconds=1))
    return first, last


def _filled(parsed: Parsed, *, tables: Collection[str] | None, notes: Sequence[str], refused: Sequence[Rows]) -> Filled:
    from ops_pipelines.lake.hours import merge
    from ops_pipelines.lake.metrics.pages import REJECTED

    kept: dict[str, Rows] = {name: rows for name, rows in parsed.tables.items() if tables is None or name in tables}
    if refused:
        kept[REJECTED] = merge(REJECTED, refused)
    return Filled(
        tables=kept,
        read_count=parsed.read,
        accepted_count=parsed.accepted,
        ignored_count=parsed.ignored,
        reasons=parsed.reasons,
        notes=tuple(dict.fromkeys(notes)),
    )


def read_nodes_now(observatory: Observatory) -> Sequence[NodeStatus] | None:
    """Return the nodes as the scheduler has them now; None if it does not answer: that costs a few columns only."""
    try:
        return observatory.scheduler.read_nodes()
    except SourceError:
        return None
