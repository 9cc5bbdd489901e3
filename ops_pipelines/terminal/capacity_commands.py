"""`ops-pipelines capacity`: peaks ahead, what to order by when, the quarter's report; and how good forecasts were.

Orders nothing and keeps nothing: what is kept of a quarter is the asset's. What is computed is `capacity`'s and
`capacity.forecast`'s; the shape of answers is in `capacity.report`.
"""

import json as documents
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ops_pipelines.terminal.edge import (
    DEFAULT_CLUSTER_FILE,
    AsJson,
    ClusterFile,
    ExitCode,
    at_the_edge,
    complain,
    print_answer,
)

if TYPE_CHECKING:
    from datetime import date

    from ops_pipelines.capacity.forecast.backtest import Backtest
    from ops_pipelines.capacity.model import CapacityReport
    from ops_pipelines.teams.desk import TeamsDesk

Made = TypeVar("Made")
AsOf = Annotated[
    str | None,
    typer.Option("--as-of", help="A local day, as 2026-10-01: days before it are known. Left out: today."),
]

capacity_app = typer.Typer(
    help="Peaks of demand ahead, what to order by when, and how good such forecasts were.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@capacity_app.command()
@at_the_edge
def forecast(
    ctx: typer.Context,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    as_of: AsOf = None,
    json: AsJson = False,
) -> None:
    """Show the peaks of GPUs that are expected, week by week with planned projects, and what will be usable.

    \b
    JSON: cluster, quarter, as_of, timezone, vouched_weeks, shortage_probability_max, weeks [{gpu_type, week, first_day,
    peak_median, peak_90, usable, installed, shortage_probability, is_vouched}], series [{resource, gpu_type, name,
    treatment, peak_90, notes}] (the highest 90 % bound of its weeks; null: nothing can be reported), notes [text].
    usable is a mean; usable, installed and shortage_probability are null where the supply of a type is not known.
    """
    from ops_pipelines.capacity.answers import forecast_json
    from ops_pipelines.capacity.forecasting import forecast_quarter
    from ops_pipelines.capacity.report import forecast_document

    desk = _open(ctx, cluster_file)
    day = _day(as_of, desk)
    made = _made(lambda: forecast_quarter(desk, as_of=day))
    limit = desk.capacity_policy.shortage_probability_max
    print_answer(
        lambda: forecast_json(made, shortage_probability_max=limit),
        lambda: forecast_document(made, shortage_probability_max=limit),
        as_json=json,
    )


@capacity_app.command()
@at_the_edge
def plan(
    ctx: typer.Context,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    as_of: AsOf = None,
    json: AsJson = False,
) -> None:
    """Show what runs short when, what to order by when, what else could be done, and what each would cost.

    \b
    JSON: cluster, quarter, as_of, currency, shortage_probability_max, orders [{what, gpu_type, resource, name, count,
    order_by, is_overdue, short_from, earliest_relief, cents, why}], alternatives [{gpu_type, way, gpus,
    worst_shortage_probability, short_gpu_hours, cents, takes_effect_on, `said`}], regret_ratios, regret [{gpu_type,
    nodes, short_gpu_hours, idle_gpu_hours, cents_by_ratio, regret_by_ratio}], refresh [{asset, racks, gpu_type, gpus,
    age_months, replacement, is_due, `said`}], notes [text]. Cents are whole; null: no price, or no date, is known.
    """
    from ops_pipelines.capacity.answers import plan_json
    from ops_pipelines.capacity.forecasting import forecast_quarter, plan_quarter
    from ops_pipelines.capacity.report import plan_document

    desk = _open(ctx, cluster_file)
    day = _day(as_of, desk)
    made = _made(lambda: plan_quarter(desk, forecast_quarter(desk, as_of=day)))
    print_answer(lambda: plan_json(made), lambda: plan_document(made), as_json=json)


@capacity_app.command()
@at_the_edge
def report(
    ctx: typer.Context,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    quarter: Annotated[
        str | None, typer.Option("--quarter", help="As 2026Q4; that of --as-of, or the running one, unless given.")
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", help="Make it again from the days before this local day, which is of the quarter."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write QUARTER.html and QUARTER.json there; the directory is made.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show the report of a quarter: the one that was kept, or else one made from the days before the quarter.

    With --out it is written as a page and as JSON, each whole or not at all, and their places are printed.

    \b
    JSON: version, forecast, plan, hindsight, history, headline [text], assumptions [text]: the whole report, as it is
    kept (docs/CAPACITY.md).
    """
    from ops_pipelines.capacity.answers import json_of
    from ops_pipelines.capacity.report import headline_document
    from ops_pipelines.report.terminal import console, print_document

    desk = _open(ctx, cluster_file)
    found = _report(quarter, as_of, desk)
    if out is not None:
        for place in _write(desk, found, out):
            # Beside JSON on standard output nothing else may stand.
            typer.echo(place, err=json)
    if json:
        typer.echo(json_of(found).decode("utf-8"), nl=False)
    elif out is None:
        print_document(console(), headline_document(found))


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
    """Judge forecasts of peaks on recorded demand: each window is forecast from the days before it alone.

    A series is the daily maximum of a team's hourly demand. Windows that are judged never overlap; bounds are
    calibrated on windows that were over when they began. What was done to days and teams goes to standard error.

    \b
    JSON: pooled, methods {name: ...}, series [{team, treatment, ...}], each with mase, wql (quantiles .1, .5, .9
    of days), peak_coverage_90, bound_to_peak_ratio (median), origins (windows); null where there is nothing to
    divide by. pooled is what the program uses. rule {times, bound_to_peak_ratio}: so many times the highest day of four
    weeks would have held as often, the factor chosen afterwards.
    """
    from ops_pipelines.capacity.forecast.backtest import TooShort
    from ops_pipelines.capacity.forecast.backtest import backtest as judge
    from ops_pipelines.capacity.forecast.recorded_peaks import read_peaks
    from ops_pipelines.capacity.report import backtest_document
    from ops_pipelines.quotas.recorded import RefusedDemand
    from ops_pipelines.report.terminal import console, print_document

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
        print_document(console(), backtest_document(found, horizon_days=horizon_days))


def _open(ctx: typer.Context, cluster_file: Path) -> "TeamsDesk":
    """Return the desk; say on standard error what is not stated, for then nothing can be ordered."""
    from ops_pipelines.terminal.quota_commands import open_desk

    desk = open_desk(ctx, cluster_file)
    if desk.capacity is None and not desk.is_capacity_named:
        complain(
            "cluster.yaml names no `capacity` file: no prices and lead times are known, and nothing can be ordered "
            "(docs/CAPACITY.md)"
        )
    if desk.projects_trouble:
        complain(desk.projects_trouble)
    return desk


def _day(text: str | None, desk: "TeamsDesk") -> "date":
    """Return the day that is named, or today in the cluster's zone; end the call where it is none, or lies ahead."""
    from datetime import date

    today = desk.clock.now().astimezone(desk.zone).date()
    if text is None:
        return today
    try:
        # ISO has more ways to write a day, such as 20261001 and 2026-W40-4; one is enough.
        named = date.fromisoformat(text) if len(text) == len("2026-10-01") and text[4] == text[7] == "-" else None
    except ValueError:
        named = None
    if named is None:
        complain(f"--as-of is {text[:40]!r}; expected a day, as 2026-10-01")
        raise typer.Exit(ExitCode.USAGE)
    if named > today:
        complain(f"--as-of is {named}, and today is {today} in {desk.zone.key}; expected no later day")
        raise typer.Exit(ExitCode.USAGE)
    return named


def _made(make: Callable[[], Made]) -> Made:
    """Return what is made; end the call where too few days are known."""
    from ops_pipelines.capacity.forecasting import NoHistory

    try:
        return make()
    except NoHistory as problem:
        complain(str(problem))
        raise typer.Exit(ExitCode.REFUSED) from problem


def _report(quarter: str | None, as_of: str | None, desk: "TeamsDesk") -> "CapacityReport":
    from ops_pipelines.capacity.model import first_day_of, quarter_of
    from ops_pipelines.capacity.reporting import kept_report, report_quarter

    day = _day(as_of, desk)
    name = quarter_of(day) if quarter is None else quarter
    try:
        first = first_day_of(name)
    except ValueError as problem:
        complain(f"--quarter: {problem}")
        raise typer.Exit(ExitCode.USAGE) from problem
    if as_of is not None:
        if quarter_of(day) != name:
            complain(f"--as-of is {day}, which is in {quarter_of(day)}; expected a day of {name}")
            raise typer.Exit(ExitCode.USAGE)
        return _made(lambda: report_quarter(desk, as_of=day))
    if first > day:
        complain(
            f"--quarter is {name}, which begins on {first}; today is {day} in {desk.zone.key}: expected no later one"
        )
        raise typer.Exit(ExitCode.USAGE)
    kept = kept_report(desk, name)
    if kept is not None:
        return kept
    complain(f"no report of {name} is kept yet; this one is made now, from the days before {first}")
    return _made(lambda: report_quarter(desk, as_of=first))


def _write(desk: "TeamsDesk", found: "CapacityReport", out: Path) -> list[str]:
    """Write both files, named as they are kept, and return where they lie. Raises StatementFilesError."""
    from ops_pipelines.capacity.answers import json_of
    from ops_pipelines.capacity.report import kept_document
    from ops_pipelines.capacity.reporting import kept_as
    from ops_pipelines.report.html import page_of
    from ops_pipelines.resources.page_files import PlanDirectory

    shelf, name = PlanDirectory(out), kept_as(desk, found)
    page = page_of(kept_document(found, name=name))
    return [
        shelf.keep(f"{name}.html", page.encode("utf-8")),
        shelf.keep(f"{name}.json", json_of(found)),
    ]


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
        "rule": asdict(found.rule),
    }
