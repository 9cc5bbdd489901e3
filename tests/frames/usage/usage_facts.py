"""Rows of job_allocations and a register of assets, for tests of usage."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.periods import BilledPart, CostMonth
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.costs.states import Condition, NodeState
from ops_pipelines.costs.usage import Fate
from ops_pipelines.costs.usage_ledger import UsageLedger
from ops_pipelines.lake.accounting import allocations_of
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.teams.price import InstalledNode

H100 = GpuType("h100")
MAY = CostMonth(
    year=2026, month=5, begins_at=datetime(2026, 5, 1, tzinfo=UTC), ends_at=datetime(2026, 6, 1, tzinfo=UTC)
)
DAY = timedelta(days=1)


def at(hour: float, *, day: int = 10) -> datetime:
    """A time in May, by the hour of a day."""
    return datetime(2026, 5, day, tzinfo=UTC) + timedelta(seconds=round(hour * 3600))


def between(since: float, until: float) -> BilledPart:
    return BilledPart(month=MAY, since=at(since), until=at(until))


def node(
    name: str = "gpu001", *, gpus: int = 8, since: datetime = MAY.begins_at - DAY, until: datetime | None = None
) -> InstalledNode:
    return InstalledNode(node=NodeName(name), asset="hgx-h100", gpu_type=H100, gpu_count=gpus, since=since, until=until)


def state(
    condition: Condition,
    since: float,
    until: float | None,
    *,
    name: str = "gpu001",
    cause: str = "",
    gpus: int | None = None,
) -> NodeState:
    ends_at = None if until is None else at(until)
    return NodeState(
        node=NodeName(name), condition=condition, since=at(since), until=ends_at, cause=cause, gpu_count=gpus
    )


def attempt(
    job: str,
    since: float,
    until: float | None,
    *,
    gpus: float | None = 8,
    nodes: str = "gpu001",
    account: str | None = "ml",
) -> Mapping[str, object]:
    """A row of job_accounting, as the lake has it."""
    return {
        "job": job,
        "attempt": f"{at(since):%Y-%m-%dT%H:%M:%S}",
        "time": at(since),
        "account": account,
        "started_at": at(since),
        "ended_at": None if until is None else at(until),
        "gpu_count": None if gpus is None else round(gpus),
        "nodes": nodes,
        "source": "sacct",
    }


def held(attempts: Iterable[Mapping[str, object]], *, since: float = 0, until: float = 24) -> pa.Table:
    """The rows of job_allocations of attempts, as the lake makes them."""
    return allocations_of(TABLES["job_accounting"].from_rows(attempts), start=at(since), end=at(until))


def by_fate(ledger: UsageLedger) -> dict[str, int]:
    """GPU-seconds of each fate, and of each job under its name."""
    found: dict[str, int] = {}
    for line in ledger.lines:
        name = line.job if line.fate is Fate.ALLOCATED else line.fate.value
        found[name] = found.get(name, 0) + line.gpu_seconds
    return found
