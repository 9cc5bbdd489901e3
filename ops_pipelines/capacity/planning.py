"""What a quarter should order, by type of GPU and resource, and which hardware is due for replacement.

Joins what `need`, `order` and `chances` decide. What is not known is not taken as 0 in silence: a note says what is
missing and what is assumed. Same inputs, same plan, whatever their order.

A batch is what was bought at once: one model, installed on one day. What is still paid for a batch is shown with its
cost, and makes it no dearer than its replacement: it is paid whether the batch stays or goes.

Longer than most: replacement of a batch is decided with the purchase that it takes the place of.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from fractions import Fraction

from ops_pipelines.capacity.chances import DayProfile, Tail, judge_week
from ops_pipelines.capacity.model import (
    Alternative,
    CapacityForecast,
    CapacityPlan,
    OrderLine,
    RefreshLine,
    RegretRow,
    Resource,
    SeriesKey,
    SeriesLimit,
    SeriesOutlook,
    ShortWeek,
)
from ops_pipelines.capacity.need import Means, TypeWeek, compare_ways, find_need, regret_rows
from ops_pipelines.capacity.order import Places, expansion_line, expansion_of, order_line, usable_limit
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.teams.price import AssetPrice, PricedBy, PriceModel
from ops_pipelines.teams.projects import CapacityPolicy, CapacitySettings, Sku

# -- batches of hardware --


ENOUGH_NODE_YEARS = 1.0
"""Assumption: over less than this a rate of failures could not be separated from luck."""
SURE_RATIO = 0.01
"""A batch is reported to fail more often if chance alone gives so much or more failures with less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What was bought at once, and what became of it."""

    asset: str
    """The `model` of its racks."""
    racks: tuple[str, ...]
    gpu_type: GpuType
    gpus: int
    gpus_per_node: int
    installed_since: date | None
    """None: nobody stated it."""
    failures: int | None = None
    """Incidents that took a node out; None: nothing was recorded."""
    node_years: float = 0.0
    """Over how much of its time they were counted."""
    hours_lost_ratio: float | None = None
    """Of its GPU-hours: lost to failures. None: not measured."""
    watts_per_gpu: float | None = None
    """Drawn in the mean, with its share of the node. None: not measured."""

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.gpus_per_node < 1:
            raise ValueError(f"{self.asset}: {self.gpus} GPUs, {self.gpus_per_node} a node; expected 1 or more")
        if (self.failures or 0) < 0 or not 0 <= self.node_years < math.inf:
            raise ValueError(f"{self.asset}: {self.failures} failures in {self.node_years:g} node-years; expected 0 on")
        if self.failures and not self.node_years:
            raise ValueError(f"{self.asset}: {self.failures} failures in no time; say over how many node-years")
        if self.hours_lost_ratio is not None and not 0 <= self.hours_lost_ratio < 1:
            raise ValueError(f"{self.asset}: {self.hours_lost_ratio:g} of its hours are lost; expected 0 to below 1")
        if self.watts_per_gpu is not None and not 0 <= self.watts_per_gpu < math.inf:
            raise ValueError(f"{self.asset}: {self.watts_per_gpu:g} W a GPU; expected 0 or more")


def compare_failures(batch: Batch, rest: Sequence[Batch], words: list[str]) -> tuple[float | None, float | None]:
    """Say how failures compare; return those per node-year of batch and rest, None where too little is known."""
    known = [each for each in rest if each.failures is not None]
    others = sum(each.failures or 0 for each in known)
    years = math.fsum(each.node_years for each in known)
    rest_rate = others / years if years >= ENOUGH_NODE_YEARS else None
    if batch.failures is None:
        words.append("no failures were recorded")
        return None, rest_rate
    if batch.node_years < ENOUGH_NODE_YEARS:
        words.append(
            f"{batch.failures} failures in {batch.node_years:.2f} node-years: too short a time for a rate, "
            f"{ENOUGH_NODE_YEARS:g} is needed"
        )
        return None, rest_rate
    rate = batch.failures / batch.node_years
    said = f"{rate:.2f} failures a node-year ({batch.failures} in {batch.node_years:.1f})"
    if rest_rate is None:
        words.append(f"{said}, nothing to compare with")
        return rate, None
    chance = chance_of_as_many(batch.failures, batch.node_years, others=others, other_years=years)
    verdict = "more often than chance alone explains" if chance < SURE_RATIO else "chance alone may explain it"
    words.append(
        f"{said}, the rest of the fleet {rest_rate:.2f}; if both failed alike, as many or more would be seen with "
        f"{100 * chance:.2g} %: {verdict}"
    )
    return rate, rest_rate


def chance_of_as_many(failures: int, years: float, *, others: int, other_years: float) -> float:
    """Return how likely so many failures or more are if they come at the same rate as the others do; exact.

    Of two Poisson counts with one rate, given their sum, the first is binomial with its share of the time.
    """
    from scipy.special import betainc

    share = Fraction(years) / (Fraction(years) + Fraction(other_years))
    if failures <= 0:
        return 1.0
    if share in (0, 1):
        return float(share)
    return float(betainc(failures, others + 1, float(share)))


# -- whether hardware should be replaced --


DEARER_RATIO = 1.25
"""A batch is due once its work, without what is paid either way, costs so much times that of its replacement: less
would not pay for the moving."""
_HOURS_A_MONTH = Fraction(730)
_WATTS_A_KW = 1000


def judge_batches(
    batches: Sequence[Batch],
    *,
    skus: Sequence[Sku],
    prices: PriceModel | None,
    policy: CapacityPolicy,
    as_of: date,
) -> tuple[RefreshLine, ...]:
    """Return a line for each batch, what is due first, then by asset and racks. `prices` None: nothing is priced."""
    lost_ratio = _lost_of_all(batches)
    priced = {} if prices is None else {each.asset: each for each in prices.assets}
    lines = [
        _judge(
            each,
            rest=[other for other in batches if other is not each],
            skus=[sku for sku in skus if sku.gpu_type == each.gpu_type],
            prices=prices,
            asset=priced.get(each.asset),
            lost_ratio=lost_ratio,
            policy=policy,
            as_of=as_of,
        )
        for each in batches
    ]
    return tuple(sorted(lines, key=lambda line: (not line.is_due, line.asset, line.racks)))


def _judge(
    batch: Batch,
    *,
    rest: Sequence[Batch],
    skus: Sequence[Sku],
    prices: PriceModel | None,
    asset: AssetPrice | None,
    lost_ratio: float,
    policy: CapacityPolicy,
    as_of: date,
) -> RefreshLine:
    words: list[str] = []
    age = _age_in_months(batch.installed_since, as_of)
    is_old = age is not None and age >= policy.refresh_after_months
    words.append(_age_words(batch, age, policy))
    own_rate, rest_rate = compare_failures(batch, rest, words)
    keeping, paid_anyway = (None, 0.0) if prices is None else _keeping(batch, prices, asset, as_of, words)
    offers = {} if prices is None else {sku.sku: _offer(sku, prices, lost_ratio) for sku in skus}
    best = _best(skus, offers)
    cost = offers.get(best)
    is_dearer = _compare(keeping, paid_anyway, best, cost, lost_ratio, words)
    return RefreshLine(
        asset=batch.asset,
        racks=batch.racks,
        gpu_type=batch.gpu_type,
        gpus=batch.gpus,
        age_months=age,
        failures_per_node_year=own_rate,
        fleet_failures_per_node_year=rest_rate,
        watts_per_gpu=batch.watts_per_gpu,
        cents_per_work_hour=keeping,
        replacement=best,
        replacement_cents_per_work_hour=cost,
        is_due=is_old or is_dearer,
        said="; ".join(words),
    )


# --- age ----------------------------------------------------------------------------------------------------------


def _age_in_months(since: date | None, as_of: date) -> float | None:
    """Return whole months and the share of the next one that is over; None: not known. 0 before it came."""
    if since is None:
        return None
    if as_of <= since:
        return 0.0
    whole = (as_of.year - since.year) * 12 + as_of.month - since.month
    if as_of.day < since.day:
        whole -= 1
        gone = (as_of.day + 31 - since.day) / 31
    else:
        gone = (as_of.day - since.day) / 31
    return whole + gone


def _age_words(batch: Batch, age: float | None, policy: CapacityPolicy) -> str:
    if age is None:
        return "when it was installed nobody stated (`installed_since` of its racks)"
    return f"{age:.0f} months old, hardware is due after {policy.refresh_after_months}"


# --- cost of work -------------------------------------------------------------------------------------------------


def _keeping(
    batch: Batch, prices: PriceModel, asset: AssetPrice | None, as_of: date, words: list[str]
) -> tuple[float | None, float]:
    """Return cents for an hour's work of one of its GPUs, and how many of them are paid even if it goes.

    None: something is not known, and that is reported.
    """
    if asset is None:
        words.append(f"what {batch.asset or 'it'} cost is not stated under `prices`, so keeping it has no price")
        return None, 0.0
    watts = batch.watts_per_gpu
    if watts is None:
        if prices.unmeasured_watts_per_gpu is None:
            words.append("what it draws was not measured, so keeping it has no price")
            return None, 0.0
        watts = float(prices.unmeasured_watts_per_gpu)
        words.append(f"draws {watts:.0f} W a GPU (assumed: not measured)")
    per = batch.gpus_per_node if asset.priced_by is PricedBy.NODE else 1
    capital = float(_capex_left(asset, as_of) / per / _HOURS_A_MONTH)
    support = float(Fraction(asset.support_cents_per_month) / per / _HOURS_A_MONTH)
    lost = batch.hours_lost_ratio
    if lost is None:
        words.append("hours lost to failures were not measured and count as 0")
    elif lost:
        words.append(f"{100 * lost:.1f} % of its hours are lost to failures")
    served = 1 - (lost or 0.0)
    return (capital + support + _energy(watts, prices)) / served, capital / served


def _capex_left(asset: AssetPrice, as_of: date) -> Fraction:
    """Return what is still paid for it in the month of `as_of`, as `AssetPrice.capex_of`."""
    if asset.paid_since is not None:
        age = (as_of.year - asset.paid_since[0]) * 12 + as_of.month - asset.paid_since[1]
        if not 0 <= age < asset.amortized_months:
            return Fraction(0)
    return Fraction(asset.capex_cents, asset.amortized_months)


def _offer(sku: Sku, prices: PriceModel, lost_ratio: float) -> float:
    """Return cents for the same work on the SKU; it draws what it draws at most, and loses hours as the fleet does."""
    monthly = Fraction(sku.node_cents, sku.amortized_months) + sku.support_cents_per_month
    node = float(monthly / _HOURS_A_MONTH) + _energy(sku.watts_per_node, prices)
    return node / (sku.gpus_per_node * sku.work_ratio) / (1 - lost_ratio)


def _energy(watts: float, prices: PriceModel) -> float:
    return watts / _WATTS_A_KW * float(prices.cents_per_kwh) * float(prices.pue)


def _best(skus: Sequence[Sku], offers: Mapping[str, float]) -> str:
    """Return the SKU whose work is cheapest; without prices the one whose GPU does most; empty: there is none."""
    if not skus:
        return ""
    return min(skus, key=lambda sku: (offers.get(sku.sku, 0.0), -sku.work_ratio, sku.sku)).sku


def _compare(
    keeping: float | None, paid_anyway: float, best: str, cost: float | None, lost_ratio: float, words: list[str]
) -> bool:
    """Say how the costs compare, and return whether keeping is dearer by the margin."""
    if not best:
        words.append("no SKU of its type is stated (`skus` of capacity.yaml), so there is nothing to compare with")
        return False
    if keeping is None or cost is None:
        return False
    saved = keeping - paid_anyway
    is_dearer = saved >= DEARER_RATIO * cost
    capital = f", {paid_anyway:.1f} of them capital that is paid either way" if paid_anyway else ""
    words.append(
        f"an hour's work costs {keeping:.1f} cents{capital}; on {best} {cost:.1f} (price included, its highest draw, "
        f"{100 * lost_ratio:.1f} % of hours lost as in the fleet); due where {saved:.1f}, which ends if it goes, is "
        f"{DEARER_RATIO:g} times that or more"
    )
    return is_dearer


def _lost_of_all(batches: Sequence[Batch]) -> float:
    """Return the share of hours lost of all GPUs of which it was measured; 0 where of none."""
    known = [(each.gpus, each.hours_lost_ratio) for each in batches if each.hours_lost_ratio is not None]
    gpus = sum(count for count, _ in known)
    return math.fsum(count * ratio for count, ratio in known) / gpus if gpus else 0.0


ASSUMED_PROFILE = DayProfile(near_peak_hours=8.0)
"""Where the hours near the peak were not measured: a working day, every day."""
_HOURS_A_WEEK = 168
_NOT_GPUS = (Resource.STORAGE_BYTES, Resource.NETWORK_RATIO, Resource.RACK_WATTS, Resource.COOLING_WATTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """What a plan needs beside the forecast. What is not named was not measured, or nobody stated."""

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
            notes.append(f"{gpu_type}: nothing is known of its demand, so no shortage either")
            continue
        if gpu_type not in types:
            notes.append(f"{gpu_type}: is requested, and nothing is known of its supply; not judged")
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
