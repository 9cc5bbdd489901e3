"""Many runs: the policy that is asked about and every peer, under the same faults of the same seeds.

Runs are independent, so they are shared out to processes; the order of the results never depends on who was faster.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from ops_pipelines.core.plan import Rules
from ops_pipelines_lab.whatif.autopilot import EPOCH, cluster_of, refuse_unknown
from ops_pipelines_lab.whatif.fault_mix import TABLE, Scenario
from ops_pipelines_lab.whatif.measured import Measured, source_of
from ops_pipelines_lab.whatif.peers import PEERS, play
from ops_pipelines_lab.whatif.play import play_autopilot
from ops_pipelines_lab.whatif.training import RunResult, Summary, summarise

FIRST_SEED = 1000
Progress = Callable[[int, int], None]
"""Called with the runs done, and the runs in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What came of a policy, beside its peers."""

    ours: Summary
    peers: Mapping[str, Summary]
    inputs: tuple[str, ...]
    """Every table that it rests on, with the digest of its bytes."""


def simulate(
    scenario: Scenario,
    measured: Measured,
    *,
    rules: Rules,
    seed_count: int,
    workers: int,
    on_progress: Progress,
) -> Simulation:
    """Return the outcome of `seed_count` runs.

    `rules` are the policy that is asked about and the catalogue; their topology is that of the scenario.
    """
    if seed_count < 1:
        raise ValueError(f"{seed_count} seeds were asked for; expected at least one")
    topology = cluster_of(scenario.node_count + scenario.spare_count, gpus_per_node=scenario.gpus_per_node)
    refuse_unknown(measured.rules, rules.catalogue, at=EPOCH)
    asked = replace(rules, topology=topology)
    seeds = range(FIRST_SEED, FIRST_SEED + seed_count)
    total = seed_count * (1 + len(PEERS))
    done = 0
    found: dict[str, list[RunResult]] = {}
    plays: dict[str, Callable[[int], RunResult]] = {name: partial(_play_peer, name, scenario) for name in PEERS}
    plays["ours"] = partial(_play_ours, asked, scenario, measured)
    with ProcessPoolExecutor(max_workers=workers) as pool:
        for name, one in plays.items():
            for result in pool.map(one, seeds, chunksize=1):
                found.setdefault(name, []).append(result)
                done += 1
                on_progress(done, total)
    return Simulation(
        ours=summarise(found.pop("ours")),
        peers={name: summarise(results) for name, results in found.items()},
        inputs=(source_of(TABLE), *measured.sources),
    )


def _play_peer(name: str, scenario: Scenario, seed: int) -> RunResult:
    return play(PEERS[name], scenario, seed)


def _play_ours(rules: Rules, scenario: Scenario, measured: Measured, seed: int) -> RunResult:
    return play_autopilot(rules, scenario, measured, seed)


def assumptions_changed(scenario: Scenario, measured: Measured) -> Mapping[str, tuple[Scenario, Measured]]:
    """Return the inputs with one of them changed at a time, by what was changed."""

    def world(**changes: float) -> tuple[Scenario, Measured]:
        return replace(scenario, **changes), measured  # type: ignore[arg-type]  # each a number of Scenario

    return {
        "4 spare nodes": world(spare_count=4),
        "16 spare nodes": world(spare_count=16),
        "faults x0.5": world(rate_scale=scenario.rate_scale * 0.5),
        "faults x2": world(rate_scale=scenario.rate_scale * 2.0),
        "repair 6 h": world(repair_hours=6.0),
        "repair 72 h": world(repair_hours=72.0),
        "strikes again after 2 min": world(repeat_seconds=120.0),
        "strikes again after 30 min": world(repeat_seconds=1800.0),
        "nine tenths of it seen": (scenario, replace(measured, coverage_ratio=0.9)),
        "three quarters of it seen": (scenario, replace(measured, coverage_ratio=0.75)),
        "half of it seen": (scenario, replace(measured, coverage_ratio=0.5)),
        "no wrong drains": (scenario, replace(measured, false_isolations=())),
    }
