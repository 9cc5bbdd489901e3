"""Energy by who caused it: measured where there is a reading, reported where there is none."""

from collections.abc import Mapping

import pyarrow as pa
import pytest

from ops_pipelines.core.money import Cents
from ops_pipelines.costs.gather_usage import Energy, read_energy
from ops_pipelines.costs.statement import Service, make_statement
from ops_pipelines.costs.usage import Fate
from ops_pipelines.costs.usage_ledger import UsageLedger, read_usage
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.teams.price import AssetPrice, Installed, PricedBy, PriceModel, asset_cost
from tests.frames.usage.usage_facts import at, attempt, between, held, node

HOUR = 3600
PART = between(8, 10)
PRICES = PriceModel(
    currency="EUR",
    assets=(AssetPrice(asset="hgx-h100", priced_by=PricedBy.NODE, capex_cents=Cents(0), amortized_months=48),),
    cents_per_kwh=1_000,
    pue=1,
    unmeasured_watts_per_gpu=1_000,
)


def ledger() -> UsageLedger:
    """A job has half of a node for two hours."""
    return read_usage(PART, nodes=[node()], states=[], allocations=held([attempt("1", 8, 10, gpus=4)]))


def measured(watts: Mapping[tuple[str, float], float | None]) -> pa.Table:
    """Mean power by job and hour."""
    return TABLES["gpu_efficiency"].from_rows(
        [{"node": "gpu001", "job": job, "time": at(hour), "power_watts": power} for (job, hour), power in watts.items()]
    )


def by_fate(energy: Energy) -> tuple[dict[Fate, int], dict[Fate, int]]:
    return (
        {bearer.fate: joules for (bearer, _), joules in energy.joules.items()},
        {bearer.fate: seconds for (bearer, _), seconds in energy.unmeasured_gpu_seconds.items()},
    )


def test_energy_is_mean_power_times_the_seconds_that_were_had() -> None:
    found = read_energy(ledger().lines, measured({("1", 8): 500.0, ("1", 9): 300.0, ("", 8): 100.0, ("", 9): 50.0}))

    assert by_fate(found) == (
        {Fate.ALLOCATED: 4 * HOUR * 800, Fate.IDLE: 4 * HOUR * 150},
        {},
    )


@pytest.mark.parametrize("power", [None, float("nan"), float("inf"), -1.0])
def test_a_reading_that_cannot_be_is_none(power: float | None) -> None:
    found = read_energy(ledger().lines, measured({("1", 8): power, ("1", 9): 0.0}))

    assert by_fate(found) == ({Fate.ALLOCATED: 0}, {Fate.ALLOCATED: 4 * HOUR, Fate.IDLE: 8 * HOUR})


def test_measured_and_estimated_energy_are_paid_by_who_caused_them() -> None:
    found = ledger()
    energy = read_energy(found.lines, measured({("1", 8): 500.0, ("1", 9): 500.0}))
    installed = Installed(
        assets=found.installed,
        joules=sum(energy.joules.values()),
        unmeasured_gpu_seconds=sum(energy.unmeasured_gpu_seconds.values()),
    )

    cost = asset_cost(PART, installed, PRICES)
    held = {
        each: energy.joules.get(each, 0) + energy.unmeasured_gpu_seconds.get(each, 0) * 1_000
        for each in {*energy.joules, *energy.unmeasured_gpu_seconds}
    }
    statement = make_statement(cost, found.summed(), joules=held)

    paid = {line.bearer.fate: line.cents for line in statement.lines if line.service is Service.ENERGY}
    assert paid == {Fate.ALLOCATED: 4_000, Fate.IDLE: 8_000}  # 4 kWh measured, 8 kWh assumed, at 10.00
    assert statement.residual_cents == 0
