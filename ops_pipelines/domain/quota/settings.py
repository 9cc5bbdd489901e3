"""By what quotas are moved: how far back demand is looked at, who agrees, how far they move in a day. Values only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceSettings:
    """Limits of the daily rebalancing, from policy.yaml. Their defaults are chosen in docs/QUOTAS.md."""

    half_life_hours: float = 9.0
    """An hour so long past counts half: queues last for hours, last week says little of today."""
    window_days: int = 14
    """What is older counts for nothing."""
    spread_ratio: float = 0.15
    """Tomorrow wants what an hour of the past wanted, so much more, or so much less: each is as likely."""
    least_gain_ratio: float = 0.05
    """A GPU moves only if it is wanted in so much more of the time where it goes: the dead band."""
    step_cap_ratio: float = 0.10
    """GPUs that move in a day, of all teams together, over capacity."""
    agreeing_days: int = 2
    """A quota shrinks only if it was found too large on so many ..."""
    looked_at_days: int = 3
    """... of the last so many days; while fewer are known, on all of them."""

    def __post_init__(self) -> None:
        if not self.half_life_hours > 0:
            raise ValueError(f"half_life_hours is {self.half_life_hours}; expected more than 0")
        if not 0 < self.step_cap_ratio <= 1:
            raise ValueError(f"step_cap_ratio is {self.step_cap_ratio}; expected more than 0, at most 1")
        for name in ("least_gain_ratio", "spread_ratio"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 or more, below 1")
        if not 1 <= self.agreeing_days <= self.looked_at_days <= self.window_days:
            raise ValueError(
                f"agreeing_days {self.agreeing_days}, looked_at_days {self.looked_at_days}, window_days "
                f"{self.window_days}; expected at least 1 and none larger than the next"
            )
