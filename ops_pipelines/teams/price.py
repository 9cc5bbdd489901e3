"""What the cluster costs: prices as a site states them, and the cost of what was installed in a part of a month.

Who bears it is `statement`'s. Here are no prices: each site states its own in cluster.yaml. All is exact (`cents`), and
rounded once: the total, and then the items so that they add up to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from fractions import Fraction

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.money import Amount, Cents, share_cents, to_cents
from ops_pipelines.core.periods import BilledPart, CostMonth
from ops_pipelines.core.proposal import GpuType

JOULES_PER_KWH = 3_600_000
BYTES_PER_TIB = 2**40


class PricedBy(Enum):
    """What one price is for."""

    NODE = "node"
    GPU = "gpu"


class Item(Enum):
    """What money was spent on."""

    CAPEX = "capex"
    SUPPORT = "support"
    SPACE = "space"
    NETWORK = "network"
    ENERGY = "energy"
    STORAGE = "storage"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetPrice:
    """The price of one kind of machine: a node model, or a type of GPU with its share of all else in the node."""

    asset: str
    priced_by: PricedBy
    capex_cents: Cents
    """Of one node, or of one GPU."""
    amortized_months: int
    support_cents_per_month: Amount = 0
    paid_since: tuple[int, int] | None = None
    """Year and month of the first part of the capex; after `amortized_months` it is paid off. None: it never is."""

    def __post_init__(self) -> None:
        if not self.asset:
            raise ValueError("a price for an asset without a name; expected a node model or a type of GPU")
        if self.capex_cents < 0 or self.support_cents_per_month < 0:
            raise ValueError(f"{self.asset}: capex and support must be 0 or more")
        if self.amortized_months < 1:
            raise ValueError(f"{self.asset}: amortized over {self.amortized_months} months; expected 1 or more")
        if self.paid_since is not None and not 1 <= self.paid_since[1] <= 12:
            raise ValueError(f"{self.asset}: paid since {self.paid_since}; expected a year and a month of 1 to 12")

    def capex_of(self, month: CostMonth) -> Fraction:
        """Return what one of it costs in this month, in cents; 0 before it is bought and once it is paid off."""
        if self.paid_since is not None:
            age = month.number - (self.paid_since[0] * 12 + self.paid_since[1] - 1)
            if not 0 <= age < self.amortized_months:
                return Fraction(0)
        return Fraction(self.capex_cents, self.amortized_months)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceModel:
    """All prices of a site, in cents of one currency."""

    currency: str
    """Three capitals, as in ISO 4217."""
    assets: tuple[AssetPrice, ...]
    cents_per_kwh: Amount
    pue: Amount
    """Energy of the facility over that of its machines: 1 or more."""
    cents_per_tib_month: Amount = 0
    """For storage that is installed, used or not."""
    space_cents_per_month: Amount = 0
    """Of the whole cluster, as the next two."""
    support_cents_per_month: Amount = 0
    network_cents_per_month: Amount = 0
    unmeasured_watts_per_gpu: Amount | None = None
    """What a GPU, with its share of the node, is taken to draw where nobody measured it. None: refuse."""

    def __post_init__(self) -> None:
        if not (len(self.currency) == 3 and self.currency.isascii() and self.currency.isupper()):
            raise ValueError(f"currency is {self.currency!r}; expected three capitals, such as EUR")
        if self.pue < 1:
            raise ValueError(f"pue is {float(self.pue):g}; expected 1 or more: facility over machines")
        for name in _NOT_NEGATIVE:
            amount: Amount | None = getattr(self, name)
            if amount is not None and amount < 0:
                raise ValueError(f"{name} is {float(amount):g}; expected 0 or more")
        names = [each.asset for each in self.assets]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two prices for {', '.join(twice)}; expected one for each asset")


_NOT_NEGATIVE = (
    "cents_per_kwh", "cents_per_tib_month", "space_cents_per_month", "support_cents_per_month",
    "network_cents_per_month", "unmeasured_watts_per_gpu",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledAsset:
    """So much of one kind of machine stood in the part that is paid for, in whatever state it was."""

    asset: str
    gpu_type: GpuType
    node_seconds: int
    gpu_seconds: int

    def __post_init__(self) -> None:
        if self.node_seconds < 0 or self.gpu_seconds < 0:
            raise ValueError(f"{self.asset}: {self.node_seconds} node-seconds, {self.gpu_seconds} GPU-seconds; below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """All that is paid for in a part of a month."""

    assets: Sequence[InstalledAsset]
    joules: int = 0
    """Energy of the machines, as measured."""
    unmeasured_gpu_seconds: int = 0
    """GPU-seconds whose energy is not in `joules`."""
    storage_byte_seconds: int = 0
    """Of storage that is installed."""

    def __post_init__(self) -> None:
        for name in ("joules", "unmeasured_gpu_seconds", "storage_byte_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 or more")
        keys = [(each.asset, each.gpu_type) for each in self.assets]
        if len(set(keys)) < len(keys):
            raise ValueError("an asset is named twice with one type of GPU; expected its seconds added up")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostItem:
    """What one item cost, in whole cents."""

    item: Item
    asset: str
    """Empty: the cluster as a whole."""
    gpu_type: GpuType | None
    """Whose hours bear it; None: those of all types, as of machines without GPUs."""
    cents: Cents


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetCost:
    """What the assets cost in a part of a month. Its items add up to it."""

    part: BilledPart
    currency: str
    items: tuple[CostItem, ...]
    joules: Fraction
    """Energy that is paid for, measured and estimated."""
    storage_byte_seconds: int
    """Storage that is paid for, used or not."""
    estimated_joules: Fraction
    """Of the energy that is paid for, so much was assumed and not measured."""

    @property
    def cents(self) -> Cents:
        return Cents(sum(each.cents for each in self.items))

    def cents_of(self, *items: Item, gpu_type: GpuType | None = None) -> Cents:
        """Return what these items cost that this type of GPU bears alone; for None what all types bear."""
        return Cents(sum(each.cents for each in self.items if each.item in items and each.gpu_type == gpu_type))


def asset_cost(part: BilledPart, installed: Installed, prices: PriceModel) -> AssetCost:
    """Return what the assets cost in this part of the month, item by item.

    A machine costs its monthly price for the share of the month in which it stood. Raises ValueError if one has no
    price, or if energy was not measured and no wattage is stated.
    """
    month_seconds = part.month.seconds
    exact = _of_assets(part, installed.assets, prices)
    elapsed = Fraction(part.seconds, month_seconds)
    estimated = _estimated_joules(installed, prices)
    whole: Mapping[Item, Fraction] = {
        Item.SUPPORT: elapsed * prices.support_cents_per_month,
        Item.SPACE: elapsed * prices.space_cents_per_month,
        Item.NETWORK: elapsed * prices.network_cents_per_month,
        Item.ENERGY: (installed.joules + estimated) * prices.pue * prices.cents_per_kwh / JOULES_PER_KWH,
        Item.STORAGE: Fraction(installed.storage_byte_seconds, BYTES_PER_TIB * month_seconds)
        * prices.cents_per_tib_month,
    }
    exact |= {(item.value, "", ""): amount for item, amount in whole.items() if amount}
    cents = share_cents(to_cents(sum(exact.values(), Fraction(0))), exact)
    has_gpus = {(each.asset, str(each.gpu_type)) for each in installed.assets if each.gpu_seconds}
    return AssetCost(
        part=part,
        currency=prices.currency,
        items=tuple(
            CostItem(
                item=Item(item),
                asset=asset,
                gpu_type=GpuType(gpu_type) if (asset, gpu_type) in has_gpus else None,
                cents=share,
            )
            for (item, asset, gpu_type), share in cents.items()
        ),
        joules=installed.joules + estimated,
        storage_byte_seconds=installed.storage_byte_seconds,
        estimated_joules=estimated,
    )


def _of_assets(
    part: BilledPart, assets: Sequence[InstalledAsset], prices: PriceModel
) -> dict[tuple[str, str, str], Fraction]:
    """Return capex and support of each kind of machine: (item, asset, GPU type) -> cents."""
    by_name = {each.asset: each for each in prices.assets}
    missing = sorted({each.asset for each in assets} - by_name.keys())
    if missing:
        raise ValueError(f"no price for {', '.join(missing)}; expected one for each installed asset under `prices`")
    found: dict[tuple[str, str, str], Fraction] = {}
    for each in assets:
        price = by_name[each.asset]
        seconds = each.node_seconds if price.priced_by is PricedBy.NODE else each.gpu_seconds
        months = Fraction(seconds, part.month.seconds)
        found[Item.CAPEX.value, each.asset, each.gpu_type] = months * price.capex_of(part.month)
        found[Item.SUPPORT.value, each.asset, each.gpu_type] = months * price.support_cents_per_month
    return found


def _estimated_joules(installed: Installed, prices: PriceModel) -> Fraction:
    if not installed.unmeasured_gpu_seconds:
        return Fraction(0)
    if prices.unmeasured_watts_per_gpu is None:
        raise ValueError(
            f"the energy of {installed.unmeasured_gpu_seconds / 3600:.1f} GPU-hours was not measured; "
            "state unmeasured_watts_per_gpu under `prices`, or have power measured"
        )
    return Fraction(prices.unmeasured_watts_per_gpu) * installed.unmeasured_gpu_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledNode:
    """A node stood in the cluster, paid for, in whatever state. By the register of assets, not by what answered."""

    node: NodeName
    asset: str
    """What its price is stated for."""
    gpu_type: GpuType
    gpu_count: int
    """What it was bought with: a GPU that fell off the bus is installed and broken."""
    since: datetime
    until: datetime | None
    """None: it is there still."""

    def __post_init__(self) -> None:
        if self.gpu_count < 0 or (self.until is not None and self.until <= self.since):
            raise ValueError(
                f"{self.node}: {self.gpu_count} GPUs from {self.since} to {self.until}; "
                "expected 0 or more, and an end after the begin"
            )
