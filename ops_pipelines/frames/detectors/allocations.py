"""Which job holds which nodes, from which grid time to which; and the columns that belong to it.

What the detectors of jobs share: slices of a panel, and numbers put together over the parts of one job. What any of it
means is the detectors' business.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.identity import JobId
from ops_pipelines.frames.panels.panel import Flags, Layer, Numbers, Panel

Columns = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A job holds the same nodes over rows `first` to `end`, `end` not included."""

    job_column: int
    first: int
    end: int
    nodes: Columns
    """Columns of the layer `nodes`."""
    gpus: Columns
    """Columns of the layer `gpus`."""

    @property
    def rows(self) -> slice:
        return slice(self.first, self.end)

    def of(self, layer: Layer, column: str, *, columns: Columns) -> Numbers:
        """Return the samples of these columns while the job runs; all NaN if nobody measures the quantity."""
        if column not in layer:
            return np.full((self.end - self.first, len(columns)), np.nan)
        return layer.value(column)[self.rows, columns]

    def seen(self, layer: Layer, *, columns: Columns) -> Flags:
        """Return where any quantity of these columns has a sample."""
        if not layer.values:
            return np.zeros((self.end - self.first, len(columns)), dtype=bool)
        return layer.present[self.rows, columns]

    def growth(self, layer: Layer, column: str, *, columns: Columns) -> Numbers:
        """Return how fast a counter of these columns grew, per second; see `growth_over_gaps`."""
        found = growth_over_gaps(self.of(layer, column, columns=columns), step_seconds=layer.step_seconds)
        found[:1] = np.nan  # the sample before it belongs to whoever held the node then
        return found


def allocations(panel: Panel) -> Iterator[Allocation]:
    """Yield what jobs hold, by time of beginning. A job whose set of nodes changes has another allocation."""
    held = panel.held_by
    if not len(held) or not held.shape[1]:
        return
    changes = np.flatnonzero((held[1:] != held[:-1]).any(axis=1)) + 1

    def allocation(key: tuple[int, tuple[int, ...]], *, first: int, end: int) -> Allocation:
        job_column, nodes = key
        return Allocation(
            job_column=job_column,
            first=first,
            end=end,
            nodes=np.array(nodes, dtype=np.intp),
            gpus=panel.gpus.columns_of(panel.nodes.parts[node].node for node in nodes),
        )

    open_since: dict[tuple[int, tuple[int, ...]], int] = {}
    for row in [0, *changes.tolist()]:
        now = _holders(held[row])
        for key in [key for key in open_since if key not in now]:
            yield allocation(key, first=open_since.pop(key), end=row)
        for key in now:
            open_since.setdefault(key, row)
    for key, first in open_since.items():
        yield allocation(key, first=first, end=len(held))


def growth_over_gaps(samples: Numbers, *, step_seconds: int) -> Numbers:
    """Return how fast counters grew up to each row, per second; over one missing sample, the mean of the two steps.

    NaN at the first row, where the sample is missing, after longer gaps, and where a counter fell: it began anew.
    """
    grown = np.full(samples.shape, np.nan)
    np.subtract(samples[1:], samples[:-1], out=grown[1:], casting="unsafe")
    if len(samples) > 2:
        over_gap = np.subtract(samples[2:], samples[:-2], dtype=np.float64) / 2
        np.copyto(grown[2:], over_gap, where=np.isnan(samples[1:-1]))
    grown[grown < 0] = np.nan
    grown /= step_seconds
    return grown


def rows_since(flags: Flags) -> NDArray[np.int64]:
    """Return for each row how many rows ago a flag (times,) last held; more than there are rows if it never did."""
    rows = np.arange(len(flags))
    last = np.maximum.accumulate(np.where(flags, rows, -len(flags) - 1))
    return rows - last


def row_median(values: Numbers) -> NDArray[np.float64]:
    """Return the median of each row over its known values; NaN for a row without any."""
    known = np.count_nonzero(~np.isnan(values), axis=1)
    ordered = np.sort(values, axis=1).astype(np.float64)  # NaN comes last
    found = np.full(len(values), np.nan)
    given = np.flatnonzero(known)
    upper, lower = known[given] // 2, (known[given] - 1) // 2
    found[given] = (ordered[given, lower] + ordered[given, upper]) / 2
    return found


def most_reach(values: Numbers, floor: float) -> Flags:
    """Return for each row whether at least half of the known values reach `floor`; False for a row without any."""
    known, reach = np.count_nonzero(~np.isnan(values), axis=1), np.count_nonzero(values >= floor, axis=1)
    return np.array((2 * reach >= known) & (known > 0), dtype=bool)


def row_mean(values: Numbers) -> NDArray[np.float64]:
    """Return the mean of the known values of each row; NaN for a row without any."""
    known = ~np.isnan(values)
    found = np.full(len(values), np.nan)
    total = np.where(known, values, 0.0).sum(axis=1, dtype=np.float64)
    np.divide(total, known.sum(axis=1), out=found, where=known.any(axis=1))
    return found


def row_max(values: Numbers) -> NDArray[np.float64]:
    """Return the largest known value of each row; NaN for a row without any."""
    found = np.max(np.where(np.isnan(values), -np.inf, values), axis=1, initial=-np.inf)
    return np.where(np.isneginf(found), np.nan, found)


def job_component(job: JobId) -> Component:
    return Component(kind=ComponentKind.JOB, name=job)


def _holders(row: NDArray[np.int32]) -> dict[tuple[int, tuple[int, ...]], None]:
    return {(int(job), tuple(np.flatnonzero(row == job).tolist())): None for job in np.unique(row[row >= 0])}
