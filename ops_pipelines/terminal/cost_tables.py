"""How `ops-pipelines cost` is printed for people. Accounts and projects reach the terminal only through `printable`."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops_pipelines.core.money import Cents, show_cents
from ops_pipelines.terminal.cost_views import CostLineView, CostView
from ops_pipelines.terminal.tables import moment, print_fields, print_lines, printable


def print_cost(out: Console, view: CostView) -> None:
    """Print the sums, the lines with their total, the budgets, and what is not known."""
    hours = ", ".join(f"{what} {each:,.1f}" for what, each in view.gpu_hours.items() if each)
    print_fields(
        out,
        {
            "month": f"{view.month} {'' if view.is_over else 'to date'}".strip(),
            "until": moment(view.until),
            "GPU-hours": hours,
            "cost": "" if view.asset_cents is None else f"{_money(view.asset_cents)} {view.currency}",
            "residual": "" if view.residual_cents is None else f"{view.residual_cents} cents",
            "an installed GPU-hour": ", ".join(
                f"{rate / 100:.4f} {view.currency}{f' ({name})' if name else ''}" for name, rate in view.rates.items()
            ),
            "nothing is charged": view.why_nothing_is_charged or "",
        },
    )
    if view.lines:
        out.print(_lines(view))
    if view.budgets:
        out.print(_budgets(view))
    print_lines(out, [f"refused: {count} rows, {reason}" for reason, count in view.refused.items()])
    print_lines(out, [f"not known: {each}" for each in view.not_known])


def _lines(view: CostView) -> Table:
    """Return the lines as a table. Columns in which nothing stands are left out, and no amount is ever cut off."""
    is_charged = view.asset_cents is not None
    money = ("GPU", "energy", "storage", "network", "credits", "total") if is_charged else ()
    headings = ("GPU-hours", "used", "wasted", *money)
    cells = [(*_hours(line), *(_cells(line) if is_charged else ())) for line in view.lines]
    shown = [place for place, _ in enumerate(headings) if any(row[place] for row in cells)]
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("who", overflow="fold")
    for place in shown:
        table.add_column(headings[place], justify="right", overflow="fold")
    for line, row in zip(view.lines, cells, strict=True):
        table.add_row(Text(printable(_who(line))), *(row[place] for place in shown))
    if is_charged:
        table.add_section()
        total = sum(line.total_cents or 0 for line in view.lines)
        sums = {0: f"{sum(line.gpu_hours for line in view.lines):,.1f}", len(headings) - 1: _money(total)}
        table.add_row("sum", *(sums.get(place, "") for place in shown))
    return table


def _hours(line: CostLineView) -> tuple[str, ...]:
    measured = (line.used_gpu_hours, line.wasted_gpu_hours)
    return (f"{line.gpu_hours:,.1f}", *("" if hours is None else f"{hours:,.1f}" for hours in measured))


def _who(line: CostLineView) -> str:
    if line.team is None:
        return f"({line.what})"
    return line.team if line.project is None else f"{line.team} / {line.project}"


def _cells(line: CostLineView) -> tuple[str, ...]:
    amounts = (
        line.gpu_cents, line.energy_cents, line.storage_cents, line.network_cents, line.credit_cents, line.total_cents,
    )  # fmt: skip
    return tuple("" if not cents else _money(cents) for cents in amounts)


def _budgets(view: CostView) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("team", overflow="fold")
    for heading in ("budget", "spent", "share", "forecast"):
        table.add_column(heading, justify="right")
    table.add_column("says")
    for each in view.budgets:
        table.add_row(
            Text(printable(each.team)),
            _money(each.budget_cents),
            _money(each.spent_cents),
            f"{each.spent_ratio:.1%}",
            "not known" if each.forecast_cents is None else _money(each.forecast_cents),
            ", ".join(each.alerts).replace("_", " "),
        )
    return table


def _money(cents: int) -> str:
    return show_cents(Cents(cents))
