"""Durations that vary: how long something takes, as a distribution that a seeded generator draws from. Seconds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from numpy.random import Generator


class Duration(Protocol):
    """How long something takes."""

    def draw(self, random: Generator) -> float:
        """Return one duration in seconds, 0 or more."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    seconds: float

    def draw(self, random: Generator) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Between:
    """Any time between two bounds, alike likely: of a poll that meets its event at random."""

    low_seconds: float
    high_seconds: float

    def draw(self, random: Generator) -> float:
        return float(random.uniform(self.low_seconds, self.high_seconds))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Of people: mostly near the median, at times many times as long."""

    median_seconds: float
    sigma: float

    def draw(self, random: Generator) -> float:
        return self.median_seconds * math.exp(self.sigma * float(random.standard_normal()))


@dataclass(frozen=True, slots=True)
class Exponential:
    """Of what may end at any moment."""

    mean_seconds: float

    def draw(self, random: Generator) -> float:
        return float(random.exponential(self.mean_seconds))


@dataclass(frozen=True, slots=True)
class Recorded:
    """One of the durations that were measured, each as likely as the next."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.seconds:
            raise ValueError("a recorded distribution needs at least one duration")

    def draw(self, random: Generator) -> float:
        return self.seconds[int(random.integers(len(self.seconds)))]

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Recorded":
        return cls(tuple(seconds))
