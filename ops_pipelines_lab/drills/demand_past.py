"""Writes a pretended past into the lake of a drill: weeks of demand for quotas, and a year of peaks for capacity.

PRETENDED: nothing of it ran anywhere. Only for the demo's simulator and the lab's throw-away Slurm; hours and days that
are in the lake already, computed from what ran there, are left as they are. Peaks of days are counted from pretended
hours as from any: by `capacity.peaks`.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from itertools import groupby
from zoneinfo import ZoneInfo

from pyarrow import concat_tables

from ops_pipelines.capacity.past import TABLE as PEAKS
from ops_pipelines.capacity.peak_days import DayBook, put_gpus
from ops_pipelines.core.cluster import hour_of
from ops_pipelines.core.lake import Lake
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.lake.hours import split_by_hour
from ops_pipelines.lake.local_days import day_begins, first_hour
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.quotas.gather_demand import TABLE
from ops_pipelines_lab.simulator.past_demand import DEMO_PLAN, PastPlan, Row, past_demand
from ops_pipelines_lab.simulator.past_year import DEMO_YEAR, YearPlan, site_in, year_of_demand

_WEEK = timedelta(days=7)
_DAY = timedelta(days=1)


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


def pretend_year(
    lake: Lake,
    *,
    now: datetime,
    weeks: int = 3,
    seed: int = 7,
    plan: PastPlan = DEMO_PLAN,
    year: YearPlan = DEMO_YEAR,
) -> int:
    """Write the peaks of the whole local days of the year before the running one; return how many days were written.

    The days are of the plan's zone. `weeks`, `seed` and `plan` as for `pretend_past`: its hours are the last of these.
    """
    end = hour_of(now)
    known = lake.read(PEAKS, start=end - (year.day_count + 2) * _DAY, end=end + _DAY, columns=("time",))
    there = set(split_by_hour(known))
    rows = [
        row
        for day, hours in _whole_days(plan, year, end=end, weeks=weeks, seed=seed)
        if hour_of(day_begins(day, zone=plan.zone)) not in there
        for row in _peaks_of(day, hours, plan=plan, year=year, end=end, seed=seed)
    ]
    if rows:
        lake.add(PEAKS, TABLES[PEAKS].from_rows(rows))
    return len({row["time"] for row in rows})


def _whole_days(
    plan: PastPlan, year: YearPlan, *, end: datetime, weeks: int, seed: int
) -> Iterator[tuple[date, list[Row]]]:
    """Yield local days and their rows of demand; the first and the running day are not whole and are left out."""
    demand = year_of_demand(plan, year, end=end, weeks=weeks, seed=seed)
    first, last = ((at.astimezone(plan.zone)).date() for at in (end - timedelta(days=year.day_count), end))
    for day, hours in groupby(demand, key=lambda row: _day_of(row, plan.zone)):
        if first < day < last:
            yield day, list(hours)


def _day_of(row: Row, zone: ZoneInfo) -> date:
    return _time(row).astimezone(zone).date()


def _time(row: Row) -> datetime:
    at = row["time"]
    assert isinstance(at, datetime)  # as `past_demand` writes it
    return at


def _peaks_of(
    day: date, hours: list[Row], *, plan: PastPlan, year: YearPlan, end: datetime, seed: int
) -> list[dict[str, object]]:
    """Return the rows of `daily_peaks` of one day, counted as the asset counts them."""
    start, until = (first_hour(each, zone=plan.zone) for each in (day, day + _DAY))
    book = DayBook(day=day, start=start, end=until, begins_at=day_begins(day, zone=plan.zone), zone=plan.zone.key)
    put_gpus(book, TABLES[TABLE].from_rows(hours), caps={})
    ran: defaultdict[datetime, float] = defaultdict(float)
    for row in hours:
        running = row["gpus_running_avg"]
        assert isinstance(running, float)
        ran[_time(row)] += running
    for place, hour in enumerate(book.hours):
        site = site_in(hour, year=year, running_gpus=ran[hour], end=end, seed=seed)
        for resource, values in site.values.items():
            gpu_type = GpuType(plan.gpu_type if resource.value.startswith("gpus") else "")
            book.put(resource, values, hour=place, gpu_type=gpu_type)
            if place == 0:  # What holds a thing does not change within the day.
                book.limit(resource, site.limits.get(resource, {}), gpu_type=gpu_type)
    return book.close()
