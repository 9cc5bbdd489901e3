"""Rows from the lake and the scheduler -> one table of attempts; and how large a team's jobs are.

The lake tells of attempts when they end. Who runs and who waits now, the scheduler says. Where both tell of one
attempt, `attempts` takes it once.

A single large job is no habit: a size counts if it is seen on enough days.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.core.sources import AccountingPage
from ops_pipelines.lake.accounting import read_waiting
from ops_pipelines.lake.formats import sacct
from ops_pipelines.lake.quantities import Parsed, Refused
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.quotas.wanted.held import UNTOLD, GpuTypes
from ops_pipelines.quotas.wanted.hourly import HOUR, NUMBERS, SCHEMA

# -- rows from the lake and from the scheduler's mouth -> one table of attempts --


ACCOUNTING_COLUMNS = (
    "job", "attempt", "time", "cluster", "account", "partition", "state", "reason", "submitted_at", "eligible_at",
    "started_at", "ended_at", "gpu_count", "nodes",
)  # fmt: skip
ALLOCATION_COLUMNS = (
    "job", "attempt", "node", "time", "account", "partition", "state", "started_at", "ended_at", "gpu_count",
)  # fmt: skip
EFFICIENCY_COLUMNS = ("node", "job", "time", "verdict", "rule", "account", "gpu_count", "held_seconds")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Told:
    """What the scheduler says now."""

    rows: pa.Table
    """Rows of `job_accounting`."""
    refused: tuple[Refused, ...]
    """Jobs that wait and could not be read. Attempts that could not are refused where the lake is filled with them."""


def read_told(running: Sequence[AccountingPage], waiting: Sequence[AccountingPage]) -> Told:
    """Return the attempts of pages that tell who runs, and the jobs of those that tell who waits."""
    parts: list[Parsed] = [
        *(sacct.parse(page.body, source=page.source, at=page.start) for page in running),
        *(read_waiting(page.body, source=page.source, at=page.start) for page in waiting),
    ]
    tables = [part.tables["job_accounting"] for part in parts if "job_accounting" in part.tables]
    told = [each for part in parts[len(running) :] for each in part.refused]
    rows = [each.select(ACCOUNTING_COLUMNS) for each in tables]
    return Told(rows=pa.concat_tables(rows) if rows else _none(), refused=tuple(told))


def nothing_told() -> Told:
    """Return what is known where nobody was asked."""
    return Told(rows=_none(), refused=())


def join_told(lake: pa.Table, told: Told) -> pa.Table:
    """Return the lake's rows of accounting with what the scheduler says now."""
    return pa.concat_tables([lake.select(ACCOUNTING_COLUMNS).cast(told.rows.schema), told.rows])


def settle_rows(
    demand: pa.Table, *, begin: int, count: int, teams: Collection[TeamName], kinds: Collection[GpuType]
) -> pa.Table:
    """Return the demand of `count` hours from `begin` (microseconds), with the rows that an hour should have.

    Each of the teams has a row for each type in each hour, so that an hour that was computed is told from one that was
    not; who else ran and wanted nothing in an hour has none. So an hour is the same whichever others are computed with
    it.
    """
    is_declared = pc.and_(
        pc.is_in(demand["team"], value_set=pa.array(sorted(teams), pa.string())),
        pc.is_in(demand["gpu_type"], value_set=pa.array(sorted(kinds), pa.string())),
    )
    is_empty = np.ones(demand.num_rows, np.bool_)
    for name in NUMBERS:
        is_empty &= demand[name].to_numpy() == 0.0
    kept = demand.filter(pc.or_(is_declared, pa.array(~is_empty)))
    there = set(zip(demand["team"].to_pylist(), demand["gpu_type"].to_pylist(), strict=True))
    absent = [(team, kind) for team in sorted(teams) for kind in sorted(kinds) if (team, kind) not in there]
    times = begin + np.tile(np.arange(count), len(absent)) * HOUR
    added = pa.table(
        {
            "team": pa.array([team for team, _ in absent for _ in range(count)], pa.string()),
            "gpu_type": pa.array([kind for _, kind in absent for _ in range(count)], pa.string()),
            "time": pa.array(times, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            **{name: np.zeros(len(times)) for name in NUMBERS},
        },
        schema=SCHEMA,
    )
    order = [(name, "ascending") for name in ("team", "gpu_type", "time")]
    return pa.concat_tables([kept, added]).sort_by(order)


def active_teams(demand: pa.Table) -> frozenset[TeamName]:
    """Return the teams that ran or waited."""
    is_active = pc.greater(pc.add(demand["gpus_running_avg"], demand["gpus_pending_avg"]), 0.0)
    return frozenset(map(TeamName, pc.unique(demand.filter(is_active)["team"]).to_pylist()))


def _none() -> pa.Table:
    return TABLES["job_accounting"].from_rows(()).select(ACCOUNTING_COLUMNS)


# -- how large the jobs are that a team runs, or waits with, regularly --


COLUMNS = ("account", "gpu_count", "nodes", "started_at", "time")
REGULARLY_DAYS = 3
"""# Assumption: what was seen on three days of two weeks comes again."""
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSize:
    """One job that runs or waits now."""

    team: TeamName
    gpu_type: GpuType
    gpu_count: int
    day: date


def regular_sizes(
    ended: pa.Table, *, now: Iterable[JobSize] = (), types: GpuTypes
) -> Mapping[tuple[TeamName, GpuType], int]:
    """Return the GPUs of the largest job that each team has regularly. `ended`: COLUMNS of `job_accounting`."""
    seen: defaultdict[tuple[TeamName, GpuType, int], set[date]] = defaultdict(set)
    for account, gpus, nodes, day in _ended(ended):
        kind = types.only if types.only is not None else _most_of(types, nodes)
        seen[TeamName(account), kind, gpus].add(datetime.fromtimestamp(day * _DAY_SECONDS, UTC).date())
    for each in now:
        seen[each.team, each.gpu_type, each.gpu_count].add(each.day)
    largest: dict[tuple[TeamName, GpuType], int] = {}
    for (team, kind, gpus), days in seen.items():
        if len(days) >= REGULARLY_DAYS and gpus > 0:
            largest[team, kind] = max(largest.get((team, kind), 0), gpus)
    return largest


def _ended(rows: pa.Table) -> list[tuple[str, int, str, int]]:
    """Return each account, size, host list and day since 1970 of which there is an attempt that ran."""
    is_told = pc.and_(pc.is_valid(rows["started_at"]), pc.is_valid(rows["account"]))
    ran = rows.filter(pc.and_(is_told, pc.greater(rows["gpu_count"], 0)))
    if not ran.num_rows:
        return []
    micros = ran["time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    parts = pa.table(
        {
            "account": ran["account"],
            "gpu_count": ran["gpu_count"],
            "nodes": pc.fill_null(ran["nodes"], ""),
            "day": pc.divide(micros, 1_000_000 * _DAY_SECONDS),
        }
    )
    found = parts.group_by(parts.column_names).aggregate([])
    return list(zip(*(found[name].to_pylist() for name in parts.column_names), strict=True))


def _most_of(types: GpuTypes, host_list: str) -> GpuType:
    shares = types.of_nodes(host_list)
    return max(sorted(shares), key=lambda kind: shares[kind], default=UNTOLD)
