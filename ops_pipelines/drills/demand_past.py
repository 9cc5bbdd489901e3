"""Writes a pretended past of demand into the lake of a drill, so that quotas have weeks to look back at.

PRETENDED: nothing of it ran anywhere. Only for the demo's simulator and the lab's throw-away Slurm; hours that are in
the lake already, computed from what ran there, are left as they are.
"""

from datetime import datetime, timedelta

from pyarrow import concat_tables

from ops_pipelines.flow.observatory import hour_of
from ops_pipelines.flow.quota.demand import TABLE
from ops_pipelines.frames.hours import split_by_hour
from ops_pipelines.frames.schema import TABLES
from ops_pipelines.ports.lake import Lake
from ops_pipelines.simulator.past_demand import DEMO_PLAN, PastPlan, past_demand

_WEEK = timedelta(days=7)


def pretend_past(lake: Lake, *, now: datetime, weeks: int = 3, seed: int = 7, plan: PastPlan = DEMO_PLAN) -> int:
    """Write the hours of so many weeks before the running one; return how many were written."""
    end = hour_of(now)
    known = lake.read(TABLE, start=end - weeks * _WEEK, end=end, columns=("time",))
    there = set(split_by_hour(known))
    rows = TABLES[TABLE].from_rows(past_demand(plan, end=end, weeks=weeks, seed=seed))
    unknown = {hour: part for hour, part in split_by_hour(rows).items() if hour not in there}
    if unknown:
        lake.add(TABLE, concat_tables(unknown.values()))  # at once: hours are written side by side
    return len(unknown)
