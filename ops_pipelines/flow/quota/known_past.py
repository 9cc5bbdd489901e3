"""What is known of the past of each type of GPU: which days, how much of them, and when it is too little to propose.

Pure. What was never kept is no hole; what was kept and is missing now is, and so is what cannot be a number.
"""

import math
from datetime import datetime, timedelta

from ops_pipelines.core.cluster import HOUR, hour_of
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.domain.quota.demand import DemandDay
from ops_pipelines.flow.quota.morning import Morning, NoProposal, TypePast

_NAMED = 5


def days_of(known: TypePast) -> tuple[DemandDay, ...]:
    past = known.past
    return (*past.days, *([] if past.today is None else [past.today]))


def refuse_unknown(morning: Morning) -> None:
    """Raise NoProposal where demand is missing, too old, or full of holes."""
    until = morning.demand_until
    for kind, known in sorted(morning.past.items()):
        if known.past.until is None:
            raise NoProposal(
                f"no demand is known{of_type(kind)} in the last {morning.policy.rebalance.window_days} days before "
                f"{morning.as_of:%Y-%m-%d %H:%M} UTC; materialise gpu_demand for them"
            )
        if not known.past.days:
            raise NoProposal(
                f"no demand is known{of_type(kind)} of any day before {morning.day}; quotas are proposed from the day "
                "after the first of which gpu_demand is filled"
            )
        _refuse_holes(kind, known, morning)
    if until is not None and morning.as_of - until > morning.policy.demand_max_age:
        hours = morning.policy.demand_max_age / timedelta(hours=1)
        raise NoProposal(
            f"the newest demand is of {until:%Y-%m-%d %H:%M} UTC, older than {hours:g} h at "
            f"{morning.as_of:%Y-%m-%d %H:%M} UTC (quotas.demand_max_age_hours); materialise gpu_demand since then"
        )


def _refuse_holes(kind: GpuType, known: TypePast, morning: Morning) -> None:
    ratio, missing = known_hours(known, as_of=morning.as_of)
    least = morning.policy.known_hour_min_ratio
    if ratio < least:
        days = sorted({each.date() for each in missing})
        named = ", ".join(map(str, days[:_NAMED])) + (f" and {len(days) - _NAMED} more" if len(days) > _NAMED else "")
        raise NoProposal(
            f"{ratio:.0%} of the hours of demand{of_type(kind)} are known, and {least:.0%} are needed "
            f"(quotas.known_hour_min_ratio); missing are hours of {named} (UTC): materialise gpu_demand there"
        )
    for day in (*known.past.days, *([] if known.past.today is None else [known.past.today])):
        for team, amounts in day.hours.items():
            bad = next((each for each in amounts if not 0 <= each < math.inf), None)
            if bad is not None:
                raise NoProposal(
                    f"on {day.day} {team} is said to want {bad} GPUs; expected a number, 0 or more: materialise "
                    "gpu_demand of that day anew"
                )
    for served_on, served in known.served.items():
        for team, amounts in served.items():
            if not all(0 <= each < math.inf for each in amounts):
                raise NoProposal(
                    f"on {served_on} {team} is said to run no number of GPUs; expected one, 0 or more: materialise "
                    "gpu_demand of that day anew"
                )


def known_hours(known: TypePast, *, as_of: datetime) -> tuple[float, tuple[datetime, ...]]:
    """Return the share of hours that are known since the first that is, and the missing ones.

    What lies before the first known hour is before anybody kept demand: no hole in it.
    """
    past = known.past
    first = hour_of(as_of) - past.hour_count * HOUR
    before = 0
    while before < len(past.missing) and past.missing[before] == first + before * HOUR:
        before += 1
    missing = past.missing[before:]
    count = past.hour_count - before
    return (1 - len(missing) / count if count else 0.0), missing


def of_type(kind: GpuType) -> str:
    return f" for {kind}" if kind else ""
