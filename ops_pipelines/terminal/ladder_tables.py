"""How `ladder`, `probation` and `repair list` are printed for people, at 80 columns and wider.

Text from logs, jobs and people reaches the terminal only through `printable`.
"""

from dataclasses import asdict
from datetime import timedelta

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops_pipelines.report.numbers import moment
from ops_pipelines.report.terminal import printable
from ops_pipelines.terminal.ladder_views import LadderView, ProbationsView, QueueView, RungsView
from ops_pipelines.terminal.tables import duration_text, first_of, style_of

_JOBS_SHOWN = 5


def print_ladder(out: Console, view: LadderView) -> None:
    """Print one block a node: where it stands, what did not help, what comes next."""
    if not view.nodes:
        out.print(Text("no node stands above watching"))
        return
    table = _table("node", "rung", "for", "incident", "what was tried, and what comes next")
    for column, width in zip(table.columns, (24, 10, 10, 10), strict=False):
        column.max_width = width  # so that the words keep half of 80 columns
    for each in view.nodes:
        lines = [each.cause]
        lines += [f"{tried.repair.replace('_', ' ')} did not help: {tried.why}" for tried in each.tries]
        lines += [f"then: {each.next_rung.replace('_', ' ')}"] if each.next_rung else []
        lines += [f"waits for {each.waits_for}"] if each.waits_for else []
        table.add_row(
            _text(each.node),
            _text(f"{each.rung_number} {each.rung.replace('_', ' ')}"),
            duration_text(timedelta(seconds=each.for_seconds)),
            Text(printable(f"{each.incident} {each.state}"), style=style_of(each.state), overflow="fold"),
            Text("\n").join(_text(line) for line in lines),
        )
    out.print(table)


def print_rungs(out: Console, view: RungsView) -> None:
    """Print the table of rungs, one block a rung: on 80 columns six of them would be unreadable."""
    for each in view.rungs:
        out.print(Text(f"{each.number} {each.rung.replace('_', ' ')}", style="bold"))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        limit = "none" if each.limit_seconds is None else duration_text(timedelta(seconds=each.limit_seconds))
        rows = asdict(each) | {
            "acts": ", ".join(verb.replace("_", " ") for verb in each.acts) or "none",
            "time limit": limit,
            "tries a day": "" if each.max_tries is None else f"{each.max_tries} a node; more are passed over",
        }
        for name in ("acts", "precondition", "witness", "compensation", "time limit", "tries a day"):
            if rows[name]:
                grid.add_row(f"  {name}", _text(str(rows[name])))
        out.print(grid)


def print_probations(out: Console, view: ProbationsView) -> None:
    """Print one row a node."""
    if not view.nodes:
        out.print(Text("no node is on probation"))
        return
    table = _table("node", "incident", "since (UTC)", "left", "jobs on it")
    for each in view.nodes:
        jobs = "not known" if each.jobs is None else first_of(each.jobs, _JOBS_SHOWN) or "none"
        table.add_row(
            _text(each.node),
            _text(each.incident),
            moment(each.since).removesuffix(" UTC"),
            duration_text(timedelta(seconds=each.left_seconds)),
            _text(jobs),
        )
    out.print(table)
    out.print(Text("\na fault ends it early: the node is drained again, and the next repair is planned", style="dim"))


def print_queue(out: Console, view: QueueView) -> None:
    """Print one row a node, the longest waiting first."""
    if not view.nodes:
        out.print(Text("the repair queue is empty"))
        return
    table = _table("node", "incident", "waits", "what is asked for")
    for each in view.nodes:
        table.add_row(
            _text(each.node),
            _text(each.incident),
            duration_text(timedelta(seconds=each.age_seconds)),
            Text("\n").join(_text(line) for line in each.asks),
        )
    out.print(table)
    out.print(
        Text(
            "\n`ops-pipelines repair report INC-...` is for the vendor; `repair done INC-... --note ...` ends the wait",
            style="dim",
            overflow="fold",
        )
    )


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _text(text: str) -> Text:
    return Text(printable(text), overflow="fold")
