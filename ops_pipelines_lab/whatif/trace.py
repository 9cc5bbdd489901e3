"""The faults that strike one job: the same for every policy under one seed, so that differences are the policies'."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ops_pipelines_lab.whatif.fault_mix import FaultKind, Scenario

_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault: how long the job runs before it, and how it behaves."""

    gap_seconds: float
    """Running time since the strike before, or since the begin."""
    kind: FaultKind
    is_hang: bool
    persists: bool
    """Comes again if the part stays in the job."""
    seat: float
    """Which node of the job it hits, 0..1."""


def strikes(scenario: Scenario, seed: int) -> Iterator[Strike]:
    """Yield strikes without end. A Poisson process over running time; classes by their counts."""
    random = np.random.default_rng([seed, 1])
    counts = np.array([kind.count for kind in scenario.kinds], dtype=np.float64)
    bounds = np.cumsum(counts / counts.sum())
    while True:
        gaps = random.exponential(scenario.mean_gap_seconds, _AT_ONCE)
        draws = random.random((_AT_ONCE, 4))
        for gap, (which, hang, persist, seat) in zip(gaps.tolist(), draws.tolist(), strict=True):
            place = min(int(np.searchsorted(bounds, which, side="right")), len(bounds) - 1)
            kind = scenario.kinds[place]
            yield Strike(
                gap_seconds=gap,
                kind=kind,
                is_hang=hang < kind.hang_ratio,
                persists=persist < kind.persist_ratio,
                seat=seat,
            )
