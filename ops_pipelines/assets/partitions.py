"""Which hours, days, weeks, months and quarters the assets are made for. What is computed for one is the asset's own.

Assets are declared with partitions from `FIRST_HOUR` on, so that nothing is read while modules are imported; where the
environment names another first hour, `began_at` gives the partitions from there, when the definitions are built.
"""

import os
from collections.abc import Mapping
from datetime import date

import dagster as dg

from ops_pipelines.capacity.model import first_day_of, quarter_of

FIRST_HOUR_VARIABLE = "OPS_PIPELINES_FIRST_HOUR"
FIRST_HOUR = "2026-01-01-00:00"
"""The first hour that can be filled in again; earlier ones can still be added with `ops-pipelines ingest`."""


def first_hour() -> str:
    """Return the first hour that the environment names, else `FIRST_HOUR`."""
    return os.environ.get(FIRST_HOUR_VARIABLE, FIRST_HOUR)


def _partitions(first: str) -> tuple[dg.TimeWindowPartitionsDefinition, ...]:
    """Return the partitions from an hour on, in the order of the constants below."""
    day, month = first[:10], first[:7]
    return (
        dg.HourlyPartitionsDefinition(start_date=first, timezone="UTC", end_offset=1),
        dg.DailyPartitionsDefinition(start_date=day, timezone="UTC"),
        dg.DailyPartitionsDefinition(start_date=day, timezone="UTC", end_offset=2),
        dg.WeeklyPartitionsDefinition(start_date=day, day_offset=1, timezone="UTC"),
        dg.WeeklyPartitionsDefinition(start_date=day, day_offset=1, timezone="UTC", end_offset=1),
        dg.MonthlyPartitionsDefinition(start_date=month, fmt="%Y-%m", timezone="UTC", end_offset=2),
        dg.TimeWindowPartitionsDefinition(
            cron_schedule="0 0 1 1,4,7,10 *",
            start=first_day_of(quarter_of(date.fromisoformat(day))).isoformat(),
            fmt="%Y-%m-%d",
            timezone="UTC",
            end_offset=2,
        ),
    )


_FROM_FIRST_HOUR = _partitions(FIRST_HOUR)
HOURS, DAYS, LOCAL_DAYS, WEEKS, RUNNING_WEEKS, MONTHS, QUARTERS = _FROM_FIRST_HOUR
"""`HOURS`: the running one too: it can be looked at before it is over, and is filled whole when it is. `LOCAL_DAYS`, by
the cluster's zone: east of Greenwich a day begins before UTC's does, so tomorrow's is one of them. `RUNNING_WEEKS`: the
running one too, as far as it is over. `MONTHS`: by name; where each begins, the cluster's zone says. `QUARTERS`: by the
local day on which they begin. Of the last two one ahead: in the east it begins before UTC's."""


def began_at(first: str) -> Mapping[dg.PartitionsDefinition | None, dg.PartitionsDefinition]:
    """Return, for each definition of this module, the same from another first hour on."""
    return dict(zip(_FROM_FIRST_HOUR, _partitions(first), strict=True))
