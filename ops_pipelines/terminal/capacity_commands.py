"""`ops-pipelines capacity`: how much will be wanted at most, and how far such forecasts can be trusted.

Reads files; touches no cluster. What is computed is `frames.forecast`'s.
"""

import json as documents
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.caller import AsJson
from ops_pipelines.terminal.edge import ExitCode, at_the_edge, complain

if TYPE_CHECKING:
    from ops_pipelines.frames.forecast.backtest import Backtest
    from ops_pipelines.frames.forecast.measures import Measured

capacity_app = typer.Typer(
    help="Peaks of demand ahead, and how good such forecasts were.", no_args_is_help=True, rich_markup_mode=None
)


@capacity_app.callback()
def _capacity() -> None:
    """One command needs a group around it, or it would be the group."""


@capacity_app.command("backtest")
@at_the_edge
def backtest(
    demand: Annotated[Path, typer.Option("--demand", help="Parquet: hour_ts, team, gpus_demand_avg.")],
    horizon_days: Annotated[int, typer.Option("--horizon-days", min=1, max=366, help="Length of a window.")] = 7,
    timezone: Annotated[str, typer.Option("--timezone", help="Whose days they are, such as Asia/Shanghai.")] = "UTC",
    renamed: Annotated[
        list[str] | None, typer.Option("--renamed", help="OLD=NEW: two names of one team; may be given again.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Judge forecasts of peaks on recorded demand: each window is foretold from the days before it alone.

    A series is the daily maximum of a team's hourly demand. Windows that are judged never overlap; bounds are
    calibrated on windows that were over when they began. What was done to days and teams goes to standard error.

    \b
    JSON: pooled, methods {name: ...}, series [{team, treatment, ...}], each with mase, wql (quantiles .1, .5, .9
    of days), peak_coverage_90, bound_to_peak_ratio (median), origins (windows); null where there is nothing to
    divide by. pooled is what the program uses.
    """
    from ops_pipelines.frames.demand.recorded_rows import RefusedDemand
    from ops_pipelines.frames.forecast.backtest import TooShort
    from ops_pipelines.frames.forecast.backtest import backtest as judge
    from ops_pipelines.frames.forecast.recorded_peaks import read_peaks

    try:
        recorded = read_peaks(demand, timezone=timezone, renamed=_renamed(renamed or []))
        found = judge(recorded.series, horizon_days=horizon_days)
    except (RefusedDemand, TooShort, typer.BadParameter) as refused:
        complain(str(refused))
        raise typer.Exit(ExitCode.USAGE) from refused
    for note in recorded.notes:
        complain(f"{demand.name}: {note}")
    if json:
        typer.echo(documents.dumps(_document(found)))
    else:
        _print(found, horizon_days=horizon_days)


def _renamed(pairs: list[str]) -> dict[str, str]:
    """Return the old name by the new one."""
    named: dict[str, str] = {}
    for pair in pairs:
        old, _, new = pair.partition("=")
        if not old or not new or old == new or new in named:
            raise typer.BadParameter(f"--renamed {pair!r}: expected OLD=NEW, two names, each new one once")
        named[new] = old
    return named


def _document(found: "Backtest") -> dict[str, object]:
    return {
        "pooled": asdict(found.pooled),
        "methods": {name: asdict(measured) for name, measured in found.methods.items()},
        "series": [
            {"team": each.team, "treatment": each.treatment.value, **asdict(each.measured)} for each in found.series
        ],
    }


def _print(found: "Backtest", *, horizon_days: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from ops_pipelines.terminal.tables import printable

    table = Table(title=f"windows of {horizon_days} days", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("", "MASE", "WQL", "held", "bound/peak", "windows"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for name, measured in found.methods.items():
        table.add_row(name, *_cells(measured))
    table.add_section()
    for each in found.series:
        table.add_row(f"{printable(each.team)[:24]} ({each.treatment.value})", *_cells(each.measured))
    out = Console()
    out.print(table)
    low, high = found.interval or (0.0, 1.0)
    out.print(
        f"held: how often the 90 % bound held the window's peak; 95 % interval of combined: {low:.0%} to {high:.0%}",
        style="dim",
        highlight=False,
    )
    out.print("combined is what the program uses; the teams' rows are its too", style="dim", highlight=False)


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
