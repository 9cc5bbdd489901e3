"""Whose each asset is that people read, and how old its newest materialisation may be.

Owners are the teams that such a site has; a site with other names changes `OWNERS`. An asset that has no row in
`FRESHNESS` is made when something happens, or by hand, so that its age says nothing; what is late in the lake's hours
is said by the asset `monitoring_coverage`.
"""

from collections.abc import Mapping
from datetime import timedelta

import dagster as dg

OPERATIONS, CAPACITY, ACCOUNTING = "team:cluster-operations", "team:capacity-planning", "team:cluster-accounting"
OWNERS: Mapping[str, str] = {
    **dict.fromkeys(("observe", "understand", "act", "verify", "report", "lifecycle", "policy", "history"), OPERATIONS),
    **dict.fromkeys(("telemetry", "jobs", "telemetry_meaning"), OPERATIONS),
    **dict.fromkeys(("capacity", "quotas"), CAPACITY),
    **dict.fromkeys(("costs", "advice"), ACCOUNTING),
}
"""By group."""

_HOURLY = dg.FreshnessPolicy.time_window(warn_window=timedelta(hours=2), fail_window=timedelta(hours=4))
_EACH_SHIFT = dg.FreshnessPolicy.time_window(warn_window=timedelta(hours=9), fail_window=timedelta(hours=17))
_DAILY = dg.FreshnessPolicy.time_window(warn_window=timedelta(hours=26), fail_window=timedelta(hours=50))
_WEEKLY = dg.FreshnessPolicy.time_window(warn_window=timedelta(days=7, hours=6), fail_window=timedelta(days=9))
_MONTHLY = dg.FreshnessPolicy.time_window(warn_window=timedelta(days=31, hours=6), fail_window=timedelta(days=33))
FRESHNESS: Mapping[str, dg.FreshnessPolicy] = {
    **dict.fromkeys(("monitoring_coverage", "gpu_efficiency", "fleet_versions"), _HOURLY),
    "shift_report": _EACH_SHIFT,
    **dict.fromkeys(("gpu_demand_daily", "gpu_quotas", "chargeback", "placement_report"), _DAILY),
    **dict.fromkeys(("lemon_scores", "wear_out", "fleet_defects", "interruption_costs"), _DAILY),
    **dict.fromkeys(("weekly_review", "efficiency_advice"), _WEEKLY),
    "capacity_plan": _MONTHLY,
}
"""By asset: it warns when a turn of its schedule was missed, and fails when the next was missed, too (a month's: two
days later)."""


def for_readers(spec: dg.AssetSpec) -> dg.AssetSpec:
    """Return an asset with its owner, and with its freshness policy if it has one."""
    return spec.replace_attributes(
        owners=[OWNERS[spec.group_name or ""]], freshness_policy=FRESHNESS.get(spec.key.to_user_string())
    )
