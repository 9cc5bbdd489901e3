"""Hours, days, weeks, months and quarters of the assets: their partitions, what a run covers of them, what pages show.

Assets are declared with partitions from `FIRST_HOUR` on, so that nothing is read while modules are imported; where the
environment names another first hour, `began_at` gives the partitions from there, when the definitions are built. So is
the zone in which local days begin: it is read from two lines of YAML, and a file that is wrong or missing is no fault
here: who opens the cluster reports what is wrong with it, and until then schedules use UTC.
"""

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TypedDict
from zoneinfo import ZoneInfo

import dagster as dg

from ops_pipelines.capacity.model import first_day_of, quarter_of
from ops_pipelines.core.cluster import HOUR, Observatory
from ops_pipelines.core.sources import Lake, Rows
from ops_pipelines.observe.hours import Filled
from ops_pipelines.report.metadata import table

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


CLUSTER_VARIABLE = "OPS_PIPELINES_CLUSTER"


def zone_of_days() -> str:
    """Return the zone that the file of teams names, of the cluster that the environment or the directory names."""
    return zone_in(cluster_file())


def names_no_teams() -> bool:
    """Return whether that cluster names no file of teams; one that cannot be read is for its run to tell."""
    import yaml

    try:
        cluster = yaml.safe_load(cluster_file().read_text(encoding="utf-8"))
        return isinstance(cluster, dict) and cluster.get("teams") is None
    except (OSError, ValueError, yaml.YAMLError):
        return False


def cluster_file() -> Path:
    """Return the cluster file that the environment names, else cluster.yaml in the working directory."""
    return Path(os.environ.get(CLUSTER_VARIABLE, "cluster.yaml"))


def zone_in(named: Path) -> str:
    """Return the zone that teams.yaml of a cluster names; `UTC` where none is, or where it cannot be read."""
    import yaml

    try:
        cluster = yaml.safe_load(named.read_text(encoding="utf-8"))
        teams = yaml.safe_load((named.parent / str(cluster["teams"])).read_text(encoding="utf-8"))
        return str(ZoneInfo(str(teams["timezone"])))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
        return "UTC"


# `backfill_policy` is beta in Dagster 1.13, and what it says is pinned by our tests and by the pinned version.
warnings.filterwarnings("ignore", message=r".*`backfill_policy`.*", category=dg.BetaWarning)


ONE_RUN = dg.BackfillPolicy.single_run()
"""A long interval is one run: the sources are asked in intervals of their own, and a process starts once."""
LAKE_IO = "lake_io_manager"
POOL = "lake"
"""One run at a time fills the lake (dagster.yaml), those that a person starts in the UI included: it is heavy, and must
leave room for runs that act."""


class _InOneRun(TypedDict):
    backfill_policy: dg.BackfillPolicy
    pool: str


class _OfHours(_InOneRun):
    io_manager_key: str
    partitions_def: dg.PartitionsDefinition[str]


IN_ONE_RUN = _InOneRun(backfill_policy=ONE_RUN, pool=POOL)
"""How an asset is made that looks at hours of the lake."""
OF_HOURS = _OfHours(io_manager_key=LAKE_IO, partitions_def=HOURS, **IN_ONE_RUN)
"""How an asset is made that is hours of the lake."""


def covered(context: dg.AssetExecutionContext) -> tuple[datetime, datetime]:
    """Return the beginning and the end of the hours that a run covers."""
    window = context.partition_time_window
    return window.start.astimezone(UTC), window.end.astimezone(UTC)


def newest_day(context: dg.AssetExecutionContext) -> date:
    """Return the newest local day of a run: the partition carries its name."""
    end: datetime = context.partition_time_window.end.astimezone(UTC)
    return (end - timedelta(days=1)).date()


def by_partition(context: dg.AssetExecutionContext, rows: Rows | None) -> Mapping[str, Rows]:
    """Return the rows of an interval, parted into the partitions of the run; hours without rows are left out."""
    from ops_pipelines.lake.hours import split_by_hour

    if rows is None:
        return {}
    keys = set(context.partition_keys)
    parted = {key_of_hour(hour): part for hour, part in split_by_hour(rows).items()}
    return {key: part for key, part in parted.items() if key in keys}


def hour_before(key: str, *, found: Mapping[str, Rows], name: str, lake: Lake) -> Rows:
    """Return the rows of the hour before a partition, with what this run found for it and has not stored yet."""
    from ops_pipelines.lake.hours import merge

    hour = hour_of_key(key) - HOUR
    stored, fresh = lake.read_hour(name, hour), found.get(key_of_hour(hour))
    return stored if fresh is None else merge(name, (stored, fresh))


def keep_rejected(filled: Filled, observatory: Observatory, *, hours: Iterable[datetime]) -> None:
    """Keep what was not believed, and close its hours that are over: they have no asset of their own."""
    from ops_pipelines.lake.hours import split_by_hour

    rows = filled.tables.get("rejected_rows")
    rejected = {} if rows is None else split_by_hour(rows)
    lake = observatory.lake
    for hour in hours:
        if observatory.clock.now() < hour + HOUR:
            if hour in rejected:
                lake.add("rejected_rows", rejected[hour])
        elif hour in rejected or lake.read_hour("rejected_rows", hour).num_rows:
            lake.close_hour("rejected_rows", hour, filled=rejected.get(hour))


def tell(context: dg.AssetExecutionContext, filled: Filled) -> None:
    """Put the warnings of the sources and the sum of the rejections into the run's log."""
    for note in filled.notes:
        context.log.warning("source says: %s", note)
    for reason, how_many in filled.reasons.items():
        context.log.warning("rejected reason=%s count=%d", reason, how_many)


@dataclass(slots=True)
class Sums:
    """How many records the sources gave for the hours of a run, and what became of them."""

    read_count: int = 0
    accepted_count: int = 0
    ignored_count: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    notes: dict[str, None] = field(default_factory=dict)

    def add(self, filled: Filled) -> None:
        self.read_count += filled.read_count
        self.accepted_count += filled.accepted_count
        self.ignored_count += filled.ignored_count
        self.reasons.update(filled.reasons)
        self.notes |= dict.fromkeys(filled.notes)

    def metadata(self, *, of: str) -> dict[str, dg.MetadataValue]:
        """Return the sums for an asset's page. One reading may feed several assets: `of` says what was read."""
        counts = {
            "read": self.read_count,
            "accepted": self.accepted_count,
            "rejected": self.reasons.total(),
            "ignored": self.ignored_count,
        }
        shown = {f"records_of_{of}": table([counts])}
        if self.reasons:
            reasons = sorted(self.reasons.items())
            shown["rejected_by_reason"] = table({"reason": reason, "records": number} for reason, number in reasons)
        if self.notes:
            shown["sources_say"] = table({"warning": note} for note in self.notes)
        return shown


def key_of_hour(hour: datetime) -> str:
    """Return the partition key of an hour."""
    return hour.strftime(HOURS.fmt)


def hour_of_key(key: str) -> datetime:
    """Return the hour that a partition key names."""
    return datetime.strptime(key, HOURS.fmt).replace(tzinfo=UTC)


def describe_hours(
    name: str, hours: Mapping[datetime, Rows], counts: Mapping[datetime, int]
) -> Mapping[str, dg.MetadataValue]:
    """Return a picture, small enough to open at once, and the rows; of many hours, those with equally many together."""
    from ops_pipelines.report.pictures.hours import DRAWINGS, picture_of_hours

    shown: dict[str, dg.MetadataValue] = {}
    if name in DRAWINGS:
        shown["picture"] = dg.MetadataValue.md(picture_of_hours(name, hours))
    shown["row_count"] = dg.MetadataValue.int(sum(counts.values()))
    if len(counts) > 1:
        shown["hour_count"] = dg.MetadataValue.int(len(counts))
        shown["rows_by_hour"] = table(_alike(dict(sorted(counts.items()))))
    return shown


def _alike(counts: Mapping[datetime, int]) -> Iterator[Mapping[str, object]]:
    """Yield intervals of hours in a row that have equally many rows."""
    stretches: list[list[datetime]] = []
    for hour, number in counts.items():
        previous = stretches[-1][-1] if stretches else None
        if previous is not None and hour - previous == timedelta(hours=1) and counts[previous] == number:
            stretches[-1].append(hour)
        else:
            stretches.append([hour])
    for stretch in stretches:
        yield {
            "from": f"{stretch[0]:%Y-%m-%d %H:%M}",
            "to": f"{stretch[-1] + timedelta(hours=1):%Y-%m-%d %H:%M}",
            "hours": len(stretch),
            "rows_an_hour": counts[stretch[0]],
        }
