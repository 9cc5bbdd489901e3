"""What will be usable of each type of GPU, week by week, as a distribution of at most `KEPT_POINTS` points.

Usable = (installed + arrived - retired) x (1 - share out - share stranded) - rollouts. Both shares are of what was
installed, and are drawn together from the days that were measured. An arrival counts from the first whole week in which
it is in service, a retirement from the week in which it falls: rounded to the safe side.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from ops_pipelines.capacity.chances import KEPT_POINTS, make_fewer, sum_of_chances
from ops_pipelines.capacity.model import SupplyPoint, SupplyWeek
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.teams.projects import Arrival, Retirement

ENOUGH_DAYS = 14
SHARE_POINTS = 21
ASSUMED_OUT_RATIO = 0.05
"""Of what is installed, out of service, where nobody measured it."""
ASSUMED_STRANDED_RATIO = 0.02
_ARRIVAL_POINTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyInputs:
    """What is known of a cluster's GPUs, by type. A type that neither is installed nor arrives has no supply."""

    installed: Mapping[GpuType, float]
    """On the first day."""
    arrivals: Sequence[Arrival] = ()
    retirements: Sequence[Retirement] = ()
    out_ratios: Mapping[GpuType, Sequence[float]]
    """Of each day, oldest first: GPUs that were out of service, over what was installed."""
    stranded_ratios: Mapping[GpuType, Sequence[float]]
    """Of each day, oldest first: free GPUs that no job could have, over what was installed."""
    rollout_gpus: Mapping[GpuType, Sequence[float]]
    """Taken out by planned rollouts, by week from the first; weeks that are not named have none."""


def supply_weeks(
    inputs: SupplyInputs, *, first_day: date, weeks: int
) -> tuple[tuple[SupplyWeek, ...], tuple[str, ...]]:
    """Return what will be usable, by type and then by week, and notes on what is assumed."""
    for gpu_type, gpus in sorted(inputs.installed.items()):
        if not 0 <= gpus < math.inf:
            raise ValueError(f"{gpu_type}: {gpus:g} GPUs are installed; expected 0 or more")
    notes: list[str] = []
    found: list[SupplyWeek] = []
    coming: dict[GpuType, list[Arrival]] = {}
    going: dict[GpuType, list[Retirement]] = {}
    for arrival in sorted(inputs.arrivals, key=lambda each: (each.on, each.gpu_type, each.sku, each.gpus)):
        if arrival.on < first_day:
            notes.append(
                f"{arrival.gpus} GPUs of {arrival.sku} were due on {arrival.on}, before the forecast: taken to be "
                "among those installed; if they are late, state the new day"
            )
        else:
            coming.setdefault(arrival.gpu_type, []).append(arrival)
    for retirement in sorted(inputs.retirements, key=lambda each: (each.on, each.gpu_type, each.nodes)):
        if retirement.on < first_day:
            notes.append(
                f"{', '.join(retirement.nodes)} were to retire on {retirement.on}, before the forecast: taken to be "
                "gone from those installed; if they still serve, state the new day"
            )
        else:
            going.setdefault(retirement.gpu_type, []).append(retirement)
    for gpu_type in sorted({*inputs.installed, *coming}):
        now = inputs.installed.get(gpu_type, 0.0)
        shares = _shares(gpu_type, inputs, notes)
        rollouts = inputs.rollout_gpus.get(gpu_type, ())
        if any(each > 0 for each in rollouts):
            notes.append(
                f"{gpu_type}: planned rollouts come on top of maintenance as measured, which has past ones in it"
            )
        gone = sum(each.gpus for each in going.get(gpu_type, ()))
        if gone > now + sum(each.gpus for each in coming.get(gpu_type, ())):
            notes.append(f"{gpu_type}: {gone} GPUs retire and {now:g} are installed; no less than 0 is counted")
        for number in range(weeks):
            day = first_day + timedelta(days=7 * number)
            taken = rollouts[number] if number < len(rollouts) else 0.0
            found.append(_week(gpu_type, day, now, coming, going, shares=shares, rollout_gpus=taken))
    for gpu_type in sorted(going.keys() - {*inputs.installed, *coming}):
        notes.append(f"nodes of {gpu_type} retire, and none of that type are installed: they change nothing")
    return tuple(found), tuple(notes)


def usable_ratio(week: SupplyWeek) -> float:
    """Return which share of what is installed is usable in the mean; where nothing is installed, what is assumed."""
    if week.installed <= 0:
        return 1 - ASSUMED_OUT_RATIO - ASSUMED_STRANDED_RATIO
    return min(1.0, max(0.0, week.mean_gpus / week.installed))


def points_with_more(week: SupplyWeek, gpus: float) -> tuple[SupplyPoint, ...]:
    """Return what is usable with so many more GPUs, of which the same share is out as of the others in the mean."""
    more = gpus * usable_ratio(week)
    return tuple(SupplyPoint(gpus=each.gpus + more, probability=each.probability) for each in week.points)


def _week(
    gpu_type: GpuType,
    day: date,
    now: float,
    coming: Mapping[GpuType, Sequence[Arrival]],
    going: Mapping[GpuType, Sequence[Retirement]],
    *,
    shares: Sequence[float],
    rollout_gpus: float,
) -> SupplyWeek:
    arrived = [each for each in coming.get(gpu_type, ()) if each.on <= day]
    last_day = day + timedelta(days=6)
    gone = sum(each.gpus for each in going.get(gpu_type, ()) if each.on <= last_day)
    # Told as what is missing of all arrivals, so that the rounding of many of them leaves less and never more.
    all_come = now + sum(each.gpus for each in arrived)
    missing = make_fewer(
        sum_of_chances((each.gpus, 1 - each.probability) for each in arrived if each.probability < 1),
        most=_ARRIVAL_POINTS,
    )
    totals = [(max(0.0, all_come - lost - gone), chance) for lost, chance in missing]
    unusable: dict[float, float] = {}
    for total, chance in totals:
        for share in shares:
            left = min(total, max(0.0, total * share - rollout_gpus))
            unusable[-left] = unusable.get(-left, 0.0) + chance / len(shares)
    points = make_fewer(sorted(unusable.items()), most=KEPT_POINTS)
    whole = math.fsum(chance for _, chance in points)
    return SupplyWeek(
        gpu_type=gpu_type,
        first_day=day,
        installed=math.fsum(total * chance for total, chance in totals),
        points=tuple(
            SupplyPoint(gpus=max(0.0, -lost), probability=chance / whole) for lost, chance in reversed(points)
        ),
    )


def _shares(gpu_type: GpuType, inputs: SupplyInputs, notes: list[str]) -> tuple[float, ...]:
    """Return which shares are usable, each as likely as the others, rising."""
    out = _measured(gpu_type, "out of service", inputs.out_ratios, ASSUMED_OUT_RATIO, notes)
    stranded = _measured(gpu_type, "stranded", inputs.stranded_ratios, ASSUMED_STRANDED_RATIO, notes)
    days = max(len(out), len(stranded))
    # The newest days belong together; where one was measured for less long, its days are used again from the newest.
    pairs = [(out[-1 - number % len(out)], stranded[-1 - number % len(stranded)]) for number in range(days)]
    ranked = sorted(max(0.0, 1 - one - other) for one, other in pairs)
    if len(ranked) <= SHARE_POINTS:
        return tuple(ranked)
    edges = [len(ranked) * number // SHARE_POINTS for number in range(SHARE_POINTS + 1)]
    # The lowest of each group: what is usable is never told too large.
    return tuple(ranked[edge] for edge in edges[:-1])


def _measured(
    gpu_type: GpuType, what: str, ratios: Mapping[GpuType, Sequence[float]], assumed: float, notes: list[str]
) -> Sequence[float]:
    known = ratios.get(gpu_type, ())
    wrong = [each for each in known if not 0 <= each <= 1]
    if wrong:
        raise ValueError(f"{gpu_type}: a share of {wrong[0]:g} {what}; expected 0 to 1, of what was installed that day")
    if len(known) >= ENOUGH_DAYS:
        return known
    notes.append(
        f"{gpu_type}: {len(known)} days are known of what is {what}, {ENOUGH_DAYS} are needed; "
        f"{100 * assumed:g} % of what is installed is assumed"
    )
    return (assumed,)
