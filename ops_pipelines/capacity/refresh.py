"""Batches of hardware, how their failures compare, and which should be replaced.

A batch is what was bought at once: one model, standing since one day.

Only compares what is measured and stated. What is still paid for a batch is told with its cost, and makes it no dearer
than its replacement: it is paid whether the batch stays or goes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction

from ops_pipelines.capacity.plan import RefreshLine
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.teams.price import AssetPrice, PricedBy, PriceModel
from ops_pipelines.teams.projects import CapacityPolicy, Sku

# -- batches of hardware --


ENOUGH_NODE_YEARS = 1.0
"""Assumption: over less than this a rate of failures would be told from luck."""
SURE_RATIO = 0.01
"""A batch is said to fail more often if chance alone gives so much or more failures with less than this."""


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
        return "since when it stands nobody stated (`installed_since` of its racks)"
    return f"{age:.0f} months old, hardware is due after {policy.refresh_after_months}"


# --- cost of work -------------------------------------------------------------------------------------------------


def _keeping(
    batch: Batch, prices: PriceModel, asset: AssetPrice | None, as_of: date, words: list[str]
) -> tuple[float | None, float]:
    """Return cents for an hour's work of one of its GPUs, and how many of them are paid even if it goes.

    None: something is not known, and that is said.
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
