"""From a forecast to a plan: weeks that are short, what to order by when, what else could be done, what each costs.

Only joins what the other modules of this package decide. What is not known is not taken as 0 in silence: a note says
what is missing and what stands in its place. Same inputs, same plan, whatever their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from ops_pipelines.capacity.alternatives import Means, compare_ways
from ops_pipelines.capacity.chances import DayProfile, Tail, judge_week
from ops_pipelines.capacity.model import Resource, SeriesKey, SeriesOutlook
from ops_pipelines.capacity.need import TypeWeek, find_need, regret_rows
from ops_pipelines.capacity.order import Places, expansion_line, expansion_of, order_line, usable_limit
from ops_pipelines.capacity.plan import (
    Alternative,
    CapacityForecast,
    CapacityPlan,
    OrderLine,
    RefreshLine,
    RegretRow,
    SeriesLimit,
    ShortWeek,
)
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.teams.projects import CapacityPolicy, CapacitySettings

ASSUMED_PROFILE = DayProfile(near_peak_hours=8.0)
"""Where the hours near the peak were not measured: a working day, every day."""
_HOURS_A_WEEK = 168
_NOT_GPUS = (Resource.STORAGE_BYTES, Resource.NETWORK_RATIO, Resource.RACK_WATTS, Resource.COOLING_WATTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """What a plan needs beside the forecast. What is not named was not measured, or nobody said."""

    settings: CapacitySettings = field(default_factory=CapacitySettings)
    policy: CapacityPolicy = field(default_factory=CapacityPolicy)
    currency: str = ""
    """Empty: no prices are stated."""
    profiles: Mapping[GpuType, DayProfile] = field(default_factory=dict)
    idle_ratio: Mapping[GpuType, float] = field(default_factory=dict)
    movable_ratio: Mapping[GpuType, float] = field(default_factory=dict)
    followed_ratio: float | None = None
    limits: Mapping[SeriesKey, float] = field(default_factory=dict)
    """Of further resources: sizes, rates, watts."""
    refresh: Sequence[RefreshLine] = ()
    room: Mapping[str, Places] = field(default_factory=dict)
    """By SKU: how many nodes may be put up."""


def make_plan(forecast: CapacityForecast, inputs: PlanInputs) -> CapacityPlan:
    """Return what follows from the forecast."""
    notes: list[str] = []
    weeks_by_type = _weeks_by_type(forecast, inputs.policy, notes)
    short_weeks: list[ShortWeek] = []
    orders: list[OrderLine] = []
    alternatives: list[Alternative] = []
    regret: list[RegretRow] = []
    for gpu_type, (outlook, weeks) in weeks_by_type.items():
        profile = inputs.profiles.get(gpu_type)
        if profile is None:
            profile = ASSUMED_PROFILE
            notes.append(f"{gpu_type}: how many hours are near the peak was not measured; 8 of each day are assumed")
        short_weeks.extend(
            judge_week(peak, week.supply, profile) for peak, week in zip(outlook.weeks, weeks, strict=False)
        )
        found = _decide(forecast, inputs, outlook.key, weeks, profile)
        orders.append(found[0])
        notes.extend(_order_notes(found[0], found[2], inputs))
        alternatives.extend(found[1])
        regret.extend(found[2])
        if found[1] and profile.counted_hours < _HOURS_A_WEEK:
            notes.append(
                f"{gpu_type}: GPU-hours short and idle are those near each day's peak, {profile.counted_hours:g} of "
                "the week's 168: what the other hours want was not measured"
            )
    further, limits = _further(forecast, inputs, notes)
    orders.extend(further)
    notes.extend(_statements(inputs))
    return CapacityPlan(
        cluster=forecast.cluster,
        quarter=forecast.quarter,
        as_of=forecast.as_of,
        currency=inputs.currency,
        short_weeks=tuple(short_weeks),
        orders=tuple(sorted(orders, key=_urgency)),
        alternatives=tuple(alternatives),
        regret=tuple(regret),
        refresh=tuple(inputs.refresh),
        shortage_probability_max=inputs.policy.shortage_probability_max,
        regret_ratios=tuple(inputs.policy.regret_ratios),
        notes=tuple(notes),
        limits=tuple(limits),
    )


def _weeks_by_type(
    forecast: CapacityForecast, policy: CapacityPolicy, notes: list[str]
) -> dict[GpuType, tuple[SeriesOutlook, tuple[TypeWeek, ...]]]:
    """Return demand and supply side by side, in the order of types; weeks that only one of them has are left out."""
    supply = {(each.gpu_type, each.first_day): each for each in forecast.supply}
    types = {gpu_type for gpu_type, _ in supply}
    found: dict[GpuType, tuple[SeriesOutlook, tuple[TypeWeek, ...]]] = {}
    for outlook in sorted(forecast.with_projects, key=lambda each: each.key):
        gpu_type = outlook.key.gpu_type
        if outlook.key.kind is not Resource.GPUS or outlook.key.name:
            continue
        if not outlook.weeks:
            notes.append(f"{gpu_type}: nothing can be said of its demand, so no shortage either")
            continue
        if gpu_type not in types:
            notes.append(f"{gpu_type}: is wanted, and nothing is known of its supply; not judged")
            continue
        known = [each for each in outlook.weeks if (gpu_type, each.first_day) in supply][: policy.horizon_weeks]
        weeks = tuple(
            TypeWeek(first_day=each.first_day, tail=Tail(each), supply=supply[gpu_type, each.first_day])
            for each in known
        )
        if len(weeks) < policy.horizon_weeks:
            notes.append(f"{gpu_type}: {len(weeks)} weeks are known of {policy.horizon_weeks} that the policy asks for")
        if weeks:
            judged = SeriesOutlook(
                key=outlook.key, treatment=outlook.treatment, weeks=tuple(known), notes=outlook.notes
            )
            found[gpu_type] = (judged, weeks)
    for gpu_type in sorted(types - {each.key.gpu_type for each in forecast.with_projects}):
        notes.append(f"{gpu_type}: is installed, and nothing is known of its demand; not judged")
    return found


def _decide(
    forecast: CapacityForecast,
    inputs: PlanInputs,
    series: SeriesKey,
    weeks: Sequence[TypeWeek],
    profile: DayProfile,
) -> tuple[OrderLine, tuple[Alternative, ...], tuple[RegretRow, ...]]:
    """Return the order for one type of GPU, and where it runs short the other ways and the regret."""
    gpu_type, policy, as_of = series.gpu_type, inputs.policy, forecast.as_of
    skus = [each for each in inputs.settings.skus if each.gpu_type == gpu_type]
    need = find_need(weeks, skus, policy=policy, as_of=as_of)
    line = order_line(need, weeks, series=series, policy=policy, as_of=as_of, room=inputs.room)
    if need.short_from is None:
        return line, (), ()
    means = Means(
        profile=profile,
        movable_ratio=inputs.movable_ratio.get(gpu_type),
        idle_ratio=inputs.idle_ratio.get(gpu_type),
        followed_ratio=inputs.followed_ratio,
        cloud_cents_per_gpu_hour=inputs.settings.cloud_cents_per_gpu_hour.get(gpu_type),
    )
    ways = compare_ways(gpu_type, weeks, need, means, policy=policy, as_of=as_of)
    rows: tuple[RegretRow, ...] = ()
    if need.sku is not None and need.is_enough:
        rows = regret_rows(
            gpu_type,
            weeks,
            need.sku,
            profile,
            nodes=need.nodes,
            since=need.in_service_on or need.short_from,
            ratios=policy.regret_ratios,
        )
    return line, ways, rows


def _order_notes(line: OrderLine, rows: Sequence[RegretRow], inputs: PlanInputs) -> list[str]:
    """Return what is to be known beside an order: which number would cost least."""
    if not line.count or not rows:
        return []
    best = ", ".join(
        f"{min(rows, key=lambda each: each.regret_by_ratio[place]).nodes} at {ratio:g}"
        for place, ratio in enumerate(inputs.policy.regret_ratios)
    )
    return [
        f"{line.what}: {line.count} is the fewest with which each week keeps the limit of "
        f"{100 * inputs.policy.shortage_probability_max:g} %; by expected cost alone the best of those weighed is, by "
        f"how many idle GPU-hours one that is missing costs: {best}"
    ]


def _further(
    forecast: CapacityForecast, inputs: PlanInputs, notes: list[str]
) -> tuple[list[OrderLine], list[SeriesLimit]]:
    """Return a line for each further series that runs full within the horizon, and the limits of all that are judged.

    How many stay within theirs is a note.
    """
    found, limits, held, unlimited = [], [], 0, []
    for outlook in sorted(forecast.outlooks, key=lambda each: each.key):
        if outlook.key.kind not in _NOT_GPUS or not outlook.weeks:
            continue
        stated = inputs.limits.get(outlook.key)
        if stated is None:
            unlimited.append(f"{outlook.key.resource} {outlook.key.name}".strip())
            continue
        expansion = expansion_of(outlook.key, inputs.settings.expansions)
        limit = usable_limit(outlook.key, stated, expansion=expansion, policy=inputs.policy)
        limits.append(limit)
        line = expansion_line(outlook, limit=limit, expansion=expansion, policy=inputs.policy, as_of=forecast.as_of)
        if line is None:
            held += 1
        else:
            found.append(line)
    if held:
        # What the past drew is continued: new nodes are no part of it.
        notes.append(
            f"{held} further series (storage, links, power, cooling) "
            f"{'stays within its limit' if held == 1 else 'stay within their limits'}; what new nodes would add is not "
            "in them"
        )
    if unlimited:
        notes.append(f"no limit is known of {', '.join(unlimited)}; not judged")
    measured = {(each.key.resource, each.key.name) for each in forecast.outlooks}
    notes.extend(
        f"capacity.yaml says how {each.resource} of {name or 'the whole cluster'} is enlarged, and nothing was "
        "measured of it; check the name"
        for each in inputs.settings.expansions
        for name in each.names
        if (each.resource, name) not in measured
    )
    return found, limits


def _statements(inputs: PlanInputs) -> list[str]:
    notes = [
        f"{each.sku}: no lead time is stated; no date can be named for it"
        for each in sorted(inputs.settings.skus, key=lambda each: each.sku)
        if each.lead_time is None
    ]
    if not inputs.currency and inputs.settings.skus:
        notes.append(
            "no prices are stated in cluster.yaml: amounts are in the currency of capacity.yaml, whichever it is"
        )
    return notes


def _urgency(line: OrderLine) -> tuple[date, date, str, SeriesKey]:
    """Order first what has the earliest date; what has none by when it is short; then what is not short."""
    return line.order_by or line.short_from or date.max, line.short_from or date.max, line.what, line.series
