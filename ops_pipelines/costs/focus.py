"""A statement as rows of FOCUS, the FinOps Open Cost and Usage Specification, version 1.4, dataset Cost and Usage.

Values by column; types and files are `costs.focus_table`'s, and which columns are required stands in
catalogue/focus_columns.csv. What FOCUS has no word for stands in columns of our own, `x_...`.

What we state is internal: list, contracted, billed and effective cost are one amount. Unit prices are left out: cents
that add up are no product of a price and a quantity. A credit is a charge of category Credit with the operator's equal
Adjustment beside it, as an adjustment is a charge that fits no other category.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from ops_pipelines.core.money import Amount, Cents, show_cents
from ops_pipelines.costs.statement import Line, Service, Statement
from ops_pipelines.teams.price import BYTES_PER_TIB, JOULES_PER_KWH

FOCUS_VERSION = "1.4"
FocusValue = str | datetime | Decimal | None
_HOUR_SECONDS = 3_600
_QUANTUM = 1_000_000
"""Quantities are told to the sixth decimal; money is told exactly."""
_CATEGORY = {
    Service.GPU: "Compute",
    Service.ENERGY: "Other",
    Service.NETWORK: "Networking",
    Service.STORAGE: "Storage",
    Service.CREDIT: "Compute",
    Service.INCIDENT_CREDIT: "Compute",
}
_SUBCATEGORY = {
    Service.ENERGY: "Other (Other)",
    Service.NETWORK: "Network Infrastructure",
    Service.STORAGE: "File Storage",
}
_UNITS: Mapping[Service, tuple[str, int]] = {
    Service.ENERGY: ("Kilowatt-Hours", JOULES_PER_KWH),
    Service.STORAGE: ("TiB-Hours", BYTES_PER_TIB * _HOUR_SECONDS),
}
_GPU_HOURS = ("GPU-Hours", _HOUR_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """Who states the cost: the names that stand in each row."""

    provider: str
    """Who runs the cluster."""
    cluster: str
    """Name of the cluster; the account that is billed."""

    def __post_init__(self) -> None:
        if not self.provider or not self.cluster:
            raise ValueError("provider and cluster must be named; FOCUS has no row without them")


def focus_rows(statement: Statement, issuer: Issuer) -> tuple[dict[str, FocusValue], ...]:
    """Return one row for each line of the statement, in its order. Their BilledCost adds up to the assets' cost."""
    return tuple(_row(line, statement, issuer) for line in statement.lines)


def _row(line: Line, statement: Statement, issuer: Issuer) -> dict[str, FocusValue]:
    owner = line.credited or line.bearer.owner
    team = None if line.bearer.owner is None else line.bearer.owner.team
    money = Decimal(show_cents(line.cents))
    return {
        **_when_and_who(statement, issuer),
        "BilledCost": money,
        "EffectiveCost": money,
        "ListCost": money,
        "ContractedCost": money,
        "ChargeCategory": _charge_category(line),
        "ChargeClass": None,
        "ChargeDescription": _described(line),
        "ChargeFrequency": "Usage-Based" if _is_usage(line) else "One-Time",
        "ServiceCategory": _CATEGORY[line.service],
        "ServiceSubcategory": _SUBCATEGORY.get(line.service, "Other (Compute)"),
        "ServiceName": _service_name(line),
        **_quantities(line),
        "ResourceId": None,
        "ResourceName": None,
        "ResourceType": None,
        "SubAccountId": team,
        "SubAccountName": team,
        "x_Service": line.service.value,
        "x_Fate": line.bearer.fate.value,
        "x_Team": None if owner is None else owner.team,
        "x_Project": None if owner is None else owner.project or None,
        "x_GpuType": line.gpu_type or None,
        "x_Incident": line.cause or None,
        "x_UsedGpuHours": None if line.used is None else _quantity(line.used.used_gpu_seconds, _HOUR_SECONDS),
        "x_WastedGpuHours": None if line.used is None else _quantity(line.used.wasted_gpu_seconds, _HOUR_SECONDS),
    }


def _when_and_who(statement: Statement, issuer: Issuer) -> dict[str, FocusValue]:
    part = statement.part
    return {
        "BillingPeriodStart": part.month.begins_at,
        "BillingPeriodEnd": part.month.ends_at,
        "ChargePeriodStart": part.since,
        "ChargePeriodEnd": part.until,
        "BillingCurrency": statement.currency,
        "BillingAccountId": issuer.cluster,
        "BillingAccountName": issuer.cluster,
        "HostProviderName": issuer.provider,
        "ServiceProviderName": issuer.provider,
        "InvoiceIssuerName": issuer.provider,
    }


def _quantities(line: Line) -> dict[str, FocusValue]:
    """Return what was consumed; all null for what is no usage, as FOCUS has it."""
    is_usage = _is_usage(line)
    unit, size = _UNITS.get(line.service, _GPU_HOURS)
    amount = _quantity(line.quantity, size) if is_usage else None
    sku = f"{line.service.value}:{line.gpu_type}" if line.gpu_type else line.service.value
    told_unit = unit if is_usage else None
    return {
        "ConsumedQuantity": amount,
        "ConsumedUnit": told_unit,
        "PricingQuantity": amount,
        "PricingUnit": told_unit,
        "SkuId": sku if is_usage else None,
        "SkuMeter": unit if is_usage else None,
        "SkuPriceId": sku if is_usage else None,
        "SkuPriceDetails": None,
    }


def _is_usage(line: Line) -> bool:
    return line.service is not Service.CREDIT and line.service is not Service.INCIDENT_CREDIT


def _charge_category(line: Line) -> str:
    if line.service is Service.CREDIT:
        return "Credit"
    return "Usage" if _is_usage(line) else "Adjustment"


def _service_name(line: Line) -> str:
    if not _is_usage(line):
        return "GPU cluster: incident credit"
    return f"GPU cluster: {line.service.value}"


def _described(line: Line) -> str:
    kind = f" {line.gpu_type}" if line.gpu_type else ""
    if line.service is Service.CREDIT:
        return f"credit for GPU-hours{kind} lost to incident {line.cause}"
    if line.service is Service.INCIDENT_CREDIT:
        team = "" if line.credited is None else f" to {line.credited.team}"
        return f"credit{team} for incident {line.cause}, borne by the operator"
    return f"{line.service.value}{kind}, {line.bearer.fate.value}"


def _quantity(amount: Amount, size: int) -> Decimal:
    """Return an amount in units of a size, to the sixth decimal; a half goes up."""
    scaled = Fraction(amount) * _QUANTUM / size + Fraction(1, 2)
    return Decimal(scaled.numerator // scaled.denominator).scaleb(-6)


def total_cents(rows: tuple[Mapping[str, FocusValue], ...]) -> Cents:
    """Return the sum of BilledCost, for whoever compares it with the cost of the assets."""
    return Cents(int(sum((Decimal(str(row["BilledCost"])) for row in rows), Decimal(0)).scaleb(2)))
