"""`gpu_demand` from the lake and the scheduler, and back: by which rules demand is counted.

Gathers; what counts is `quotas.wanted`'s to say. An hour can be computed at its end, or again later: whatever ended
since then is in the lake by then, and anyone who runs or waits still is asked for.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING

from ops_pipelines.core.cluster import HOUR, Observatory, hour_of
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.core.sources import Rows
from ops_pipelines.quotas.demand import DemandDay
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.desk import TeamsDesk

# -- by what demand is counted --


if TYPE_CHECKING:
    from ops_pipelines.quotas.hourly import DemandRules

_AT_ONCE = timedelta(days=7)
"""Bounds memory."""
_NO_TYPE = GpuType("")


def stretches_of(
    desk: TeamsDesk, *, start: datetime, end: datetime
) -> Iterator[tuple[datetime, datetime, "DemandRules"]]:
    """Yield intervals of whole hours for which the same was agreed and installed, none too long."""
    hours = [start + number * HOUR for number in range((end - start) // HOUR)]
    for (caps, installed), same in groupby(hours, key=lambda hour: (_caps(desk, hour), installed_at(desk, hour))):
        some = list(same)
        step = _AT_ONCE // HOUR
        for first in range(0, len(some), step):
            part = some[first : first + step]
            yield part[0], part[-1] + HOUR, _rules(desk, caps=dict(caps), installed=dict(installed), at=part[-1])


def _rules(
    desk: TeamsDesk,
    *,
    caps: Mapping[tuple[TeamName, GpuType], float],
    installed: Mapping[GpuType, float],
    at: datetime,
) -> "DemandRules":
    from ops_pipelines.quotas.hourly import DemandRules
    from ops_pipelines.quotas.spans import GpuTypes, partition_types

    by_node = {node: kind for node, kind in desk.gpu_type_of.items() if kind}
    by_partition: Mapping[str, GpuType] = {}
    if len(set(by_node.values())) > 1:
        rows = desk.lake.read("inventory", start=at, end=at + HOUR, columns=("node", "partitions"))
        by_partition = partition_types(rows, by_node)
    return DemandRules(
        types=GpuTypes(by_node=by_node, by_partition=by_partition),
        caps=caps,
        installed=installed,
        waste_bound_ratio=desk.policy.waste_bound_ratio,
    )


def _caps(desk: TeamsDesk, hour: datetime) -> tuple[tuple[tuple[TeamName, GpuType], float], ...]:
    """Return the most that each team may ever have, where that is bounded, by its own terms and those above it."""
    if desk.agreements is None:
        return ()
    return _caps_on(desk.agreements, hour.astimezone(desk.zone).date())


def _caps_on(agreed: Agreements, day: date) -> tuple[tuple[tuple[TeamName, GpuType], float], ...]:
    found = []
    for kind in sorted(agreed.gpu_types):
        terms = {each.team: each for each in agreed.terms_on(day, kind)}
        for team in sorted(terms):
            most, above = terms[team].most, terms[team].parent
            while above is not None:
                most, above = min(most, terms[above].most), terms[above].parent
            if most != float("inf"):
                found.append(((team, kind), most))
    return tuple(found)


def installed_at(desk: TeamsDesk, hour: datetime) -> tuple[tuple[GpuType, float], ...]:
    counts: dict[GpuType, float] = {}
    for each in desk.installed:
        if each.since <= hour and (each.until is None or hour < each.until):
            counts[each.gpu_type] = counts.get(each.gpu_type, 0.0) + each.gpu_count
    return tuple(sorted(counts.items()))


def kinds_of(desk: TeamsDesk) -> frozenset[GpuType]:
    """Return the types that the cluster's nodes have."""
    found = {kind for kind in desk.gpu_type_of.values() if kind}
    is_told = all(desk.gpu_type_of.get(node) for node in desk.observatory.topology.places)
    return frozenset(found if found and is_told else {*found, _NO_TYPE})


def declared_teams(agreed: Agreements | None) -> frozenset[TeamName]:
    """Return the teams that jobs are charged to; organisations ask for nothing themselves."""
    return frozenset() if agreed is None else frozenset(agreed.parents) - agreed.organisations


# -- `gpu_demand` from the lake and the scheduler --


if TYPE_CHECKING:
    from ops_pipelines.quotas.daily import ReportedAttempts
    from ops_pipelines.quotas.hourly import DemandRules

TABLE = "gpu_demand"
_ENDS_WITHIN = timedelta(days=30)
"""Assumption: no attempt that matters waits and runs for longer. Accounting lists attempts by the hour of their end."""
_LOOK_BACK = timedelta(days=2)
"""Assumption: so long after its last attempt a requeued job says itself when it could have started."""
_ASKED = timedelta(hours=6)
"""Of so much of the past the scheduler is asked who ran: what ended earlier is in the lake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledDemand:
    """The demand of an interval of whole hours."""

    rows: Rows
    """Of `gpu_demand`."""
    rejected: Rows | None
    """Rows of `rejected_rows`; those of attempts have the time by which accounting keeps them."""
    reasons: Mapping[str, int]
    """Reason -> records rejected for it."""
    notes: tuple[str, ...]
    """What does not count and why, and what could not be reported. Names of teams and jobs in it are others' words."""
    strangers: tuple[TeamName, ...]
    """Teams that ran or waited and that no file of teams names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandPast:
    """What one type of GPU was requested by whom in the last days, as the lake has it."""

    days: tuple[DemandDay, ...]
    """Local days that are over, the newest last. Hours that nobody computed are left out, and days without any."""
    today: DemandDay | None
    """The hours of the running day that are over; None: none is known."""
    missing: tuple[datetime, ...]
    """Hours of the days, and of today, that nobody computed although nodes stood in the cluster."""
    hour_count: int
    """Hours that should be known."""
    until: datetime | None
    """The end of the newest hour that is known; None: none is."""

    @property
    def known_hour_ratio(self) -> float:
        """Return the share of the hours that are known; 0 where there should be none."""
        return 1 - len(self.missing) / self.hour_count if self.hour_count else 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        """Return in words what is missing."""
        if not self.missing:
            return ()
        first, last = self.missing[0], self.missing[-1]
        return (
            f"{len(self.missing)} of {self.hour_count} hours are not known, from {first:%Y-%m-%d %H:%M} to "
            f"{last:%Y-%m-%d %H:%M} UTC: materialise gpu_demand there",
        )


# -- hours --


def fill_demand(desk: TeamsDesk, *, start: datetime, end: datetime) -> FilledDemand:
    """Return the demand in [start, end), both whole hours.

    Of a running hour it is as if what runs and waits now continued to its end. Raises SourceError where the scheduler
    does not answer, LakeError, and ValueError for no whole hours.
    """
    from ops_pipelines.lake.hours import merge
    from ops_pipelines.lake.metrics.pages import rejected_rows

    if hour_of(start) != start or hour_of(end) != end or start >= end:
        raise ValueError(f"{start} to {end}; expected whole hours, the end after the start")
    told = _ask(desk.observatory, start=start, end=end)
    parts = [
        _fill(desk, told=told, start=since, end=until, rules=rules)
        for since, until, rules in stretches_of(desk, start=start, end=end)
    ]
    rejected = [part.rejected for part in parts if part.rejected is not None]
    if told.refused:
        rejected.append(rejected_rows(told.refused, source=TABLE, at=end - HOUR))
    reasons = Counter(each.reason for each in told.refused)
    for part in parts:
        reasons.update(part.reasons)
    return FilledDemand(
        rows=merge(TABLE, [part.rows for part in parts]),
        rejected=merge("rejected_rows", rejected) if rejected else None,
        reasons=dict(sorted(reasons.items())),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        strangers=tuple(sorted({team for part in parts for team in part.strangers})),
    )


def _fill(
    desk: TeamsDesk, *, told: "ReportedAttempts", start: datetime, end: datetime, rules: "DemandRules"
) -> FilledDemand:
    from ops_pipelines.lake.metrics.pages import rejected_rows
    from ops_pipelines.quotas.attempts import in_microseconds
    from ops_pipelines.quotas.daily import (
        ACCOUNTING_COLUMNS,
        ALLOCATION_COLUMNS,
        EFFICIENCY_COLUMNS,
        active_teams,
        join_told,
        settle_rows,
    )
    from ops_pipelines.quotas.hourly import read_demand

    lake = desk.lake
    ended = lake.read("job_accounting", start=start - _LOOK_BACK, end=end + _ENDS_WITHIN, columns=ACCOUNTING_COLUMNS)
    found = read_demand(
        join_told(ended, told),
        allocations=lake.read("job_allocations", start=start, end=end, columns=ALLOCATION_COLUMNS),
        efficiency=lake.read("gpu_efficiency", start=start, end=end, columns=EFFICIENCY_COLUMNS),
        start=start,
        end=end,
        rules=rules,
    )
    # A row of accounting is looked at for many hours, and kept with one: that which it belongs to.
    own = [each for each in found.refused if each.at is not None and start <= each.at < end]
    declared = declared_teams(desk.agreements)
    rows = settle_rows(
        found.table,
        begin=in_microseconds(start),
        count=(end - start) // HOUR,
        teams=declared,
        kinds=kinds_of(desk),
    )
    return FilledDemand(
        rows=rows,
        rejected=rejected_rows(own, source=TABLE, at=start) if own else None,
        reasons=Counter(each.reason for each in own),
        notes=found.notes,
        strangers=tuple(sorted(active_teams(rows) - declared)) if desk.agreements is not None else (),
    )


def _ask(observatory: Observatory, *, start: datetime, end: datetime) -> "ReportedAttempts":
    """Return what the scheduler says of who runs and who waits, as far as that may be about these hours."""
    from ops_pipelines.quotas.daily import nothing_told, read_told

    now = observatory.clock.now()
    if observatory.accounting is None or now <= start or now - end > _ENDS_WITHIN:
        return nothing_told()
    # In this order: who starts between the two answers is in the second, which says so.
    waiting = list(observatory.accounting.read_waiting(at=now))
    running = list(observatory.accounting.read_overlapping(start=max(start, hour_of(now) - _ASKED), end=now))
    return read_told(running, waiting)


# -- days --


def demand_days_of(desk: TeamsDesk, *, days: int, gpu_type: GpuType, until: datetime) -> DemandPast:
    """Return what the lake knows of the last `days` local days before that of `until`, and of that day so far.

    No hour that ends after `until` is looked at. An hour is known if any team has a row of any type in it; one in which
    no node stood in the cluster is not missed.
    """
    from ops_pipelines.core.periods import first_hour
    from ops_pipelines.quotas.daily import known_days

    if days < 1:
        raise ValueError(f"{days} days; expected 1 or more")
    today = until.astimezone(desk.zone).date()
    start, end = first_hour(today - timedelta(days=days), zone=desk.zone), hour_of(until)
    rows = desk.lake.read(
        TABLE, start=start, end=end, columns=("team", "gpu_type", "time", "gpus_demand_avg", "gpus_ran_last")
    )
    found, known = known_days(rows, start=start, end=end, zone=desk.zone, gpu_type=gpu_type)
    expected = _expected(desk, start=start, end=end)
    over = [each for each in found if each.day < today]
    running = [each for each in found if each.day == today]
    return DemandPast(
        days=tuple(over),
        today=running[0] if running else None,
        missing=tuple(hour for hour in expected if hour not in known),
        hour_count=len(expected),
        until=max(known) + HOUR if known else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandOfDay:
    """One local day, for people."""

    sums: tuple[Mapping[str, object], ...]
    """For each team and type with any demand: day, team, gpu_type, hour_count and GPU-hours."""
    hour_count: int
    """Hours of the day that are over."""
    missing: tuple[datetime, ...]
    """As in `DemandPast`."""
    refused: tuple[Mapping[str, object], ...]
    """Rows that were not believed: record, reason, detail."""


def demand_of_day(desk: TeamsDesk, *, day: date) -> DemandOfDay:
    """Return what the lake knows of a local day, as far as it is over."""
    from ops_pipelines.core.periods import first_hour
    from ops_pipelines.quotas.daily import known_hours, refused_of, sum_days

    start, after = (first_hour(each, zone=desk.zone) for each in (day, day + timedelta(days=1)))
    end = min(after, hour_of(desk.observatory.clock.now()))
    if end <= start:
        return DemandOfDay(sums=(), hour_count=0, missing=(), refused=())
    rows = desk.lake.read(TABLE, start=start, end=end)
    known = known_hours(rows, start=start, end=end)
    sums = sum_days(rows, start=start, end=end, zone=desk.zone).to_pylist()
    rejected = desk.lake.read("rejected_rows", start=start, end=end)
    return DemandOfDay(
        sums=tuple(each for each in sums if each["demand_gpu_hours"] or each["running_gpu_hours"]),
        hour_count=(end - start) // HOUR,
        missing=tuple(hour for hour in _expected(desk, start=start, end=end) if hour not in known),
        refused=tuple(refused_of(rejected, source=TABLE)),
    )


def _expected(desk: TeamsDesk, *, start: datetime, end: datetime) -> list[datetime]:
    """Return the hours of [start, end) in which nodes stood in the cluster; all where no register is kept."""
    hours = [start + number * HOUR for number in range((end - start) // HOUR)]
    return [hour for hour in hours if not desk.installed or installed_at(desk, hour)]
