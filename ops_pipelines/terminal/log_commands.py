"""`ops-pipelines logs`: what raw log lines mean, and what a code or signature means with every source's answer.

Meanings are `observe.logs.classify` and the catalogue; what the live loop makes of a line is
`observe.rules`. Files are read line by line (`log_input`): no file is too long. Heavy imports stay
inside functions, as `--help` passes through here.
"""

import json as json_format
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.catalogue_views import Explained, explain_name, meanings
from ops_pipelines.terminal.edge import ExitCode, at_the_edge, complain
from ops_pipelines.terminal.log_input import STANDARD_INPUT, UnreadableLog, open_log
from ops_pipelines.terminal.log_summary import print_summary, summarise

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
    from ops_pipelines.resources.catalogue_files import read_catalogue

    try:
        with open_log(file) as stream:
            verdicts = classify_lines(read_lines(stream), catalogue=read_catalogue(), matcher=shared_matcher())
            if json:
                _write_json(verdicts)
            else:
                print_summary(summarise(verdicts), meanings=meanings())
            if stream.damage is not None:
                complain(f"{_name(file)}: {_reason(stream.damage)}: what stands before was read, and nothing after")
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
