"""Which rule of the signature table matches which line, and which lines report a complete checkpoint.

Hyperscan scans whole buffers; where it has no wheel, `re` gives the same pairs, slower. The patterns keep to what both
mean alike: ASCII, no look-around, no back-references, nothing that could cross a line end. What a match means for the
table is `formats.log`.

A line that reports of the beginning of a save is no proof of its end: it counts once the training is seen to continue
(`SAVING`), or once the next save is reported (`STAGED`). What is remembered of a job is `observe.job_facts`.
"""

import csv
import re
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import Enum
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.core.identity import JobId, parse_job_id
from ops_pipelines.core.sources import LogLine

# -- which rule of catalogue/log_signatures.csv matches which line of a buffer --


if TYPE_CHECKING:
    import hyperscan

_BLOCK_BYTES = 256 * 1024 * 1024
"""Scanned at once; Hyperscan's own limit is 4 GiB."""
_HAS_ANCHOR_OR_MORE = re.compile(r"\(\?(?!:)|\\[AZBGXRNKCQE1-9sWD]|(?<!\\)\$|\\b\{|[^\x00-\x7f]")
_NEGATED = re.compile(r"(?<!\\)\[\^(?:\\.|[^\]\\])*\]")


class Origin:
    """Values of the column `origin`: which program may have written the words."""

    KERNEL = "kernel"
    """The kernel, a driver, the fabric manager or a BMC."""
    PROGRAM = "program"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table, as far as matching needs it; the rest is `core.finding.LogRule`."""

    id: str
    origin: str
    component: str
    category: str
    """What kind of fault it is, in the words of the labelled lines."""
    level: str
    """critical, error, warning, notice or info."""
    pattern: str
    example: str
    meaning: str
    source: str
    checked_on: str
    """The day on which the words were looked up in the source; empty where they were not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """Every (line, rule) pair once, sorted by line and then by the order of the rules."""

    lines: NDArray[np.int64]
    """Number of the line in the buffer, from 0; every newline ends one."""
    rules: NDArray[np.int64]
    """Index into the rules."""
    offsets: NDArray[np.int64]
    """Where the line begins, in bytes."""

    def __len__(self) -> int:
        return len(self.lines)

    def first_rules(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the matching lines, each once, and for each its first rule: the signature of the line."""
        if not len(self.lines):
            return self.lines, self.rules
        is_first = np.concatenate(([True], self.lines[1:] != self.lines[:-1]))
        return self.lines[is_first], self.rules[is_first]


Scan = Callable[[bytes], tuple[Sequence[int], Sequence[int]]]
"""A block -> rule index and offset of the last matched byte, for every match; pairs may repeat."""


class Matcher:
    """Rules, compiled once."""

    def __init__(self, rules: Sequence[Rule], *, scan: Scan) -> None:
        self.rules = tuple(rules)
        self._scan = scan

    def match_buffer(self, buffer: bytes, *, block_bytes: int = _BLOCK_BYTES) -> Matches:
        """Return which rules match which lines of `buffer`."""
        line_ends = np.flatnonzero(np.frombuffer(buffer, dtype=np.uint8) == ord("\n")).astype(np.int64)
        hit_rules: list[NDArray[np.int64]] = []
        hit_lines: list[NDArray[np.int64]] = []
        for start, stop in pairwise(_block_borders(buffer, block_bytes=block_bytes)):
            rules, last_bytes = self._scan(buffer if stop - start == len(buffer) else buffer[start:stop])
            hit_rules.append(np.asarray(rules, dtype=np.int64))
            hit_lines.append(np.searchsorted(line_ends, np.asarray(last_bytes, dtype=np.int64) + start))
        rule_count = max(1, len(self.rules))
        # A pattern that may end in several places is reported at each of them.
        pairs = np.unique(np.concatenate(hit_lines) * rule_count + np.concatenate(hit_rules)) if hit_lines else _NONE
        lines = pairs // rule_count
        starts = np.concatenate((np.zeros(1, dtype=np.int64), line_ends + 1))
        return Matches(lines=lines, rules=pairs % rule_count, offsets=starts[lines])


_NONE = np.empty(0, dtype=np.int64)


def _block_borders(buffer: bytes, *, block_bytes: int) -> list[int]:
    """Return where blocks of whole lines begin and end; a line longer than a block stays in one."""
    borders = [0]
    while len(buffer) - borders[-1] > block_bytes:
        border = buffer.rfind(b"\n", borders[-1], borders[-1] + block_bytes) + 1
        if border <= borders[-1]:
            border = buffer.find(b"\n", borders[-1] + block_bytes) + 1 or len(buffer)
        borders.append(border)
    if borders[-1] < len(buffer):
        borders.append(len(buffer))
    return borders


SIGNATURES, MEANINGS = "log_signatures.csv", "log_meanings.csv"
"""Lines of the first are evidence, and are kept; those of the second are only explained to who asks."""


@cache
def read_rules(table: str = SIGNATURES) -> tuple[Rule, ...]:
    """Return the rules of a table in their order; raise ValueError if one could mean different things to engines."""
    text = resources.files("ops_pipelines.catalogue").joinpath(table).read_text(encoding="utf-8")
    columns = [column.name for column in fields(Rule)]
    rules = tuple(Rule(**{name: row[name] for name in columns}) for row in csv.DictReader(text.splitlines()))
    for rule in rules:
        complaint = find_fault(rule.pattern)
        if complaint:
            raise ValueError(f"{table}, {rule.id}: {complaint}")
    return rules


def find_fault(pattern: str) -> str:
    """Return why Hyperscan and `re` might disagree on `pattern`, or why it could cross a line end; else empty."""
    body = pattern.removeprefix("(?i)")
    match = _HAS_ANCHOR_OR_MORE.search(body)
    if match is not None:
        return f"{match[0]!r} is not allowed; only what Hyperscan and Python's re mean alike, within one line"
    for negated in _NEGATED.findall(body):
        if r"\n" not in negated:
            return f"{negated} matches a line end; write \\n into it"
    try:
        is_empty = re.compile(pattern.encode()).search(b"") is not None
    except (re.error, UnicodeEncodeError) as exc:
        return f"no regular expression: {exc}"
    return "it matches nothing at all" if is_empty else ""


@cache
def shared_matcher(*, with_meanings: bool = False) -> Matcher:
    """Return the matcher of the signatures: Hyperscan, else `re`. Compiled on first use, then shared by all threads.

    With meanings a line that no signature matches may be one of these.
    """
    rules = read_rules() + (read_rules(MEANINGS) if with_meanings else ())
    try:
        import hyperscan  # noqa: F401 -- only whether it is there
    except ImportError:
        return Matcher(rules, scan=re_scan(rules))
    return Matcher(rules, scan=hyperscan_scan(rules))


def hyperscan_scan(rules: Sequence[Rule]) -> Scan:
    """Compile the rules for Hyperscan; raises hyperscan.error where a pattern is beyond it."""
    import hyperscan

    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=[rule.pattern.encode() for rule in rules],
        ids=list(range(len(rules))),
        flags=[hyperscan.HS_FLAG_MULTILINE] * len(rules),
    )
    scratches = threading.local()

    def scan(block: bytes) -> tuple[Sequence[int], Sequence[int]]:
        found_rules: list[int] = []
        last_bytes: list[int] = []
        add_rule, add_byte = found_rules.append, last_bytes.append

        def note(rule: int, _start: int, end: int, _flags: int, _context: object) -> None:
            add_rule(rule)
            add_byte(end - 1)

        database.scan(block, match_event_handler=note, scratch=_scratch_of(database, scratches))
        return found_rules, last_bytes

    return scan


def _scratch_of(database: "hyperscan.Database", scratches: threading.local) -> "hyperscan.Scratch":
    """Return this thread's scratch space: Hyperscan refuses to share one between threads."""
    import hyperscan

    scratch = getattr(scratches, "scratch", None)
    if not isinstance(scratch, hyperscan.Scratch):
        scratch = hyperscan.Scratch(database)
        scratches.scratch = scratch
    return scratch


def re_scan(rules: Sequence[Rule]) -> Scan:
    """Compile the rules for `re`: the reference, and what is used where Hyperscan has no wheel."""
    patterns = [re.compile(rule.pattern.encode()) for rule in rules]

    def scan(block: bytes) -> tuple[Sequence[int], Sequence[int]]:
        found_rules: list[int] = []
        last_bytes: list[int] = []
        for number, pattern in enumerate(patterns):
            # From each match on to the next line: one match a line is enough.
            match = pattern.search(block)
            while match is not None:
                found_rules.append(number)
                last_bytes.append(match.end() - 1)
                line_end = block.find(b"\n", match.end() - 1)
                match = pattern.search(block, line_end + 1) if line_end >= 0 else None
        return found_rules, last_bytes

    return scan


# -- which lines of a job tell that a checkpoint is complete --


PROGRESS_BAR = "train_progress_bar"
"""Loading shards draws the same bar: it shows no step of a training."""


class LineKind(Enum):
    """What a line reports."""

    SAVED = "saved"
    """A checkpoint is complete."""
    SAVING = "saving"
    """A save has started, or a part of it is written, and the training waits until it is complete."""
    STAGED = "staged"
    """A save has started that may continue beside the training; the next one waits for it."""
    SCHEDULED = "scheduled"
    """A save continues beside the training, and its end will be reported."""
    RESUMED = "resumed"
    """A checkpoint was loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRule:
    """One row of the table."""

    id: str
    kind: LineKind
    holds: str
    """Is in every such line, letter by letter: found sooner than the pattern, and most lines hold none."""
    pattern: re.Pattern[str]
    example: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLine:
    """What one line of a job reports, and when it was written."""

    job: JobId
    at: datetime
    kind: LineKind


@cache
def read_line_rules() -> tuple[LineRule, ...]:
    """Return the rules of the table in their order; raise ValueError naming a row that cannot be read."""
    text = resources.files("ops_pipelines.catalogue").joinpath("checkpoint_lines.csv").read_text(encoding="utf-8")
    rules: list[LineRule] = []
    for row in csv.DictReader(text.splitlines()):
        try:
            kind, pattern = LineKind(row["kind"]), re.compile(row["pattern"])
        except (ValueError, re.error) as exc:
            raise ValueError(f"checkpoint_lines.csv, {row['id']}: {exc}") from exc
        rules.append(
            LineRule(
                id=row["id"],
                kind=kind,
                holds=row["holds"],
                pattern=pattern,
                example=row["example"],
                source=row["source"],
            )
        )
    return tuple(rules)


def kind_of(text: str) -> LineKind | None:
    """Return what a line reports of a checkpoint, by the first rule that fits; None for nothing."""
    for rule in read_line_rules():
        if rule.holds in text and rule.pattern.search(text) is not None:
            return rule.kind
    return None


def read_checkpoint_lines(rows: pa.Table, *, lines: Sequence[LogLine]) -> tuple[CheckpointLine, ...]:
    """Return what rows of `job_logs` tell of checkpoints, in their order; `lines` are those that the rows are made of.

    A line is a job's only where its source says so (the name of its file, a label), never by its own words. Whether the
    file is the job's own is `observe.job_facts`' to ask.
    """
    told = rows.filter(_may_tell(rows["text"]))
    if not told.num_rows:
        return ()
    owners = {line.position: line.job for line in lines if line.job is not None}
    found: list[CheckpointLine] = []
    for row in told.select(["position", "time", "text"]).to_pylist():
        # One line of JSON may hold several messages; those after the first are numbered.
        owner = owners.get(row["position"]) or owners.get(str(row["position"]).rpartition("#")[0])
        job = None if owner is None else _job(owner)
        kind = None if job is None else kind_of(row["text"])
        if job is not None and kind is not None:
            found.append(CheckpointLine(job=job, at=row["time"], kind=kind))
    return tuple(found)


def rows_of_lines(rows: pa.Table, lines: Sequence[LogLine]) -> pa.Table:
    """Return the rows of `job_logs` that were made of these lines."""
    positions = {line.position for line in lines}
    # One line of JSON may hold several messages; those after the first are numbered.
    mine = [each in positions or str(each).rpartition("#")[0] in positions for each in rows["position"].to_pylist()]
    return rows if all(mine) else rows.filter(pa.array(mine, pa.bool_()))


def stepping_jobs(rows: pa.Table, jobs: Collection[JobId]) -> frozenset[JobId]:
    """Return those of `jobs` of which rows of `job_logs` show a step of a training."""
    if not jobs:
        return frozenset()
    is_step = pc.and_(is_progress(rows), pc.is_in(rows["job"], value_set=pa.array(sorted(jobs), pa.string())))
    return frozenset(JobId(name) for name in pc.unique(rows.filter(is_step)["job"]).to_pylist())


def is_progress(rows: pa.Table) -> pa.ChunkedArray:
    """Return which rows of `job_logs` state a step of a training, and are no bar."""
    is_bar = pc.fill_null(pc.equal(rows["signature"].cast(pa.string()), PROGRESS_BAR), False)
    return pc.and_(pc.is_valid(rows["step"]), pc.invert(is_bar))


def _may_tell(texts: pa.ChunkedArray) -> pa.Array:
    may = np.zeros(len(texts), dtype=np.bool_)
    for word in sorted({rule.holds for rule in read_line_rules()}):
        holds = pc.fill_null(pc.match_substring(texts, word), False)
        may |= np.asarray(holds.to_numpy(), dtype=np.bool_)
    return pa.array(may)


def _job(name: str) -> JobId | None:
    try:
        return parse_job_id(name)
    except ValueError:
        return None
