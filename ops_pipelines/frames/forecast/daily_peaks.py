"""Daily maxima of demand, a column a series: the value that everything here is computed from, and its room.

Here: the matrix, what it must hold, square roots and back, and which series have too little to go by. Where the days
come from is `recorded_peaks`; sums of series are `sums`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
Places: TypeAlias = NDArray[np.int64]

IDLE_BELOW_GPUS = 8.0
"""One node: a series that asked for less in four weeks is near idle, and is compared with others like it alone."""
RECENT_DAYS = 28
LEAST_DAYS = 14
"""What a series needs for more than the last value, and a cluster for its first forecast that is judged."""


class Treatment(Enum):
    """What a series is, as far as it changes how it is forecast."""

    ORDINARY = "ordinary"
    SHORT = "short"
    """Fewer than 14 days: its width is the pool's, its weights are the pool's."""
    NEW = "new"
    """Its first demand is less than four weeks old; so treated as ordinary, with the pool's weights at first."""
    NEAR_IDLE = "near_idle"
    """Less than a node in four weeks: its bound comes from near-idle series, in GPUs, not in ratios."""
    ZERO = "zero"
    """It never asked for anything: as near idle, from 0."""
    NO_DAYS = "no_days"
    """Nothing is known of it; nothing is forecast."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DailyPeaks:
    """Daily maxima of GPUs that were wanted; raises ValueError for what cannot be such."""

    names: tuple[str, ...]
    first_day: date
    gpus: Floats
    """A row a day, a column a series; NaN where a series was not there yet."""
    cap_gpus: Floats
    """The most that each series can ask for; infinite where nothing holds it."""

    def __post_init__(self) -> None:
        if self.gpus.ndim != 2 or self.gpus.shape[1] != len(self.names) or self.cap_gpus.shape != (len(self.names),):
            raise ValueError(
                f"{self.gpus.shape} daily maxima and {self.cap_gpus.shape} caps were given for {len(self.names)} "
                "names; expected a row a day, a column and a cap for each name"
            )
        if len(set(self.names)) != len(self.names):
            raise ValueError("a series is named twice; expected a name for each: join those of one team first")
        if np.isinf(self.gpus).any() or (self.gpus < 0).any():
            raise ValueError("daily maxima below 0 or without end were given; expected 0 or more, NaN where absent")
        if np.isnan(self.cap_gpus).any() or (self.cap_gpus < 0).any():
            raise ValueError("a cap below 0 or none was given; expected 0 or more, infinite where nothing holds")
        if (np.isnan(self.gpus[1:]) & ~np.isnan(self.gpus[:-1])).any():
            raise ValueError("a series has a gap; expected days without one: fill it, or begin after it")

    @property
    def day_count(self) -> int:
        return int(self.gpus.shape[0])

    def day(self, place: int) -> date:
        return self.first_day + timedelta(days=place)

    def caps_at(self, place: int) -> Floats:
        """Return the caps that the days before a place bear out: one that a series was above is no cap."""
        highest = np.where(np.isnan(self.gpus[:place]), 0.0, self.gpus[:place]).max(axis=0, initial=0.0)
        return np.where(highest <= self.cap_gpus, self.cap_gpus, np.inf)

    def treatments(self) -> tuple[Treatment, ...]:
        """Return what each series is on the day after the last."""
        return tuple(_treatment(self.gpus[:, column]) for column in range(len(self.names)))


def without_caps(names: Sequence[str], first_day: date, gpus: Floats) -> DailyPeaks:
    return DailyPeaks(names=tuple(names), first_day=first_day, gpus=gpus, cap_gpus=np.full(len(names), np.inf))


def root(gpus: Floats) -> Floats:
    """Return where forecasts are made: the spread of demand grows about as the root of its level, and 0 is no abyss."""
    return np.asarray(np.sqrt(gpus))


def squared(roots: Floats) -> Floats:
    """Return GPUs again; what is below 0 is 0."""
    return np.asarray(np.square(np.maximum(roots, 0.0)))


def _treatment(gpus: Floats) -> Treatment:
    own = gpus[~np.isnan(gpus)]
    if not len(own):
        return Treatment.NO_DAYS
    if not own.any():
        return Treatment.ZERO
    if len(own) < LEAST_DAYS:
        return Treatment.SHORT
    if own[-RECENT_DAYS:].max() < IDLE_BELOW_GPUS:
        return Treatment.NEAR_IDLE
    if len(own) - int(np.argmax(own > 0)) < RECENT_DAYS:
        return Treatment.NEW
    return Treatment.ORDINARY
