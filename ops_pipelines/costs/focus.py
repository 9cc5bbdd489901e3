"""A statement as rows of FOCUS, the FinOps Open Cost and Usage Specification, version 1.4: as tables and files.

Which columns are required is in catalogue/focus_columns.csv. What FOCUS has no word for is in columns of our own,
`x_...`. What we state is internal: list, contracted, billed and effective cost are one amount. Unit prices are left
out: cents that add up are no product of a price and a quantity. A credit is a charge of category Credit with the
operator's equal Adjustment beside it, as an adjustment is a charge that fits no other category.

Money is a decimal of two places in the table and in the text: a float would lose the cent that closes the sum.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cache
from importlib.resources import files

import pyarrow as pa
import pyarrow.parquet as pq

from ops_pipelines.core.money import Amount, Cents, show_cents
from ops_pipelines.costs.statement import Line, Service, Statement
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.price import BYTES_PER_TIB, JOULES_PER_KWH

FOCUS_VERSION = "1.4"
FocusValue = str | datetime | Decimal | None
_HOUR_SECONDS = 3_600
_QUANTUM = 1_000_000
"""Quantities are reported to the sixth decimal; money is reported exactly."""
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
    """Return the sum of BilledCost, for who compares it with the cost of the assets."""
    return Cents(int(sum((Decimal(str(row["BilledCost"])) for row in rows), Decimal(0)).scaleb(2)))


# -- rows of FOCUS as a table --


_MONEY = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
_CATEGORIES = frozenset({"Usage", "Purchase", "Tax", "Credit", "Adjustment"})
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""With one of these a text begins that a spreadsheet would run."""


class Level(Enum):
    """What FOCUS says of a column."""

    MANDATORY = "mandatory"
    CONDITIONAL = "conditional"
    RECOMMENDED = "recommended"
    CUSTOM = "custom"
    """Not FOCUS': ours, `x_...`."""


class ColumnType(Enum):
    DECIMAL = "decimal"
    TEXT = "text"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class FocusColumn:
    """One column, as the table of the catalogue has it."""

    name: str
    level: Level
    allows_null: bool
    type: ColumnType
    source: str
    checked_on: date


@cache
def focus_columns() -> tuple[FocusColumn, ...]:
    """Return the columns in the order of files: those of FOCUS by name, then our own."""
    text = files("ops_pipelines.catalogue").joinpath("focus_columns.csv").read_text(encoding="utf-8")
    found: list[FocusColumn] = []
    for number, row in enumerate(csv.DictReader(io.StringIO(text)), start=2):
        try:
            found.append(
                FocusColumn(
                    name=row["column"],
                    level=Level(row["level"]),
                    allows_null={"yes": True, "no": False}[row["allows_null"]],
                    type=ColumnType(row["type"]),
                    source=row["source"],
                    checked_on=date.fromisoformat(row["checked_on"]),
                )
            )
        except (KeyError, ValueError) as error:
            raise ValueError(f"catalogue/focus_columns.csv, line {number}: {error}") from error
    return tuple(found)


def focus_faults(rows: Sequence[Mapping[str, FocusValue]]) -> tuple[str, ...]:
    """Return every fault of rows in words: columns missing or unknown, nulls and values that FOCUS does not allow."""
    known = {each.name: each for each in focus_columns()}
    faults: list[str] = []
    for number, row in enumerate(rows, start=1):
        where = f"row {number}"
        faults += [f"{where}: no column {name}" for name in known if name not in row]
        faults += [f"{where}: column {name} is not of FOCUS, nor one of ours" for name in row if name not in known]
        faults += [
            f"{where}: {name} is null; expected a value"
            for name, column in known.items()
            if name in row and row[name] is None and not column.allows_null
        ]
        faults += [f"{where}: {fault}" for fault in _faults_between(row)]
    return tuple(faults)


def focus_table(rows: Sequence[Mapping[str, FocusValue]]) -> pa.Table:
    """Return the rows as a table, for Parquet. Raises ValueError with every fault where they are no FOCUS."""
    _check(rows)
    schema = pa.schema([pa.field(each.name, _arrow(each), nullable=each.allows_null) for each in focus_columns()])
    return pa.table(
        {name: pa.array([row[name] for row in rows], schema.field(name).type) for name in schema.names}, schema=schema
    )


def focus_csv(rows: Sequence[Mapping[str, FocusValue]]) -> bytes:
    """Return the rows as CSV in UTF-8: times as `2026-03-01T00:00:00Z`, null as nothing. Raises as `focus_table`."""
    _check(rows)
    names = [each.name for each in focus_columns()]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_text(row[name]) for name in names] for row in rows)
    return out.getvalue().encode()


def focus_parquet(rows: Sequence[Mapping[str, FocusValue]]) -> bytes:
    """Return the rows as a Parquet file. Raises as `focus_table`."""
    out = io.BytesIO()
    pq.write_table(focus_table(rows), out, compression="zstd")
    return out.getvalue()


def _check(rows: Sequence[Mapping[str, FocusValue]]) -> None:
    faults = focus_faults(rows)
    if faults:
        raise ValueError("; ".join(faults))


def _faults_between(row: Mapping[str, FocusValue]) -> list[str]:
    """Return what the columns of one row say against each other, as far as FOCUS forbids it."""
    faults: list[str] = []
    category = row.get("ChargeCategory")
    if category is not None and category not in _CATEGORIES:
        faults.append(f"ChargeCategory is {category!r}; expected one of {', '.join(sorted(_CATEGORIES))}")
    if category == "Credit" and row.get("ContractedCost") != row.get("BilledCost"):
        faults.append("ContractedCost of a credit differs from BilledCost; expected the same")
    is_priced = row.get("SkuPriceId") is not None
    for name in ("ConsumedQuantity", "PricingQuantity"):
        if (row.get(name) is not None) is not (category == "Usage" and is_priced):
            faults.append(f"{name} is {row.get(name)}; expected one with a SkuPriceId, for usage alone")
    for begin, end in (("BillingPeriodStart", "BillingPeriodEnd"), ("ChargePeriodStart", "ChargePeriodEnd")):
        since, until = row.get(begin), row.get(end)
        if isinstance(since, datetime) and isinstance(until, datetime) and until <= since:
            faults.append(f"{end} is not after {begin}")
    return faults


def _arrow(column: FocusColumn) -> pa.DataType:
    if column.type is ColumnType.DECIMAL:
        return pa.decimal128(24, 2) if column.name in _MONEY else pa.decimal128(30, 6)
    return pa.timestamp("us", tz="UTC") if column.type is ColumnType.TIME else pa.string()


def _text(value: FocusValue) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    if isinstance(value, Decimal):
        return f"{value:f}"
    # Accounts and projects are texts of users, and people open this file in spreadsheets.
    return f"'{value}" if value.startswith(_FORMULA) else value


# -- a statement as files for who bills --


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementFile:
    """One file, not yet written."""

    name: str
    """The month and the kind: `2026-11.csv`."""
    content: bytes


def export_statement(statement: Statement, desk: TeamsDesk) -> tuple[StatementFile, StatementFile]:
    """Return the statement as CSV and as Parquet."""

    rows = _rows(statement, desk)
    name = statement.part.month.name
    return (
        StatementFile(name=f"{name}.csv", content=focus_csv(rows)),
        StatementFile(name=f"{name}.parquet", content=focus_parquet(rows)),
    )


def keep_statement(statement: Statement, desk: TeamsDesk) -> tuple[str, ...]:
    """Keep the statement beside the state and return where; nothing where none are kept.

    Raises StatementFilesError; each file is whole.
    """
    if desk.statements is None:
        return ()
    return tuple(desk.statements.keep(each.name, each.content) for each in export_statement(statement, desk))


def _rows(statement: Statement, desk: TeamsDesk) -> tuple[dict[str, FocusValue], ...]:
    # Who runs a cluster states its cost: nobody else is known here.
    return focus_rows(statement, Issuer(provider=desk.cluster.name, cluster=desk.cluster.name))


def billed_cents(written: bytes) -> int:
    """Return the sum of BilledCost of a file that was written, for who compares it with the cost of the assets."""
    rows = csv.DictReader(io.StringIO(written.decode("utf-8"), newline=""))
    return int(sum((Decimal(row["BilledCost"]) for row in rows), Decimal(0)).scaleb(2))
