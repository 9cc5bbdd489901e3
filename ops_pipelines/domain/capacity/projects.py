"""Demand that the past cannot tell: planned projects, each with its ramp and how likely it comes about. Values.

What all of them together add to a week's peak, as a distribution and not as one number, is `project_mix`'s.
"""

import math
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from ops_pipelines.core.proposal import GpuType, TeamName


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProject:
    """One project of one team, for one type of GPU."""

    name: str
    team: TeamName
    gpu_type: GpuType = GpuType("")
    gpus: float
    """What it will want once it has ramped up."""
    starts_on: date
    """A local day, as `ends_on`."""
    ramp_days: int = 0
    """So many days after its start it wants all of it; in between a straight line."""
    ends_on: date | None = None
    """The first day without it; None: no end is known."""
    probability: float = 1.0
    """How likely it comes about as said."""

    def __post_init__(self) -> None:
        for day in (self.starts_on, self.ends_on):
            if isinstance(day, datetime):
                raise ValueError(f"{self.words} has a time of day; expected days")
        if self.ends_on is not None and self.ends_on <= self.starts_on:
            raise ValueError(
                f"{self.words} starts on {self.starts_on} and ends on {self.ends_on}; expected an end on a later day"
            )
        if not self.gpus > 0 or math.isinf(self.gpus):
            raise ValueError(f"{self.words} wants {self.gpus:g} GPUs; expected more than 0, or leave it out")
        if self.ramp_days < 0:
            raise ValueError(f"{self.words} ramps up in {self.ramp_days} days; expected 0 or more")
        if self.ends_on is not None and self.ramp_days > (self.ends_on - self.starts_on).days:
            raise ValueError(f"{self.words} ends before it has ramped up; expected a shorter ramp or a later end")
        if not 0 < self.probability <= 1:
            raise ValueError(
                f"{self.words} has probability {self.probability:g}; expected more than 0, at most 1, or leave it out"
            )

    @property
    def words(self) -> str:
        """What it is called in messages."""
        return f"project {self.name} of {self.team}"

    def gpus_on(self, day: date) -> float:
        """Return what it wants on this day, if it comes about; on the first day of a ramp the first part of it."""
        if day < self.starts_on or (self.ends_on is not None and day >= self.ends_on):
            return 0.0
        if (day - self.starts_on).days >= self.ramp_days:
            return self.gpus
        return self.gpus * ((day - self.starts_on).days + 1) / (self.ramp_days + 1)

    def most_in_week(self, first_day: date) -> float:
        """Return the most that it wants on a day of the week that begins on `first_day`, if it comes about."""
        return max(self.gpus_on(first_day + timedelta(days=number)) for number in range(7))
