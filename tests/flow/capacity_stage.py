"""A cluster with a year of daily peaks behind it: two teams that grow, a file system that fills, and what is stated."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from ops_pipelines.capacity.model import Resource
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.resources.page_files import PlanDirectory
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.price import InstalledNode
from ops_pipelines.teams.projects import CapacityPolicy, CapacitySettings, LeadTime, Sku, StoreExpansion
from tests.flow.cost_stage import PRICES, CostLedger, RowsLake
from tests.flow.review_stage import stage

H100 = GpuType("h100")
FIRST = date(2025, 9, 1)
QUARTER = date(2026, 10, 1)
NODES = 40
GPUS = 8 * NODES
TIB = 2.0**40
Row = Mapping[str, object]

SKU = Sku(
    sku="hgx-h100",
    gpu_type=H100,
    gpus_per_node=8,
    node_cents=Cents(30_000_000),
    watts_per_node=10_000.0,
    nodes_per_rack=4,
    lead_time=LeadTime(median_days=84.0, p90_days=112.0),
    rack_days=7,
    burn_in_days=3,
)
SETTINGS = CapacitySettings(
    skus=(SKU,),
    expansions=(
        StoreExpansion(
            resource=Resource.STORAGE_BYTES.value, names=("lustre",), step=200 * TIB, step_cents=Cents(5_000_000),
            lead_time=LeadTime(median_days=30.0, p90_days=45.0), usable_ratio=0.85,
        ),
    ),
)  # fmt: skip
POLICY = CapacityPolicy(horizon_weeks=26)


def row(day: date, resource: Resource, peak: float, **changed: object) -> Row:
    return {
        "resource": resource.value, "gpu_type": "h100", "name": "", "zone": "UTC", "unit": "1", "hour_count": 24,
        "time": datetime(day.year, day.month, day.day, tzinfo=UTC), "peak": peak, "mean": 0.8 * peak,
        "near_peak_hours": 8.0, **changed,
    }  # fmt: skip


def rows_of(day: date) -> Iterable[Row]:
    """What a day says: demand that grows by a GPU in three days, falls at weekends and wavers a little."""
    number = (day - FIRST).days
    weekend = 0.7 if day.weekday() > 4 else 1.0
    waver = 6 * math.sin(number * 1.7) + 5 * math.sin(number * 0.61)
    research, product = (100 + 0.3 * number + waver) * weekend, (80 + 0.03 * number - waver) * weekend
    held = {"running_mean": 100.0, "idle_mean": 10.0}
    yield row(day, Resource.GPUS, research, name="research", waiting_mean=5.0, **held)
    yield row(day, Resource.GPUS, product, name="product", waiting_mean=0.0, **held)
    yield row(day, Resource.GPUS, 0.97 * (research + product), waiting_mean=5.0, **held)
    yield row(day, Resource.GPUS_OUT, 16.0, mean=6.0 + number % 5)
    yield row(day, Resource.GPUS_STRANDED, 8.0, mean=2.0)
    used = (500 + 0.5 * number) * TIB
    yield row(day, Resource.STORAGE_BYTES, used, gpu_type="", name="lustre", mean=used, limit=1000 * TIB, unit="B")


@dataclass(kw_only=True)
class CapacityStage:
    """A desk on a lake in memory; anyone who changes something makes another desk."""

    directory: Path
    until: date = QUARTER
    """The first day that is not known."""
    first: date = FIRST
    left_out: frozenset[date] = frozenset()
    ledger: CostLedger = field(default_factory=CostLedger)

    def desk(self, *, today: date | None = None, **changed: Any) -> TeamsDesk:
        days = [self.first + timedelta(days=number) for number in range((self.until - self.first).days)]
        lake = RowsLake(daily_peaks=[each for day in days if day not in self.left_out for each in rows_of(day)])
        now = today or self.until
        cluster, observatory = stage(lake, self.ledger, now=datetime(now.year, now.month, now.day, 6, tzinfo=UTC))
        desk = TeamsDesk(
            cluster=replace(cluster, ledger=cast("Any", self.ledger)),
            observatory=observatory,
            agreements=None,
            prices=PRICES,
            installed=tuple(node(number) for number in range(NODES)),
            capacity=SETTINGS,
            capacity_policy=POLICY,
            plan_files=PlanDirectory(self.directory / "capacity"),
        )
        return replace(desk, **changed)


def node(
    number: int, *, since: date = date(2025, 1, 1), until: date | None = None, gpu_type: GpuType = H100
) -> InstalledNode:
    return InstalledNode(
        node=NodeName(f"gpu{number:03}"),
        asset="hgx-h100",
        gpu_type=gpu_type,
        gpu_count=8,
        since=at(since),
        until=None if until is None else at(until),
    )


def at(day: date, hour: int = 0) -> datetime:
    return datetime(day.year, day.month, day.day, hour, tzinfo=UTC)
