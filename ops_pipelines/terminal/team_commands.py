"""`ops-pipelines cost`, `advice`, `placement`: what a month cost whom, what teams could do better, where jobs stood."""

import re
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.edge import (
    DEFAULT_CLUSTER_FILE,
    AsJson,
    ClusterFile,
    ExitCode,
    at_the_edge,
    complain,
    open_named,
    print_answer,
    refuse_empty_team,
)

# -- `ops-pipelines cost` --


if TYPE_CHECKING:
    from ops_pipelines.costs.statements import Charge
    from ops_pipelines.teams.desk import TeamsDesk

cost_app = typer.Typer(
    help="What a month cost whom: GPU-hours, energy, credits, budgets.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
_MONTH = re.compile(r"[12][0-9]{3}-(0[1-9]|1[0-2])", re.ASCII)
_NAMED = 200
MonthName = Annotated[str | None, typer.Option("--month", help="As 2026-11; the running one unless given.")]


@cost_app.callback()
@at_the_edge
def cost(
    ctx: typer.Context,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    month: MonthName = None,
    team: Annotated[str | None, typer.Option("--team", help="Show the lines of this team only.")] = None,
    json: AsJson = False,
) -> None:
    """Show what became of each installed GPU-hour of a month, and what it costs whom. Changes nothing.

    The running month is shown up to the last full hour. The lines add up to what the machines cost.

    \b
    JSON: cluster, month, since, until, is_over, currency, asset_cents, residual_cents, why_nothing_is_charged,
    gpu_hours {by fate}, lines [what, team, project, gpu_hours, used_gpu_hours, wasted_gpu_hours, gpu_cents,
    energy_cents, storage_cents, network_cents, credit_cents, total_cents], rates {by type of GPU: cents of an hour},
    budgets [team, budget_cents, spent_cents, today, spent_ratio, forecast_cents, alerts], refused {rows by reason},
    not_known [text]. Cents are whole; null: nothing is charged.
    """
    if ctx.invoked_subcommand is not None:
        return
    from ops_pipelines.costs.report import cost_document, cost_json, holders

    refuse_empty_team(team)
    desk = _open_desk(ctx, cluster_file)
    charged = _charge(month, desk)
    held = holders(charged)
    if team is not None and team not in {*held, *(each.budget.team for each in charged.standings)}:
        complain(f"{team[:_NAMED]} held nothing in {charged.month.name}; {', '.join(held) or 'nobody'} did")
        raise typer.Exit(ExitCode.REFUSED)
    cluster = desk.cluster.name
    print_answer(
        lambda: cost_json(charged, cluster=cluster, team=team),
        lambda: cost_document(charged, cluster=cluster, month=charged.month.name, team=team),
        as_json=json,
    )


@cost_app.command()
@at_the_edge
def export(
    ctx: typer.Context,
    to: Annotated[Path, typer.Option("--to", help="The directory to write to; made if it is not there.")],
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    month: MonthName = None,
) -> None:
    """Write the statement of a month as FOCUS 1.4: MONTH.csv and MONTH.parquet, each whole or not at all.

    The lines of teams, and those that stay with the operator: BilledCost adds up to what the machines cost.
    """
    from ops_pipelines.costs.focus import export_statement
    from ops_pipelines.resources.page_files import StatementDirectory

    desk = _open_desk(ctx, cluster_file)
    charged = _charge(month, desk)
    if charged.statement is None:
        complain(f"nothing is written: {charged.why_not}")
        raise typer.Exit(ExitCode.REFUSED)
    shelf = StatementDirectory(to)
    for each in export_statement(charged.statement, desk):
        typer.echo(shelf.keep(each.name, each.content))


def _charge(month: str | None, desk: "TeamsDesk") -> "Charge":
    from ops_pipelines.costs.statements import statement_of
    from ops_pipelines.costs.usage import cost_month, month_at

    now = desk.clock.now()
    if month is None:
        asked = month_at(now, zone=desk.zone)
    elif _MONTH.fullmatch(month):
        year, number = map(int, month.split("-"))
        asked = cost_month(year, number, zone=desk.zone)
    else:
        complain(f"--month is {month[:40]!r}; expected a year and a month, as 2026-11")
        raise typer.Exit(ExitCode.USAGE)
    return statement_of(asked, desk, until=now)


def _open_desk(ctx: typer.Context, cluster_file: Path) -> "TeamsDesk":
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.wiring import assemble_observatory, assemble_teams_desk

    cluster = open_named(ctx, cluster_file)
    config = read_cluster(cluster_file.absolute())
    return assemble_teams_desk(config, cluster=cluster, observatory=assemble_observatory(config, cluster.clock))


# -- `ops-pipelines advice` --


_NAMED_OF_ADVICE = 200


@at_the_edge
def advice(
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    team: Annotated[str | None, typer.Option("--team", help="One team alone; all unless given.")] = None,
    week: Annotated[
        str | None, typer.Option("--week", help="A week of ISO 8601, as 2026-W47; the last whole one unless given.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show what teams could do better in a week: evidence, the evidence against it, the gain, what to change.

    Looks and notifies nobody: the weekly message is sent by the asset efficiency_advice. Reads the week from the lake:
    seconds on a small cluster, minutes on a large one.

    \b
    JSON: cluster, week, currency (null without prices), advice [team, kind, subject, evidence [text],
    counter_evidence [text], gain_low_gpu_hours, gain_gpu_hours, gain_bytes, gain_cents (null: not known), what_to_do,
    confidence, measure, held_gpu_hours], withheld [team, kind, subject, why], not_known [text]. Gains are of one week.
    """
    from rich.console import Console

    from ops_pipelines.core.periods import parse_week, week_of
    from ops_pipelines.efficiency.week import advice_document, advice_json, find_advice, of_team, report_rows, sentences
    from ops_pipelines.report.document import to_json
    from ops_pipelines.report.terminal import console, print_document
    from ops_pipelines.wiring import open_teams_desk

    refuse_empty_team(team)
    desk = open_teams_desk(cluster_file.absolute())
    try:
        asked = week_of(desk.clock.now()).before if week is None else parse_week(week)
        with Console(stderr=True).status("reading") as status:
            report = find_advice(asked, desk, on_step=lambda step: status.update(f"reading {step}"))
    except ValueError as problem:
        complain(f"--week: {problem}")
        raise typer.Exit(ExitCode.USAGE) from problem
    shown = report if team is None else of_team(report, team)
    if team is not None and not shown.found_count and desk.agreements is not None:
        _refuse_unknown(team, desk.agreements.parents)
    cluster = desk.cluster.name
    if json:
        typer.echo(to_json(advice_json(shown, cluster=cluster)))
        return
    document = advice_document(
        report_rows(shown),
        cluster=cluster,
        week=shown.week,
        currency=shown.currency,
        sentences=sentences(shown, ()),
        now=desk.clock.now(),
    )
    print_document(console(), document)


def _refuse_unknown(team: str, declared: Collection[str]) -> None:
    """End the call for a team that is not in the file of teams: nothing seen of it would read as all being well."""
    from difflib import get_close_matches

    if team in declared:
        return
    near = get_close_matches(team[:_NAMED_OF_ADVICE], declared, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(sorted(declared)[:10])}"
    complain(f"nothing was seen of a team {team[:_NAMED_OF_ADVICE]}, and none is declared; {hint}")
    raise typer.Exit(ExitCode.REFUSED)


# -- `ops-pipelines placement` --


@at_the_edge
def placement(
    ctx: typer.Context,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    day: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="A local day; yesterday if none is given.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show how jobs were placed on a day and how long they waited. Advice; changes nothing.

    \b
    JSON: cluster, start, end, node_count, gpu_count, started_count, sentences [text], straddles [job, team, node_count,
    level, parts, fewest, better, is_avoidable, cost, because], broken_domains [job, team, gpu_count, domain,
    domain_gpu_count, elsewhere], fits [gpus_per_node, node_count, within, could_start, by_count], hours [hour,
    index_ratio, free_gpus], node_hints [node, free_gpus, held_gpus, jobs, likely_by, whole_by], free_gpu_hours,
    stranded [node, why, cause, gpu_hours, gpus_at_the_end], backfill [job, team, limit_seconds, proposed_seconds,
    run_count, could_have_started_at, earlier_seconds, hole_ends_at, ended_by], holes [node, since, until, free_gpus,
    cause], queue_times [size, team or null, job_count, waiting_count, median_seconds, p90_seconds, long_ratio,
    mostly_for, is_few], reversals [seems_better, is_better, sizes], findings [rule, where, setting, found, why, set_to,
    source] or null, notes [text], refused [record, reason, detail].
    """
    from datetime import timedelta

    from ops_pipelines.efficiency.placement.day import report_of_day
    from ops_pipelines.efficiency.placement.document import placement_document, placement_json
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.wiring import assemble_observatory, assemble_teams_desk

    cluster, config = open_named(ctx, cluster_file), read_cluster(cluster_file)
    desk = assemble_teams_desk(config, cluster=cluster, observatory=assemble_observatory(config, cluster.clock))
    chosen = day.date() if day else desk.clock.now().astimezone(desk.zone).date() - timedelta(days=1)
    report, name = report_of_day(chosen, desk), desk.cluster.name
    print_answer(
        lambda: placement_json(report, cluster=name),
        lambda: placement_document(report, cluster=name, day=chosen),
        as_json=json,
    )
