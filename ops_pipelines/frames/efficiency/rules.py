"""catalogue/efficiency_rules.csv as values: which readings together mean which verdict, and by whose word.

The grammar of `conditions`: entries joined by ` and `, each `FEATURE OP NUMBER` (<, <=, >, >=) or `FEATURE missing`.
A rule holds only if it knows every feature that it compares: what is missing decides nothing. The first that holds
decides. Where features come from is `efficiency`'s business, and `stragglers`'.
"""

import csv
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

VERDICTS = (
    "compute_bound",
    "tensor_bound",
    "memory_bound",
    "input_stalled",
    "communication_bound",
    "small_kernels",
    "idle",
    "straggler",
    "unknown",
)
FEATURES: Mapping[str, str] = {
    "busy_ratio": "utilisation",
    "sm_active_ratio": "SM active",
    "tensor_active_ratio": "tensor active",
    "dram_active_ratio": "DRAM active",
    "memory_copy_ratio": "memory copy utilisation",
    "memory_used_ratio": "memory in use",
    "power_ratio": "power over its limit",
    "pcie_bytes_per_second": "PCIe",
    "nvlink_bytes_per_second": "NVLink",
    "fabric_used_ratio": "network over its rate",
    "dip_ratio": "samples without work",
    "idle_gpu_ratio": "GPUs that do nothing",
    "samples_per_gpu": "samples of each GPU",
    "job_gpu_count": "GPUs of the job",
}
"""What rules may ask of a job on a node, in words for people. Utilisation is engine activity where a slice has none."""
STRAGGLER_FEATURES: Mapping[str, str] = {
    "clock_deviation_ratio": "SM clock against the median of its peers",
    "clock_robust_z": "robust z",
    "activity_deviation_ratio": "activity less the median of its peers",
    "activity_robust_z": "robust z",
    "peer_activity_ratio": "activity of its peers",
    "peer_tensor_ratio": "tensor active of its peers",
    "traffic_bytes_per_second": "traffic between GPUs",
    "peer_count": "peers",
    "other_outlier_ratio": "share of others like it",
}
"""What rules may ask of one GPU among those of its job."""

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_COMPARE: Mapping[str, Callable[[Floats, float], Flags]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One comparison. `missing` asks that the feature is not known, and has no threshold."""

    feature: str
    comparison: str
    threshold: float | None

    def holds(self, features: Mapping[str, Floats]) -> Flags:
        """Return where it holds; NaN is unknown."""
        values = features[self.feature]
        if self.threshold is None:
            return np.isnan(values)
        # A comparison with NaN is false, which is what not knowing must be.
        return _COMPARE[self.comparison](values, self.threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the catalogue."""

    order: int
    rule: str
    verdict: str
    conditions: tuple[Condition, ...]
    says: str
    """What it means, for people."""
    source: str
    checked_on: date

    @property
    def is_about_peers(self) -> bool:
        return any(condition.feature in STRAGGLER_FEATURES for condition in self.conditions)

    def holds(self, features: Mapping[str, Floats]) -> Flags:
        """Return for which rows of the features (equally long arrays) all conditions hold."""
        found = np.ones(len(next(iter(features.values()))), np.bool_)
        for condition in self.conditions:
            found &= condition.holds(features)
        return found


@cache
def read_rules() -> tuple[Rule, ...]:
    """Return the rules in the order in which they are tried. Raises ValueError with the line that cannot be right."""
    text = files("ops_pipelines.catalogue").joinpath("efficiency_rules.csv").read_text(encoding="utf-8")
    found: list[Rule] = []
    for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            found.append(_rule(row))
        except (KeyError, ValueError, TypeError) as exc:
            raise ValueError(f"catalogue/efficiency_rules.csv, line {number}: {exc}") from exc
    return tuple(sorted(found, key=lambda rule: rule.order))


def first_that_holds(rules: Sequence[Rule], features: Mapping[str, Floats]) -> NDArray[np.int64]:
    """Return for each row of the features the place in `rules` of the first that holds; -1 for none."""
    found = np.full(len(next(iter(features.values()))), -1, np.int64)
    for place, rule in enumerate(rules):
        found[(found < 0) & rule.holds(features)] = place
    return found


def _rule(row: Mapping[str, str]) -> Rule:
    conditions = tuple(_condition(text) for text in row["conditions"].split(" and "))
    if row["verdict"] not in VERDICTS:
        raise ValueError(f"{row['verdict']!r} is no verdict; expected one of {', '.join(VERDICTS)}")
    kinds = {condition.feature in STRAGGLER_FEATURES for condition in conditions}
    if len(kinds) > 1:
        raise ValueError("a rule asks of a job on a node or of one GPU among its peers, not of both")
    return Rule(
        order=int(row["order"]),
        rule=row["rule"],
        verdict=row["verdict"],
        conditions=conditions,
        says=row["says"],
        source=row["source"],
        checked_on=date.fromisoformat(row["checked_on"]),
    )


def _condition(text: str) -> Condition:
    feature, _, rest = text.strip().partition(" ")
    if feature not in FEATURES and feature not in STRAGGLER_FEATURES:
        raise ValueError(f"{feature!r} is no feature")
    if rest == "missing":
        return Condition(feature=feature, comparison="missing", threshold=None)
    comparison, _, number = rest.partition(" ")
    threshold = float(number)
    if comparison not in _COMPARE or not math.isfinite(threshold):
        raise ValueError(f"{text!r} is no condition; expected FEATURE OP NUMBER")
    return Condition(feature=feature, comparison=comparison, threshold=threshold)
