"""`ops-pipelines cost`: what a month cost whom, and the files for whoever bills."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.caller import DEFAULT_CLUSTER_FILE, AsJson, ClusterFile, open_named, refuse_empty_team
from ops_pipelines.terminal.edge import ExitCode, at_the_edge, complain

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
    from ops_pipelines.terminal.cost_tables import print_cost
    from ops_pipelines.terminal.cost_views import view_cost
    from ops_pipelines.terminal.json_form import to_json
    from ops_pipelines.terminal.tables import console

    refuse_empty_team(team)
    desk = _open_desk(ctx, cluster_file)
    charged = _charge(month, desk)
    view = view_cost(charged, cluster=desk.cluster.name, team=team)
    if team is not None and not view.lines and not view.budgets:
        held = sorted({each.team for each in view_cost(charged, cluster=desk.cluster.name).lines if each.team})
        complain(f"{team[:_NAMED]} held nothing in {view.month}; {', '.join(held) or 'nobody'} did")
        raise typer.Exit(ExitCode.REFUSED)
    if json:
        typer.echo(to_json(view))
    else:
        print_cost(console(), view)


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
    from ops_pipelines.costs.focus_table import export_statement
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
