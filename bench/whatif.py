"""How fast the what-if simulation is, beside the yardstick in the same run; exits 1 where a promise is not kept.

Measured: one run of 54 days on 2,048 nodes under the production decision, on one core; all policies of some seeds on
two cores, from which 200 seeds follow. The yardstick (../shared/yardstick/ettr_sim.py, where it is there) draws all
outcomes from fixed shares and decides nothing: it is the floor.

Run it with `make bench`, or `python -m bench.whatif`.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ops_pipelines.core.plan import Rules
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines.resources.config.policy_file import read_borrowed_policy
from ops_pipelines_lab.whatif.autopilot import cluster_of
from ops_pipelines_lab.whatif.fault_mix import Scenario, read_scenario
from ops_pipelines_lab.whatif.measured import read_measured
from ops_pipelines_lab.whatif.play import play_autopilot
from ops_pipelines_lab.whatif.simulation import FIRST_SEED, simulate

_PROJECT = Path(__file__).parent.parent.resolve()
_POLICY = _PROJECT / "deploy" / "policy-large-training.yaml"
_YARDSTICK = _PROJECT.parent / "shared" / "yardstick" / "ettr_sim.py"
PROMISED_RUN_SECONDS = 6.0
PROMISED_ALL_SECONDS = 15 * 60.0
ALL_SEEDS = 200
_NOT_THERE = "not there"


def yardstick_seconds(scenario: Scenario, *, runs: int) -> float | None:
    """Return the CPU seconds of one run of the yardstick's `ours_target`; None where the yardstick is not there."""
    spec = spec_from_file_location("ettr_sim", _YARDSTICK) if _YARDSTICK.exists() else None
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    sys.modules["ettr_sim"] = module
    spec.loader.exec_module(module)
    began = time.process_time()
    module.batch(module.SCEN[scenario.name], module.POLICIES["ours_target"], runs, FIRST_SEED)
    return (time.process_time() - began) / runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the times; return 1 if a promise is not kept, else 0."""
    parser = argparse.ArgumentParser(description="Speed of the what-if simulation.")
    parser.add_argument("--runs", type=int, default=3, help="runs on one core")
    parser.add_argument("--seeds", type=int, default=6, help="seeds of all policies, on two cores")
    options = parser.parse_args(arguments)
    console = Console()
    scenario, measured = read_scenario("llama3"), read_measured()
    topology = cluster_of(scenario.node_count + scenario.spare_count, gpus_per_node=scenario.gpus_per_node)
    policy, _ = read_borrowed_policy(_POLICY, topology=topology)
    rules = Rules(policy=policy, topology=topology, catalogue=read_catalogue())
    seconds = []
    for seed in range(FIRST_SEED, FIRST_SEED + options.runs):
        began = time.process_time()
        play_autopilot(rules, scenario, measured, seed)
        seconds.append(time.process_time() - began)
    run_seconds = sorted(seconds)[len(seconds) // 2]
    floor = yardstick_seconds(scenario, runs=20)
    began = time.perf_counter()
    simulate(
        scenario, measured, rules=rules, seed_count=options.seeds, workers=2, on_progress=lambda _done, _total: None
    )
    all_seconds = (time.perf_counter() - began) * ALL_SEEDS / options.seeds
    table = Table(title=f"what-if: {scenario.days:g} days, {scenario.node_count:,} nodes")
    for heading in ("what", "seconds", "promised"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    table.add_row("one run on one core (CPU, median)", f"{run_seconds:.2f}", f"under {PROMISED_RUN_SECONDS:g}")
    ratio = _NOT_THERE if floor is None else f"{floor:.3f} (we take {run_seconds / floor:.0f} times as long)"
    table.add_row("the yardstick's run, which decides nothing", ratio, "")
    table.add_row(
        f"{ALL_SEEDS} seeds of all policies, two cores", f"{all_seconds:.0f}", f"under {PROMISED_ALL_SECONDS:g}"
    )
    console.print(table)
    return int(run_seconds >= PROMISED_RUN_SECONDS or all_seconds >= PROMISED_ALL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
