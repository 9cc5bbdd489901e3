"""How `ops-pipelines capacity` is printed for people, at 80 columns and wider. Names reach it only through `printable`.

Amounts and days are never cut; what explains a line stands under the table, where it may be long.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops_pipelines.capacity.model import LEVELS
from ops_pipelines.core.money import Cents, show_cents
from ops_pipelines.report.terminal import print_lines, printable
from ops_pipelines.terminal.capacity_views import ForecastView, ForecastWeekView, OrderView, PlanView

if TYPE_CHECKING:
    from ops_pipelines.capacity.forecast.ahead import Backtest, Measured

_SHOWN_WEEKS = (1, 2, 3, 4, 6, 8, 10, 13, 17, 21, 26, 30, 34, 39, 43, 47, 52, 65, 78, 91, 104)
"""Of a forecast: near ones closely. JSON has all."""
_PLAIN = ("ordinary",)
"""Treatments that need no word."""


def print_forecast(out: Console, view: ForecastView) -> None:
    """Print weeks by type, series that were treated in a way of their own, and the notes."""
    out.print(Text(f"{view.quarter} of {printable(view.cluster)}, as of {view.as_of}, {view.timezone}", style="bold"))
    for gpu_type, weeks in groupby(view.weeks, key=lambda each: each.gpu_type):
        out.print(_weeks(gpu_type, list(weeks), limit=view.shortage_probability_max))
    if not view.weeks:
        print_lines(out, ["nothing can be said of GPUs: too few of their days are known"])
    print_lines(
        out,
        [
            f"above {view.shortage_probability_max:.0%} a week counts as short (!); widths are measured on the past "
            f"for {view.vouched_weeks} weeks ahead, and drawn on where a week has ~; --json has every week",
        ],
    )
    print_lines(
        out,
        (
            f"{' '.join(word for word in (each.resource, each.gpu_type, each.name or '(all)') if word)}: "
            f"treated as {each.treatment.replace('_', ' ')}"
            for each in view.series
            if each.treatment not in _PLAIN
        ),
    )
    print_lines(out, (f"note: {each}" for each in view.notes))


def _weeks(gpu_type: str, weeks: Sequence[ForecastWeekView], *, limit: float) -> Table:
    table = _table(title=printable(gpu_type) or "GPUs")
    _columns(table, ("week", "from"), numbers=("median", "90 %", "usable", "installed", "short"))
    for each in weeks:
        # The last one stands there too: it says where all ends.
        if each.week not in _SHOWN_WEEKS and each is not weeks[-1]:
            continue
        chance = each.shortage_probability
        mark = "" if chance is None or chance <= limit else " !"
        table.add_row(
            f"{each.week}{'' if each.is_vouched else ' ~'}",
            each.first_day,
            f"{each.peak_median:,.0f}",
            f"{each.peak_90:,.0f}",
            "?" if each.usable is None else f"{each.usable:,.0f}",
            "?" if each.installed is None else f"{each.installed:,.0f}",
            "?" if chance is None else f"{_chance(chance)}{mark}",
        )
    return table


def print_plan(out: Console, view: PlanView) -> None:
    """Print what to order with the reasons, what else could be done, what a wrong number costs, old hardware."""
    out.print(Text(f"{view.quarter} of {printable(view.cluster)}, as of {view.as_of}", style="bold"))
    _print_orders(out, view)
    if view.alternatives:
        out.print(_alternatives(view))
        print_lines(out, (f"{each.way}: {each.said}" for each in view.alternatives))
    if view.regret:
        out.print(_regret(view))
    for each in view.refresh:
        print_lines(
            out, [f"{each.asset}, {each.gpus} GPUs{', due for replacement' if each.is_due else ''}: {each.said}"]
        )
    print_lines(out, (f"note: {each}" for each in view.notes))


def print_report(out: Console, *, headline: Iterable[str], plan: PlanView) -> None:
    """Print what a director must know, and the order table."""
    print_lines(out, headline)
    _print_orders(out, plan)
    print_lines(out, ["--out DIR writes the whole report as a page and as JSON"])


def _print_orders(out: Console, view: PlanView) -> None:
    if not view.orders:
        print_lines(out, ["nothing is judged: neither demand nor limits are known"])
        return
    table = _table(title="to be ordered")
    table.add_column("what", overflow="fold", min_width=10)
    _columns(table, (), numbers=("count",))
    _columns(table, ("order by", "short from", "there from"))
    table.add_column(f"cost {printable(view.currency)}".strip(), justify="right", overflow="fold", min_width=9)
    for each in view.orders:
        table.add_row(
            Text(printable(each.what)),
            str(each.count) if each.count else "",
            _order_by(each),
            each.short_from or "not short",
            each.earliest_relief or "",
            "" if not each.count else "not known" if each.cents is None else _money(each.cents),
        )
    out.print(table)
    print_lines(out, (f"{each.what}: {each.why}" for each in view.orders))


def _chance(probability: float) -> str:
    """Return how likely a week is short; a peak is told between its outermost levels, not beyond them."""
    if probability < LEVELS[0]:
        return f"<{LEVELS[0]:.0%}"
    return f">{LEVELS[-1]:.0%}" if probability > LEVELS[-1] else f"{probability:.0%}"


def _order_by(line: OrderView) -> str:
    if line.short_from is None:
        return ""
    if line.order_by is None:
        return "no date"
    return f"{line.order_by}{' late' if line.is_overdue else ''}"


def _alternatives(view: PlanView) -> Table:
    table = _table(title="what could be done")
    table.add_column("way", overflow="fold", min_width=8)
    has_types = len({each.gpu_type for each in view.alternatives}) > 1
    if has_types:
        table.add_column("type", overflow="fold")
    _columns(table, (), numbers=("GPUs", "worst week", "GPU-h short"))
    _columns(table, ("from",))
    table.add_column(f"cost {printable(view.currency)}".strip(), justify="right", overflow="fold", min_width=9)
    for each in view.alternatives:
        table.add_row(
            each.way,
            *([Text(printable(each.gpu_type))] if has_types else []),
            f"{each.gpus:,.0f}",
            _chance(each.worst_shortage_probability),
            f"{each.short_gpu_hours:,.0f}",
            each.takes_effect_on or "",
            "not known" if each.cents is None else _money(each.cents),
        )
    return table


def _regret(view: PlanView) -> Table:
    """Return by nodes what is lost over the best number, at each ratio of what is short to what is idle."""
    table = _table(title=f"regret by nodes ordered, {printable(view.currency)}".removesuffix(", "))
    has_types = len({each.gpu_type for each in view.regret}) > 1
    if has_types:
        table.add_column("type", overflow="fold")
    _columns(table, (), numbers=("nodes", "GPU-h short", "GPU-h idle"))
    for ratio in view.regret_ratios:
        table.add_column(f"{ratio:g}:1", justify="right", overflow="fold")
    for each in view.regret:
        table.add_row(
            *([Text(printable(each.gpu_type))] if has_types else []),
            str(each.nodes),
            f"{each.short_gpu_hours:,.0f}",
            f"{each.idle_gpu_hours:,.0f}",
            # Cents of a loss that is expected would say more than is known.
            *("best" if not cents else f"{cents / 100:,.0f}" for cents in each.regret_by_ratio),
        )
    return table


def print_backtest(out: Console, found: "Backtest", *, horizon_days: int) -> None:
    """Print measures by method, then those of each team."""
    table = _table(title=f"windows of {horizon_days} days")
    for heading in ("", "MASE", "WQL", "held", "bound/peak", "windows"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for name, measured in found.methods.items():
        table.add_row(name, *_cells(measured))
    table.add_section()
    for each in found.series:
        table.add_row(f"{printable(each.team)[:24]} ({each.treatment.value})", *_cells(each.measured))
    out.print(table)
    low, high = found.interval or (0.0, 1.0)
    for line in (
        f"held: how often the 90 % bound held the window's peak; 95 % interval of combined: {low:.0%} to {high:.0%}",
        "combined is what the program uses; the teams' rows are its too",
    ):
        out.print(Text(line, style="dim"))


def _cells(measured: "Measured") -> list[str]:
    def cell(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    return [
        cell(measured.mase, ".2f"),
        cell(measured.wql, ".3f"),
        cell(measured.peak_coverage_90, ".0%"),
        cell(measured.bound_to_peak_ratio, ".2f"),
        str(measured.origins),
    ]


def _table(*, title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _columns(table: Table, words: Sequence[str], *, numbers: Sequence[str] = ()) -> None:
    for heading in words:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", overflow="fold")


def _money(cents: int) -> str:
    return show_cents(Cents(cents))
