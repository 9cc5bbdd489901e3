"""Two racks of two nodes and rows of their lake, for tests of placement: a desk on values, and who does not answer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import cast

from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.core.scheduler import ALL_TYPES, AccountQuota, QuotasInForce, SettingsRead
from ops_pipelines.core.sources import AccountingPage, SourceUnavailable
from ops_pipelines.lake.accounting import allocations_of
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.teams.desk import TeamsDesk
from tests.flow.cost_stage import CostLedger, RowsLake
from tests.flow.review_stage import stage

DAY = datetime(2026, 11, 20, tzinfo=UTC)
END = DAY + timedelta(days=1)
NAMES = [f"{rack}{number}" for rack in "ab" for number in (1, 2)]
TOPOLOGY = Topology(
    places={NodeName(name): Place(rack=name[0], nvlink_domain=name, leaf_switch=f"leaf-{name[0]}") for name in NAMES},
    gpus_per_node=8,
)


def at(hours: float) -> datetime:
    return DAY + timedelta(hours=hours)


class Settings:
    def read(self) -> SettingsRead:
        return SettingsRead(cluster={"ClusterName": "lab", "PriorityType": "priority/basic"}, read_at=END)


class Silent:
    """Whatever is asked, it does not answer."""

    source = "silent"

    def read(self) -> SettingsRead:
        raise SourceUnavailable("slurmctld did not answer")

    def read_waiting(self, *, at: datetime) -> Iterator[AccountingPage]:
        raise SourceUnavailable("slurmctld did not answer")


@dataclass(frozen=True)
class Limits:
    vision: int

    def read(self) -> QuotasInForce:
        quota = AccountQuota(account=TeamName("vision"), parent=None, limits={ALL_TYPES: self.vision}, fairshare=1)
        return QuotasInForce(accounts={quota.account: quota}, read_at=END)


def attempt(job: str, begin: float, end: float | None, nodes: str, gpus: int, **cells: object) -> Mapping[str, object]:
    return {
        "job": job, "attempt": f"{at(begin):%Y-%m-%dT%H:%M:%S}", "name": "train", "user": "ada", "account": "vision",
        "partition": "batch", "state": "COMPLETED", "submitted_at": at(begin - 2), "eligible_at": at(begin - 2),
        "started_at": at(begin), "ended_at": None if end is None else at(end), "gpu_count": gpus,
        "node_count": 1 + nodes.count(","), "nodes": nodes, "time": at(begin).replace(minute=0, second=0), **cells,
    }  # fmt: skip


def desk_of(*attempts: Mapping[str, object], now: datetime = END, **tables: list[Mapping[str, object]]) -> TeamsDesk:
    held = allocations_of(TABLES["job_accounting"].from_rows(attempts), start=DAY, end=END).to_pylist()
    # Accounting lists attempts by the hour of their end.
    ended = [{**row, "time": row["ended_at"]} for row in attempts if row["ended_at"] is not None]
    lake = RowsLake(job_accounting=ended, job_allocations=held, **tables)
    cluster, observatory = stage(lake, CostLedger(), now=now)
    return TeamsDesk(
        cluster=replace(cluster, ledger=cast("object", CostLedger())),  # type: ignore[arg-type]  # what is read of it
        observatory=replace(observatory, topology=TOPOLOGY),
        agreements=None,
        settings=Settings(),
    )


GANG = attempt("2", 5, 9, "a2,b1", 16)
SMALL = attempt("1", 1, 20, "a1", 4)
