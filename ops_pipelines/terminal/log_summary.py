"""What a whole log says, added up by meaning, and how `logs classify` prints that.

Memory grows with the number of meanings, never with that of lines. Heavy imports stay inside functions, as `--help`
passes through `log_commands`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
