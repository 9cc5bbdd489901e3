"""A small cluster with prices, agreements and a lake of rows, on which hours are counted and charged by hand.

Three nodes with eight GPUs each. Times are hours of UTC since the begin of the month, by the clock of the zone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, cast
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.cluster import HOUR
from ops_pipelines.core.entries import Entry
from ops_pipelines.core.identity import IncidentId, NodeName, RolloutId
from ops_pipelines.core.money import Cents
from ops_pipelines.core.periods import CostMonth
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.core.rollout import Rollout, RolloutNode
from ops_pipelines.costs.usage import cost_month
from ops_pipelines.lake.accounting import allocations_of
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.price import AssetPrice, InstalledNode, PricedBy, PriceModel
from ops_pipelines.teams.projects import Project
from tests.flow.review_stage import LakeOfRows, LedgerOfValues, stage

H100 = GpuType("h100")
NODES = ("gpu001", "gpu002", "gpu003")
GPUS = 24
ALPHA, BETA, LAB = TeamName("alpha"), TeamName("beta"), TeamName("lab")
PRICES = PriceModel(
    currency="EUR",
    assets=(
        AssetPrice(
            asset="hgx-h100",
            priced_by=PricedBy.NODE,
            capex_cents=Cents(28_000_003),
            amortized_months=48,
            support_cents_per_month=20_001,
        ),
    ),
    cents_per_kwh=Fraction("11.5"),
    pue=Fraction("1.3"),
    network_cents_per_month=77_777,
    space_cents_per_month=33_333,
    unmeasured_watts_per_gpu=1000,
)
AGREEMENTS = Agreements(
    parents={LAB: None, ALPHA: LAB, BETA: LAB},
    projects=(Project(name="vision", team=BETA, gpus=8, begins_on=datetime(2026, 1, 1).date(), gpu_type=H100),),
    monthly_budget_cents={ALPHA: 100_000, LAB: 50_000_000},
    timezone="Europe/Berlin",
)


class RowsLake(LakeOfRows):
    """A lake that holds given rows in memory, and is read in stretches of any length."""

    def read(self, table: str, *, start: datetime, end: datetime, columns: Sequence[str] | None = None) -> pa.Table:
        whole = pa.concat_tables(
            [TABLES[table].from_rows(()), *(rows for (name, _), rows in self._hours.items() if name == table)]
        )
        found = whole.filter(pc.and_(pc.greater_equal(whole["time"], start), pc.less(whole["time"], end)))
        return found if columns is None else found.select(list(columns))


@dataclass(kw_only=True)
class CostLedger(LedgerOfValues):
    """What a charge reads of a ledger, on values."""

    begun_rollouts: tuple[Rollout, ...] = ()
    nodes_of: Mapping[str, Sequence[RolloutNode]] = field(default_factory=dict)
    acts_on: Mapping[tuple[str, str], Sequence[ActionRecord]] = field(default_factory=dict)
    told: Mapping[str, Sequence[Entry]] = field(default_factory=dict)

    def rollouts(self, *, final_since: datetime | None) -> tuple[Rollout, ...]:
        return self.begun_rollouts

    def rollout_nodes(self, rollout: RolloutId) -> tuple[RolloutNode, ...]:
        return tuple(self.nodes_of.get(rollout, ()))

    def records_on(self, cause: IncidentId, node: NodeName) -> tuple[ActionRecord, ...]:
        return tuple(self.acts_on.get((cause, node), ()))

    def entries_about(self, incident: IncidentId) -> tuple[Entry, ...]:
        return tuple(self.told.get(incident, ()))


@dataclass(kw_only=True)
class Stage:
    """One month on three nodes; rows are added, then a desk is made."""

    month: CostMonth
    ledger: CostLedger = field(default_factory=CostLedger)
    agreements: Agreements | None = AGREEMENTS
    prices: PriceModel | None = PRICES
    tables: dict[str, list[Mapping[str, object]]] = field(default_factory=dict)

    def at(self, hour: float) -> datetime:
        return self.month.begins_at + timedelta(seconds=round(hour * 3600))

    def ran(
        self, job: str, since: float, until: float | None, *, gpus: int = 8, nodes: str = "gpu001",
        account: str | None = "alpha", through: float = 48, state: str = "COMPLETED",
    ) -> None:  # fmt: skip
        """An attempt, in accounting and in its hours of allocations; without an end it is claimed `through` an hour."""
        row = {
            "job": job, "attempt": f"{self.at(since):%Y-%m-%dT%H:%M:%S}", "account": account, "gpu_count": gpus,
            "started_at": self.at(since), "ended_at": None if until is None else self.at(until), "nodes": nodes,
            "time": self.at(since if until is None else until).replace(minute=0, second=0), "state": state,
        }  # fmt: skip
        self.tables.setdefault("job_accounting", []).append(row)
        table = TABLES["job_accounting"].from_rows([row])
        start = self.at(since).replace(minute=0, second=0)
        held = allocations_of(table, start=start, end=self.at(through if until is None else until))
        self.tables.setdefault("job_allocations", []).extend(held.to_pylist())

    def measured(self, node: str, job: str, hour: float, *, watts: float | None, utilisation: float | None) -> None:
        self.tables.setdefault("gpu_efficiency", []).append(
            {"node": node, "job": job, "time": self.at(hour), "power_watts": watts, "utilisation_ratio": utilisation}
        )

    def listed(self, hours: range, *, out: Mapping[str, str] | None = None) -> None:
        """What the scheduler says of each node in these hours."""
        self.tables.setdefault("inventory", []).extend(
            {"node": node, "device": "", "kind": "node", "time": self.at(hour), "state": (out or {}).get(node, "IDLE")}
            for hour in hours
            for node in NODES
        )

    def desk(self, *, now: datetime, **changes: Any) -> TeamsDesk:
        cluster, observatory = stage(RowsLake(**self.tables), self.ledger, now=now)
        desk = TeamsDesk(
            cluster=replace(cluster, ledger=cast("Any", self.ledger)),
            observatory=observatory,
            agreements=self.agreements,
            prices=self.prices,
            installed=tuple(
                InstalledNode(
                    node=NodeName(name), asset="hgx-h100", gpu_type=H100, gpu_count=8,
                    since=self.month.begins_at - 40 * 24 * HOUR, until=None,
                )
                for name in NODES
            ),
        )  # fmt: skip
        return replace(desk, **changes)


def berlin(year: int, month: int) -> CostMonth:
    return cost_month(year, month, zone=ZoneInfo("Europe/Berlin"))
