"""Which readings together mean which verdict, as data; and which GPUs differ from the others of their job.

The grammar of `conditions`: entries joined by ` and `, each `FEATURE OP NUMBER` (<, <=, >, >=) or `FEATURE missing`. A
rule holds only if it knows every feature that it compares: what is missing decides nothing. The first that holds
decides.

Peers are the GPUs of the same job and model on all its nodes. In synchronised work all wait for the slowest, so a
straggler may look busier than its peers (they wait without spinning) or less busy (they spin and it has no work).
"""

import csv
import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from importlib.resources import files

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ops_pipelines.efficiency.gpu_sums import NOBODY, Holds, throttled_ratio

# -- catalogue/efficiency_rules.csv as values --


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


# -- a job's GPUs on one node while they are put together --


IDLE_BELOW_RATIO = 0.05
"""As the rules `idle_*` say; a GPU below it does nothing."""
_PROFILE = re.compile(r"(?:(?P<compute>\d+)c\.)?(?P<slices>\d+)g\.")
_WANTED = ("busy_ratio", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio", "power_ratio")
"""What a verdict is asked of first: named where it is missing."""
_SHOWN = (
    "busy_ratio", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio", "power_ratio", "fabric_used_ratio",
    "nvlink_bytes_per_second",
)  # fmt: skip
_THROTTLES = {"thermal_throttle_seconds": "heat", "power_throttle_seconds": "the power limit"}


@dataclass(slots=True)
class Gpu:
    """One GPU (or slice) of one job on one node, while its intervals are added up."""

    device: str
    share: float
    model: str
    samples: float = 0.0
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    hows: set[str] = field(default_factory=set)

    def mean(self, name: str) -> float:
        return self.sums[name] / self.counts[name] if self.counts[name] else math.nan

    @property
    def is_idle(self) -> bool:
        return self.mean("busy_ratio") < IDLE_BELOW_RATIO


@dataclass(slots=True, kw_only=True)
class Row:
    """One row of the table, while it is made."""

    node: str
    job: str
    gpus: list[Gpu]
    features: dict[str, float] = field(default_factory=dict)
    values: dict[str, object] = field(default_factory=dict)

    def mean(self, name: str, *, among: Sequence[Gpu] | None = None) -> float:
        gpus = self.gpus if among is None else among
        count = sum(gpu.share * gpu.counts[name] for gpu in gpus)
        return sum(gpu.share * gpu.sums[name] for gpu in gpus) / count if count else math.nan

    @property
    def working(self) -> list[Gpu]:
        return [gpu for gpu in self.gpus if not gpu.is_idle] or self.gpus


def slice_share(profile: str, model: str) -> float:
    """Return a slice's share of its GPU's compute: 3 sevenths of a 3g slice; A30 has four slices, others seven."""
    match = _PROFILE.match(profile)
    slices = int(match["compute"] or match["slices"]) if match else 1
    return min(1.0, slices / (4 if "A30" in model else 7))


def about_straggler(row: Row, one: Gpu, rule: Rule, own: Mapping[str, float], *, gpu: pa.Table) -> str:
    """Return what separates the GPU from its peers, with the causes that its counters name."""
    peers = f"its {own['peer_count']:.0f} peers"
    degrees = one.mean("temperature_celsius")
    if "clock_robust_z" in {condition.feature for condition in rule.conditions}:
        parts = [
            f"SM clock {one.mean('sm_clock_hertz') / 1e6:.0f} MHz, {abs(own['clock_deviation_ratio']):.0%} below the "
            f"median of {peers} (robust z {own['clock_robust_z']:.1f})",
            *([] if math.isnan(degrees) else [f"at {degrees:.0f} degrees"]),
        ]
        for column, cause in _THROTTLES.items():
            share = throttled_ratio(gpu, column, node=row.node, device=one.device)
            if share:
                parts.append(f"held down by {cause} for {share:.0%} of the time")
        return f"{one.device}: {rule.says}: {', '.join(parts)}"
    return (
        f"{one.device}: {rule.says}: activity {own['peer_activity_ratio'] + own['activity_deviation_ratio']:.2f} "
        f"against {own['peer_activity_ratio']:.2f} of {peers} (robust z {own['activity_robust_z']:.1f})"
    )


def figures(row: Row, rule: Rule) -> str:
    """Return the numbers that the rule saw, and those that people look at first."""
    asked = [condition.feature for condition in rule.conditions]
    parts = [_figure(name, row.features[name]) for name in dict.fromkeys((*asked, *_SHOWN)) if name in row.features]
    return ", ".join(part for part in parts if part)


def _figure(name: str, value: float) -> str:
    if math.isnan(value):
        return ""
    if name.endswith("bytes_per_second"):
        return f"{FEATURES[name]} {value / 1e9:.1f} GB/s"
    return f"{FEATURES[name]} {value:.2f}" if name.endswith("_ratio") else f"{FEATURES[name]} {value:g}"


def about_gaps(row: Row) -> str:
    """Return what is missing for a verdict, and what is there."""
    missing = [FEATURES[name] for name in _WANTED if math.isnan(row.features.get(name, math.nan))]
    said = ", ".join(part for name in _WANTED if (part := _figure(name, row.features.get(name, math.nan))))
    return f"missing: {', '.join(missing) or 'nothing, but no rule holds'}; seen: {said or 'nothing'}"


def notes(row: Row, *, holds: Holds) -> str:
    """Return what else should be known of a row, as clauses after its evidence."""
    found: list[str] = []
    idle = sum(gpu.is_idle for gpu in row.gpus)
    if 0 < idle < len(row.gpus):
        found.append(f"{idle} of {len(row.gpus)} GPUs do nothing")
    hows = set().union(*(gpu.hows for gpu in row.gpus))
    if "shared" in hows:
        found.append("shared: other jobs held GPUs of the node too, and which are whose is not stated")
    if "memory" in hows:
        found.append("which GPUs it held is read from memory in use")
    if row.job == NOBODY and idle < len(row.gpus):
        found.append("no job is known to hold them")
    hold = holds.by_key.get((row.node, row.job))
    if hold and hold.held_seconds < 3600:
        found.append(f"held for {hold.held_seconds / 60:.0f} min")
    return "".join(f"; {note}" for note in found)


# -- GPUs that differ from the others of their job --


_MAD_TO_SIGMA = 1.4826
_LEAST_SPREAD = 0.01
"""Peers never agree better than this: one hundredth of the median clock, or of an activity from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """One GPU that a rule calls a straggler."""

    place: int
    """Its row in what was given."""
    rule: Rule
    strength: float
    """Size of the robust z that the rule compared; the largest is the worst."""


def deviations(values: Floats, *, groups: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
    """Return for each value its difference from the median of its group, the robust z of that, and the median.

    z = difference / max(1.4826 x MAD, 0.01). NaN is left out of medians and stays NaN.
    """
    difference, z, middle = (np.full(len(values), np.nan) for _ in range(3))
    for rows in _rows_by_group(groups):
        given = rows[~np.isnan(values[rows])]
        if len(given):
            median = float(np.median(values[given]))
            spread = float(np.median(np.abs(values[given] - median))) * _MAD_TO_SIGMA
            difference[given] = values[given] - median
            z[given] = difference[given] / max(spread, _LEAST_SPREAD)
            middle[given] = median
    return difference, z, middle


def peer_features(
    *, clock_hertz: Floats, activity: Floats, tensor: Floats, traffic: Floats, groups: NDArray[np.int64]
) -> dict[str, Floats]:
    """Return the features of STRAGGLER_FEATURES, one value a GPU; arrays are equally long, NaN is unknown.

    Clocks are compared as a share of the median, so that z has one scale for all models.
    """
    median_clock = deviations(clock_hertz, groups=groups)[2]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(median_clock > 0, clock_hertz / median_clock, np.nan)
    clock_deviation, clock_z, _ = deviations(share, groups=groups)
    activity_deviation, activity_z, peer_activity = deviations(activity, groups=groups)
    sizes = np.bincount(groups, minlength=1) if len(groups) else np.zeros(1, np.int64)
    return {
        "clock_deviation_ratio": clock_deviation,
        "clock_robust_z": clock_z,
        "activity_deviation_ratio": activity_deviation,
        "activity_robust_z": activity_z,
        "peer_activity_ratio": peer_activity,
        "peer_tensor_ratio": _spread_median(tensor, groups=groups),
        "traffic_bytes_per_second": _spread_median(traffic, groups=groups),
        "peer_count": (sizes[groups] - 1).astype(np.float64),
        "other_outlier_ratio": np.zeros(len(groups)),
    }


def find_stragglers(
    rules: Sequence[Rule], features: Mapping[str, Floats], *, groups: NDArray[np.int64]
) -> tuple[Straggler, ...]:
    """Return the stragglers by the first rule that holds for each, in the order of their rows.

    `other_outlier_ratio` is found here: the share of a group's GPUs for which the rest of a rule holds, and 0 where
    that is one GPU alone. Where many are alike it is the way in which the work is split, and no fault of one GPU.
    """
    found: dict[int, Straggler] = {}
    sizes = np.bincount(groups, minlength=1) if len(groups) else np.ones(1, np.int64)
    for rule in rules:
        alike = rule.holds(features)
        counts = np.bincount(groups[alike], minlength=len(sizes))
        share = np.where(counts > 1, counts / np.maximum(sizes, 1), 0.0)
        holds = alike & rule.holds({**features, "other_outlier_ratio": share[groups]})
        z = np.abs(features[_z_of(rule)])
        for place in np.flatnonzero(holds).tolist():
            found.setdefault(place, Straggler(place=place, rule=rule, strength=float(z[place])))
    return tuple(found[place] for place in sorted(found))


def _z_of(rule: Rule) -> str:
    return next(
        (condition.feature for condition in rule.conditions if condition.feature.endswith("_robust_z")),
        "clock_robust_z",
    )


def _spread_median(values: Floats, *, groups: NDArray[np.int64]) -> Floats:
    """Return the median of each GPU's group, also for a GPU that gives no value itself."""
    found = np.full(len(values), np.nan)
    for rows in _rows_by_group(groups):
        given = values[rows][~np.isnan(values[rows])]
        if len(given):
            found[rows] = np.median(given)
    return found


def _rows_by_group(groups: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    order = np.argsort(groups, kind="stable")
    return [rows for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1) if len(rows)]
