"""What a release is like, and the cluster that it is rolled out on: catalogue/rollout_scenarios.csv as values.

The rollout is shown nothing of the scenario. What the policy of the bench allows is there too; a site may give its own.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files

from ops_pipelines.core.policy import DrainBudget, Policy, RolloutLimits

TABLE = "rollout_scenarios.csv"
LEAST_NODES, MOST_NODES = 40, 20_000
"""With fewer the second model has too few for its canaries; with more a run takes minutes."""
_WIDEST_SHARE = 8
"""# Assumption: a job takes at most an eighth of the nodes of its model; wider ones are for larger clusters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of release. Rates are per node-day, ratios 0..1."""

    name: str
    is_good: bool = False
    fails_update_ratio: float = 0.0
    """How many updates do not come well with the new version, of the nodes that it concerns."""
    concerns_second_model: bool = False
    """Whether only nodes of the second model do not come well."""
    extra_failures_per_node_day: float = 0.0
    """On updated nodes, on top of what fails anyway."""
    slowdown_ratio: float = 0.0
    hangs_after_seconds: float = 0.0
    """Of work with the new version; 0: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The cluster and its work, each number with its source in the table. Times in seconds."""

    node_count: int
    gpus_per_node: int
    nodes_per_rack: int
    racks_per_leaf: int
    second_model_ratio: float
    failures_per_node_day: float
    past_days: float
    median_job_seconds: float
    job_sigma: float
    longest_job_seconds: float
    shortest_limit_factor: float
    longest_limit_factor: float
    checkpoint_every_seconds: float
    restart_seconds: float
    repair_seconds: float
    node_spread: float
    run_spread: float
    runs_before: int
    visit_seconds: float
    canary_extra_seconds: float
    pass_every_seconds: float
    judge_every_seconds: float
    job_sizes: tuple[tuple[int, float], ...] = ()
    """Nodes of a job, and the share of all node-hours that such jobs take."""

    @property
    def second_model_count(self) -> int:
        return round(self.node_count * self.second_model_ratio)

    def sizes_of(self, node_count: int) -> tuple[tuple[int, float], ...]:
        """Return the sizes of jobs on so many nodes of one model, with how many jobs have each."""
        # A share of node-hours, divided by the nodes that each takes, is a share of the jobs.
        fitting = [(size, share / size) for size, share in self.job_sizes if size * _WIDEST_SHARE <= node_count]
        return tuple(fitting or [(1, 1.0)])


_WHOLE = frozenset({"node_count", "gpus_per_node", "nodes_per_rack", "racks_per_leaf", "runs_before"})
_YES_OR_NO = frozenset({"is_good", "concerns_second_model"})


def read_scenarios() -> Mapping[str, Scenario]:
    """Return every scenario by its name, in the order of the table."""
    return {
        name: Scenario(name=name, **{key: _value(key, text) for key, text in values.items()})  # type: ignore[arg-type]  # each a number of Scenario
        for name, values in _read().items()
        if name not in ("site", "job_size", "policy")
    }


def read_site(node_count: int | None = None) -> Site:
    """Return the cluster of the table, with another number of nodes if one is given."""
    table = _read()
    site = Site(
        **{key: _value(key, text) for key, text in table["site"].items()},  # type: ignore[arg-type]  # each a number of Site
        job_sizes=tuple((int(size), float(share)) for size, share in table["job_size"].items()),
    )
    if node_count is None:
        return site
    if not LEAST_NODES <= node_count <= MOST_NODES:
        raise ValueError(f"{node_count} nodes were asked for; expected {LEAST_NODES} to {MOST_NODES}")
    return replace(site, node_count=node_count)


def altered(scenario: Scenario, site: Site, *, failure_factor: float | None, slowdown_ratio: float | None) -> Scenario:
    """Return the scenario with another number of failures (times what is usual at the site), or other step times.

    A good release that is made worse is good no more. Raises ValueError below what is usual.
    """
    extra, slower = scenario.extra_failures_per_node_day, scenario.slowdown_ratio
    if failure_factor is not None:
        if failure_factor < 1:
            raise ValueError(f"a failure factor of {failure_factor:g} was asked for; 1 is as often as ever")
        extra = (failure_factor - 1) * site.failures_per_node_day
    if slowdown_ratio is not None:
        if not 0 <= slowdown_ratio < 1:
            raise ValueError(f"a slowdown of {slowdown_ratio:g} was asked for; expected a share such as 0.03")
        slower = slowdown_ratio
    is_good = scenario.is_good and not extra and not slower
    return replace(scenario, extra_failures_per_node_day=extra, slowdown_ratio=slower, is_good=is_good)


def policy_of(site: Site) -> Policy:
    """Return the policy of the bench: what it leaves out has its default."""
    values = {key: float(text) for key, text in _read()["policy"].items()}
    return Policy(
        rollouts=RolloutLimits(max_out_count=max(1, round(site.node_count * values["max_out_ratio"]))),
        drain_budget=DrainBudget(
            max_out_count=max(1, round(site.node_count * values["drain_budget_ratio"])),
            max_out_per_rack_count=int(values["max_out_per_rack_count"]),
        ),
    )


def _read() -> Mapping[str, Mapping[str, str]]:
    text = (files("ops_pipelines.catalogue") / TABLE).read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for row in csv.DictReader(text.splitlines()):
        if not row["source"] or not row["checked_on"]:
            raise ValueError(f"catalogue/{TABLE}: {row['of']} {row['what']} names no source")
        found[row["of"]][row["what"]] = row["value"]
    return found


def _value(key: str, text: str) -> float | int | bool:
    if key in _YES_OR_NO:
        return text == "1"
    return int(text) if key in _WHOLE else float(text)
