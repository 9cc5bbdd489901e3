"""`ops-pipelines quota`: today's quotas, a person's yes, and how the rebalancing would have served recorded demand."""

import csv
import json as documents
from collections.abc import Mapping
from dataclasses import asdict
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
    print_answer,
    who_calls,
)

# -- `ops-pipelines quota propose`, `diff`, `apply`, `undo`, `explain`, `history` --


if TYPE_CHECKING:
    from datetime import date

    from ops_pipelines.core.proposal import ProposalRecord
    from ops_pipelines.teams.desk import TeamsDesk

ProposalName = Annotated[str, typer.Argument(help="Such as QUOTA-20261122-1a2b3c4d; `quota history` lists them.")]
Day = Annotated[str | None, typer.Option("--day", help="A local day such as 2026-11-22; today's without it.")]


@at_the_edge
def propose(
    ctx: typer.Context,
    day: Day = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Write it down, so that it can be applied; only today's can be kept.")
    ] = False,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: AsJson = False,
) -> None:
    """Show what each team's quota should be, and why. Changes nothing in the scheduler.

    \b
    JSON: cluster, day, proposal, state, since, actor, reason, made_at, headline, stands_still, lines [team, gpu_type,
    limit, before, after, guarantee, most, used_mean, wanted_mean, ran_last, debt, reason, counterfactual], supplies
    [gpu_type, installed, broken, in_rollouts, kept_back, supply], notes, contradictions, demand_until,
    known_hour_ratio.
    """
    from ops_pipelines.quotas.answers import day_named, proposal_json
    from ops_pipelines.quotas.daily_work import make_proposal
    from ops_pipelines.quotas.propose import propose as propose_quotas
    from ops_pipelines.quotas.report import matter_of, quota_document
    from ops_pipelines.remediate.by_hand import ByHandRefused
    from ops_pipelines.report.document import to_json
    from ops_pipelines.report.terminal import console, print_document

    desk = open_desk(ctx, cluster_file)
    now, chosen = desk.clock.now(), _day(day, desk)
    if keep and chosen != day_named(None, desk):
        raise ByHandRefused(f"only today's proposal can be kept, and {chosen} is over; leave --keep out to look at it")
    if keep:
        made = make_proposal(chosen, desk, now=now, actor=who_calls())
        proposed, record = made.proposed, made.record
    else:
        proposed, record = propose_quotas(chosen, desk, now=now), None
    proposal, used, wrong, cluster = proposed.proposal, proposed.used, proposed.contradictions, desk.cluster
    if json:
        typer.echo(to_json(proposal_json(proposal, record, cluster=cluster.name, used=used, contradictions=wrong)))
    else:
        matter = matter_of(record, (), cluster, desk, used=used, computed=proposal, contradictions=wrong)
        print_document(console(), quota_document(matter))
    if wrong:
        raise typer.Exit(ExitCode.REFUSED)


@at_the_edge
def diff(
    ctx: typer.Context,
    proposal: Annotated[str | None, typer.Argument(help="One proposal; without it, the newest.")] = None,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: AsJson = False,
) -> None:
    """Show what is in force, what is proposed and what was agreed, beside each other.

    \b
    JSON: cluster, proposal, state, read_at, rows [team, gpu_type, in_force, proposed, guarantee, most, is_as_read].
    """
    from ops_pipelines.quotas.answers import beside_document, beside_json, beside_what_is_in_force, find_proposal

    desk = open_desk(ctx, cluster_file)
    found, cluster = beside_what_is_in_force(find_proposal(proposal, desk), desk), desk.cluster.name
    print_answer(
        lambda: beside_json(found, cluster=cluster), lambda: beside_document(found, cluster=cluster), as_json=json
    )


@at_the_edge
def apply(
    ctx: typer.Context,
    proposal: ProposalName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be set, and set nothing.")] = False,
    total: Annotated[
        bool, typer.Option("--total", help="Set one limit a team, on GPUs of every type together.")
    ] = False,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: AsJson = False,
) -> None:
    """Approve in your name: set what a proposal says, and read it back. What runs continues.

    \b
    JSON with --dry-run: cluster, proposal, state, changes, hindrances, warnings; else as of one in `quota history`.
    """
    from ops_pipelines.quotas.answers import find_proposal, preview_document, preview_json
    from ops_pipelines.quotas.apply import apply as apply_quotas
    from ops_pipelines.quotas.apply import preview
    from ops_pipelines.teams.desk import LimitsOn

    desk = open_desk(ctx, cluster_file)
    name = find_proposal(proposal, desk).name
    limits_on = LimitsOn.TOTAL if total else None
    if not dry_run:
        _tell(apply_quotas(name, desk, actor=who_calls(), lease_token=None, limits_on=limits_on), desk, as_json=json)
        return
    found = preview(name, desk, actor=who_calls(), limits_on=limits_on)
    cluster = desk.cluster.name
    print_answer(
        lambda: preview_json(found, cluster=cluster), lambda: preview_document(found, cluster=cluster), as_json=json
    )
    if found.hindrances:
        raise typer.Exit(ExitCode.REFUSED)


@at_the_edge
def undo(
    ctx: typer.Context,
    proposal: ProposalName,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: AsJson = False,
) -> None:
    """Set what stood there before the newest applied proposal, in your name. What runs continues."""
    from ops_pipelines.quotas.answers import find_proposal
    from ops_pipelines.quotas.apply import undo as undo_quotas

    desk = open_desk(ctx, cluster_file)
    name = find_proposal(proposal, desk).name
    _tell(undo_quotas(name, desk, actor=who_calls(), lease_token=None), desk, as_json=json)


@at_the_edge
def explain(
    ctx: typer.Context,
    team: Annotated[str, typer.Argument(help="The account, as the scheduler writes it.")],
    day: Day = None,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: AsJson = False,
) -> None:
    """Tell all on one team's quota: what was agreed, requested, run and waited for, why it changes, and its past.

    For today also whose jobs preemption would end for its guarantee; nothing is sent.

    \b
    JSON: cluster, team, day, belongs_to, proposal, state, agreed [gpu_type, contract, guarantee, weight, borrow_limit,
    lend_limit, reserved, cap, priority], projects, lines (as of `quota propose`), history [day, proposal, state,
    gpu_type, before, after, reason], reclaim [gpu_type, guarantee, runs, free, `wanted`, jobs [job, team, gpus,
    ran_seconds], missing, rule, scheduler], notes.
    """
    from ops_pipelines.quotas.answers import all_on_team, team_document, team_json

    desk = open_desk(ctx, cluster_file)
    found, cluster = all_on_team(team, _day(day, desk), desk), desk.cluster.name
    print_answer(lambda: team_json(found, cluster=cluster), lambda: team_document(found, cluster=cluster), as_json=json)


@at_the_edge
def history(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="So many, the newest first.")] = 30,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: AsJson = False,
) -> None:
    """List the newest proposals, and what became of each.

    \b
    JSON: cluster, proposals [proposal, day, state, since, actor, changed_count, headline, reason].
    """
    from ops_pipelines.quotas.answers import history_document, history_json

    desk = open_desk(ctx, cluster_file)
    found, cluster = desk.cluster.ledger.proposals(limit=limit), desk.cluster.name
    print_answer(
        lambda: history_json(found, cluster=cluster), lambda: history_document(found, cluster=cluster), as_json=json
    )


def open_desk(ctx: typer.Context, cluster_file: Path) -> "TeamsDesk":
    """Return the desk of teams of `cluster_file`, or the one that the caller of `app` opens by itself (`obj`)."""
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.teams.desk import TeamsDesk
    from ops_pipelines.terminal.edge import open_named
    from ops_pipelines.wiring import assemble_observatory, assemble_teams_desk

    opened = open_named(ctx, cluster_file)
    if isinstance(opened, TeamsDesk):
        return opened
    config = read_cluster(cluster_file.absolute())
    return assemble_teams_desk(config, cluster=opened, observatory=assemble_observatory(config, opened.clock))


def _day(text: str | None, desk: "TeamsDesk") -> "date":
    from ops_pipelines.quotas.answers import day_named

    try:
        return day_named(text, desk)
    except ValueError as problem:
        raise typer.BadParameter(f"{problem}; expected a day such as 2026-11-22", param_hint="--day") from problem


def _tell(record: "ProposalRecord", desk: "TeamsDesk", *, as_json: bool) -> None:
    """Say what became of a proposal; half-way is a system that did not answer, nothing done a refusal."""
    from ops_pipelines.core.proposal import ProposalState
    from ops_pipelines.quotas.answers import record_json
    from ops_pipelines.quotas.propose import store_lines, used_in
    from ops_pipelines.report.document import to_json
    from ops_pipelines.report.terminal import console, print_lines

    store_lines(desk, record.proposal, state=record.state, used=used_in(desk, day=record.proposal.day))
    if as_json:
        typer.echo(to_json(record_json(record)))
    else:
        print_lines(console(), [f"{record.name} is {record.state.value.replace('_', ' ')}: {record.reason}"])
    if record.state in (ProposalState.HALF_APPLIED, ProposalState.HALF_UNDONE):
        raise typer.Exit(ExitCode.NO_ANSWER)
    if record.state not in (ProposalState.APPLIED, ProposalState.UNDONE):
        raise typer.Exit(ExitCode.REFUSED)


# -- `ops-pipelines quota replay` --


if TYPE_CHECKING:
    from ops_pipelines.core.proposal import TeamName
    from ops_pipelines.quotas.replay import Replay

_GUARANTEE_RATIO = 0.5
_WORDS = {
    "static": "the quotas that were",
    "rebalanced": "ours: each day from the days before it",
    "daily_optimum": "each day's best, its demand known",
    "pooled": "no quotas: each hour shared out above the guarantees",
}


@at_the_edge
def quota_replay(
    demand: Annotated[
        Path, typer.Option("--demand", help="Parquet: hour_ts, team, capacity_gpus, gpus_running_avg, gpus_demand_avg.")
    ],
    timezone: Annotated[str, typer.Option("--timezone", help="Whose days they are, such as Asia/Shanghai.")] = "UTC",
    guarantees: Annotated[
        Path | None, typer.Option("--guarantees", help="CSV: team, guarantee_gpus; half of capacity unless given.")
    ] = None,
    carry: Annotated[
        bool, typer.Option("--carry", help="Carry hours that are missing from the hour before; named, not refused.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Replay recorded demand under four policies of quotas: what each would have left unserved, and how fairly.

    The rebalancing is the production code, and each day's quotas see only the days before it. Served in an hour is the
    smaller of demand and quota; what was not served is not asked for again.

    \b
    JSON: policies {static, rebalanced, daily_optimum, pooled}, each with unserved_gpu_hours,
    guarantee_violation_gpu_hours, churn_ratio_per_day, churn_ratio_max, reversals, jain,
    worst_team {team, unserved_ratio}; gain_ratio (null where nothing could be gained).
    """
    from ops_pipelines.quotas.recorded import RefusedDemand

    try:
        found = _replayed(demand, guarantees, timezone=timezone, is_carried=carry)
    except RefusedDemand as refused:
        complain(str(refused))
        raise typer.Exit(ExitCode.USAGE) from refused
    if json:
        typer.echo(documents.dumps(asdict(found)))
    else:
        _print(found)


def _replayed(demand: Path, guarantees: Path | None, *, timezone: str, is_carried: bool) -> "Replay":
    from ops_pipelines.core.proposal import Terms
    from ops_pipelines.quotas.recorded import MissingHours, read_recorded
    from ops_pipelines.quotas.replay import replay
    from ops_pipelines.teams.desk import RebalanceSettings

    missing = MissingHours.CARRY if is_carried else MissingHours.REFUSE
    recorded = read_recorded(demand, timezone=timezone, missing=missing)
    for note in recorded.notes:
        complain(f"{demand.name}: {note}")
    owed = _guarantees(guarantees, recorded.capacity)
    terms = [Terms(team=team, guarantee=owed[team]) for team in recorded.capacity]
    return replay(recorded.days, terms=terms, capacity=recorded.capacity, settings=RebalanceSettings())


def _guarantees(file: Path | None, capacity: "Mapping[TeamName, float]") -> "Mapping[TeamName, float]":
    """Return what each team is owed. Raises RefusedDemand with every fault of the file."""
    from ops_pipelines.core.proposal import TeamName
    from ops_pipelines.quotas.recorded import RefusedDemand

    if file is None:
        return {team: gpus * _GUARANTEE_RATIO for team, gpus in capacity.items()}
    faults: list[str] = []
    owed: dict[TeamName, float] = {}
    for number, row in enumerate(_rows(file), start=2):
        team = TeamName((row.get("team") or "").strip())
        amount = _number(row.get("guarantee_gpus"))
        if None in row:
            faults.append(f"line {number}: more cells than columns; expected an amount without commas, as 1000")
        elif team not in capacity:
            faults.append(f"line {number}: {team or 'no team'!r} is no team of the demand")
        elif team in owed:
            faults.append(f"line {number}: {team} is there twice")
        elif amount is None or not 0 <= amount <= capacity[team]:
            faults.append(
                f"line {number}: {team} is guaranteed {row.get('guarantee_gpus')!r} GPUs; expected a number from 0 to "
                f"its capacity, {capacity[team]:g}"
            )
        else:
            owed[team] = amount
    faults.extend(f"{team} has no line; write 0 for none" for team in capacity if team not in owed)
    if faults:
        raise RefusedDemand(file.name, faults)
    return owed


def _rows(file: Path) -> list[dict[str, str]]:
    from ops_pipelines.quotas.recorded import RefusedDemand

    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:  # Spreadsheets write a byte order mark.
            reader = csv.DictReader(stream, strict=True)
            named = set(reader.fieldnames or ())
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise RefusedDemand(file.name, [f"no CSV that can be read: {problem}"]) from problem
    missing = {"team", "guarantee_gpus"} - named
    if missing:
        raise RefusedDemand(file.name, [f"column {name} is missing" for name in sorted(missing)])
    return rows


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _print(found: "Replay") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from ops_pipelines.report.terminal import printable

    gain = "nothing could be gained" if found.gain_ratio is None else f"{found.gain_ratio:.0%} of what could be gained"
    table = Table(title=f"unserved demand; ours gains {gain}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("policy", "unserved", "owed", "moved", "most", "turns", "Jain", "worst team"):
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    for name, score in found.policies.items():
        worst = score.worst_team
        table.add_row(
            name,
            f"{score.unserved_gpu_hours:,.0f}",
            f"{score.guarantee_violation_gpu_hours:,.0f}",
            f"{score.churn_ratio_per_day:.1%}",
            f"{score.churn_ratio_max:.1%}",
            str(score.reversals),
            f"{score.jain:.4f}",
            "" if worst is None else f"{printable(worst.team)} {worst.unserved_ratio:.1%}",
        )
    out = Console()
    out.print(table)
    for name, words in _WORDS.items():
        out.print(f"{name}: {words}", style="dim", highlight=False)
    out.print(
        "unserved: GPU-hours, of which owed within a guarantee; moved: GPUs a day over capacity, mean and most",
        style="dim",
    )


# -- `ops-pipelines quota` --


quota_app = typer.Typer(
    help="Share GPUs out among teams: guarantee, borrow, lend.", no_args_is_help=True, rich_markup_mode=None
)
quota_app.command("propose")(propose)
quota_app.command("diff")(diff)
quota_app.command("apply")(apply)
quota_app.command("undo")(undo)
quota_app.command("explain")(explain)
quota_app.command("history")(history)
quota_app.command("replay")(quota_replay)
