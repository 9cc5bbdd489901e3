"""A simulated cluster small enough for a test: 64 nodes that are struck as often as 2,048."""

from dataclasses import replace
from functools import lru_cache

from ops_pipelines.core.finding import Catalogue
from ops_pipelines.core.plan import Rules
from ops_pipelines.core.policy import BlastCaps, DrainBudget, Mode, Policy, RecoveryLimits
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines_lab.whatif.autopilot import cluster_of
from ops_pipelines_lab.whatif.fault_mix import Scenario, read_scenario
from ops_pipelines_lab.whatif.measured import Measured, read_measured

SHRUNK = 32
"""So many times fewer nodes, each struck so many times more often."""
ROOMY = Policy(
    mode=Mode.AUTO,
    drain_budget=DrainBudget(
        max_out_count=64, max_out_per_rack_count=4, max_new_per_hour_count=64, min_in_service_ratio=0.4
    ),
    recovery=RecoveryLimits(max_requeues_count=24),
    blast_caps=BlastCaps(max_out_per_partition_ratio=1.0),
)


def small_scenario(**changes: float) -> Scenario:
    """Return the Llama 3 mix on 64 nodes at the same interruptions a day; 5 days unless reported otherwise."""
    known = read_scenario("llama3")
    shrunk = replace(known, gpu_count=known.gpu_count // SHRUNK, rate_scale=float(SHRUNK), days=5.0)
    return replace(shrunk, **changes)  # type: ignore[arg-type]  # each a number of Scenario


@lru_cache(maxsize=1)
def small_measured() -> Measured:
    """Return what was measured, with as many false alarms a day as on 2,048 nodes."""
    known = read_measured()
    return replace(known, false_isolations=tuple((rule, rate * SHRUNK) for rule, rate in known.false_isolations))


def rules_for(scenario: Scenario, policy: Policy = ROOMY) -> Rules:
    topology = cluster_of(scenario.node_count + scenario.spare_count, gpus_per_node=scenario.gpus_per_node)
    return Rules(policy=policy, topology=topology, catalogue=_catalogue())


@lru_cache(maxsize=1)
def _catalogue() -> Catalogue:
    return read_catalogue()
