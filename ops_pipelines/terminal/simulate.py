"""`ops-pipelines simulate`: what a policy would do to a large training job under published faults, beside its peers.

Reads policy.yaml and the tables of the catalogue, touches no cluster and no ledger. The simulation is `whatif`'s.
"""

import json as documents
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.caller import AsJson
from ops_pipelines.terminal.edge import at_the_edge

if TYPE_CHECKING:
    from ops_pipelines.whatif.run_result import Summary
    from ops_pipelines.whatif.simulation import Simulation

_SAID = "simulated, parameters sourced"


@at_the_edge
def simulate(
    policy: Annotated[Path, typer.Option("--policy", help="The policy.yaml that is asked about.")],
    scenario: Annotated[str, typer.Option(help="A fault mix of catalogue/fault_mix.csv.")] = "llama3",
    gpus: Annotated[int | None, typer.Option(min=8, help="GPUs of the job; as published unless given.")] = None,
    days: Annotated[float | None, typer.Option(min=0.01, help="Simulated days; as published unless given.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs, each under other faults.")] = 200,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one a core unless given.")] = None,
    json: AsJson = False,
) -> None:
    """Simulate a long training under a policy: effective training time, and where the minutes go.

    The production code decides on the evidence that each fault would show; what is seen, how fast, and how long our
    acts take was measured. The modes count: in `observe` nothing is done, in `approve` each plan waits for a person.

    \b
    JSON: ettr_mean, ettr_ci95 [low, high], interruptions_per_day, minutes_lost_per_interruption, lost_minutes_by_cause
    {cause: minutes of one run}, wrong_drains, human_interventions (both of one run), inputs [table and digest], peers
    {name: {ettr_mean, ...}}, seeds, gpus, days, scenario. Ratios are 0..1.
    """
    from rich.console import Console
    from rich.progress import Progress

    from ops_pipelines.domain.decision import Rules
    from ops_pipelines.resources.catalogue_files import read_catalogue
    from ops_pipelines.resources.config.policy_file import read_policy
    from ops_pipelines.whatif.autopilot import cluster_of
    from ops_pipelines.whatif.fault_mix import read_scenario
    from ops_pipelines.whatif.measured import read_measured
    from ops_pipelines.whatif.simulation import simulate as run_all

    asked = read_scenario(scenario)
    asked = replace(asked, gpu_count=gpus or asked.gpu_count, days=days or asked.days)
    topology = cluster_of(asked.node_count + asked.spare_count, gpus_per_node=asked.gpus_per_node)
    rules = Rules(policy=read_policy(policy, topology=topology), topology=topology, catalogue=read_catalogue())
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("runs", total=None)
        found = run_all(
            asked,
            read_measured(),
            rules=rules,
            seed_count=seeds,
            workers=workers or os.cpu_count() or 1,
            on_progress=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    if json:
        typer.echo(documents.dumps(_document(found, scenario=scenario, gpus=asked.gpu_count, days=asked.days)))
    else:
        _print(found)


def _document(found: "Simulation", *, scenario: str, gpus: int, days: float) -> dict[str, object]:
    return {
        **_summary(found.ours),
        "inputs": list(found.inputs),
        "peers": {name: _summary(peer) for name, peer in found.peers.items()},
        "seeds": found.ours.seed_count,
        "gpus": gpus,
        "days": days,
        "scenario": scenario,
        "said": _SAID,
    }


def _summary(summary: "Summary") -> dict[str, object]:
    return {name: value for name, value in asdict(summary).items() if name != "seed_count"}


def _print(found: "Simulation") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"effective training time ({_SAID}, {found.ours.seed_count} seeds)")
    for heading in ("policy", "ETTR %", "95 %", "interruptions a day", "min lost each", "people", "wrong drains"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for name, each in sorted((*found.peers.items(), ("this policy", found.ours)), key=lambda item: item[1].ettr_mean):
        low, high = each.ettr_ci95
        table.add_row(
            name,
            f"{each.ettr_mean:.2%}",
            f"{low:.2%} to {high:.2%}",
            f"{each.interruptions_per_day:.1f}",
            f"{each.minutes_lost_per_interruption:.1f}",
            f"{each.human_interventions:.0f}",
            f"{each.wrong_drains:.0f}",
        )
    console = Console()
    console.print(table)
    console.print(f"rests on: {', '.join(found.inputs)}", highlight=False, markup=False)
