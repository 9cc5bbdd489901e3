"""`ops-pipelines rollout simulate`: what rollouts of one kind of release cost, and how soon a bad one is stopped.

The trials are `trials`'; here they are asked for and shown.
"""

import json as documents
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.edge import AsJson, at_the_edge, complain

if TYPE_CHECKING:
    from ops_pipelines.core.policy import Policy
    from ops_pipelines_lab.whatif.lifecycle.scenario import Site
    from ops_pipelines_lab.whatif.lifecycle.trials import Progress, Summary

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
    scenario: Annotated[ScenarioName, typer.Option(help="What the release is like; the rollout does not know.")],
    nodes: Annotated[int, typer.Option(min=40, max=20_000, help="Nodes of the cluster, of 8 GPUs.")] = 1_000,
    seeds: Annotated[int, typer.Option(min=1, max=_MOST_SEEDS, help="Rollouts, each in a world of its own.")] = 20,
    policy: Annotated[
        Path | None, typer.Option("--policy", help="The policy.yaml that is asked about; the bench's unless given.")
    ] = None,
    first_seed: Annotated[int, typer.Option(min=0, help="The others follow it; the bench's are 1000 and up.")] = 1_000,
    failure_factor: Annotated[
        float | None, typer.Option(min=1, max=1_000, help="Updated nodes fail so many times as often as ever.")
    ] = None,
    slowdown: Annotated[
        float | None, typer.Option(min=0, max=0.9, help="Steps take so much longer on updated nodes: 0.03.")
    ] = None,
    base_rate: Annotated[
        float | None, typer.Option(min=0.01, max=1_000, help="Failures per 1,000 node-days without the release.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="Processes; one a core unless given.")] = None,
    json: AsJson = False,
) -> None:
    """Simulate rollouts of one kind of release: what they cost, how soon a bad one is stopped, whether all rolls back.

    Planner, gate and tables are the production code; jobs, failures and measurements are simulated, and peers roll out
    in the same worlds by the stop rules that they are published with (on 10 seeds at most).

    \b
    JSON: gpu_hours_per_upgraded_node (against the same seed without a rollout; null for a bad release),
    touched_ratio_when_stopped (95th percentile, 1.0 for a rollout that never stopped; null for good),
    false_stop_ratio (good releases found bad; null for a bad one), rolled_back_ratio (of those that stopped; null for
    good), peers {name: the same}, scenario, nodes, seeds, days, stopped_ratio (found bad or asked about), asked_ratio,
    decided_days and deciding_days (from the first drain, and from when all canaries work; 95th percentiles).
    """
    from ops_pipelines_lab.whatif.lifecycle.scenario import altered, policy_of, read_scenarios, read_site
    from ops_pipelines_lab.whatif.lifecycle.trials import OURS, play_trials, summarise, ways_of

    site = read_site(nodes)
    if base_rate is not None:
        site = replace(site, failures_per_node_day=base_rate / 1_000)
    asked = altered(read_scenarios()[scenario.value], site, failure_factor=failure_factor, slowdown_ratio=slowdown)
    allowed = policy_of(site) if policy is None else _policy_from(policy, site)
    with _progress_shown() as on_progress:
        found = play_trials(
            site,
            allowed,
            asked,
            ways=ways_of(seeds),
            workers=workers or os.cpu_count() or 1,
            on_progress=on_progress,
            first_seed=first_seed,
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
    from ops_pipelines_lab.whatif.autopilot import cluster_of

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
    for heading in ("way", "GPU-h/node", "touched", "stopped", "asked", "back", "days"):
        table.add_column(heading, justify="left" if heading == "way" else "right", no_wrap=True)
    for name, each in {"this policy": ours, **peers}.items():
        table.add_row(
            name,
            "" if each.gpu_hours_per_upgraded_node is None else f"{each.gpu_hours_per_upgraded_node:.2f}",
            "" if each.touched_ratio_when_stopped is None else f"{each.touched_ratio_when_stopped:.1%}",
            f"{each.stopped_ratio - each.asked_ratio:.1%}",
            f"{each.asked_ratio:.1%}",
            "" if each.rolled_back_ratio is None else f"{each.rolled_back_ratio:.0%}",
            f"{each.days:.1f}",
        )
    Console().print(table)
