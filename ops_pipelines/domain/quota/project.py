"""What a team has said it will need, from one day to another: launches and ends that the past cannot tell. A value."""

import math
from dataclasses import dataclass
from datetime import date, datetime

from ops_pipelines.core.proposal import GpuType, TeamName


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """One project of one team, for one type of GPU."""

    name: str
    team: TeamName
    gpus: float
    """What it will want while it lasts."""
    begins_on: date
    """A local day, as `ends_on`."""
    ends_on: date | None = None
    """The first day without it; None: no end is known."""
    gpu_type: GpuType = GpuType("")
    probability: float = 1.0
    """How likely it comes about as said."""

    def __post_init__(self) -> None:
        if isinstance(self.begins_on, datetime) or isinstance(self.ends_on, datetime):
            raise ValueError(f"{self.words} has a time of day; expected days")
        if self.ends_on is not None and self.ends_on <= self.begins_on:
            raise ValueError(
                f"{self.words} begins on {self.begins_on} and ends on {self.ends_on}; expected an end on a later day"
            )
        if not self.gpus > 0 or math.isinf(self.gpus):
            raise ValueError(f"{self.words} wants {self.gpus:g} GPUs; expected more than 0, or leave it out")
        if not 0 < self.probability <= 1:
            raise ValueError(
                f"{self.words} has probability {self.probability:g}; expected more than 0, at most 1, or leave it out"
            )

    @property
    def words(self) -> str:
        """What it is called in messages."""
        return f"project {self.name} of {self.team}"

    def is_on(self, day: date) -> bool:
        """Return whether the project goes on, on this day."""
        return self.begins_on <= day and (self.ends_on is None or day < self.ends_on)

    def expected_gpus(self, day: date) -> float:
        """Return what it wants on this day, on average over whether it comes about."""
        return self.gpus * self.probability if self.is_on(day) else 0.0
