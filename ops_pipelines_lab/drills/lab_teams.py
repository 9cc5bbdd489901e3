"""What the lab's configuration says of teams: contracts, prices, and a past of demand, so that quotas can be proposed.

PRETENDED: the past. The lab lives for minutes, and quotas look back for days. Limits, jobs and accounting are real.
Plays nothing: that is `lab_quotas`'.
"""

from collections.abc import Mapping
from datetime import date, datetime

from ops_pipelines.core.lake import Lake
from ops_pipelines.core.proposal import TeamName
from ops_pipelines_lab.drills.demand_past import pretend_past
from ops_pipelines_lab.drills.lab_versions import MODEL
from ops_pipelines_lab.simulator.past_demand import PastPlan, TeamHabit

TEAMS_FILE = "teams.yaml"
PLAIN_MODEL = "hgx-h100-plain"
"""Of racks whose versions stay: what has a price has a model."""
PLATFORM, PRODUCT, RESEARCH = TeamName("platform"), TeamName("product"), TeamName("research")
CAP = 16
"""What platform agreed to never exceed."""
GUARANTEE = 24
"""What product is owed."""
_OLD_PLATFORM, _OLD_PRODUCT = 48, 8
_UNIT = 8
_GIVEN_OUT_RATIO = 0.95
"""The rest is what quotas leave free by default."""
TEAMS: Mapping[str, object] = {
    "timezone": "UTC",
    "teams": [
        {"team": team, "contracts": [{"from": date(2025, 1, 1), "unit": _UNIT, **terms}]}
        for team, terms in {
            RESEARCH: {"guarantee": 32, "weight": 2},
            PRODUCT: {"guarantee": GUARANTEE, "priority": 1},
            PLATFORM: {"guarantee": 8, "cap": CAP},
        }.items()
    ],
}
PRICES: Mapping[str, object] = {
    "currency": "EUR",
    "assets": [
        {"asset": model, "priced_by": "node", "capex": "300000.00", "amortized_months": 48}
        for model in (MODEL, PLAIN_MODEL)
    ],
    "per_kwh": "0.12",
    "pue": "1.58",
    "unmeasured_watts_per_gpu": "1275",
}
"""Assumption: the example of the shipped cluster.yaml."""
_PAST = PastPlan(
    habits=(
        TeamHabit(team=PLATFORM, quota=_OLD_PLATFORM, base=11, by_day=2),
        TeamHabit(team=PRODUCT, quota=_OLD_PRODUCT, base=20, by_day=2),
        TeamHabit(team=RESEARCH, quota=64, base=40, by_day=6),
    ),
    noise_ratio=0.02,
)
_WEEKS = 1


def old_limits(gpu_count: int) -> Mapping[str, int]:
    """Return limits as somebody set them before there were contracts: platform has too much, product too little."""
    given_out = int(gpu_count * _GIVEN_OUT_RATIO) // _UNIT * _UNIT
    return {PLATFORM: _OLD_PLATFORM, PRODUCT: _OLD_PRODUCT, RESEARCH: given_out - _OLD_PLATFORM - _OLD_PRODUCT}


def pretend_labs_past(lake: Lake, *, now: datetime) -> int:
    """Write the week before `now` into the lake; return how many hours were written."""
    return pretend_past(lake, now=now, weeks=_WEEKS, plan=_PAST)
