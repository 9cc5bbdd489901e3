"""How large the jobs are that a team runs, or waits with, regularly: rows of accounting -> GPUs by team and type.

A single large job is no habit: a size counts if it is seen on enough days.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.frames.demand.gpu_types import UNTOLD, GpuTypes

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
