"""One live cycle: read what the sources show at a grid time, keep it in the lake, put what it means into evidence.

Writes, never acts. A source that does not answer loses its own part of the cycle only: the hour is filled from the
store when it closes, and log cursors stay where they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.intake import take_in_samples
from ops_pipelines.flow.observatory import Observatory, hour_of
from ops_pipelines.frames.parsed import Parsed
from ops_pipelines.ports.lake import LakeError
from ops_pipelines.ports.ledger import LedgerError
from ops_pipelines.ports.logs import LogBatch, Logs
from ops_pipelines.ports.source_error import SourceError
from ops_pipelines.ports.telemetry import Sample

if TYPE_CHECKING:
    from ops_pipelines.frames.log_tables import Writer

_LINES_AT_ONCE = 20_000
CURSOR_PREFIX = "lake/"
"""Before the name of a log source: the lake's own place in it, apart from that of the evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleReport:
    """What one cycle did."""

    at: datetime
    """Its grid time."""
    read_count: int
    rejected_count: int
    row_count: int
    line_count: int
    new_evidence_count: int
    problems: tuple[str, ...]
    """What did not answer or could not be written, in words."""

    def __str__(self) -> str:
        said = (
            f"{self.at:%H:%M:%S}: {self.read_count} samples, {self.rejected_count} rejected, {self.row_count} rows, "
            f"{self.line_count} log lines"
        )
        return said if not self.problems else f"{said}; {'; '.join(self.problems)}"


def next_grid_time(observatory: Observatory, *, after: datetime | None) -> datetime:
    """Return the grid time whose turn is next: the newest that has settled, never one that was done already.

    Settled: scrapes that began before the grid time have arrived by then. Cycles that were missed are not made up
    for here; the hour's partition fills them from the store.
    """
    newest = observatory.grid_time(observatory.clock.now() - settling_time(observatory.step))
    return newest if after is None or newest > after else after + observatory.step


def settling_time(step: timedelta) -> timedelta:
    """Return how long after a grid time it is read: a scrape of a busy exporter takes seconds."""
    return min(step / 3, timedelta(seconds=5))


def run_cycle(observatory: Observatory, cluster: Cluster, *, at: datetime) -> CycleReport:
    """Read, keep and tell what the sources show at the grid time `at`."""
    from ops_pipelines.frames.log_tables import Writer

    problems: list[str] = []
    metrics = _read_metrics(observatory, at=at, problems=problems)
    row_count = _keep(observatory, metrics.parsed, at=at, problems=problems)
    line_count = 0
    kernel = [(logs, Writer.KERNEL) for logs in observatory.kernel_logs]
    for logs, writer in (*kernel, *((logs, Writer.JOB) for logs in observatory.job_logs)):
        try:
            line_count += _follow(logs, observatory, cluster, writer=writer, at=at)
        except (SourceError, LakeError, LedgerError) as problem:
            problems.append(f"{logs.source}: {problem}")
    new_evidence_count = _tell(metrics.watched, cluster, problems=problems)
    return CycleReport(
        at=at,
        read_count=metrics.parsed.read,
        rejected_count=len(metrics.parsed.refused),
        row_count=row_count,
        line_count=line_count,
        new_evidence_count=new_evidence_count,
        problems=tuple(problems),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metrics:
    """What all metric sources gave for one grid time."""

    parsed: Parsed
    watched: tuple[Sample, ...]
    """The samples that conditions are judged on, of the sources that answered."""


def _read_metrics(observatory: Observatory, *, at: datetime, problems: list[str]) -> _Metrics:
    from ops_pipelines.frames.node_names import NodeNames
    from ops_pipelines.frames.pages import combine, read_page, watched_samples

    names = NodeNames(observatory.topology.places)
    parts: list[Parsed] = []
    watched: list[Sample] = []
    for source in observatory.metrics:
        try:
            for page in source.read_range(observatory.queries, start=at, end=at, step_seconds=observatory.step_seconds):
                read = read_page(page, names=names)
                parts.append(read.parsed)
                watched += watched_samples(page, read.block)
                problems += (f"{source.source}: {note}" for note in page.notes)
        except SourceError as problem:
            problems.append(f"{source.source}: {problem}")
    return _Metrics(parsed=combine(parts), watched=tuple(watched))


def _keep(observatory: Observatory, parsed: Parsed, *, at: datetime, problems: list[str]) -> int:
    """Write the rows of a cycle, table by table: a full disk must not lose more than it has to."""
    from ops_pipelines.frames.pages import REJECTED, rejected_rows

    tables = dict(parsed.tables)
    if parsed.refused:
        tables[REJECTED] = rejected_rows(parsed.refused, source="live", at=at)
    count = 0
    for name, rows in tables.items():
        try:
            observatory.lake.write_cycle(name, rows, at=at)
        except LakeError as problem:
            problems.append(str(problem))
            continue
        count += rows.num_rows
    return count


def _follow(logs: Logs, observatory: Observatory, cluster: Cluster, *, writer: "Writer", at: datetime) -> int:
    """Take new lines of one log into the lake; return how many.

    Rows first, cursor second: after a crash a line comes twice, and is then the same row again; none is lost.
    """
    name = f"{CURSOR_PREFIX}{logs.source}"
    before = cluster.ledger.cursor(name)
    batch = logs.read_new(before, max_lines=_LINES_AT_ONCE)
    if batch.lines:
        _keep_lines(logs.source, batch, observatory, writer=writer, at=at)
    if batch.cursor != before:
        cluster.ledger.take_in(source=name, observations=(), rejected=(), cursor=batch.cursor, now=at)
    return len(batch.lines)


def _keep_lines(source: str, batch: LogBatch, observatory: Observatory, *, writer: "Writer", at: datetime) -> None:
    from ops_pipelines.frames.hours import split_by_hour
    from ops_pipelines.frames.log_tables import tabulate_lines
    from ops_pipelines.frames.node_names import NodeNames, mark_nodes
    from ops_pipelines.frames.pages import REJECTED, rejected_rows

    parsed = tabulate_lines(batch.lines, source=source, at=at, writer=writer)
    names = NodeNames(observatory.topology.places)
    tables = {name: mark_nodes(rows, names) for name, rows in parsed.tables.items()}
    if parsed.refused:
        tables[REJECTED] = rejected_rows(parsed.refused, source=source, at=at)
    for name, rows in tables.items():
        for hour, part in split_by_hour(rows).items():
            if hour == hour_of(at):
                observatory.lake.write_cycle(name, part, at=at, part=source)
            else:
                observatory.lake.add(name, part)  # a line that came late


def _tell(samples: Sequence[Sample], cluster: Cluster, *, problems: list[str]) -> int:
    """Put the conditions that this cycle shows into evidence; return how many are new.

    Silence says nothing: the fault sensor reads the same source and knows whether it answers. Neither is anything told
    while the scheduler does not say which nodes are drained by somebody else: those are not ours to watch.
    """
    if not samples:
        return 0
    try:
        nodes = cluster.scheduler.read_nodes()
        count, _ = take_in_samples(samples, cluster, nodes=nodes, now=cluster.clock.now())
    except (SourceError, LedgerError) as problem:
        problems.append(f"evidence: {problem}")
        return 0
    return count
