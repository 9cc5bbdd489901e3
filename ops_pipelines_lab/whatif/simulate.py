"""`ops-pipelines simulate`: what a policy would do to a large training job under published faults, beside its peers.

Reads policy.yaml and the tables of the catalogue, touches no cluster and no ledger. The simulation is `simulation`'s.
"""

import json as documents
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.edge import AsJson, at_the_edge, complain

if TYPE_CHECKING:
    from rich.table import Table

    from ops_pipelines_lab.whatif.fault_mix import Scenario
    from ops_pipelines_lab.whatif.simulation import Progress, Simulation
    from ops_pipelines_lab.whatif.training import Summary

_SAID = "simulated, parameters sourced"
_MOST_GPUS, _MOST_DAYS, _MOST_SEEDS = 131_072, 366, 10_000
_FITTING = "deploy/policy-large-training.yaml"


@at_the_edge
def simulate(
    policy: Annotated[Path, typer.Option("--policy", help="The policy.yaml that is asked about.")],
    scenario: Annotated[str, typer.Option(help="A fault mix of catalogue/fault_mix.csv.")] = "llama3",
    gpus: Annotated[
        int | None, typer.Option(min=8, max=_MOST_GPUS, help="GPUs of the job; as published unless given.")
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0.01, max=_MOST_DAYS, help="Simulated days; as published unless given.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=_MOST_SEEDS, help="Runs, each under other faults.")] = 200,
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="Processes; one a core unless given.")] = None,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Also change one assumption at a time; takes ten times as long.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Simulate a long training under a policy: effective training time, and where the minutes go.

    The production code decides on the evidence that each fault would show; what is seen, how fast, and how long our
    acts take was measured. The modes count: in `observe` nothing is done, in `approve` each plan waits for a person.

    \b
    JSON: ettr_mean, ettr_ci95 [low, high], interruptions_per_day, minutes_lost_per_interruption, lost_minutes_by_cause
    {cause: minutes of one run}, wrong_drains, human_interventions (both of one run), held_back {limit: incidents of one
    run that it kept on a bad node}, inputs [table and digest], peers {name: {ettr_mean, ...}}, mode, seeds, gpus, days,
    scenario; with --sensitivity also sensitivity {assumption: {ettr_mean, ...}}. Ratios are 0..1.
    """
    from ops_pipelines.core.plan import Rules
    from ops_pipelines.resources.catalogue_files import read_catalogue
    from ops_pipelines.resources.config.policy_file import read_borrowed_policy
    from ops_pipelines_lab.whatif import simulation
    from ops_pipelines_lab.whatif.autopilot import cluster_of
    from ops_pipelines_lab.whatif.measured import read_measured

    asked = _scenario_of(scenario, gpus=gpus, days=days)
    topology = cluster_of(asked.node_count + asked.spare_count, gpus_per_node=asked.gpus_per_node)
    allowed, left_out = read_borrowed_policy(policy, topology=topology)
    for sentence in left_out:
        complain(f"{policy}: {sentence}")
    rules = Rules(policy=allowed, topology=topology, catalogue=read_catalogue())
    measured, processes = read_measured(), workers or os.cpu_count() or 1
    varied: dict[str, Simulation] = {}
    with _progress_shown() as on_progress:
        found = simulation.simulate(
            asked, measured, rules=rules, seed_count=seeds, workers=processes, on_progress=on_progress
        )
        for name, (changed, seen) in simulation.assumptions_changed(asked, measured).items() if sensitivity else ():
            varied[name] = simulation.simulate(
                changed, seen, rules=rules, seed_count=seeds, workers=processes, on_progress=on_progress
            )
    if json:
        document = {
            **_document(found, varied),
            "mode": allowed.mode.value,
            "gpus": asked.gpu_count,
            "days": asked.days,
            "scenario": scenario,
            "said": _SAID,
        }
        typer.echo(documents.dumps(document))
    else:
        _print(found, varied)


def _scenario_of(name: str, *, gpus: int | None, days: float | None) -> "Scenario":
    from ops_pipelines_lab.whatif.fault_mix import read_scenario

    try:
        known = read_scenario(name)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint="--scenario") from problem
    if gpus is not None and gpus % known.gpus_per_node:
        wrong = f"{gpus} is no multiple of {known.gpus_per_node}, the GPUs of a node in {name}"
        raise typer.BadParameter(wrong, param_hint="--gpus")
    return replace(known, gpu_count=gpus or known.gpu_count, days=days or known.days)


@contextmanager
def _progress_shown() -> "Iterator[Progress]":
    """Show how far it is on standard error, so that a document on standard output stays alone."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("runs", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _document(found: "Simulation", varied: "Mapping[str, Simulation]") -> dict[str, object]:
    document: dict[str, object] = {
        **_summary(found.ours),
        "inputs": list(found.inputs),
        "peers": {name: _summary(peer) for name, peer in found.peers.items()},
        "seeds": found.ours.seed_count,
    }
    if varied:
        document["sensitivity"] = {
            name: {
                "ettr_mean": each.ours.ettr_mean,
                "ettr_ci95": each.ours.ettr_ci95,
                "interruptions_per_day": each.ours.interruptions_per_day,
                "peers": {peer: {"ettr_mean": summary.ettr_mean} for peer, summary in each.peers.items()},
            }
            for name, each in varied.items()
        }
    return document


def _summary(summary: "Summary") -> dict[str, object]:
    return {name: value for name, value in asdict(summary).items() if name != "seed_count"}


def _print(found: "Simulation", varied: "Mapping[str, Simulation]") -> None:
    from rich.console import Console

    console = Console()
    console.print(f"effective training time ({_SAID}, {found.ours.seed_count} seeds)", highlight=False)
    console.print(_table_of_policies(found))
    console.print("of one run: people called, healthy nodes drained (wrong)", highlight=False)
    lost = sorted(found.ours.lost_minutes_by_cause.items(), key=lambda item: -item[1])
    total = sum(minutes for _, minutes in lost) or 1.0
    said = ", ".join(f"{cause.replace('_', ' ')} {minutes / total:.0%}" for cause, minutes in lost if minutes > 0)
    console.print(f"where the lost minutes of this policy go: {said}", highlight=False)
    limits = {name: times for name, times in found.ours.held_back.items() if name != "job_end"}
    if limits:
        held = ", ".join(f"{name} {times:.0f}" for name, times in sorted(limits.items()))
        console.print(
            f"left on a bad node by the policy's own limits, incidents of one run: {held}. "
            f"{_FITTING} shows limits that fit one large job.",
            highlight=False,
        )
    if varied:
        console.print("one assumption changed at a time, ETTR:", highlight=False)
        console.print(_table_of_assumptions(found, varied))
    console.print("rests on:", *found.inputs, sep="\n  ", highlight=False, markup=False)


def _table_of_policies(found: "Simulation") -> "Table":
    from rich.table import Table

    table = Table()
    for heading in ("policy", "ETTR", "95 %", "stops/day", "min/stop", "people", "wrong"):
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    for name, each in sorted((*found.peers.items(), ("this policy", found.ours)), key=lambda item: item[1].ettr_mean):
        low, high = each.ettr_ci95
        table.add_row(
            name,
            f"{each.ettr_mean:.2%}",
            f"{100 * low:.1f}-{100 * high:.1f}",
            f"{each.interruptions_per_day:.1f}",
            f"{each.minutes_lost_per_interruption:.1f}",
            f"{each.human_interventions:.0f}",
            f"{each.wrong_drains:.0f}",
            style="bold" if name == "this policy" else "",
        )
    return table


def _table_of_assumptions(found: "Simulation", varied: "Mapping[str, Simulation]") -> "Table":
    from rich.table import Table

    peers = ("byterobust_like", "oracle")
    table = Table()
    for heading in ("assumption", "policy", "stops/day", *peers):
        table.add_column(heading, justify="left" if heading == "assumption" else "right", no_wrap=True)
    for name, each in {"as above": found, **varied}.items():
        row = (f"{each.peers[peer].ettr_mean:.2%}" for peer in peers)
        table.add_row(name, f"{each.ours.ettr_mean:.2%}", f"{each.ours.interruptions_per_day:.1f}", *row)
    return table
