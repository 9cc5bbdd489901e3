"""What a run over some hours of the lake covers, and how it parts and sums what it found."""

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import dagster as dg

from ops_pipelines.assets.partitions import HOURS
from ops_pipelines.assets.tables import table
from ops_pipelines.core.cluster import HOUR, Observatory
from ops_pipelines.core.lake import Lake, Rows
from ops_pipelines.observe.hours import Filled

# `backfill_policy` is beta in Dagster 1.13, and what it says is pinned by our tests and by the pinned version.
warnings.filterwarnings("ignore", message=r".*`backfill_policy`.*", category=dg.BetaWarning)

ONE_RUN = dg.BackfillPolicy.single_run()
"""A long stretch is one run: the sources are asked in stretches of their own, and a process starts once."""
LAKE_IO = "lake_io_manager"
POOL = "lake"
"""One run at a time fills the lake (dagster.yaml), those that a person starts in the UI included: it is heavy, and must
leave room for runs that act."""


def covered(context: dg.AssetExecutionContext) -> tuple[datetime, datetime]:
    """Return the beginning and the end of the hours that a run covers."""
    window = context.partition_time_window
    return window.start.astimezone(UTC), window.end.astimezone(UTC)


def by_partition(context: dg.AssetExecutionContext, rows: Rows | None) -> Mapping[str, Rows]:
    """Return the rows of a stretch, parted into the partitions of the run; hours without rows are left out."""
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
