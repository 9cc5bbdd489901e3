"""How reports of capacity call series, scale their units and write days and money. Words alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from ops_pipelines.capacity.model import Resource, SeriesKey, SupplyWeek
from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.report.document import clipped

NAME_AT_MOST = 40
_TIB, _PIB, _KILO = 2.0**40, 2.0**50, 1000.0
_ALL = {
    Resource.NETWORK_RATIO: "the whole fabric",
    Resource.COOLING_WATTS: "the whole room",
    Resource.RACK_WATTS: "all racks",
}
_KINDS = {
    Resource.STORAGE_BYTES: "Storage",
    Resource.NETWORK_RATIO: "Network",
    Resource.RACK_WATTS: "Power",
    Resource.COOLING_WATTS: "Cooling",
    Resource.GPUS_OUT: "GPUs out of service",
    Resource.GPUS_STRANDED: "GPUs out of reach",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How values of a series are shown: divided, and with a unit."""

    divisor: float
    unit: str

    def said(self, value: float) -> str:
        shown = value / self.divisor
        return f"{shown:,.0f} {self.unit}" if abs(shown) >= 100 else f"{shown:,.3g} {self.unit}"


def scale_of(key: SeriesKey, values: Sequence[float]) -> Scale:
    """Return the scale in which the largest value of a series is read well."""
    most = max(values, default=0.0)
    if key.kind is Resource.STORAGE_BYTES:
        return Scale(divisor=_PIB, unit="PiB") if most >= 4 * _PIB else Scale(divisor=_TIB, unit="TiB")
    if key.kind in (Resource.RACK_WATTS, Resource.COOLING_WATTS):
        return Scale(divisor=_KILO, unit="kW")
    if key.kind is Resource.NETWORK_RATIO:
        return Scale(divisor=0.01, unit="% used")
    return Scale(divisor=1.0, unit="GPUs")


def sentence(text: str, *, at_most: int) -> str:
    """Return a sentence as the page shows it: what a terminal sets apart with backticks is plain here."""
    return clipped(text.replace("`", ""), at_most=at_most)


def type_name(gpu_type: GpuType) -> str:
    """Return what a type is called; where the cluster tells none apart, all of them are just GPUs."""
    return clipped(gpu_type, at_most=NAME_AT_MOST) or "GPUs"


def series_name(key: SeriesKey) -> str:
    """Return what a series is of, such as `Storage: lustre`."""
    if key.kind is Resource.GPUS:
        team = f" of {clipped(key.name, at_most=NAME_AT_MOST)}" if key.name else " of all teams"
        return f"{type_name(key.gpu_type)}{team}"
    name = clipped(key.name, at_most=NAME_AT_MOST) or _ALL.get(key.kind, "all")
    return f"{_KINDS[key.kind]}: {name}"


def day(found: date | None, *, otherwise: str = "-") -> str:
    return otherwise if found is None else found.isoformat()


def amount(cents: Cents | int | None, currency: str) -> str:
    """Return money in whole units: plans are not exact to a cent."""
    if cents is None:
        return "no price"
    return f"{round(cents / 100):,} {clipped(currency, at_most=8)}".strip()


def usable_at(week: SupplyWeek, level: float) -> float:
    """Return how much is usable with no more than this probability that it is less."""
    passed = 0.0
    for each in week.points:
        passed += each.probability
        if passed >= level - 1e-9:
            return each.gpus
    return week.points[-1].gpus if week.points else week.installed
