"""The newest hours of `gpu_efficiency` -> which running jobs have done nothing on any GPU, and since when."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta

import pyarrow as pa

_HOUR = timedelta(hours=1)


def idle_since(rows: pa.Table, *, jobs: frozenset[str], until: datetime) -> Mapping[str, tuple[datetime, float]]:
    """Return since which hour each of these jobs did nothing up to `until`, and on how many GPUs.

    Only hours in which every node of the job was seen idle as a whole count; an hour without a row ends the stretch.
    """
    by_hour: dict[str, dict[datetime, list[tuple[bool, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows.to_pylist():
        if row["job"] in jobs:
            is_idle = row["verdict"] == "idle" and row["rule"] != "half_idle"
            hour = row["time"].replace(minute=0, second=0, microsecond=0)
            by_hour[row["job"]][hour].append((is_idle, row["gpu_count"] or 0.0))
    found: dict[str, tuple[datetime, float]] = {}
    for job, hours in by_hour.items():
        begin = until
        while (seen := hours.get(begin - _HOUR)) and all(is_idle for is_idle, _ in seen):
            begin -= _HOUR
        if begin < until:
            found[job] = begin, sum(gpus for _, gpus in hours[until - _HOUR])
    return found
