"""What a GPU-hour costs, by type: what stands there by the register of nodes, over its hours. Energy is left out.

For the gain of advice alone: what was really paid, and who bears it, is `flow.cost`'s.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction

from ops_pipelines.core.money import to_cents
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.domain.advice.advice import Advice
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.price import BYTES_PER_TIB, PricedBy

_WEEK_SECONDS = int(timedelta(days=7).total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Cents, exact."""

    per_gpu_hour: Mapping[GpuType, Fraction]
    mean_per_gpu_hour: Fraction | None
    """Over all types; None: no GPU stands there."""
    per_byte_week: Fraction


def find_rates(desk: TeamsDesk, *, at: datetime) -> Rates | None:
    """Return what stood there at a time by its prices of that month; None where no prices are stated."""
    from ops_pipelines.costs.usage import month_at

    prices = desk.prices
    if prices is None:
        return None
    month = month_at(at, zone=desk.zone)
    by_name = {each.asset: each for each in prices.assets}
    gpus: defaultdict[GpuType, int] = defaultdict(int)
    cents: defaultdict[GpuType, Fraction] = defaultdict(Fraction)
    for node in desk.installed:
        price = by_name.get(node.asset)
        if price is None or node.gpu_count == 0 or not (node.since <= at and (node.until is None or at < node.until)):
            continue
        count = 1 if price.priced_by is PricedBy.NODE else node.gpu_count
        gpus[node.gpu_type] += node.gpu_count
        cents[node.gpu_type] += count * (price.capex_of(month) + price.support_cents_per_month)
    total = sum(gpus.values())
    hours = Fraction(month.seconds, 3600)
    whole = Fraction(prices.support_cents_per_month + prices.space_cents_per_month + prices.network_cents_per_month)
    return Rates(
        per_gpu_hour={kind: (cents[kind] / count + whole / total) / hours for kind, count in gpus.items()},
        mean_per_gpu_hour=(sum(cents.values(), Fraction(0)) + whole) / total / hours if total else None,
        per_byte_week=Fraction(prices.cents_per_tib_month) / BYTES_PER_TIB * _WEEK_SECONDS / month.seconds,
    )


def with_cents(advice: Advice, rates: Rates | None, gpu_type: GpuType) -> Advice:
    """Return the advice with its expected gain of a week in money; unchanged where no rate is known."""
    if rates is None:
        return advice
    rate = rates.per_gpu_hour.get(gpu_type, rates.mean_per_gpu_hour)
    hours = Fraction(advice.gain.expected_gpu_hours).limit_denominator(3600)
    if rate is None and hours:
        return advice
    amount = hours * (rate or 0) + advice.gain.size_bytes * rates.per_byte_week
    return replace(advice, gain_cents=to_cents(amount))
