"""What Slurm's clients print: sinfo, squeue, scontrol show, sdiag, sacctmgr, sshare, as text and JSON, 20.11 to 25.11.

Nodes and switches go to `inventory`, jobs to `job_accounting`, figures of scheduler and queue to `platform_telemetry`;
what is well-formed and has no table (shares, reservations, licences, QOS, settings) is ignored and counted. Record: one
row after the header, one block of scontrol, in JSON one object. Accounting is handed to `sacct`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from ops_pipelines.lake.formats import sacct, slurm_jobs
from ops_pipelines.lake.formats import sacct as sacct_json
from ops_pipelines.lake.formats import slurm_jobs as slurm_nodes
from ops_pipelines.lake.formats import slurm_json as answers
from ops_pipelines.lake.formats import slurm_layouts as layouts
from ops_pipelines.lake.formats import slurm_tables as headers
from ops_pipelines.lake.formats import slurm_tables as slurm_blocks
from ops_pipelines.lake.formats import slurm_tables as slurm_diag
from ops_pipelines.lake.formats import slurm_values as values
from ops_pipelines.lake.formats.reading import Cell, Tally, Unbelievable, decode
from ops_pipelines.lake.formats.slurm_rows import Rows, Shape, read_rows, read_shape, record_of
from ops_pipelines.lake.formats.slurm_tables import add_figures, add_queue
from ops_pipelines.lake.quantities import Parsed, WrongKind, readable

_EMPTY = re.compile(r"\s*No (?:reservations|licenses|jobs|partitions|nodes)\b[^\n]{0,80}\s*")
_SETTINGS = re.compile(r"\s*Configuration data as of ")
_MOST_LINES_BEFORE = 5


def parse(body: bytes, *, source: str, at: datetime, node: str | None = None) -> Parsed:
    """Return what a text of Slurm's clients says. `at` is the time of what states none; `node` says nothing here.

    Raises WrongKind if it is no such text.
    """
    text = decode(body)
    if not text.strip("\x00 \t\r\n"):
        raise WrongKind(f"{source}: it is empty; expected what a client of Slurm prints")
    file = _File(text, source=source, at=at)
    for recognise in (
        file.json,
        file.accounting,
        file.report,
        file.nothing,
        file.blocks,
        file.headed,
        file.unheaded,
        file.unheaded_accounting,
    ):
        found = recognise()
        if found is not None:
            return found
    first = next(line for line in text.split("\n") if line.strip("\x00 \t\r"))
    raise WrongKind(
        f"{source}: found {readable(first)[:120]!r}; expected what sinfo, squeue, scontrol, "
        "sdiag, sacctmgr, sshare or sacct prints"
    )


class _File:
    """One text, with what became of its records so far."""

    def __init__(self, text: str, *, source: str, at: datetime) -> None:
        self._text, self._source, self._at = text, source, at
        self._tally = Tally(source=source)
        self._site = slurm_nodes.Site(self._tally, at)

    # -- what it may be: each returns None if it is not that --

    def json(self) -> Parsed | None:
        if not answers.looks_like_json(self._text):
            return None
        lines = self._text.strip().split("\n")
        if _is_short_object(lines[0]):
            return self._object_lines(lines)
        answer = answers.read_answer(self._text)
        if answer is None:
            return None
        if not answer.records and answer.errors:
            errors = readable(json.dumps(answer.errors))[:300]
            raise WrongKind(f"{self._source}: found no {answer.key}, and errors of Slurm: {errors}")
        if answer.key == "jobs" and sacct_json.is_accounting_json(answer):
            return sacct_json.parse_answer(answer, source=self._source, at=self._at)
        return self._answer(answer)

    def accounting(self) -> Parsed | None:
        if sacct.is_accounting(self._text):
            return sacct.parse(self._text.encode(), source=self._source, at=self._at)
        return None

    def unheaded_accounting(self) -> Parsed | None:
        try:
            return sacct.parse(self._text.encode(), source=self._source, at=self._at)
        except WrongKind:
            return None

    def report(self) -> Parsed | None:
        if not slurm_diag.is_report(self._text):
            return None
        self._take(
            "line 1",
            lambda: self._put("platform_telemetry", slurm_diag.read_report(self._text, at=self._at)),
            text=self._text,
            into="platform_telemetry",
        )
        return self._tally.parsed()

    def nothing(self) -> Parsed | None:
        if _EMPTY.fullmatch(self._text):
            return Parsed(read=0, accepted=0, ignored=0)
        if _SETTINGS.match(self._text):
            lines = sum(1 for line in self._text.split("\n")[1:] if re.match(r"\s*[A-Za-z][\w/ ]*=", line))
            return Parsed(read=lines, accepted=0, ignored=lines)
        return None

    def blocks(self) -> Parsed | None:
        head = [line for line in self._text.split("\n") if line.strip()][:_MOST_LINES_BEFORE]
        if not any(slurm_blocks.begins_block(line) for line in head):
            return None
        for block in slurm_blocks.read_blocks(self._text):
            self._block(block)
        return self._close()

    def headed(self) -> Parsed | None:
        lines = self._text.split("\n")
        for index, line in enumerate(lines[:_MOST_LINES_BEFORE]):
            shape = read_shape(line, below=lines[index + 1] if index + 1 < len(lines) else "") if line.strip() else None
            kind = None if shape is None else headers.kind_of_header(shape.names)
            if shape is not None and kind is not None:
                self._rows(lines, index, shape, kind)
                return self._close()
        return None

    def unheaded(self) -> Parsed | None:
        lines = self._text.split("\n")
        found = layouts.find_layout(lines)
        if found is None:
            return None
        layout, delimiter = found
        names = [layouts.bare_name(name) for name in layout.columns]
        whole = [
            dict(zip(names, cells, strict=True))
            for cells in (layouts.split(line, layout, delimiter) for line in lines)
            if len(cells) == len(names)
        ]
        for number, line in enumerate(lines, start=1):
            if not line.strip("\x00 \t\r\x1e"):
                continue
            cells = layouts.split(line, layout, delimiter)
            record = record_of(number, number)
            if len(cells) != len(names):
                detail = f"found {len(cells)} fields, expected {len(names)}"
                self._tally.refuse(record, Unbelievable("field_count", detail), text=line, into=_INTO[layout.of])
                continue
            self._row(record, dict(zip(names, cells, strict=True)), of=layout.of, text=line, beside=whole)
        return self._close()

    # -- records --

    def _close(self) -> Parsed:
        self._site.close()
        return self._tally.parsed()

    def _take(self, record: str, take: Callable[[], bool], *, text: str, into: str) -> None:
        """Count one record: accepted if `take` returns True, ignored if False, refused if it raises Unbelievable."""
        try:
            is_taken = take()
        except Unbelievable as exc:
            self._tally.refuse(record, exc, text=text[:2000], into=into)
            return
        if is_taken:
            self._tally.accepted += 1
        else:
            self._tally.ignored += 1

    def _put(self, table: str, row: Mapping[str, Cell]) -> bool:
        if self._tally.has(table, row):
            raise Unbelievable("duplicate_row", "a row with the same key and time is before it")
        self._tally.put(table, row)
        return True

    def _job(self, cells: Mapping[str, str]) -> bool:
        return self._put("job_accounting", slurm_jobs.job_row(cells, source=self._source, at=self._at))

    def _node(self, cells: Mapping[str, str]) -> bool:
        self._site.add_node(cells)
        return True

    def _group(self, cells: Mapping[str, str], *, beside: Sequence[Mapping[str, str]]) -> bool:
        """Take a row of nodes that are alike: how many they are, and each of them if it names them."""
        names = self._site.listed_nodes(cells)
        has_figures = any(name.startswith(("NODES", "CPUS(")) for name in cells if name != "NODELISTS")
        is_counted = (has_figures or not names) and add_figures(self._site, cells, beside=beside)
        of_each = {name: cell for name, cell in cells.items() if name != "CPUS(A/I/O/T)"}
        for name in names:
            self._site.add_node({**of_each, "NODELIST": name})
        return is_counted or bool(names)

    def _json_node(self, row: answers.Row) -> bool:
        self._site.add_json_node(row)
        return True

    def _json_group(self, row: answers.Row) -> bool:
        self._site.add_group(row)
        return True

    def _row(
        self, record: str, cells: Mapping[str, str], *, of: layouts.Of, text: str, beside: Sequence[Mapping[str, str]]
    ) -> None:
        takes: Mapping[layouts.Of, Callable[[], bool]] = {
            layouts.Of.JOB: lambda: self._job(cells),
            layouts.Of.NODE: lambda: self._node(cells),
            layouts.Of.QUEUE: lambda: add_queue(self._site, cells),
            layouts.Of.FIGURES: lambda: self._group(cells, beside=beside),
            layouts.Of.NOTHING: lambda: False,
        }
        self._take(record, takes[of], text=text, into=_INTO[of])

    def _block(self, block: slurm_blocks.Block) -> None:
        record = record_of(block.first, block.last)
        if block.kind == "NodeName":
            cells = _renamed(block.pairs, slurm_nodes.NODE_FROM_SCONTROL)
            self._take(record, lambda: self._node(cells), text=block.text, into="inventory")
        elif block.kind == "JobId":
            self._take(record, lambda: self._job(_job_cells(block)), text=block.text, into="job_accounting")
        elif block.kind == "SwitchName":
            self._take(record, lambda: self._switch(block), text=block.text, into="inventory")
        elif block.kind:
            self._tally.ignored += 1
        else:
            wrong = Unbelievable(
                "no_record", f"expected a record that begins with one of {', '.join(slurm_blocks.RECORDS)}"
            )
            self._tally.refuse(record, wrong, text=block.text, into="inventory")

    def _switch(self, block: slurm_blocks.Block) -> bool:
        name = values.read_label(block.pairs["SwitchName"])
        if name is None:
            raise Unbelievable("bad_node_name", "the switch has no name")
        row: dict[str, Cell] = {"node": "", "device": name, "time": self._at, "kind": "switch", "source": self._source}
        return self._put("inventory", row)

    def _rows(self, lines: Sequence[str], index: int, shape: Shape, of: layouts.Of) -> None:
        names = shape.names
        rows: Rows = read_rows(
            lines[index + 1 :],
            shape,
            first_line=index + 2,
            flexible=[
                at for at, name in enumerate(names) if name in layouts.FREE_TEXT or name in ("WORK_DIR", "COMMAND")
            ],
            fits=lambda cells: headers.is_row(names, cells, of),
            header=lines[index],
        )
        self._tally.ignored += rows.repeated_headers
        for wrong in rows.refused:
            problem = Unbelievable(wrong.reason, wrong.detail)
            self._tally.refuse(wrong.record, problem, text=wrong.text, into=_INTO[of])
        whole = [headers.named(names, cells) for cells in rows.rows()]
        is_summary = {"AVAIL", "NODES"} <= set(names) and "HOSTNAMES" not in names
        for number, cells in enumerate(whole):
            text = "|".join(rows.row(number))
            kind = of
            if of is layouts.Of.NODE and (is_summary or not headers.is_one_node(cells)):
                kind = layouts.Of.FIGURES
            elif of is layouts.Of.JOB and "JOBID" not in cells:
                kind = layouts.Of.QUEUE
            self._row(rows.record(number), cells, of=kind, text=text, beside=whole)

    # -- JSON --

    def _answer(self, answer: answers.SlurmReply) -> Parsed:
        takes: Mapping[str, tuple[str, Callable[[answers.Row], bool]]] = {
            "jobs": (
                "job_accounting",
                lambda row: self._put("job_accounting", slurm_jobs.json_job_row(row, source=self._source, at=self._at)),
            ),
            "nodes": ("inventory", self._json_node),
            "sinfo": ("inventory", self._json_group),
            "statistics": (
                "platform_telemetry",
                lambda row: self._put("platform_telemetry", slurm_diag.read_json_report(row, at=self._at)),
            ),
        }
        into, take = takes.get(answer.key, ("inventory", lambda _: False))
        for number, row in enumerate(answer.records):
            self._object(f"{answer.key}[{number}]", row, take=take, into=into)
        if answer.broken is not None:
            wrong = Unbelievable("broken_json", answer.broken)
            self._tally.refuse(f"{answer.key}[{len(answer.records)}]", wrong, text=answer.rest, into=into)
        return self._close()

    def _object(self, record: str, row: object, *, take: Callable[[answers.Row], bool], into: str) -> None:
        if not isinstance(row, dict):
            wrong = Unbelievable("not_an_object", f"found {type(row).__name__}; expected an object")
            self._tally.refuse(record, wrong, text=str(row)[:1000], into=into)
            return
        self._take(record, lambda: take(row), text=json.dumps(row)[:2000], into=into)

    def _object_lines(self, lines: Sequence[str]) -> Parsed:
        """Take one object a line, as squeue and sinfo print them when the format spells JSON."""
        first = json.loads(lines[0])
        is_node = "cstate" in first
        names = _SHORT_NODE if is_node else _SHORT_JOB
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as exc:
                into = "inventory" if is_node else "job_accounting"
                wrong = Unbelievable("broken_json", str(exc)[:200])
                self._tally.refuse(record_of(number, number), wrong, text=line, into=into)
                continue
            cells = (
                _renamed({str(key): str(value) for key, value in row.items()}, names) if isinstance(row, dict) else {}
            )
            of = layouts.Of.NODE if is_node else layouts.Of.JOB
            if not is_node and cells.get("NODELIST(REASON)", "").startswith("("):
                cells["REASON"] = cells["NODELIST(REASON)"][1:-1]
            self._row(record_of(number, number), cells, of=of, text=line, beside=())
        return self._close()


_INTO = {
    layouts.Of.JOB: "job_accounting",
    layouts.Of.NODE: "inventory",
    layouts.Of.QUEUE: "platform_telemetry",
    layouts.Of.FIGURES: "platform_telemetry",
    layouts.Of.NOTHING: "platform_telemetry",
}
_SHORT_JOB = {
    "id": "JOBID",
    "a": "ACCOUNT",
    "state": "STATE",
    "p": "PARTITION",
    "cpu": "CPUS",
    "end_time": "END_TIME",
    "array_id": "ARRAY_TASK_ID",
    "r": "NODELIST(REASON)",
    "u": "USER",
}
_SHORT_NODE = {
    "n": "NODELIST",
    "s": "STATE",
    "p": "PARTITION",
    "mem": "MEMORY",
    "cstate": "CPUS(A/I/O/T)",
}
"""Keys that rivosinc/prometheus-slurm-exporter has squeue and sinfo print -> their columns."""


def _is_short_object(line: str) -> bool:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and ({"id", "state", "cpu"} <= row.keys() or {"n", "s", "cstate"} <= row.keys())


def _renamed(pairs: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in pairs.items():
        if key in names and not (values.is_nothing(value) and found.get(names[key])):
            found[names[key]] = value
    return found


_ONCE = frozenset(("JobId", "JobName", "UserId", "JobState", "StartTime", "EndTime", "NodeList", "TRES", "Account"))


def _job_cells(block: slurm_blocks.Block) -> dict[str, str]:
    forged = block.doubled & _ONCE
    if forged:
        raise Unbelievable(
            "ambiguous_fields", f"{', '.join(sorted(forged))} stand twice: a job's name may pass for fields; use --json"
        )
    return _renamed(block.pairs, slurm_jobs.FROM_SCONTROL)
