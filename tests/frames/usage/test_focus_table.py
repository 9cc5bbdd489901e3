"""A statement as a FOCUS file: the columns of the version that is named, and money that keeps its cents."""

import csv
import io
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ops_pipelines.core.periods import whole_month
from ops_pipelines.costs.focus import (
    FOCUS_VERSION,
    FocusValue,
    Issuer,
    Level,
    focus_columns,
    focus_csv,
    focus_faults,
    focus_rows,
    focus_table,
)
from ops_pipelines.costs.statement import LostHours, make_statement
from ops_pipelines.costs.usage import Bearer, Fate
from ops_pipelines.teams.price import Installed, asset_cost
from tests.domain.cost_facts import H100, JUNE, PRICES, held, one_node, owner, usage_of

MONTH = whole_month(JUNE)
HALF = 4 * MONTH.seconds
COST = asset_cost(MONTH, Installed(assets=[one_node(MONTH)], joules=10**11, storage_byte_seconds=2**60), PRICES)
# FOCUS 1.4, Cost and Usage, feature level "Mandatory".
MANDATORY = {
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart", "ContractedCost",
    "EffectiveCost", "HostProviderName", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit",
    "ServiceCategory", "ServiceName", "ServiceProviderName",
}  # fmt: skip


def rows(team: str = "ml") -> list[dict[str, FocusValue]]:
    usage = usage_of(MONTH, {held(team, "llm"): HALF, Bearer(fate=Fate.BROKEN): HALF})
    lost = [LostHours(owner=owner(team, "llm"), gpu_type=H100, incident="INC-7", gpu_seconds=7_200)]
    return list(focus_rows(make_statement(COST, usage, lost=lost), Issuer(provider="site", cluster="c1")))


def with_value(row: Mapping[str, FocusValue], name: str, value: FocusValue) -> dict[str, FocusValue]:
    return {**row, name: value}


def test_the_table_of_columns_is_that_of_the_version_that_is_named() -> None:
    columns = focus_columns()

    assert FOCUS_VERSION == "1.4"
    assert {each.name for each in columns if each.level is Level.MANDATORY} == MANDATORY
    assert all(each.name.startswith("x_") is (each.level is Level.CUSTOM) for each in columns)
    assert all(each.source for each in columns)
    assert [each.level is Level.CUSTOM for each in columns] == sorted(each.level is Level.CUSTOM for each in columns)


def test_a_statement_is_focus_without_a_fault() -> None:
    assert focus_faults(rows()) == ()


def test_billed_cost_in_parquet_adds_up_to_the_cost_of_the_assets() -> None:
    out = io.BytesIO()
    pq.write_table(focus_table(rows()), out)

    read = pq.read_table(io.BytesIO(out.getvalue()))

    assert pa.types.is_decimal(read.schema.field("BilledCost").type)
    assert pc.sum(read["BilledCost"]).as_py() == Decimal(COST.cents) / 100


def test_csv_has_the_same_sum_and_times_as_focus_writes_them() -> None:
    read = list(csv.DictReader(io.StringIO(focus_csv(rows()).decode())))

    assert sum(Decimal(row["BilledCost"]) for row in read) == Decimal(COST.cents) / 100
    assert {row["BillingPeriodStart"] for row in read} == {"2026-06-01T00:00:00Z"}
    assert {row["ChargeClass"] for row in read} == {""}
    assert {row["ConsumedQuantity"] for row in read if row["x_Service"] == "gpu"} == {"2880.000000"}


def test_a_name_that_a_spreadsheet_would_run_is_defused() -> None:
    read = list(csv.DictReader(io.StringIO(focus_csv(rows("=cmd()")).decode())))

    assert {row["SubAccountId"] for row in read} == {"'=cmd()", ""}


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("BilledCost", None, "row 1: BilledCost is null; expected a value"),
        ("ChargeCategory", "Bill", "row 1: ChargeCategory is 'Bill'; expected one of"),
        ("BillingPeriodEnd", datetime(2026, 6, 1, tzinfo=UTC), "row 1: BillingPeriodEnd is not after"),
        ("y_Own", "1", "row 1: column y_Own is not of FOCUS, nor one of ours"),
        ("ContractedCost", Decimal("0.01"), "row 1: ContractedCost of a credit differs"),
        ("PricingQuantity", Decimal(1), "row 1: PricingQuantity is 1; expected one with a SkuPriceId, for usage alone"),
    ],
)
def test_each_fault_is_told(name: str, value: FocusValue, fault: str) -> None:
    credit = next(row for row in rows() if row["ChargeCategory"] == "Credit")

    assert any(each.startswith(fault) for each in focus_faults([with_value(credit, name, value)]))


def test_all_faults_of_all_rows_are_told_at_once() -> None:
    wrong = [with_value(row, "BilledCost", None) for row in rows()]
    del wrong[0]["ServiceName"]

    with pytest.raises(ValueError, match=r"row 1: no column ServiceName.*row 2: BilledCost is null"):
        focus_csv(wrong)
    with pytest.raises(ValueError, match="row 2: BilledCost is null"):
        focus_table(wrong)
