"""The lake of a drill: a simulated past written into it, and at the end a look at whether it was filled.

The past is weeks of demand for quotas, and a year of peaks for capacity; nothing of it ran anywhere. Only for the
demo's simulator and the lab's throw-away Slurm; hours and days that are in the lake already, computed from what ran
there, are left as they are. Peaks of days are counted from simulated hours as from any: by `capacity.peaks`.

The last look: hours of the lake are filled through the real UI's API, and every asset holds what it should. Judged on
the files of the lake and on Dagster's own records; never on what a run says of itself.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import groupby
from zoneinfo import ZoneInfo

from pyarrow import concat_tables

from ops_pipelines.capacity.past import TABLE as PEAKS
from ops_pipelines.capacity.peak_days import DayBook, put_gpus
from ops_pipelines.core.cluster import Observatory, hour_of
from ops_pipelines.core.periods import day_begins, first_hour
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.core.sources import Lake
from ops_pipelines.lake.hours import split_by_hour
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.quotas.gather_demand import TABLE
from ops_pipelines_lab.drills.dagster_api import ENDED, DagsterApi
from ops_pipelines_lab.drills.stack import DagsterStack
from ops_pipelines_lab.simulator.past_demand import (
    DEMO_PLAN,
    DEMO_YEAR,
    PastPlan,
    Row,
    YearPlan,
    past_demand,
    site_in,
    year_of_demand,
)

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


ASSETS = (
    *("gpu_telemetry", "node_telemetry", "fabric_telemetry", "storage_telemetry", "facility_telemetry"),
    *("application_telemetry", "platform_telemetry", "job_accounting", "job_allocations", "job_steps"),
    *("job_logs", "kernel_events", "inventory", "gpu_efficiency", "monitoring_coverage", "gpu_demand"),
)
_LIMIT_SECONDS = 900.0
"""Where the hour ends meanwhile, the run of its schedule comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFill:
    """What the lake holds after a fill."""

    row_counts: dict[str, int]
    """Table -> rows of the hours that were filled."""
    differences: tuple[str, ...]
    """What is not as it should be; empty if all is well."""

    def __str__(self) -> str:
        filled = [f"{name} {count}" for name, count in self.row_counts.items() if count]
        return f"lake: {', '.join(filled)}"


def fill_lake(
    stack: DagsterStack,
    observatory: Observatory,
    *,
    hour_count: int,
    may_be_empty: Sequence[str],
    pass_time: Callable[[float], None],
) -> LakeFill:
    """Fill the running hour and those before it, `hour_count` in all, and return what came of it."""
    hours = _hours(observatory, hour_count)
    api = DagsterApi(stack.url, token=stack.token)
    backfill = _launch(api, hours)
    differences = _await_runs(api, backfill, pass_time=pass_time)
    counts = {name: _count_rows(observatory, name, hours) for name in ASSETS}
    differences += [f"{name} is empty" for name, count in counts.items() if not count and name not in may_be_empty]
    differences += [f"{each} failed" for each in _failed_checks(api)]
    return LakeFill(row_counts=counts, differences=tuple(differences))


def start_fill(stack: DagsterStack, observatory: Observatory, *, hour_count: int) -> str:
    """Begin to fill the running hour and those before it, `hour_count` in all; return the back-fill's id at once."""
    return _launch(DagsterApi(stack.url, token=stack.token), _hours(observatory, hour_count))


def _hours(observatory: Observatory, count: int) -> list[datetime]:
    newest = hour_of(observatory.clock.now())
    return [newest - timedelta(hours=back) for back in reversed(range(count))]


def _launch(api: DagsterApi, hours: Sequence[datetime]) -> str:
    return api.launch_backfill(assets=ASSETS, partitions=[f"{hour:%Y-%m-%d-%H:%M}" for hour in hours])


def _await_runs(api: DagsterApi, backfill: str, *, pass_time: Callable[[float], None]) -> list[str]:
    until = time.monotonic() + _LIMIT_SECONDS
    while time.monotonic() < until:
        runs = api.runs_of(backfill)
        if runs and all(run.status in ENDED for run in runs):
            return [f"run {run.run_id} ended as {run.status}" for run in runs if run.status != "SUCCESS"]
        pass_time(0.5)
    return [f"back-fill {backfill} did not end within {_LIMIT_SECONDS:.0f} s"]


def _count_rows(observatory: Observatory, table: str, hours: Sequence[datetime]) -> int:
    return sum(observatory.lake.read_hour(table, hour).num_rows for hour in hours)


def _failed_checks(api: DagsterApi) -> list[str]:
    """Return the blocking checks that failed. Warnings are for people: a drill takes series away on purpose."""
    return [
        f"{asset}: {check}"
        for asset in ASSETS
        for check, state in api.check_states(asset).items()
        if state == "FAILED" and check.endswith("hard_gates")
    ]
