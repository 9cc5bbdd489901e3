"""`ops-pipelines rollout` and `versions`: plan, start, steer, watch and simulate releases."""

import json as documents
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.edge import (
    DEFAULT_CLUSTER_FILE,
    RECENT,
    AsJson,
    ClusterFile,
    ExitCode,
    at_the_edge,
    complain,
    end_with,
    open_named,
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
Reason = Annotated[str, typer.Option("--reason", help="Why, for whoever reads it later.")]


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
    contradictions [rule, said, source, nodes], needs_yes_for, warnings.
    """
    from ops_pipelines.core.proof import Refusal
    from ops_pipelines.report.json_form import to_json
    from ops_pipelines.report.terminal import console, print_document
    from ops_pipelines.rollouts.answers import plan_json
    from ops_pipelines.rollouts.orders import files_of, plan_release
    from ops_pipelines.rollouts.plan_report import plan_document

    cluster = open_named(ctx, cluster_file)
    planned = plan_release(files_of(cluster).release(release), cluster)
    if json:
        typer.echo(to_json(plan_json(planned, cluster=cluster.name)))
    else:
        print_document(console(), plan_document(planned, cluster=cluster.name))
    if isinstance(planned.plan, Refusal):
        raise typer.Exit(ExitCode.REFUSED)


@rollout_app.command()
@at_the_edge
def start(
    ctx: typer.Context,
    release: ReleaseName,
    expect_plan: Annotated[
        str | None, typer.Option("--plan", help="Start only if the plan is still this one, as `rollout plan` said.")
    ] = None,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
) -> None:
    """Open a rollout: the autopilot carries it out from then on.

    Where the policy asks for a yes, or a component cannot go back, it waits for `rollout approve`.
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
    tests [test, verdict, said, evidence_ratio], verdict, nodes [node, wave, stage, direction, since, deadline,
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
    """Say yes in your name: to the whole rollout, or to its next wave where that cannot go back."""
    from ops_pipelines.rollouts import orders

    cluster = open_named(ctx, cluster_file)
    _tell(orders.say_yes(_find(rollout, cluster).rollout, cluster, actor=who_calls()))


@rollout_app.command()
@at_the_edge
def pause(
    ctx: typer.Context, rollout: RolloutName, reason: Reason, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE
) -> None:
    """Begin no other node until `rollout resume`. Nodes in hand are finished, and the gate goes on looking."""
    from ops_pipelines.rollouts import orders

    cluster = open_named(ctx, cluster_file)
    _tell(orders.pause(_find(rollout, cluster).rollout, cluster, actor=who_calls(), reason=_checked(reason)))


@rollout_app.command()
@at_the_edge
def resume(
    ctx: typer.Context, rollout: RolloutName, reason: Reason, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE
) -> None:
    """Let a rollout go on that is paused, or that asks: then you answer for what the gate could not decide."""
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
    """Leave one node out; the others go on."""
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
        raise typer.BadParameter("it is empty; say why, whoever comes next has to know", param_hint="--reason")
    return reason.strip()


def _show(cluster: "Cluster", chosen: "tuple[Rollout, ...]", *, as_json: bool, is_short: bool) -> None:
    from ops_pipelines.report.json_form import to_json
    from ops_pipelines.report.terminal import console, print_document, print_lines
    from ops_pipelines.rollouts.answers import rollout_json
    from ops_pipelines.rollouts.plan_report import history_document
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
    from ops_pipelines.rollouts.bookings import calendar_of

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


# -- `ops-pipelines rollout simulate` --


if TYPE_CHECKING:
    from ops_pipelines.core.policy import Policy
    from ops_pipelines.whatif.lifecycle.scenario import Site
    from ops_pipelines.whatif.lifecycle.trials import Progress, Summary

_MOST_SEEDS = 10_000
_SAID = "simulated, parameters sourced"


class ScenarioName(StrEnum):
    """The releases of catalogue/rollout_scenarios.csv."""

    GOOD = "good"
    HARD_FAILURE = "hard-failure"
    XID_RATE = "xid-rate"
    SLOW = "slow"
    LATE_HANG = "late-hang"
    ONE_MODEL = "one-model"


@at_the_edge
def rollout_simulate(
    scenario: Annotated[ScenarioName, typer.Option(help="What the release is like; the rollout is not told.")],
    nodes: Annotated[int, typer.Option(min=40, max=20_000, help="Nodes of the cluster, of 8 GPUs.")] = 1_000,
    seeds: Annotated[int, typer.Option(min=1, max=_MOST_SEEDS, help="Rollouts, each in a world of its own.")] = 20,
    policy: Annotated[
        Path | None, typer.Option("--policy", help="The policy.yaml that is asked about; the bench's unless given.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="Processes; one a core unless given.")] = None,
    json: AsJson = False,
) -> None:
    """Simulate rollouts of one kind of release: what they cost, how soon a bad one is stopped, whether all goes back.

    Planner, gate and tables are the production code; jobs, failures and measurements are simulated, and peers roll out
    in the same worlds by the stop rules that they are published with (on 10 seeds at most).

    \b
    JSON: gpu_hours_per_upgraded_node (against the same seed without a rollout; null for a bad release),
    touched_ratio_when_stopped (95th percentile, 1.0 for a rollout that never stopped; null for good),
    false_stop_ratio (null for a bad release), rolled_back_ratio (of those that stopped; null for good),
    peers {name: the same}, scenario, nodes, seeds, days, stopped_ratio, asked_ratio,
    decided_days and deciding_days (from the first drain, and from when all canaries work; 95th percentiles).
    """
    from ops_pipelines.whatif.lifecycle.scenario import policy_of, read_scenarios, read_site
    from ops_pipelines.whatif.lifecycle.trials import OURS, play_trials, summarise, ways_of

    site = read_site(nodes)
    asked = read_scenarios()[scenario.value]
    allowed = policy_of(site) if policy is None else _policy_from(policy, site)
    with _progress_shown() as on_progress:
        found = play_trials(
            site,
            allowed,
            asked,
            ways=ways_of(seeds),
            workers=workers or os.cpu_count() or 1,
            on_progress=on_progress,
        )
    summaries = {name: summarise(asked, trials) for name, trials in found.items()}
    unfinished = sum(not (each.is_done or each.is_stopped) for each in found[OURS])
    if unfinished:
        complain(
            f"{unfinished} of {seeds} rollouts came to no end in 59 days; see rollouts.max_out_count of the policy"
        )
    ours = summaries.pop(OURS)
    if json:
        document = {
            **_document(ours),
            "peers": {name: _document(each) for name, each in summaries.items()},
            "scenario": scenario.value,
            "nodes": nodes,
            "seeds": seeds,
            "said": _SAID,
        }
        typer.echo(documents.dumps(document))
    else:
        _print(scenario.value, ours, summaries)


def _policy_from(file: Path, site: "Site") -> "Policy":
    from ops_pipelines.resources.config.policy_file import read_borrowed_policy
    from ops_pipelines.whatif.autopilot import cluster_of

    allowed, left_out = read_borrowed_policy(
        file, topology=cluster_of(site.node_count, gpus_per_node=site.gpus_per_node)
    )
    for sentence in left_out:
        complain(f"{file}: {sentence}")
    return allowed


@contextmanager
def _progress_shown() -> "Iterator[Progress]":
    """Show how far it is on standard error, so that a document on standard output stays alone."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("rollouts", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _document(summary: "Summary") -> dict[str, float | None]:
    return {
        "gpu_hours_per_upgraded_node": summary.gpu_hours_per_upgraded_node,
        "touched_ratio_when_stopped": summary.touched_ratio_when_stopped,
        "false_stop_ratio": summary.false_stop_ratio,
        "rolled_back_ratio": summary.rolled_back_ratio,
        "stopped_ratio": summary.stopped_ratio,
        "asked_ratio": summary.asked_ratio,
        "days": summary.days,
        "decided_days": summary.decided_days,
        "deciding_days": summary.deciding_days,
    }


def _print(scenario: str, ours: "Summary", peers: "Mapping[str, Summary]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{scenario}: {ours.seed_count} rollouts ({_SAID})")
    for heading in ("way", "GPU-h/node", "touched", "stopped", "back", "days"):
        table.add_column(heading, justify="left" if heading == "way" else "right", no_wrap=True)
    for name, each in {"this policy": ours, **peers}.items():
        table.add_row(
            name,
            "" if each.gpu_hours_per_upgraded_node is None else f"{each.gpu_hours_per_upgraded_node:.2f}",
            "" if each.touched_ratio_when_stopped is None else f"{each.touched_ratio_when_stopped:.1%}",
            f"{each.stopped_ratio:.1%}",
            "" if each.rolled_back_ratio is None else f"{each.rolled_back_ratio:.0%}",
            f"{each.days:.1f}",
        )
    Console().print(table)


# -- `ops-pipelines versions` --


@at_the_edge
def versions(ctx: typer.Context, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE, json: AsJson = False) -> None:
    """Show which versions run, and who runs another than it should. Asks every node; changes nothing.

    \b
    JSON: cluster, taken_at, node_count, drift_count, silent_nodes, problems [text], versions [node, model, component,
    runs or null, seen_at, told_by (node, inventory), should_run or null, said_by, fit (fits, drifts, unknown, free)].
    """
    from ops_pipelines.report.json_form import to_json
    from ops_pipelines.report.terminal import console
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.rollouts.seen_fleet import look_at_versions
    from ops_pipelines.terminal.versions_view import print_versions, view_versions
    from ops_pipelines.wiring import open_lake

    cluster = open_named(ctx, cluster_file)
    config = read_cluster(cluster_file)
    lake = open_lake(config, clock=cluster.clock)
    view = view_versions(look_at_versions(cluster, lake=lake, release=config.release), cluster=cluster.name)
    if json:
        typer.echo(to_json(view))
    else:
        print_versions(console(), view)
    end_with(view.problems)
