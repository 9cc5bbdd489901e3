"""A job's GPUs on one node while they are put together, and the sentences that say what a rule saw of them."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ops_pipelines.frames.efficiency.gpu_holds import NOBODY, Holds
from ops_pipelines.frames.efficiency.gpu_sums import throttled_ratio
from ops_pipelines.frames.efficiency.rules import FEATURES, Rule

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
    """One GPU (or slice) of one job on one node, while its stretches are added up."""

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
    """Return what tells the GPU from its peers, with the causes that its counters name."""
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
        found.append("shared: other jobs held GPUs of the node too, and which are whose is not said")
    if "memory" in hows:
        found.append("which GPUs it held is read from memory in use")
    if row.job == NOBODY and idle < len(row.gpus):
        found.append("no job is known to hold them")
    hold = holds.by_key.get((row.node, row.job))
    if hold and hold.held_seconds < 3600:
        found.append(f"held for {hold.held_seconds / 60:.0f} min")
    return "".join(f"; {note}" for note in found)
