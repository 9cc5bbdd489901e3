"""What teams wanted, hour by hour: GPUs that ran and GPUs that waited. Values only.

What counts as demand is decided where it is read (`frames.demand`). Here it is one number a team and hour.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from ops_pipelines.core.proposal import TeamName


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandDay:
    """One local day of one type of GPU: mean GPUs wanted, for each team and each of its hours in their order."""

    day: date
    hours: Mapping[TeamName, Sequence[float]]
    """As many for each team: 24, or 23 and 25 where the clock is changed."""
    ran_last: Mapping[TeamName, float]
    """What each team ran in the last full hour; who is not named ran nothing."""

    def __post_init__(self) -> None:
        lengths = {len(each) for each in self.hours.values()}
        if len(lengths) > 1:
            raise ValueError(f"{self.day}: teams with {sorted(lengths)} hours; expected as many for each")
        for team, hours in self.hours.items():
            for hour, amount in enumerate(hours):
                if not amount >= 0:
                    raise ValueError(f"{self.day} hour {hour}: {team} wanted {amount} GPUs; expected 0 or more")

    @property
    def hour_count(self) -> int:
        return len(next(iter(self.hours.values()), ()))
