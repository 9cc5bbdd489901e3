"""A small cluster with prices, for tests of cost."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction

from ops_pipelines.core.money import Cents
from ops_pipelines.core.periods import BilledPart, CostMonth
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.costs.usage import Bearer, Fate, Owner, PartUsage, Used
from ops_pipelines.teams.price import AssetPrice, InstalledAsset, PricedBy, PriceModel

H100 = GpuType("h100")
JUNE = CostMonth(
    year=2026, month=6, begins_at=datetime(2026, 6, 1, tzinfo=UTC), ends_at=datetime(2026, 7, 1, tzinfo=UTC)
)
HOURS = 720
PRICES = PriceModel(
    currency="EUR",
    assets=(
        AssetPrice(asset="hgx-h100", priced_by=PricedBy.NODE, capex_cents=Cents(30_000_001), amortized_months=48),
        AssetPrice(asset="l40s", priced_by=PricedBy.GPU, capex_cents=Cents(800_000), amortized_months=36),
    ),
    cents_per_kwh=Fraction("11.5"),
    pue=Fraction("1.3"),
    cents_per_tib_month=Fraction(1_999, 2),
    space_cents_per_month=33_333,
    support_cents_per_month=100_001,
    network_cents_per_month=77_777,
    unmeasured_watts_per_gpu=700,
)


def owner(team: str, project: str = "") -> Owner:
    return Owner(team=TeamName(team), project=project)


def held(team: str, project: str = "") -> Bearer:
    return Bearer(fate=Fate.ALLOCATED, owner=owner(team, project))


def one_node(part: BilledPart, *, gpus: int = 8) -> InstalledAsset:
    return InstalledAsset(asset="hgx-h100", gpu_type=H100, node_seconds=part.seconds, gpu_seconds=part.seconds * gpus)


def usage_of(part: BilledPart, shares: dict[Bearer, int]) -> PartUsage:
    """The usage of H100s by GPU-seconds."""
    return PartUsage(
        part=part,
        installed={H100: sum(shares.values())},
        by_bearer={(bearer, H100): Used(gpu_seconds=seconds) for bearer, seconds in shares.items()},
    )


def first(hours: int) -> BilledPart:
    """The first hours of June."""
    return BilledPart(month=JUNE, since=JUNE.begins_at, until=JUNE.begins_at + timedelta(hours=hours))
