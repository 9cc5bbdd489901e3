"""What a detector says: stretches of time in which something held on one part, with the evidence in words.

And how flags over time become stretches. What a stretch means is `domain.meaning.observation_rules`; which detectors
there are is `signals`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.core.fault import Component
from ops_pipelines.core.identity import GpuUuid, JobId, NodeName, PciAddress
from ops_pipelines.core.observation import DETECTOR_SOURCE, Observation, Signal
from ops_pipelines.frames.panels.panel import Flags, Panel


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """One stretch in which a detector saw one thing."""

    signal: Signal
    node: NodeName
    began_at: datetime
    """When the trouble itself began, as far as the panel shows it."""
    first_seen_at: datetime
    """The first grid time at which it was certain enough to say."""
    last_seen_at: datetime
    """The last grid time at which it held."""
    text: str
    gpu: PciAddress | None = None
    gpu_uuid: GpuUuid | None = None
    component: Component | None = None
    job: JobId | None = None
    code: int | None = None
    value: float | None = None

    @property
    def position(self) -> str:
        """Return what names this condition, whenever it began."""
        parts = (self.signal.value, self.node, self.gpu, self.component, self.job, self.code)
        return "/".join("" if part is None else str(part) for part in parts)

    def observation(self) -> Observation:
        """Return it as evidence."""
        return Observation(
            signal=self.signal,
            node=self.node,
            observed_at=self.began_at,
            source=DETECTOR_SOURCE,
            position=self.position,
            code=self.code,
            gpu=self.gpu,
            gpu_uuid=self.gpu_uuid,
            text=self.text,
            component=self.component,
            job=self.job,
            value=self.value,
        )


Detector = Callable[[Panel], Iterable[Detection]]
"""Looks at a whole panel. What it says of a grid time depends on the LOOKBACK_SECONDS before it and nothing else."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows `first` to `last`, both included, of one column."""

    column: int
    first: int
    last: int


def stretches(holds: Flags) -> Iterator[Stretch]:
    """Yield each unbroken run of True in each column, by column and then by time."""
    if not holds.any():
        return
    for column in np.flatnonzero(holds.any(axis=0)):
        flags = np.concatenate(([False], holds[:, column], [False]))
        edges = np.flatnonzero(flags[1:] != flags[:-1])
        for first, end in zip(edges[::2], edges[1::2], strict=True):
            yield Stretch(int(column), int(first), int(end) - 1)


def lasting(flags: Flags, rows: int) -> Flags:
    """Return where a flag has held for `rows` grid times up to and including each one."""
    if rows <= 1:
        return flags
    return np.equal(counted(flags, rows), rows)


def counted(flags: Flags, rows: int) -> NDArray[np.int32]:
    """Return how many of the last `rows` grid times, this one included, a flag held; fewer rows at the beginning."""
    sums = np.cumsum(flags, axis=0, dtype=np.int32)
    if len(sums) > rows:
        sums[rows:] -= sums[:-rows].copy()
    return sums


def held_lately(flags: Flags, rows: int) -> Flags:
    """Return where a flag held at any of the last `rows` grid times: it keeps a condition from flapping."""
    return np.greater(counted(flags, rows), 0)
