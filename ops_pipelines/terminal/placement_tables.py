"""How `ops-pipelines placement` prints: sentences, then tables with their first rows.

Text of others reaches the terminal only through `printable`.
"""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops_pipelines.efficiency.placement.fragmentation import Fit
from ops_pipelines.terminal.placement_views import PlacementView
from ops_pipelines.terminal.tables import first_of, moment, print_fields, print_lines, printable

_ROWS_SHOWN = 12
_NAMES_SHOWN = 4


def print_placement(out: Console, view: PlacementView) -> None:
    """Print the sentences, and the tables that they were made from, each with its first rows."""
    print_fields(
        out,
        {
            "from": f"{moment(view.start)} to {moment(view.end)}",
            "cluster": f"{view.node_count} nodes, {view.gpu_count} GPUs",
            "jobs": f"{view.started_count} started",
        },
    )
    print_lines(out, view.sentences)
    avoidable = [each for each in view.straddles if each.is_avoidable]
    _print_table(
        out,
        ("apart, and need not", "team", "nodes", "by", "in", "had room", "matters"),
        [
            (
                each.job,
                each.team,
                str(each.node_count),
                each.level,
                f"{len(each.parts)} instead of {each.fewest}",
                first_of(each.better, _NAMES_SHOWN),
                f"{each.cost}: {each.because}",
            )
            for each in avoidable
        ],
    )
    _print_table(
        out,
        ("stranded on", "why", "cause", "GPU-hours", "now"),
        [
            (each.node or "all nodes", each.why, each.cause, f"{each.gpu_hours:.1f}", str(each.gpus_at_the_end))
            for each in view.stranded
        ],
    )
    _print_table(
        out,
        ("could start at the end", "within", "jobs", "by count"),
        [
            (_size(each), each.within.value, str(each.could_start), str(each.by_count))
            for each in view.fits
            if each.could_start < each.by_count
        ],
    )
    _print_table(
        out,
        ("whole next", "free", "jobs on it", "likely", "at the latest"),
        [
            (
                each.node,
                str(each.free_gpus),
                first_of(each.jobs, _NAMES_SHOWN),
                "" if each.likely_by is None else moment(each.likely_by),
                "" if each.whole_by is None else moment(each.whole_by),
            )
            for each in view.node_hints
        ],
    )
    _print_table(
        out,
        ("waited for its limit", "team", "limit", "enough", "earlier by", "hole before"),
        [
            (
                each.job,
                each.team,
                _hours(each.limit_seconds),
                _hours(each.proposed_seconds),
                _hours(each.earlier_seconds),
                each.ended_by,
            )
            for each in view.backfill
        ],
    )
    _print_table(
        out,
        ("size", "team", "jobs", "median", "p90", "above 1 h", "mostly for", ""),
        [
            (
                each.size.value,
                each.team or "(all)",
                str(each.job_count),
                _hours(each.median_seconds),
                _hours(each.p90_seconds),
                f"{each.long_ratio:.0%}",
                each.mostly_for,
                "too few to compare" if each.is_few else "",
            )
            for each in view.queue_times
        ],
    )
    for each in view.findings or ():
        print_lines(out, [f"{each.where or 'cluster'}: {each.setting} is {each.found}: {each.why}. Set {each.set_to}"])
    print_lines(out, [f"not known: {each}" for each in view.notes])
    if view.refused:
        print_lines(out, [f"{len(view.refused)} rows were refused; --json names them"])


def _size(fit: Fit) -> str:
    return f"{fit.node_count} nodes" if fit.node_count > 1 else f"{fit.gpus_per_node} GPUs"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h"


def _print_table(out: Console, names: Iterable[str], rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows[:_ROWS_SHOWN]:
        table.add_row(*(Text(printable(cell), overflow="fold") for cell in row))
    out.print(table)
    if len(rows) > _ROWS_SHOWN:
        print_lines(out, [f"and {len(rows) - _ROWS_SHOWN} more; --json lists them all"])
