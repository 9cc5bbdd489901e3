"""`ops-pipelines logs`: lines of logs classified, and what a catalogue says of them."""

import gzip
import io
import json as json_format
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ops_pipelines.terminal.edge import ExitCode, at_the_edge, complain

# -- one row of the catalogue as `logs explain` answers it --


if TYPE_CHECKING:
    from ops_pipelines.core.finding import CodeRule, LogRule, RepeatRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One row of the catalogue, ready to be shown."""

    name: str
    rule: "CodeRule | LogRule"

    def as_json(self) -> dict[str, object]:
        rule = self.rule
        repeat = rule.repeat
        return {
            "name": self.name,
            "mnemonic": getattr(rule, "mnemonic", None),
            "meaning": rule.meaning,
            "at_fault": rule.at_fault.value,
            "family": rule.family.value,
            "actions": self.actions(),
            "is_destructive": self.is_destructive(),
            "is_secondary": rule.is_secondary,
            "repeat": None
            if repeat is None
            else {
                "count": repeat.count,
                "within_hours": repeat.within.total_seconds() / 3600,
                "then": repeat.then.value,
                "source": repeat.source,
            },
            "is_disputed": self.is_disputed(),
            "answers": [{"source": answer.source, "says": answer.says} for answer in getattr(rule, "answers", ())],
            "source": rule.source,
        }

    def as_fields(self) -> dict[str, str]:
        rule = self.rule
        mnemonic = getattr(rule, "mnemonic", "")
        return {
            "name": f"{self.name} {mnemonic}".strip(),
            "meaning": rule.meaning,
            "at fault": rule.at_fault.value,
            "first action": self.actions()[0] + (" (takes a node out of service)" if self.is_destructive() else ""),
            "or else": ", ".join(self.actions()[1:]),
            "damage of": "something else, mostly: it opens nothing by itself" if rule.is_secondary else "",
            "on repetition": _repeat_text(rule.repeat),
            "source": rule.source,
        }

    def actions(self) -> list[str]:
        from ops_pipelines.core.finding import CodeRule

        rule = self.rule
        return [rule.first_action.value] if isinstance(rule, CodeRule) else [action.value for action in rule.actions]

    def is_destructive(self) -> bool:
        from ops_pipelines.core.fault import DESTRUCTIVE_ACTIONS, FirstAction

        return FirstAction(self.actions()[0]) in DESTRUCTIVE_ACTIONS

    def is_disputed(self) -> bool:
        return bool(getattr(self.rule, "is_disputed", False))


def explain_name(name: str) -> Explained | None:
    """Return the row of the catalogue called `xid_79`, `sxid_20034` or as a signature; None if there is none."""
    from ops_pipelines.resources.catalogue_files import read_explaining_catalogue

    catalogue = read_explaining_catalogue()
    kind, _, number = name.rpartition("_")
    codes = {"xid": catalogue.xids, "sxid": catalogue.sxids}.get(kind)
    rule: CodeRule | LogRule | None = None
    if codes is not None and number.isdecimal():
        rule = codes.get(int(number))
    if rule is None:
        rule = catalogue.signatures.get(name)
    return None if rule is None else Explained(name=name, rule=rule)


def meanings() -> dict[str, str]:
    """Return what each signature, Xid and SXid of the catalogue means, by its name."""
    from ops_pipelines.resources.catalogue_files import read_explaining_catalogue

    catalogue = read_explaining_catalogue()
    return {
        **{name: rule.meaning for name, rule in catalogue.signatures.items()},
        **{f"xid_{code}": rule.meaning for code, rule in catalogue.xids.items()},
        **{f"sxid_{code}": rule.meaning for code, rule in catalogue.sxids.items()},
        "xid_unknown": "an Xid that the catalogue does not have: reported, never acted on",
        "sxid_unknown": "an SXid that the catalogue does not have: reported, never acted on",
    }


def _repeat_text(repeat: "RepeatRule | None") -> str:
    if repeat is None:
        return ""
    hours = repeat.within.total_seconds() / 3600
    return f"{repeat.count} within {hours:g} h on one part: {repeat.then.value} ({repeat.source})"


# -- opens a log that a person names --


if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STANDARD_INPUT = "-"
_GZIP = b"\x1f\x8b\x08"
_HEAD_BYTES = 16
_READ_AT_ONCE = 1024 * 1024


class UnreadableLog(ValueError):
    """The file cannot be read as a log. The message says why, and what to give instead."""


class SalvagedLog:
    """A log that ends where it can no longer be read, so that what is before is answered all the same."""

    def __init__(self, stream: io.BufferedIOBase | gzip.GzipFile) -> None:
        self._stream = stream
        self.damage: OSError | EOFError | zlib.error | None = None
        """Why the log ends before its end; None while all is well."""

    def read(self, size: int, /) -> bytes:
        """Return some bytes, at most `size`; none at the end or from the damage on."""
        if self.damage is not None:
            return b""
        try:
            # `read` would gather pieces until it has `size` bytes, and lose them all with the one that fails.
            return self._stream.read1(size)
        except (OSError, EOFError, zlib.error) as problem:
            self.damage = problem
            return b""


class _Rejoined(io.RawIOBase):
    """A stream whose head was read to know its kind, from its first byte again: a pipe cannot be wound back."""

    def __init__(self, head: bytes, rest: io.BufferedIOBase) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        room = memoryview(buffer).cast("B")
        part = self._head[: len(room)] or self._rest.read1(len(room))
        self._head = self._head[len(part) :]
        room[: len(part)] = part
        return len(part)


@contextmanager
def open_log(path: str) -> Iterator[SalvagedLog]:
    """Open a log (`-`: standard input) as bytes, unpacking gzip on the way. Ask its `damage` when it has ended.

    Raises OSError, or UnreadableLog for a directory, a device, and a kind of file that is known by its first bytes.
    """
    from ops_pipelines.observe.logs.files import find_kind

    if path == STANDARD_INPUT:
        stream = cast("io.BufferedIOBase", sys.stdin.buffer)
    else:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            raise UnreadableLog("is a directory; give one file")
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise UnreadableLog("is neither a file nor a pipe")
        stream = Path(path).open("rb")  # noqa: SIM115 -- closed below; standard input must stay open
    try:
        # A pipe gives what was written so far, down to one byte: `read` waits for the whole head or the end.
        head = stream.read(_HEAD_BYTES)
        whole = io.BufferedReader(_Rejoined(head, stream), buffer_size=_READ_AT_ONCE)
        if head.startswith(_GZIP):
            with gzip.open(whole, "rb") as unpacked:
                yield SalvagedLog(unpacked)
            return
        kind = find_kind(head)
        if kind is not None:
            raise UnreadableLog(f"is {kind}; expected a log in plain text, or gzipped")
        yield SalvagedLog(whole)
    finally:
        if path != STANDARD_INPUT:
            stream.close()


# -- what a whole log says, added up by meaning --


if TYPE_CHECKING:
    from ops_pipelines.observe.logs.classify import LineVerdict


@dataclass(slots=True, kw_only=True)
class Group:
    """All lines of one log that mean the same."""

    first: "LineVerdict"
    count: int = 0


@dataclass(slots=True, kw_only=True)
class Summary:
    """What a log says, added up. It grows with the number of meanings, never with that of lines."""

    line_count: int = 0
    unknown_count: int = 0
    groups: dict[tuple[str, tuple[str, ...]], Group] = field(default_factory=dict)
    """By signature and actions, in the order of the first line of each."""


def summarise(verdicts: Iterable["LineVerdict"]) -> Summary:
    """Return the lines counted by what they mean; lines that no row names are counted, and not listed."""
    summary = Summary()
    for each in verdicts:
        summary.line_count += 1
        if each.signature is None:
            summary.unknown_count += 1
            continue
        key = (each.signature, tuple(action.value for action in each.actions))
        summary.groups.setdefault(key, Group(first=each)).count += 1
    return summary


def print_summary(summary: Summary, *, meanings: Mapping[str, str]) -> None:
    """Print one row a meaning in the order of first lines, then the count of lines and of first actions."""
    from rich.table import Table
    from rich.text import Text

    from ops_pipelines.core.fault import DESTRUCTIVE_ACTIONS, FirstAction
    from ops_pipelines.report.terminal import console, print_lines

    out = console()
    if summary.groups:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("lines", justify="right", no_wrap=True)
        table.add_column("first at", justify="right", no_wrap=True)
        table.add_column("what", overflow="fold")
        table.add_column("first action", overflow="fold")
        table.add_column("sure", justify="right", no_wrap=True)
        table.add_column("meaning", overflow="fold")
        for (signature, actions), group in summary.groups.items():
            action = group.first.actions[0]
            style = "bold red" if action in DESTRUCTIVE_ACTIONS else "dim" if action is FirstAction.NONE else ""
            table.add_row(
                str(group.count),
                str(group.first.line),
                Text(signature, style=style),
                Text(actions[0], style=style),
                f"{group.first.confidence:.0%}",
                Text(meanings.get(signature, group.first.category)),
            )
        out.print(table)
    actions_count = Counter[str]()
    for (_, actions), group in summary.groups.items():
        actions_count[actions[0]] += group.count
    calls = ", ".join(f"{name} {count}" for name, count in actions_count.most_common())
    known = summary.line_count - summary.unknown_count
    print_lines(out, [f"{summary.line_count} lines, {known} of them known" + (f": {calls}" if calls else "")])


# -- `ops-pipelines logs` --


if TYPE_CHECKING:
    from rich.console import Console

    from ops_pipelines.observe.logs.classify import LineVerdict

_WRITTEN_AT_ONCE = 2000

logs_app = typer.Typer(help="Say what log lines mean.", no_args_is_help=True, rich_markup_mode=None)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output and nothing else.")]


@logs_app.command()
@at_the_edge
def classify(
    file: Annotated[str, typer.Argument(help="The log, gzipped or not, or - for standard input.")],
    json: AsJson = False,
) -> None:
    """Say of each line of a raw log what it means and what to do first.

    A file whose first line starts `# id<TAB>source` is a table of labelled lines: its `#` lines are passed over, and
    the fifth column is read. Nothing is sent or kept, and no cluster.yaml is needed.

    \b
    JSON: one object a line, in the order of the file, blank and undecodable lines included: line (the number of the
    physical line), signature (null if none is known), category, component, actions (preferred first, never empty),
    confidence (0 to 1).
    """
    from ops_pipelines.observe.logs.classify import classify_lines, read_lines
    from ops_pipelines.observe.logs.matching import shared_matcher
    from ops_pipelines.resources.catalogue_files import read_explaining_catalogue

    try:
        with open_log(file) as stream:
            verdicts = classify_lines(
                read_lines(stream), catalogue=read_explaining_catalogue(), matcher=shared_matcher(with_meanings=True)
            )
            if json:
                _write_json(verdicts)
            else:
                print_summary(summarise(verdicts), meanings=meanings())
            if stream.damage is not None:
                complain(f"{_name(file)}: {_reason(stream.damage)}: what is before was read, and nothing after")
                raise typer.Exit(ExitCode.USAGE)
    except (OSError, UnreadableLog) as problem:
        if isinstance(problem, BrokenPipeError):
            raise
        complain(f"{_name(file)}: {_reason(problem)}")
        raise typer.Exit(ExitCode.USAGE) from problem


def _name(file: str) -> str:
    return "standard input" if file == STANDARD_INPUT else file


def _reason(problem: Exception) -> str:
    return problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)


def _write_json(verdicts: Iterable["LineVerdict"]) -> None:
    """Write one JSON object a verdict. All but the line's number repeats itself, and is formatted once."""

    @lru_cache(maxsize=4096)
    def rest_of(
        signature: str | None, category: str, component: str, actions: tuple[str, ...], confidence: float
    ) -> str:
        values = {
            "signature": signature,
            "category": category,
            "component": component,
            "actions": actions,
            "confidence": confidence,
        }
        return json_format.dumps(values)[1:]

    lines: list[str] = []
    for each in verdicts:
        actions = tuple(action.value for action in each.actions)
        lines.append(
            f'{{"line": {each.line}, {rest_of(each.signature, each.category, each.component, actions, each.confidence)}'
        )
        if len(lines) >= _WRITTEN_AT_ONCE:
            sys.stdout.write("\n".join(lines) + "\n")
            lines.clear()
    if lines:
        sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


@logs_app.command()
@at_the_edge
def explain(
    name: Annotated[str, typer.Argument(help="xid or sxid, followed by a code; or a signature, such as mlx5_health.")],
    code: Annotated[int | None, typer.Argument(help="The number of the Xid or SXid.", min=0)] = None,
    json: AsJson = False,
) -> None:
    """Explain a code or a signature: its meaning, who is at fault, what to do first, and what each source says.

    \b
    JSON: name, mnemonic (null for a signature), meaning, at_fault, family, actions [preferred first], is_destructive,
    is_secondary, repeat {count, within_hours, then, source} or null, is_disputed, answers [source, says], source.
    """
    from ops_pipelines.report.terminal import console, print_fields

    explained = explain_name(name.lower() if code is None else f"{name.lower()}_{code}")
    if explained is None:
        asked = name if code is None else f"{name} {code}"
        complain(
            f"{asked} is not in the catalogue; expected `xid CODE`, `sxid CODE`, or a signature of `logs classify`"
        )
        raise typer.Exit(ExitCode.REFUSED)
    if json:
        typer.echo(json_format.dumps(explained.as_json()))
        return
    out = console()
    print_fields(out, explained.as_fields())
    _print_answers(out, explained)


def _print_answers(out: "Console", explained: Explained) -> None:
    from ops_pipelines.report.terminal import print_fields, print_lines

    answers = getattr(explained.rule, "answers", ())
    if not answers:
        return
    verdict = "they disagree; the mildest that fits the meaning is taken" if explained.is_disputed() else "they agree"
    print_lines(out, ["", f"what the sources say: {verdict}"])
    print_fields(out, {answer.source: answer.says for answer in answers})
