"""Small values from which the tests of capacity are made: peaks, supply, nodes to buy."""

from collections.abc import Sequence
from datetime import date, timedelta

from ops_pipelines.capacity.chances import Tail
from ops_pipelines.capacity.model import LEVELS, SupplyPoint, SupplyWeek, WeekPeak
from ops_pipelines.capacity.need import TypeWeek
from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.teams.projects import LeadTime, Sku

AS_OF = date(2026, 10, 1)
H100 = GpuType("h100")


def day(number: int) -> date:
    return AS_OF + timedelta(days=number)


def certain(gpus: float, *, week: int = 0) -> WeekPeak:
    """A peak that is known: the same at all levels."""
    return WeekPeak(first_day=day(7 * week), quantiles=(gpus,) * len(LEVELS), is_vouched=True)


def even(low: float, high: float, *, week: int = 0) -> WeekPeak:
    """A peak that is spread evenly: 1 % of its weight is at each end, as levels end there."""
    return WeekPeak(
        first_day=day(7 * week), quantiles=tuple(low + (high - low) * level for level in LEVELS), is_vouched=True
    )


def usable(*points: tuple[float, float], week: int = 0, installed: float | None = None) -> SupplyWeek:
    return SupplyWeek(
        gpu_type=H100,
        first_day=day(7 * week),
        installed=max(gpus for gpus, _ in points) if installed is None else installed,
        points=tuple(SupplyPoint(gpus=gpus, probability=probability) for gpus, probability in points),
    )


def weeks_of(peaks: Sequence[float | WeekPeak], *, gpus: float = 100.0) -> tuple[TypeWeek, ...]:
    """Weeks with these peaks, against the same supply."""
    found = []
    for number, peak in enumerate(peaks):
        known = peak if isinstance(peak, WeekPeak) else certain(peak, week=number)
        supply = usable((gpus, 1.0), week=number)
        found.append(TypeWeek(first_day=known.first_day, tail=Tail(known), supply=supply))
    return tuple(found)


def sku(
    name: str = "hgx",
    *,
    days: float | None = 20.0,
    rack_days: int = 5,
    burn_in_days: int = 3,
    price: int = 100_000,
    gpus_per_node: int = 8,
    support: int = 0,
    months: int = 48,
) -> Sku:
    return Sku(
        sku=name,
        gpu_type=H100,
        gpus_per_node=gpus_per_node,
        node_cents=Cents(price),
        watts_per_node=10_000.0,
        nodes_per_rack=4,
        lead_time=None if days is None else LeadTime(median_days=days, p90_days=days),
        rack_days=rack_days,
        burn_in_days=burn_in_days,
        support_cents_per_month=Cents(support),
        amortized_months=months,
    )
