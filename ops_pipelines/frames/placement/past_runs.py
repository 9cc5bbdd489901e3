"""What jobs needed before, and what they sent over the network: by user and name, and by job."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.domain.placement.consolidation import Alike
from ops_pipelines.domain.placement.straddling import Traffic
from ops_pipelines.frames.placement.recorded_times import number_of, rows_of, text_of

EFFICIENCY_COLUMNS = ("node", "job", "verdict", "held_seconds", "fabric_bytes_per_second")
_BOUND = "communication_bound"


def elapsed_of(accounting: pa.Table, *, until: datetime) -> Mapping[Alike, Sequence[float]]:
    """Return the run times of attempts that ended by themselves by `until`; others needed longer than they had."""
    ends = accounting["ended_at"]
    is_over = pc.and_(
        pc.less_equal(ends, pa.scalar(until, ends.type)),
        pc.and_(pc.equal(accounting["state"], "COMPLETED"), pc.is_valid(accounting["elapsed_seconds"])),
    )
    ended = accounting.filter(pc.fill_null(is_over, False))
    found: defaultdict[Alike, list[float]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    for row in rows_of(ended, ("job", "attempt", "user", "name", "elapsed_seconds")):
        key = text_of(row["job"]), text_of(row["attempt"])
        elapsed = number_of(row["elapsed_seconds"])
        if key not in seen and elapsed is not None and elapsed > 0 and row["user"] and row["name"]:
            seen.add(key)
            found[text_of(row["user"]), text_of(row["name"])].append(elapsed)
    return found


def traffic_of(efficiency: pa.Table) -> Mapping[str, Traffic]:
    """Return job -> its mean traffic by node, weighted by time; jobs of which nobody measured any are left out."""
    seconds: defaultdict[str, float] = defaultdict(float)
    carried: defaultdict[str, float] = defaultdict(float)
    bound: defaultdict[str, float] = defaultdict(float)
    for row in rows_of(efficiency, EFFICIENCY_COLUMNS):
        job, held = text_of(row["job"]), number_of(row["held_seconds"])
        rate = number_of(row["fabric_bytes_per_second"])
        if job and held and rate is not None and rate >= 0:
            seconds[job] += held
            carried[job] += rate * held
            bound[job] += held if row["verdict"] == _BOUND else 0.0
    return {
        job: Traffic(bytes_per_second=carried[job] / held, is_bound=bound[job] * 2 > held)
        for job, held in seconds.items()
    }
