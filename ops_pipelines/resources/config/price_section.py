"""Reads the section `prices` of cluster.yaml: exact amounts, and a price for everything that stands in a rack.

What the cluster costs by them is `teams.price`'s.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction

from ops_pipelines.core.money import Cents, read_amount
from ops_pipelines.resources.config.models import RackModel
from ops_pipelines.resources.config.price_models import AssetPriceModel, PricesModel
from ops_pipelines.resources.config.strict_yaml import KeyPath, YamlFile
from ops_pipelines.teams.price import AssetPrice, PricedBy, PriceModel

_AT = "prices"
_CENTS = 100


def read_prices(file: YamlFile, section: PricesModel | None, *, racks: Sequence[RackModel]) -> PriceModel | None:
    """Return the prices; None where none are stated, or after keeping every fault in them.

    Machines without a price are a fault: else they would be found when the first bill is written.
    """
    if section is None:
        return None
    _check_racks(file, racks, priced={each.asset for each in section.assets})
    if _check_twice(file, section.assets):
        return None
    assets = [_read_asset(file, each, at=(_AT, "assets", index)) for index, each in enumerate(section.assets)]
    watts = section.unmeasured_watts_per_gpu
    if read_amount(section.pue, what="pue") < 1:
        file.add_fault((_AT, "pue"), f"found {section.pue!r}; expected 1 or more: facility over machines")
        return None
    try:
        return PriceModel(
            currency=section.currency,
            assets=tuple(assets),
            cents_per_kwh=_cents(section.per_kwh, what="per_kwh"),
            pue=read_amount(section.pue, what="pue"),
            cents_per_tib_month=_cents(section.per_tib_month, what="per_tib_month"),
            space_cents_per_month=_cents(section.space_per_month, what="space_per_month"),
            support_cents_per_month=_cents(section.support_per_month, what="support_per_month"),
            network_cents_per_month=_cents(section.network_per_month, what="network_per_month"),
            unmeasured_watts_per_gpu=None if watts is None else read_amount(watts, what="unmeasured_watts_per_gpu"),
        )
    except ValueError as problem:
        file.add_fault((_AT,), str(problem))
        return None


def _read_asset(file: YamlFile, section: AssetPriceModel, *, at: KeyPath) -> AssetPrice:
    capex = _cents(section.capex, what="capex")
    if capex.denominator != 1:
        file.add_fault((*at, "capex"), f"found {section.capex!r}; expected whole cents, such as '300000.00'")
    since = None
    if section.paid_since is not None:
        year, _, month = section.paid_since.partition("-")
        since = (int(year), int(month))
    return AssetPrice(
        asset=section.asset,
        priced_by=PricedBy(section.priced_by),
        capex_cents=Cents(int(capex)),
        amortized_months=section.amortized_months,
        support_cents_per_month=_cents(section.support_per_month, what="support_per_month"),
        paid_since=since,
    )


def _check_twice(file: YamlFile, assets: Sequence[AssetPriceModel]) -> bool:
    """Return whether an asset has two prices, after keeping where the second stands."""
    known: set[str] = set()
    for index, each in enumerate(assets):
        if each.asset in known:
            file.add_fault((_AT, "assets", index, "asset"), f"{each.asset} has a price above; keep one of them")
        known.add(each.asset)
    return len(known) < len(assets)


def _check_racks(file: YamlFile, racks: Sequence[RackModel], *, priced: set[str]) -> None:
    for index, rack in enumerate(racks):
        for fault in _faults_of(rack, priced=priced):
            file.add_fault(("racks", index, "model"), fault)


def _faults_of(rack: RackModel, *, priced: set[str]) -> Iterator[str]:
    names = ", ".join(sorted(priced))
    if rack.model is None:
        yield f"rack {rack.name} has no model, and `prices` states what each model costs; name one of {names}"
    elif rack.model not in priced:
        yield (
            f"no price is stated for {rack.model}, the model of rack {rack.name}; expected one of {names}, "
            "or an entry under prices.assets"
        )


def _cents(text: str, *, what: str) -> Fraction:
    return read_amount(text, what=what) * _CENTS
