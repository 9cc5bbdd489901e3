"""The shape of both sections `quotas`: of policy.yaml, how quotas move; of cluster.yaml, how limits are set.

Nothing but keys, types and bounds. What they become is `quota_section`'s.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from ops_pipelines.resources.config.shapes import Account
from ops_pipelines.resources.config.strict_yaml import StrictModel
from ops_pipelines.teams.settings import QuotaPolicy

_POLICY = QuotaPolicy()
_REBALANCE = _POLICY.rebalance
# Assumption: no limit here is meant to be longer than a year; more is a slip of units.
_YEAR_DAYS = 366
Hours = Annotated[float, Field(gt=0, le=_YEAR_DAYS * 24)]
DayCount = Annotated[int, Field(ge=1, le=_YEAR_DAYS)]


class QuotaFreezeModel(StrictModel):
    """Times with a zone, and without quotes: 2026-12-24T00:00:00Z. `ends_at` must be said; null: no end is known."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
    begins_at: datetime
    ends_at: datetime | None


class QuotasModel(StrictModel):
    """The section `quotas` of policy.yaml. The defaults are those of `quotas`."""

    half_life_hours: Hours = _REBALANCE.half_life_hours
    window_days: DayCount = _REBALANCE.window_days
    spread_ratio: float = _REBALANCE.spread_ratio
    least_gain_ratio: float = _REBALANCE.least_gain_ratio
    step_cap_ratio: float = _REBALANCE.step_cap_ratio
    agreeing_days: DayCount = _REBALANCE.agreeing_days
    looked_at_days: DayCount = _REBALANCE.looked_at_days
    slack_max_ratio: float = _POLICY.slack_max_ratio
    waste_bound_ratio: float = _POLICY.waste_bound_ratio
    demand_max_age_hours: Hours = _POLICY.demand_max_age.total_seconds() / 3600
    known_hour_min_ratio: float = _POLICY.known_hour_min_ratio
    sets_fairshare: bool = _POLICY.sets_fairshare
    freezes: list[QuotaFreezeModel] = Field(default_factory=list)


QosName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$")]
"""It stands in commands to the scheduler; a name that begins with a dash would be read as an option."""


class LimitsModel(StrictModel):
    """The section `quotas` of cluster.yaml."""

    limits: Literal["total", "per_type"] = "total"
    qos_of: dict[Account, QosName] = Field(default_factory=dict)
