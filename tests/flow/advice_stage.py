"""A small cluster with some weeks of lake: jobs that wait for input, allocations that idle, and some that are well."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.periods import parse_week
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.teams.desk import AdviceSettings, TeamsDesk
from tests.flow.review_stage import LakeOfRows, LedgerOfValues, stage

WEEK = parse_week("2026-W45")
HOUR = timedelta(hours=1)


@dataclass
class Hands:
    """A clock that is set by hand."""

    time: datetime

    def now(self) -> datetime:
        return self.time


class MemoryLake:
    """A lake of whole hours in memory."""

    def __init__(self) -> None:
        self._rows: dict[str, list[pa.Table]] = {}

    def add(self, table: str, rows: pa.Table) -> None:
        self._rows.setdefault(table, []).append(rows)

    def read(self, table: str, *, start: datetime, end: datetime, columns: Sequence[str] | None = None) -> pa.Table:
        whole = pa.concat_tables([TABLES[table].from_rows(()), *self._rows.get(table, ())])
        time = whole["time"]
        found = whole.filter(pc.and_(pc.greater_equal(time, pa.scalar(start)), pc.less(time, pa.scalar(end))))
        return found if columns is None else found.select(list(columns))

    def read_hour(self, table: str, hour: datetime) -> pa.Table:
        return self.read(table, start=hour, end=hour + HOUR)

    def replace_hour(self, table: str, hour: datetime, rows: pa.Table) -> pa.Table:
        whole = [each.filter(pc.not_equal(each["time"], pa.scalar(hour))) for each in self._rows.get(table, ())]
        self._rows[table] = [*whole, rows]
        return rows


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job that holds one node for some hours, each of which is seen the same way."""

    job: str
    name: str
    verdict: str
    node: str = "gpu001"
    user: str = "ada"
    account: str = "vision"
    begins: datetime = WEEK.start
    hours: int = 60
    rule: str = "rule"
    utilisation: float = 0.4
    gpu_count: int = 8


@dataclass
class AdviceStage:
    """A lake in memory, a ledger with its outbox, and a desk on them."""

    directory: Path
    clock: Hands = field(default_factory=lambda: Hands(WEEK.end + 7 * HOUR))

    def __post_init__(self) -> None:
        self.ledger = SqlLedger(f"sqlite:///{self.directory / 'ledger.sqlite'}")
        self.lake: Any = MemoryLake()

    def desk(
        self, *, advice: AdviceSettings | None = None, read_listing: Callable[[], bytes] | None = None
    ) -> TeamsDesk:
        cluster, observatory = stage(LakeOfRows(), LedgerOfValues(), now=self.clock.now())
        clock = cast("Any", self.clock)
        return TeamsDesk(
            cluster=replace(cluster, ledger=self.ledger, outbox=self.ledger, clock=clock),
            observatory=replace(observatory, lake=cast("Any", self.lake), clock=clock),
            agreements=None,
            advice=advice or AdviceSettings(),
            read_listing=read_listing,
        )

    def run(self, *jobs: Job) -> None:
        """Put the hours of these jobs into the lake."""
        held, seen = [], []
        for job in jobs:
            for number in range(job.hours):
                at = job.begins + number * HOUR
                held.append(
                    {
                        "job": job.job,
                        "attempt": job.begins.isoformat(),
                        "node": job.node,
                        "time": at,
                        "name": job.name,
                        "user": job.user,
                        "account": job.account,
                        "partition": "batch",
                        "started_at": job.begins,
                        "held_seconds": 3600.0,
                        "node_count": 1,
                        "gpu_count": float(job.gpu_count),
                        "source": "test",
                    }
                )
                seen.append(
                    {
                        "node": job.node,
                        "job": job.job,
                        "time": at,
                        "verdict": job.verdict,
                        "rule": job.rule,
                        "gpu_count": float(job.gpu_count),
                        "held_seconds": 3600.0,
                        "utilisation_ratio": job.utilisation,
                    }
                )
        self.lake.add("job_allocations", TABLES["job_allocations"].from_rows(held))
        self.lake.add("gpu_efficiency", TABLES["gpu_efficiency"].from_rows(seen))

    def add(self, table: str, rows: Sequence[dict[str, object]]) -> None:
        self.lake.add(table, TABLES[table].from_rows(rows))


def at(day: int, hour: int = 0, minute: int = 0) -> datetime:
    """Return a time of November 2026; the week begins on the 2nd."""
    return datetime(2026, 11, day, hour, minute, tzinfo=UTC)
