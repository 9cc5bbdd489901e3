"""Log lines -> rows of kernel_events and job_logs, live and from files.

Shared by files (`formats.log`) and by the adapters of logs. The lines are matched together, as one buffer; only those
that match are looked at for details.

A record is one physical line; a blank line is ignored. A line is refused only if it is no text, or a broken record of a
log in JSON; whatever else is there was written by somebody and is kept, cut at 1000 characters. Progress bars that
draw over themselves with carriage returns are one line: the last picture is kept. A time that a line does not state is
`at`; a clock that counts from boot becomes a time once the kernel has stated when it set the clock.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ops_pipelines.core.sources import LogLine
from ops_pipelines.lake.formats import infiniband, slurm
from ops_pipelines.lake.formats import infiniband as ibswinfo
from ops_pipelines.lake.formats import slurm_tables as slurm_diag
from ops_pipelines.lake.formats.nvidia_smi_layouts import TABLE_HEADING
from ops_pipelines.lake.quantities import MAX_TEXT_LENGTH, Parsed, Refused, WrongKind, readable
from ops_pipelines.lake.schema import TABLES, ColumnType
from ops_pipelines.observe.logs.classify import fault_details, job_of, job_of_step, training_numbers
from ops_pipelines.observe.logs.files import Unreadable, decode_log, is_binary, read_json_line, refuse_other_kinds
from ops_pipelines.observe.logs.matching import Origin, Rule, read_rules
from ops_pipelines.observe.logs.prefix import PrefixReader, Said, to_microseconds
from ops_pipelines.observe.logs.signals import match_buffer

# -- log lines -> rows of kernel_events and job_logs --


_ANSI = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|[@-Z\\-_()][0B]?)")
_JOB_LEVELS = {
    "emerg": "critical", "alert": "critical", "crit": "critical", "critical": "critical", "err": "error",
    "error": "error", "warning": "warning", "notice": "info", "info": "info", "debug": "debug",
}  # fmt: skip
_KERNEL_LEVELS = {"critical": "crit", "error": "err"}


class Writer(Enum):
    """Who wrote the lines, as far as the source knows."""

    TOLD_BY_LINE = "told_by_line"
    """Each line reports by its prefix, else by its words."""
    KERNEL = "kernel"
    """The source carries lines of kernels only."""
    JOB = "job"
    """The source carries the output of jobs only."""


class RawLine(NamedTuple):
    """One record before it is read. A tuple: a dataclass costs a tenth of the whole time for each line."""

    text: str
    position: str
    """Where it is in its source; the name of the record if it is refused."""
    node: str | None = None
    microseconds: int | None = None
    job: str | None = None


class _Row(NamedTuple):
    """One message on its way into a table."""

    position: str
    text: str
    """Without escape sequences, whole: what is matched."""
    said: Said
    node: str | None
    job: str | None


@dataclass(slots=True)
class _Columns:
    """The rows of one table, by column. Columns that are mostly empty are kept by row number."""

    count: int = 0
    position: list[str] = field(default_factory=list)
    time: list[int] = field(default_factory=list)
    node: list[str | None] = field(default_factory=list)
    level: list[str | None] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    sparse: dict[str, dict[int, object]] = field(default_factory=dict)

    def put(self, name: str, value: object) -> None:
        """Give the newest row a value in a column that is mostly empty."""
        if value is not None:
            self.sparse.setdefault(name, {})[self.count - 1] = value

    def table(self, name: str, *, source: str) -> pa.Table:
        """Return the rows in the schema of table `name`."""
        schema = TABLES[name].arrow()
        dense = {"position": self.position, "node": self.node, "level": self.level, "text": self.text}
        arrays: list[pa.Array] = []
        for column in TABLES[name].columns:
            kind = schema.field(column.name).type
            if column.name == "source":
                arrays.append(pa.repeat(pa.scalar(source, type=kind), self.count))
            elif column.type is ColumnType.TIME:
                arrays.append(pa.array(np.asarray(self.time, dtype=np.int64)).cast(kind))
            elif column.name in dense:
                arrays.append(pa.array(dense[column.name], type=kind))
            elif column.name in self.sparse:
                values: list[object] = [None] * self.count
                for number, value in self.sparse[column.name].items():
                    values[number] = value
                arrays.append(pa.array(values, type=kind))
            else:
                arrays.append(pa.nulls(self.count, type=kind))
        return pa.table(arrays, schema=schema)


def tabulate_lines(
    lines: Sequence[LogLine], *, source: str, at: datetime, writer: Writer = Writer.TOLD_BY_LINE
) -> Parsed:
    """Return the lines of an adapter as rows; `at` is the time of lines that state none. Blank lines are ignored."""
    raw = (
        RawLine(
            text=line.text,
            position=line.position,
            node=line.node,
            microseconds=None if line.written_at is None else to_microseconds(line.written_at),
            job=line.job,
        )
        for line in lines
    )
    return tabulate(raw, source=source, at=at, writer=writer)


def tabulate(lines: Iterable[RawLine], *, source: str, at: datetime, writer: Writer, node: str | None = None) -> Parsed:
    """Return `lines` as rows; `node` is the node of lines that name none."""
    reader = PrefixReader(at=at)
    rows: list[_Row] = []
    refused: list[Refused] = []
    read = ignored = 0
    for line in lines:
        read += 1
        text = line.text
        if not text or text.isspace():
            ignored += 1
            continue
        if text[-1] == "\r":
            text = text.rstrip("\r")
        if not text.isprintable():
            if is_binary(_bytes_of(text)):
                refused.append(_refuse(line, reason="binary_line", detail="control characters; expected text"))
                continue
            text = _ANSI.sub("", text).strip("\x00\r")
            if not text or text.isspace():
                ignored += 1
                continue
        try:
            rows += _read(line, text, reader)
        except Unreadable as exc:
            refused.append(_refuse(line, reason=str(exc), detail="expected one JSON object with a message"))
    tables = _into_tables(rows, source=source, at=at, writer=writer, node=node)
    return Parsed(
        read=read, accepted=read - ignored - len(refused), ignored=ignored, refused=tuple(refused), tables=tables
    )


def _refuse(line: RawLine, *, reason: str, detail: str) -> Refused:
    return Refused(record=line.position, reason=reason, detail=detail, text=readable(line.text))


def _bytes_of(text: str) -> bytes:
    """Return the bytes that `text` came from, where they were no UTF-8 and were written as `\\xNN`."""
    return _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), text.encode("utf-8", errors="backslashreplace"))


_ESCAPED = re.compile(rb"\\x([89a-f][0-9a-f])")


def _read(line: RawLine, text: str, reader: PrefixReader) -> list[_Row]:
    """Return the rows of one line: one, but for JSON that holds several messages. Raises Unreadable."""
    if text.startswith('{"') or (text.startswith("{") and text[1:].lstrip().startswith('"')):
        told = read_json_line(text)
        rows: list[_Row] = []
        for number, message in enumerate(told.texts, start=1):
            message = _ANSI.sub("", message).replace("\n", " ").strip("\x00\r ")
            inner = reader.read(message)
            said = Said(
                told.microseconds if told.microseconds is not None else inner.microseconds,
                told.node or inner.node,
                told.level or inner.level,
                told.origin or inner.origin,
                told.rank if told.rank is not None else inner.rank,
            )
            rows.append(
                _Row(
                    position=line.position if number == 1 else f"{line.position}#{number}",
                    text=message,
                    said=said,
                    node=line.node,
                    job=line.job or told.job,
                )
            )
        return rows
    if "\n" in text:
        text = text.replace("\n", " ")
    said = reader.read(text)
    if line.microseconds is not None:
        said = said._replace(microseconds=line.microseconds)
    return [_Row(line.position, text, said, line.node, line.job)]


def _into_tables(
    rows: Sequence[_Row], *, source: str, at: datetime, writer: Writer, node: str | None
) -> dict[str, pa.Table]:
    rules = read_rules()
    buffer = "\n".join([row.text for row in rows]).encode("utf-8", errors="backslashreplace")
    matched = match_buffer(buffer).first_rules()
    signatures = dict(zip(matched[0].tolist(), matched[1].tolist(), strict=True))
    at_microseconds = to_microseconds(at)
    kernel, job = _Columns(), _Columns()
    is_kernel = False
    for number, row in enumerate(rows):
        said = row.said
        rule_number = signatures.get(number)
        rule = None if rule_number is None else rules[rule_number]
        if row.job is not None:
            is_kernel = False  # what a job prints is the job's, also where it prints the kernel's words
        elif writer is Writer.TOLD_BY_LINE:
            origin = said.origin if said.origin is not None else (None if rule is None else rule.origin)
            # A line that reports nothing at all continues with what the line before it stated.
            if origin is not None or said.microseconds is not None or said.level is not None:
                is_kernel = origin == Origin.KERNEL
        else:
            is_kernel = writer is Writer.KERNEL
        columns = kernel if is_kernel else job
        columns.count += 1
        columns.position.append(row.position)
        columns.time.append(at_microseconds if said.microseconds is None else said.microseconds)
        columns.node.append(row.node or said.node or node)
        level = said.level or (None if rule is None else rule.level)
        if level is not None:
            level = _KERNEL_LEVELS.get(level, level) if is_kernel else _JOB_LEVELS[level]
        columns.level.append(level)
        shown = row.text if row.text.isprintable() else _last_segment(row.text, rule)
        columns.text.append(shown if len(shown) <= MAX_TEXT_LENGTH else shown[:MAX_TEXT_LENGTH])
        if rule is not None:
            columns.put("signature", rule.id)
            columns.put("component", rule.component)
            if is_kernel:
                for name, value in zip(("code", "pci_address", "device"), fault_details(row.text), strict=True):
                    columns.put(name, value)
            elif rule.category in _TRAINING:
                for name, value in training_numbers(shown)._asdict().items():
                    columns.put(name, value)
        if not is_kernel:
            columns.put("rank", said.rank)
            is_of_slurm = rule is not None and rule.component == "scheduler"
            columns.put("job", row.job or job_of_step(row.text) or (job_of(row.text) if is_of_slurm else None))
    tables: dict[str, pa.Table] = {}
    for name, columns in (("kernel_events", kernel), ("job_logs", job)):
        if columns.count:
            tables[name] = columns.table(name, source=source)
    return tables


_TRAINING = frozenset({"training_progress", "numerical_anomaly"})


def _last_segment(text: str, rule: Rule | None) -> str:
    """Return what stood on the screen last: behind the last carriage return, or the part that the rule matches."""
    if "\r" in text:
        segments = [segment for segment in text.split("\r") if segment.strip()] or [""]
        text = segments[-1]
        if rule is not None and rule.category not in _TRAINING:
            pattern = re.compile(rule.pattern)
            text = next((segment for segment in segments if pattern.search(segment)), text)
    text = text.replace("\t", " ").strip("\x00")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text[: MAX_TEXT_LENGTH + 1])


def _escape(char: str) -> str:
    if char == "\xa0" or char == "\u3000":
        return " "
    return "" if char in "\x00\x08\x07" else f"\\x{ord(char):02x}"


# -- logs of kernels, drivers, fabric managers, BMCs, Slurm --


_SAMPLE_LINES = 200
_COLUMN_BARS = 3
"""As many bars in every line, with nothing around them, are the borders of columns."""
__all__ = ["Writer", "parse", "tabulate_lines"]


def parse(body: bytes, *, source: str, at: datetime, node: str | None = None) -> Parsed:
    """Return the lines of one log file; raises WrongKind if it is a document, a table or binary."""
    text = decode_log(body)
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    refuse_other_kinds(lines, text=text)
    _refuse_tables(lines, at=at)
    width = max(9, len(str(len(lines))))
    # Line numbers of one width, so that the rows of a file, which are sorted by position, stay in its order.
    raw = (RawLine(text=line, position=f"{number:0{width}d}") for number, line in enumerate(lines, start=1))
    parsed = tabulate(raw, source=source, at=at, writer=Writer.TOLD_BY_LINE, node=node)
    refused = parsed.reasons
    if parsed.refused and not parsed.accepted:
        raise WrongKind(f"no line is a line of a log ({', '.join(f'{n} {why}' for why, n in refused.items())})")
    if refused.get("binary_line", 0) > parsed.accepted:
        raise WrongKind(f"binary data: {refused['binary_line']} of {parsed.read} lines; expected a log in plain text")
    return parsed


def _refuse_tables(lines: Sequence[str], *, at: datetime) -> None:
    """Raise WrongKind for rows that a tool printed without a header: no line speaks as a log, and a parser knows them.

    What is alone in a line is taken for a log, and so is a table that makes only a part of the file.
    """
    sample = [line[:2000] for line in lines[: 4 * _SAMPLE_LINES] if line.strip()][:_SAMPLE_LINES]
    reader = PrefixReader(at=at)
    # Who states a time, a level or a rank in one line of twenty writes a log.
    if len(sample) < 2 or sum(_speaks_as_log(reader, line) for line in sample) * 20 > len(sample):
        return
    bars = {line.count("|") for line in sample}
    if len(bars) == 1 and min(bars) >= _COLUMN_BARS and not any(" | " in line for line in sample):
        raise WrongKind(f"rows of a table without header ({sample[0][:60]!r}); expected a log in plain text")
    text = "\n".join(sample)
    bordered = sum(line.lstrip()[:1] in ("|", "+") for line in sample)
    if ibswinfo.is_ibswinfo(text) or (TABLE_HEADING.search(text) and bordered >= len(sample) - 1):
        raise WrongKind(f"what ibswinfo or nvidia-smi prints ({sample[0][:60]!r}); expected a log in plain text")
    body = text.encode("utf-8", errors="replace")
    for tool, read in (("Slurm's clients", slurm.parse), ("fabric tools", infiniband.parse)):
        try:
            found = read(body, source="", at=at)
        except WrongKind:
            continue
        is_whole = found.accepted + found.ignored > 0.9 * found.read and found.read >= 0.8 * (len(sample) - 1)
        if is_whole or slurm_diag.is_report(text):
            raise WrongKind(f"what {tool} print ({sample[0][:60]!r}); expected a log in plain text")


def _speaks_as_log(reader: PrefixReader, line: str) -> bool:
    said = reader.read(line)
    return said.level is not None or said.microseconds is not None or said.rank is not None
