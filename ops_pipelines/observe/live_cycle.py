"""One live cycle: read what the sources show at a grid time, keep it in the lake, put what it means into evidence:
conditions, signatures of lines, and what the detectors see in the last minutes (`window`).

Writes, never acts. A source that does not answer loses its own part of the cycle only: the hour is filled from the
store when it closes, and log cursors stay where they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ops_pipelines.core.cluster import Cluster, Observatory, hour_of
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.observation import NodeStatus, Observation
from ops_pipelines.core.sources import LakeError, LogBatch, Logs, MetricSource, Rows, SourceError
from ops_pipelines.lake.quantities import Parsed
from ops_pipelines.observe.intake import Told, follow, take_in_conditions
from ops_pipelines.observe.job_facts import take_in_checkpoints
from ops_pipelines.observe.repeated import tell_repetitions
from ops_pipelines.observe.window import REJECTED, LiveWindow, Sight, tell_detections

if TYPE_CHECKING:
    from ops_pipelines.observe.logs.tables import Writer
    from ops_pipelines.observe.panels.panel import Detector

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


def run_cycle(
    observatory: Observatory,
    cluster: Cluster,
    *,
    at: datetime,
    window: LiveWindow | None = None,
    detect: "Sequence[Detector] | None" = None,
) -> CycleReport:
    """Read, keep and tell what the sources show at the grid time `at`.

    `window` holds the cycles before this one; without it no detector looks. `detect` None: all detectors.
    """
    # First, and by the sensor's own reading: what is reported must not have grown old behind locks and logs, and half
    # an answer of many queries must not end a condition.
    told = take_in_conditions(cluster)
    problems = list(told.failures)
    metrics = _read_metrics(observatory, at=at, problems=problems)
    row_count = _keep(observatory, metrics, at=at, problems=problems)
    if window is not None:
        for name, rows in metrics.tables:
            window.add(name, rows, at=at)
        _note_jobs(window, cluster, at=at, problems=problems)
    lines = _follow_all(observatory, cluster, window=window, at=at, problems=problems)
    new_count = told.new_count + lines.new_evidence_count
    if window is not None:
        # After the logs: who has not read the lines of a job cannot call it silent.
        new_count += _look(
            window,
            observatory,
            cluster,
            at=at,
            metrics=metrics,
            nodes=told.nodes,
            detect=detect,
            problems=problems,
        )
        new_count += _count_repetitions(window, observatory, cluster, at=at, problems=problems)
    return CycleReport(
        at=at,
        read_count=metrics.read_count,
        rejected_count=metrics.rejected_count,
        row_count=row_count,
        line_count=lines.count,
        new_evidence_count=new_count,
        problems=tuple(problems),
    )


def begin_window(observatory: Observatory, *, before: datetime) -> tuple[LiveWindow, str | None]:
    """Return the window of a process whose first cycle is `before`, with what the lake holds; and what went wrong."""
    window = LiveWindow(topology=observatory.topology, step=observatory.step)
    problems = window.prime(observatory.lake, before=before)
    if not problems:
        return window, None
    return window, f"the detectors begin without part of the cycles before: {'; '.join(problems)}"


@dataclass(slots=True, kw_only=True)
class _Metrics:
    """What all metric sources gave for one grid time."""

    read_count: int = 0
    rejected_count: int = 0
    told: list[tuple[str, Parsed]] = field(default_factory=list)
    """Part of the cycle's files -> what is kept in it."""
    rejected: list[Rows] = field(default_factory=list)
    has_failed: bool = False
    """A source gave up before it had reported everything."""

    @property
    def tables(self) -> list[tuple[str, Rows]]:
        found = [(name, rows) for _, parsed in self.told for name, rows in parsed.tables.items()]
        return [*found, *((REJECTED, rows) for rows in self.rejected)]

    @property
    def sight(self) -> Sight:
        if not any(rows.num_rows for _, parsed in self.told for rows in parsed.tables.values()):
            return Sight.NOTHING
        return Sight.PART if self.has_failed else Sight.ALL


def _read_metrics(observatory: Observatory, *, at: datetime, problems: list[str]) -> _Metrics:
    from ops_pipelines.lake.metrics.pages import combine, read_page, rejected_rows
    from ops_pipelines.lake.node_names import names_of

    names = names_of(tuple(observatory.topology.places))
    found = _Metrics()
    parts: dict[str, list[Parsed]] = {}
    for source in observatory.metrics:
        kept = parts.setdefault(_part_of(source, observatory), [])
        try:
            for page in source.read_range(observatory.queries, start=at, end=at, step_seconds=observatory.step_seconds):
                read = read_page(page, names=names)
                kept.append(read.parsed)
                if read.parsed.refused:
                    found.rejected.append(rejected_rows(read.parsed.refused, source=page.source, at=at))
                problems += (f"{source.source}: {note}" for note in page.notes)
        except SourceError as problem:
            found.has_failed = True
            problems.append(f"{source.source}: {problem}")
    for part, listed in parts.items():
        parsed = combine(listed)
        found.read_count += parsed.read
        found.rejected_count += len(parsed.refused)
        found.told.append((part, parsed))
    return found


def _part_of(source: MetricSource, observatory: Observatory) -> str:
    """Return which of the cycle's files are the source's: what a store reports again when the hour closes is alone."""
    is_mixed = any(each.has_history for each in observatory.metrics)
    return source.source if is_mixed and not source.has_history else ""


def _keep(observatory: Observatory, metrics: _Metrics, *, at: datetime, problems: list[str]) -> int:
    """Write the rows of a cycle, table by table: a full disk must not lose more than it has to."""
    from ops_pipelines.lake.hours import merge

    tables: list[tuple[str, str, Rows]] = []
    for part, parsed in metrics.told:
        tables += ((name, part, rows) for name, rows in parsed.tables.items())
    if metrics.rejected:
        tables.append((REJECTED, "", merge(REJECTED, metrics.rejected)))
    count = 0
    for name, part, rows in tables:
        try:
            observatory.lake.write_cycle(name, rows, at=at, part=part)
        except LakeError as problem:
            problems.append(str(problem))
            continue
        count += rows.num_rows
    return count


def _note_jobs(window: LiveWindow, cluster: Cluster, *, at: datetime, problems: list[str]) -> None:
    """Tell the window who holds what; while the scheduler is silent, its last word is."""
    try:
        window.note_jobs(cluster.scheduler.read_jobs(), at=at)
    except SourceError as problem:
        if str(problem) not in problems:
            problems.append(str(problem))


def _look(
    window: LiveWindow,
    observatory: Observatory,
    cluster: Cluster,
    *,
    at: datetime,
    metrics: _Metrics,
    nodes: tuple[NodeStatus, ...] | None,
    detect: "Sequence[Detector] | None",
    problems: list[str],
) -> int:
    """Tell what the detectors see; return how many conditions began. Whatever is wrong with one, the cycle
    continues."""
    if metrics.sight is Sight.NOTHING:
        problems.append("no metrics came: the detectors saw nothing, and what they had found stays")
        return 0
    try:
        told = tell_detections(
            window,
            cluster,
            at=at,
            sight=metrics.sight,
            nodes=nodes,
            detect=detect,
            release=observatory.release,
        )
    except Exception as problem:  # a fault of ours must not cost the lake its rows
        problems.append(f"the detectors failed, and what they had found stays: {type(problem).__name__}: {problem}")
        return 0
    problems += (f"{problem}; what had been found stays" for problem in told.problems)
    return told.new_count


def _count_repetitions(
    window: LiveWindow, observatory: Observatory, cluster: Cluster, *, at: datetime, problems: list[str]
) -> int:
    """Tell what came too often on one part; return how much of it is new. Whatever is wrong, the cycle continues."""
    try:
        return tell_repetitions(window.repetitions, observatory.lake, cluster, holds=window.holds, at=at)
    except Exception as problem:  # a fault in the count must not cost the lake its rows
        problems.append(f"repetitions were not counted: {type(problem).__name__}: {problem}")
        return 0


@dataclass(slots=True, kw_only=True)
class _Lines:
    """What came of the logs."""

    count: int = 0
    new_evidence_count: int = 0


def _follow_all(
    observatory: Observatory, cluster: Cluster, *, window: LiveWindow | None, at: datetime, problems: list[str]
) -> _Lines:
    from ops_pipelines.observe.logs.tables import Writer

    found = _Lines()
    are_read = True
    kernel = [(logs, Writer.KERNEL) for logs in observatory.kernel_logs]
    for logs, writer in (*kernel, *((logs, Writer.JOB) for logs in observatory.job_logs)):
        try:
            count, new_count = _follow(
                logs, observatory, cluster, writer=writer, window=window, at=at, problems=problems
            )
        except (SourceError, LakeError, LedgerError) as problem:
            problems.append(f"{logs.source}: {problem}")
            are_read &= writer is not Writer.JOB
            continue
        found.count += count
        found.new_evidence_count += new_count
        are_read &= writer is not Writer.JOB or count < _LINES_AT_ONCE  # there are more
    if window is not None:
        window.note_lines(are_read=are_read, at=at)
    return found


def _follow(
    logs: Logs,
    observatory: Observatory,
    cluster: Cluster,
    *,
    writer: "Writer",
    window: LiveWindow | None,
    at: datetime,
    problems: list[str],
) -> tuple[int, int]:
    """Take new lines of one log into the lake, and into evidence what they mean; return how many of each.

    Rows first, evidence and cursor second, in one transaction: after a crash a line comes twice, and is then the same
    row and the same evidence again; none is lost.
    """
    place = f"{CURSOR_PREFIX}{logs.source}"
    tables: dict[str, Rows] = {}

    def observe(batch: LogBatch, before: str | None) -> Told:
        if not batch.lines:
            return (), ()
        met_at = _first_met(batch, cluster, name=f"{place}/met", before=before, at=at)
        tables.update(_keep_lines(logs.source, batch, observatory, writer=writer, at=at, met_at=met_at))
        if "job_logs" in tables and cluster.job_facts is not None:
            holds = () if window is None else window.holds
            now = observatory.clock.now()
            problems.extend(
                take_in_checkpoints(cluster.job_facts, tables["job_logs"], batch=batch, holds=holds, now=now)
            )
        return _observations(tables, window=window), ()

    followed = follow(logs, cluster, place=place, max_lines=_LINES_AT_ONCE, now=at, observe=observe)
    if window is not None:
        for table, rows in tables.items():
            window.add(table, rows, at=at)
    return followed.line_count, followed.new_count


def _observations(tables: Mapping[str, Rows], *, window: LiveWindow | None) -> tuple[Observation, ...]:
    from ops_pipelines.observe.logs.observations import LOG_TABLES, observations_of

    gpus = None if window is None else window.gpus
    return tuple(
        each
        for name, rows in tables.items()
        if name in LOG_TABLES
        for each in observations_of(rows, table=name, gpus=gpus)
    )


def _first_met(batch: LogBatch, cluster: Cluster, *, name: str, before: str | None, at: datetime) -> datetime:
    """Return when lines after the cursor `before` were first met, which is the time of those that state none.

    It is written down before the rows are, so that a line that comes twice has one time.
    """
    if all(line.written_at is not None for line in batch.lines):
        return at
    met, _, place = (cluster.ledger.cursor(name) or "").partition(" ")
    if met and place == (before or ""):
        return datetime.fromisoformat(met)
    cluster.ledger.take_in(source=name, observations=(), rejected=(), cursor=f"{at.isoformat()} {before or ''}", now=at)
    return at


def _keep_lines(
    source: str, batch: LogBatch, observatory: Observatory, *, writer: "Writer", at: datetime, met_at: datetime
) -> Mapping[str, Rows]:
    """Write the rows of lines, each into its hour; return them by table."""
    from ops_pipelines.lake.hours import split_by_hour
    from ops_pipelines.lake.metrics.pages import rejected_rows, within_reach
    from ops_pipelines.lake.node_names import NodeNames, mark_nodes
    from ops_pipelines.observe.logs.tables import tabulate_lines

    parsed = tabulate_lines(batch.lines, source=source, at=met_at, writer=writer)
    names = NodeNames(observatory.topology.places)
    tables = {
        # A line may state any time at all, and each hour is a directory: beyond a month it counts as written when met.
        name: within_reach(mark_nodes(rows, names), of=met_at)
        for name, rows in parsed.tables.items()
    }
    if parsed.refused:
        tables[REJECTED] = rejected_rows(parsed.refused, source=source, at=met_at)
    for name, rows in tables.items():
        for hour, part in split_by_hour(rows).items():
            if hour == hour_of(at):
                observatory.lake.write_cycle(name, part, at=at, part=source)
            else:
                observatory.lake.add(name, part)  # a line that came late
    return tables
