"""`ops-pipelines quota propose`, `diff`, `apply`, `undo`, `explain`, `history`: today's quotas, and a person's yes.

What is proposed is `quotas.propose`'s, what is set `quotas.apply`'s; the shape of answers stands in
`quota_views`, their print in `quota_tables`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.caller import DEFAULT_CLUSTER_FILE, AsJson, ClusterFile, who_calls
from ops_pipelines.terminal.edge import ExitCode, at_the_edge

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
    from ops_pipelines.quotas.daily_work import make_proposal
    from ops_pipelines.quotas.propose import propose as propose_quotas
    from ops_pipelines.remediate.by_hand import ByHandRefused
    from ops_pipelines.terminal.json_form import to_json
    from ops_pipelines.terminal.quota_answers import day_named
    from ops_pipelines.terminal.quota_tables import print_proposal
    from ops_pipelines.terminal.quota_views import view_proposal
    from ops_pipelines.terminal.tables import console

    desk = open_desk(ctx, cluster_file)
    now, chosen = desk.clock.now(), _day(day, desk)
    if keep and chosen != day_named(None, desk):
        raise ByHandRefused(f"only today's proposal can be kept, and {chosen} is over; leave --keep out to look at it")
    if keep:
        made = make_proposal(chosen, desk, now=now, actor=who_calls())
        proposed, record = made.proposed, made.record
    else:
        proposed, record = propose_quotas(chosen, desk, now=now), None
    view = view_proposal(
        proposed.proposal,
        record,
        cluster=desk.cluster.name,
        used=proposed.used,
        contradictions=proposed.contradictions,
    )
    if json:
        typer.echo(to_json(view))
    else:
        print_proposal(console(), view)
    if view.contradictions:
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
    from ops_pipelines.terminal.json_form import to_json
    from ops_pipelines.terminal.quota_answers import find_proposal, view_diff
    from ops_pipelines.terminal.quota_tables import print_diff
    from ops_pipelines.terminal.tables import console

    desk = open_desk(ctx, cluster_file)
    view = view_diff(find_proposal(proposal, desk), desk)
    if json:
        typer.echo(to_json(view))
    else:
        print_diff(console(), view)


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
    """Say yes in your name: set what a proposal says, and read it back. What runs goes on.

    \b
    JSON with --dry-run: cluster, proposal, state, changes, hindrances, warnings; else as of one in `quota history`.
    """
    from ops_pipelines.quotas.apply import apply as apply_quotas
    from ops_pipelines.quotas.apply import preview
    from ops_pipelines.teams.settings import LimitsOn
    from ops_pipelines.terminal.json_form import to_json
    from ops_pipelines.terminal.quota_answers import find_proposal, view_preview
    from ops_pipelines.terminal.quota_tables import print_preview
    from ops_pipelines.terminal.tables import console

    desk = open_desk(ctx, cluster_file)
    name = find_proposal(proposal, desk).name
    limits_on = LimitsOn.TOTAL if total else None
    if not dry_run:
        _tell(apply_quotas(name, desk, actor=who_calls(), lease_token=None, limits_on=limits_on), desk, as_json=json)
        return
    found = preview(name, desk, actor=who_calls(), limits_on=limits_on)
    view = view_preview(found.record, desk, changes=found.changes, hindrances=found.hindrances, warnings=found.warnings)
    if json:
        typer.echo(to_json(view))
    else:
        print_preview(console(), view)
    if view.hindrances:
        raise typer.Exit(ExitCode.REFUSED)


@at_the_edge
def undo(
    ctx: typer.Context,
    proposal: ProposalName,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: AsJson = False,
) -> None:
    """Set what stood there before the newest applied proposal, in your name. What runs goes on."""
    from ops_pipelines.quotas.apply import undo as undo_quotas
    from ops_pipelines.terminal.quota_answers import find_proposal

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
    """Tell all on one team's quota: what was agreed, wanted, run and waited for, why it changes, and its past.

    For today also whose jobs preemption would end for its guarantee; nothing is sent.

    \b
    JSON: cluster, team, day, belongs_to, proposal, state, agreed [gpu_type, contract, guarantee, weight, borrow_limit,
    lend_limit, reserved, cap, priority], projects, lines (as of `quota propose`), history [day, proposal, state,
    gpu_type, before, after, reason], reclaim [gpu_type, guarantee, runs, free, wanted, jobs [job, team, gpus,
    ran_seconds], missing, rule, scheduler], notes.
    """
    from ops_pipelines.terminal.json_form import to_json
    from ops_pipelines.terminal.quota_answers import view_team
    from ops_pipelines.terminal.quota_tables import print_team
    from ops_pipelines.terminal.tables import console

    desk = open_desk(ctx, cluster_file)
    view = view_team(team, _day(day, desk), desk)
    if json:
        typer.echo(to_json(view))
    else:
        print_team(console(), view)


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
    from ops_pipelines.terminal.json_form import to_json
    from ops_pipelines.terminal.quota_tables import print_history
    from ops_pipelines.terminal.quota_views import view_history
    from ops_pipelines.terminal.tables import console

    desk = open_desk(ctx, cluster_file)
    view = view_history(desk.cluster.ledger.proposals(limit=limit), cluster=desk.cluster.name)
    if json:
        typer.echo(to_json(view))
    else:
        print_history(console(), view)


def open_desk(ctx: typer.Context, cluster_file: Path) -> "TeamsDesk":
    """Return the desk of teams of `cluster_file`, or the one that the caller of `app` opens by itself (`obj`)."""
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.teams.desk import TeamsDesk
    from ops_pipelines.terminal.caller import open_named
    from ops_pipelines.wiring import assemble_observatory, assemble_teams_desk

    opened = open_named(ctx, cluster_file)
    if isinstance(opened, TeamsDesk):
        return opened
    config = read_cluster(cluster_file.absolute())
    return assemble_teams_desk(config, cluster=opened, observatory=assemble_observatory(config, opened.clock))


def _day(text: str | None, desk: "TeamsDesk") -> "date":
    from ops_pipelines.terminal.quota_answers import day_named

    try:
        return day_named(text, desk)
    except ValueError as problem:
        raise typer.BadParameter(f"{problem}; expected a day such as 2026-11-22", param_hint="--day") from problem


def _tell(record: "ProposalRecord", desk: "TeamsDesk", *, as_json: bool) -> None:
    """Say what became of a proposal; half-way is a system that did not answer, nothing done a refusal."""
    from ops_pipelines.core.proposal import ProposalState
    from ops_pipelines.quotas.propose import store_lines, used_in
    from ops_pipelines.terminal.json_form import to_json
    from ops_pipelines.terminal.quota_views import view_history
    from ops_pipelines.terminal.tables import console, print_lines

    store_lines(desk, record.proposal, state=record.state, used=used_in(desk, day=record.proposal.day))
    view = view_history([record], cluster=desk.cluster.name)
    if as_json:
        typer.echo(to_json(view.proposals[0]))
    else:
        print_lines(console(), [f"{record.name} is {record.state.value.replace('_', ' ')}: {record.reason}"])
    if record.state in (ProposalState.HALF_APPLIED, ProposalState.HALF_UNDONE):
        raise typer.Exit(ExitCode.NO_ANSWER)
    if record.state not in (ProposalState.APPLIED, ProposalState.UNDONE):
        raise typer.Exit(ExitCode.REFUSED)
