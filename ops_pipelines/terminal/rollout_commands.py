"""`ops-pipelines rollout` and `versions`: plan, start, steer and watch releases."""

from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.edge import (
    DEFAULT_CLUSTER_FILE,
    RECENT,
    AsJson,
    ClusterFile,
    ExitCode,
    at_the_edge,
    end_with,
    open_named,
    print_answer,
    who_calls,
)

# -- `ops-pipelines rollout` --


if TYPE_CHECKING:
    from ops_pipelines.core.cluster import Cluster
    from ops_pipelines.core.identity import NodeName
    from ops_pipelines.core.rollout import Rollout
    from ops_pipelines.rollouts.report import RolloutMatter

rollout_app = typer.Typer(
    help="Move drivers, firmware and system software over the nodes, in waves.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
ReleaseName = Annotated[str, typer.Argument(help="A file of the releases directory, without .yaml.")]
RolloutName = Annotated[str, typer.Argument(help="Such as ROLL-0001; `rollout history` lists them.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for anyone who reads it later.")]


@rollout_app.command()
@at_the_edge
def plan(
    ctx: typer.Context, release: ReleaseName, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE, json: AsJson = False
) -> None:
    """Show what a rollout would do if it began now. Changes nothing.

    \b
    JSON: cluster, made_at, release, about, plan or null, refused, changes [component, version, activation,
    reversible, conditions], node_count, waves [wave, kind, nodes, planned_from, planned_until], starts_at,
    finishes_at, lost_gpu_hours, teams [team, nodes, gpu_count, first_at, last_at], not_touched [node, reason],
    contradictions [rule, `said`, source, nodes], needs_yes_for, sight, warnings.
    """
    from ops_pipelines.core.proof import Refusal
    from ops_pipelines.rollouts.orders import files_of, plan_release
    from ops_pipelines.rollouts.plan_report import plan_document, plan_json

    cluster = open_named(ctx, cluster_file)
    planned = plan_release(files_of(cluster).release(release), cluster)
    print_answer(
        lambda: plan_json(planned, cluster=cluster.name),
        lambda: plan_document(planned, cluster=cluster.name),
        as_json=json,
    )
    if isinstance(planned.plan, Refusal):
        raise typer.Exit(ExitCode.REFUSED)


@rollout_app.command()
@at_the_edge
def start(
    ctx: typer.Context,
    release: ReleaseName,
    expect_plan: Annotated[
        str | None, typer.Option("--plan", help="Start only if the plan is still this one, as `rollout plan` stated.")
    ] = None,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
) -> None:
    """Open a rollout: the autopilot carries it out from then on.

    Where the policy asks for approval, or a component cannot be rolled back, it waits for `rollout approve`.
    """
    from ops_pipelines.remediate.by_hand import ByHandRefused
    from ops_pipelines.report.terminal import console, print_lines
    from ops_pipelines.rollouts.orders import files_of, plan_release, start_release

    cluster = open_named(ctx, cluster_file)
    planned = plan_release(files_of(cluster).release(release), cluster)
    found = getattr(planned.plan, "plan", None)
    if expect_plan is not None and found != expect_plan:
        raise ByHandRefused(
            f"the plan is {found or 'none'} by now, not {expect_plan}; read `rollout plan {release}` again"
        )
    opened = start_release(planned, cluster, actor=who_calls())
    print_lines(console(), _said(opened))


@rollout_app.command()
@at_the_edge
def status(
    ctx: typer.Context,
    rollout: Annotated[str | None, typer.Argument(help="This one alone, over or not.")] = None,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: AsJson = False,
) -> None:
    """Show the rollouts that are not over: where each node is, what the gate sees, who must do what.

    \b
    JSON: cluster, taken_at, problems [text], rollouts [rollout, release, plan, state, owner, reason, since,
    deadline, wave, wave_count, nodes_by_stage, finishes_at, created_by, created_at, yes_by, stopped_because, waits_for,
    tests [test, verdict, `said`, evidence_ratio], verdict, nodes [node, wave, stage, direction, since, deadline,
    reason, failure]].
    """
    cluster = open_named(ctx, cluster_file)
    under_way = cluster.ledger.read_state(cluster.clock.now()).rollouts
    _show(cluster, under_way if rollout is None else (_find(rollout, cluster),), as_json=json, is_short=False)


@rollout_app.command()
@at_the_edge
def history(ctx: typer.Context, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE, json: AsJson = False) -> None:
    """List the rollouts of the last 30 days and those that are not over. JSON: as of `rollout status`."""
    cluster = open_named(ctx, cluster_file)
    chosen = cluster.ledger.rollouts(final_since=cluster.clock.now() - RECENT)
    _show(cluster, chosen, as_json=json, is_short=True)


@rollout_app.command()
@at_the_edge
def approve(ctx: typer.Context, rollout: RolloutName, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE) -> None:
    """Approve in your name: to the whole rollout, or to its next wave where that cannot be rolled back."""
    from ops_pipelines.rollouts import orders

    cluster = open_named(ctx, cluster_file)
    _tell(orders.say_yes(_find(rollout, cluster).rollout, cluster, actor=who_calls()))


@rollout_app.command()
@at_the_edge
def pause(
    ctx: typer.Context, rollout: RolloutName, reason: Reason, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE
) -> None:
    """Begin no other node until `rollout resume`. Nodes in hand are finished, and the gate continues looking."""
    from ops_pipelines.rollouts import orders

    cluster = open_named(ctx, cluster_file)
    _tell(orders.pause(_find(rollout, cluster).rollout, cluster, actor=who_calls(), reason=_checked(reason)))


@rollout_app.command()
@at_the_edge
def resume(
    ctx: typer.Context, rollout: RolloutName, reason: Reason, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE
) -> None:
    """Let a rollout continue that is paused, or that asks: then you answer for what the gate could not decide."""
    from ops_pipelines.rollouts import orders

    cluster = open_named(ctx, cluster_file)
    _tell(orders.go_on(_find(rollout, cluster).rollout, cluster, actor=who_calls(), reason=_checked(reason)))


@rollout_app.command()
@at_the_edge
def abort(
    ctx: typer.Context, rollout: RolloutName, reason: Reason, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE
) -> None:
    """End a rollout: nodes in hand are finished, the others keep what they have."""
    from ops_pipelines.rollouts import orders

    cluster = open_named(ctx, cluster_file)
    _tell(orders.abort(_find(rollout, cluster).rollout, cluster, actor=who_calls(), reason=_checked(reason)))


@rollout_app.command()
@at_the_edge
def back(
    ctx: typer.Context, rollout: RolloutName, reason: Reason, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE
) -> None:
    """Give every touched node its old version."""
    from ops_pipelines.rollouts import orders

    cluster = open_named(ctx, cluster_file)
    _tell(orders.send_back(_find(rollout, cluster).rollout, cluster, actor=who_calls(), reason=_checked(reason)))


@rollout_app.command()
@at_the_edge
def skip(
    ctx: typer.Context,
    rollout: RolloutName,
    node: Annotated[str, typer.Argument(help="One node that was not touched yet.")],
    reason: Reason,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
) -> None:
    """Leave one node out; the others continue."""
    from ops_pipelines.report.terminal import console, print_lines
    from ops_pipelines.rollouts import orders

    cluster = open_named(ctx, cluster_file)
    left_out = orders.skip(
        _find(rollout, cluster).rollout, _named(node), cluster, actor=who_calls(), reason=_checked(reason)
    )
    print_lines(console(), [f"{left_out.node} is left out of {left_out.rollout}"])


def _find(name: str, cluster: "Cluster") -> "Rollout":
    from ops_pipelines.core.identity import RolloutId
    from ops_pipelines.remediate.by_hand import ByHandRefused

    known = cluster.ledger.rollout(RolloutId(name.upper()))
    if known is None:
        raise ByHandRefused(f"there is no rollout {name}; `ops-pipelines rollout history` lists them")
    return known


def _named(node: str) -> "NodeName":
    from ops_pipelines.core.identity import parse_node_name

    try:
        return parse_node_name(node)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint="NODE") from problem


def _checked(reason: str) -> str:
    if not reason.strip():
        raise typer.BadParameter("it is empty; say why, anyone who comes next has to know", param_hint="--reason")
    return reason.strip()


def _show(cluster: "Cluster", chosen: "tuple[Rollout, ...]", *, as_json: bool, is_short: bool) -> None:
    from ops_pipelines.report.document import to_json
    from ops_pipelines.report.terminal import console, print_document, print_lines
    from ops_pipelines.rollouts.plan_report import history_document, rollout_json
    from ops_pipelines.rollouts.report import rollout_document

    problems: list[str] = []
    now = cluster.clock.now()
    found = [_matter(each, cluster, problems) for each in chosen]
    if as_json:
        shown = [rollout_json(each.rollout, each.nodes, each.verdict, waits_for=each.waits_for) for each in found]
        typer.echo(to_json({"cluster": cluster.name, "taken_at": now, "rollouts": shown, "problems": problems}))
    elif is_short:
        nodes = {each.rollout.rollout: each.nodes for each in found}
        print_document(console(), history_document(chosen, nodes, cluster=cluster.name))
    else:
        for each in found:
            print_document(console(), rollout_document(each))
        if not found:
            print_lines(console(), ["no rollout is under way"])
    end_with(problems)


def _matter(rollout: "Rollout", cluster: "Cluster", problems: list[str]) -> "RolloutMatter":
    from ops_pipelines.core.rollout import FINAL
    from ops_pipelines.core.sources import SourceError
    from ops_pipelines.rollouts.gate_sources import judge_of
    from ops_pipelines.rollouts.report import RolloutMatter

    nodes = cluster.ledger.rollout_nodes(rollout.rollout)
    verdict = None
    if rollout.state not in FINAL:
        try:
            verdict = judge_of(rollout, cluster)(rollout, nodes)
        except SourceError as problem:
            problems.append(f"what the gate sees of {rollout.rollout}: {problem}")
    return RolloutMatter(
        cluster=cluster.name,
        rollout=rollout,
        nodes=nodes,
        release=cluster.ledger.release(rollout.release_digest),
        verdict=verdict,
        now=cluster.clock.now(),
        waits_for=_why_closed(rollout, cluster),
    )


def _why_closed(rollout: "Rollout", cluster: "Cluster") -> str:
    from ops_pipelines.core.rollout import RolloutState
    from ops_pipelines.core.sources import SourceError
    from ops_pipelines.rollouts.cycle import calendar_of

    if rollout.state is not RolloutState.RUNNING:
        return ""
    now = cluster.clock.now()
    try:
        return calendar_of(cluster, now=now)[0].why_closed(now) or ""
    except SourceError as problem:
        return f"a calendar that cannot be read: {problem}"


def _tell(rollout: "Rollout") -> None:
    from ops_pipelines.report.terminal import console, print_lines

    print_lines(console(), _said(rollout))


def _said(rollout: "Rollout") -> list[str]:
    return [f"{rollout.rollout} ({rollout.release}) is {rollout.state.value.replace('_', ' ')}: {rollout.reason}"]


# -- `ops-pipelines versions` --


@at_the_edge
def versions(ctx: typer.Context, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE, json: AsJson = False) -> None:
    """Show which versions run, and who runs another than it should. Asks every node; changes nothing.

    \b
    JSON: cluster, taken_at, node_count, drift_count, silent_nodes, problems [text], versions [node, model, component,
    runs or null, seen_at, told_by (node, inventory), should_run or null, said_by, fit (fits, drifts, unknown, free)].
    """
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.rollouts.fleet import look_at_versions
    from ops_pipelines.terminal.nodes import versions_document, versions_json
    from ops_pipelines.wiring import open_lake

    cluster = open_named(ctx, cluster_file)
    config = read_cluster(cluster_file)
    lake = open_lake(config, clock=cluster.clock)
    seen, name = look_at_versions(cluster, lake=lake, release=config.release), cluster.name
    print_answer(lambda: versions_json(seen, cluster=name), lambda: versions_document(seen, cluster=name), as_json=json)
    end_with(seen.problems)
