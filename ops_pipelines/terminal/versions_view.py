"""What `ops-pipelines versions` says: the shape of its JSON, and its print for people.

Field names are JSON keys: renaming one breaks the scripts of operators. Text from nodes reaches the terminal only
through `printable`.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops_pipelines.core.identity import listed
from ops_pipelines.report.numbers import moment
from ops_pipelines.report.terminal import print_fields, print_lines, printable
from ops_pipelines.rollouts.seen_fleet import VersionsSeen
from ops_pipelines.rollouts.versions.comparing import VersionLine

_NAMES_SHOWN = 6
_DRIFTS_SHOWN = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionView:
    """One component of one node."""

    node: str
    model: str
    component: str
    runs: str | None
    """None: nobody tells."""
    seen_at: datetime | None
    told_by: str
    """`node`, `inventory` (the node did not answer), or empty."""
    should_run: str | None
    """None: nobody says."""
    said_by: str
    fit: str
    """fits, drifts, unknown (not told), free (nobody says which)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsView:
    cluster: str
    taken_at: datetime
    node_count: int
    drift_count: int
    silent_nodes: tuple[str, ...]
    versions: tuple[VersionView, ...]
    problems: tuple[str, ...]


def view_versions(seen: VersionsSeen, *, cluster: str) -> VersionsView:
    """Return what runs, as it is shown."""
    return VersionsView(
        cluster=cluster,
        taken_at=seen.taken_at,
        node_count=len({each.node for each in seen.lines}),
        drift_count=len(seen.drifts),
        silent_nodes=seen.silent,
        versions=tuple(_line(each) for each in seen.lines),
        problems=seen.problems,
    )


def print_versions(out: Console, view: VersionsView) -> None:
    """Print how many nodes run which version, and every one that runs another than it should."""
    print_fields(
        out,
        {
            "nodes": str(view.node_count),
            "drift": f"{view.drift_count} versions" if view.drift_count else "none",
            "silent": _silent(view.silent_nodes),
        },
    )
    counts = _table("component", "model", "version", "nodes")
    for (component, model, version), nodes in _by_version(view.versions).items():
        counts.add_row(*map(_text, (component, model, version, f"{len(nodes)}: {listed(nodes, at_most=_NAMES_SHOWN)}")))
    out.print(counts)
    drifts = [each for each in view.versions if each.fit == "drifts"]
    if drifts:
        table = _table("node", "component", "runs", "should run", "says", "seen")
        for each in drifts[:_DRIFTS_SHOWN]:
            seen = "" if each.seen_at is None else moment(each.seen_at)
            told = f"{seen}, by the inventory" if each.told_by == "inventory" else seen
            table.add_row(
                *map(_text, (each.node, each.component, each.runs or "", each.should_run or "", each.said_by, told))
            )
        out.print(table)
    if len(drifts) > _DRIFTS_SHOWN:
        print_lines(out, [f"and {len(drifts) - _DRIFTS_SHOWN} more; --json lists them all"])


def _line(line: VersionLine) -> VersionView:
    seen, wanted = line.seen, line.wanted
    return VersionView(
        node=line.node,
        model=line.model,
        component=line.component.value,
        runs=None if seen is None else seen.version,
        seen_at=None if seen is None else seen.seen_at,
        told_by="" if seen is None else "node" if seen.is_live else "inventory",
        should_run=None if wanted is None else wanted.version,
        said_by="" if wanted is None else wanted.said_by,
        fit=line.fit.value,
    )


def _by_version(versions: Sequence[VersionView]) -> dict[tuple[str, str, str], list[str]]:
    """Return the nodes that run each version, components in their order, the version of most nodes first."""
    order = {component: place for place, component in enumerate(dict.fromkeys(each.component for each in versions))}
    nodes: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for each in versions:
        if each.runs is not None:
            nodes[each.component, each.model, each.runs].append(each.node)
    sizes = Counter({key: len(names) for key, names in nodes.items()})
    return {key: nodes[key] for key in sorted(nodes, key=lambda key: (order[key[0]], key[1], -sizes[key], key[2]))}


def _silent(nodes: Sequence[str]) -> str:
    return f"{len(nodes)} did not answer: {listed(nodes, at_most=_NAMES_SHOWN)}" if nodes else ""


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _text(text: str) -> Text:
    return Text(printable(text), overflow="fold")
