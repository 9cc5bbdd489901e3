"""What policy.yaml says under `quotas`: how they move, what is kept back, when they stand still. Values only."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.domain.quota.settings import RebalanceSettings


class LimitsOn(Enum):
    """Which limits are set in the scheduler: what this cluster can hold, so cluster.yaml says it."""

    TOTAL = "total"
    """One for each team, on GPUs of every type together."""
    PER_TYPE = "per_type"
    """One for each team and type; only where the scheduler holds jobs to them that name no type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFreeze:
    """An operator's order that no quota moves."""

    name: str
    begins_at: datetime
    ends_at: datetime | None
    """None: until the order is taken back. After its end quotas go back to what was agreed."""

    def __post_init__(self) -> None:
        for at in (self.begins_at, self.ends_at):
            if at is not None and at.utcoffset() is None:
                raise ValueError(f"{self.name} has {at}, a time without a zone; write 2026-12-24T00:00:00Z")
        if self.ends_at is not None and self.ends_at <= self.begins_at:
            raise ValueError(f"{self.name} ends at {self.ends_at}, and begins at {self.begins_at}; expected it later")

    def holds_at(self, at: datetime) -> bool:
        return self.begins_at <= at and (self.ends_at is None or at < self.ends_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaPolicy:
    """Limits of everything that is done with quotas. The defaults hold where policy.yaml says nothing."""

    rebalance: RebalanceSettings = field(default_factory=RebalanceSettings)
    slack_max_ratio: float = 0.05
    """Quotas leave the GPUs of the largest rack free, but no more than this share of what is installed."""
    waste_bound_ratio: float = 0.0
    """Up to this share of what a team runs, idle GPUs are taken off its demand. 0: they are only told."""
    demand_max_age: timedelta = timedelta(hours=3)
    """Without demand newer than this nothing is proposed."""
    known_hour_min_ratio: float = 0.9
    """Without so many of the last days' hours nothing is proposed."""
    sets_fairshare: bool = False
    """Whether a team's share among its siblings follows its quota, too."""
    freezes: tuple[QuotaFreeze, ...] = ()

    def __post_init__(self) -> None:
        for name in ("slack_max_ratio", "waste_bound_ratio", "known_hour_min_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"quotas.{name} is {getattr(self, name)}; expected 0 to 1")
        if self.demand_max_age <= timedelta(0):
            raise ValueError(f"quotas.demand_max_age_hours must be above 0; found {self.demand_max_age}")

    def freeze_at(self, at: datetime) -> QuotaFreeze | None:
        """Return the freeze that holds; None if none does."""
        return next((each for each in self.freezes if each.holds_at(at)), None)
