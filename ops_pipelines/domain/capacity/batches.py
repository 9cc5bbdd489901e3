"""Batches of hardware, and how the failures of one compare with those of the others. What is due is `refresh`'s.

A batch is what was bought at once: one model, standing since one day.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction

from ops_pipelines.core.proposal import GpuType

ENOUGH_NODE_YEARS = 1.0
"""Assumption: over less than this a rate of failures would be told from luck."""
SURE_RATIO = 0.01
"""A batch is said to fail more often if chance alone gives so much or more failures with less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What was bought at once, and what became of it."""

    asset: str
    """The `model` of its racks."""
    racks: tuple[str, ...]
    gpu_type: GpuType
    gpus: int
    gpus_per_node: int
    installed_since: date | None
    """None: nobody stated it."""
    failures: int | None = None
    """Incidents that took a node out; None: nothing was recorded."""
    node_years: float = 0.0
    """Over how much of its time they were counted."""
    hours_lost_ratio: float | None = None
    """Of its GPU-hours: lost to failures. None: not measured."""
    watts_per_gpu: float | None = None
    """Drawn in the mean, with its share of the node. None: not measured."""

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.gpus_per_node < 1:
            raise ValueError(f"{self.asset}: {self.gpus} GPUs, {self.gpus_per_node} a node; expected 1 or more")
        if (self.failures or 0) < 0 or not 0 <= self.node_years < math.inf:
            raise ValueError(f"{self.asset}: {self.failures} failures in {self.node_years:g} node-years; expected 0 on")
        if self.failures and not self.node_years:
            raise ValueError(f"{self.asset}: {self.failures} failures in no time; say over how many node-years")
        if self.hours_lost_ratio is not None and not 0 <= self.hours_lost_ratio < 1:
            raise ValueError(f"{self.asset}: {self.hours_lost_ratio:g} of its hours are lost; expected 0 to below 1")
        if self.watts_per_gpu is not None and not 0 <= self.watts_per_gpu < math.inf:
            raise ValueError(f"{self.asset}: {self.watts_per_gpu:g} W a GPU; expected 0 or more")


def compare_failures(batch: Batch, rest: Sequence[Batch], words: list[str]) -> tuple[float | None, float | None]:
    """Say how failures compare; return those per node-year of batch and rest, None where too little is known."""
    known = [each for each in rest if each.failures is not None]
    others = sum(each.failures or 0 for each in known)
    years = math.fsum(each.node_years for each in known)
    rest_rate = others / years if years >= ENOUGH_NODE_YEARS else None
    if batch.failures is None:
        words.append("no failures were recorded")
        return None, rest_rate
    if batch.node_years < ENOUGH_NODE_YEARS:
        words.append(
            f"{batch.failures} failures in {batch.node_years:.2f} node-years: too short a time for a rate, "
            f"{ENOUGH_NODE_YEARS:g} is needed"
        )
        return None, rest_rate
    rate = batch.failures / batch.node_years
    said = f"{rate:.2f} failures a node-year ({batch.failures} in {batch.node_years:.1f})"
    if rest_rate is None:
        words.append(f"{said}, nothing to compare with")
        return rate, None
    chance = chance_of_as_many(batch.failures, batch.node_years, others=others, other_years=years)
    verdict = "more often than chance alone explains" if chance < SURE_RATIO else "chance alone may explain it"
    words.append(
        f"{said}, the rest of the fleet {rest_rate:.2f}; if both failed alike, as many or more would be seen with "
        f"{100 * chance:.2g} %: {verdict}"
    )
    return rate, rest_rate


def chance_of_as_many(failures: int, years: float, *, others: int, other_years: float) -> float:
    """Return how likely so many failures or more are if they come at the same rate as the others do; exact.

    Of two Poisson counts with one rate, given their sum, the first is binomial with its share of the time.
    """
    total = failures + others
    share = Fraction(years) / (Fraction(years) + Fraction(other_years))
    if failures <= 0:
        return 1.0
    if share in (0, 1):
        return float(share)
    # Added up from the smallest term on, in logarithms: powers of many failures would be 0.
    logs = [
        math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)
        + count * math.log(float(share)) + (total - count) * math.log1p(-float(share))
        for count in range(failures, total + 1)
    ]  # fmt: skip
    return min(1.0, math.fsum(sorted(math.exp(each) for each in logs)))
