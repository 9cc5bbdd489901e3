"""`daily_peaks` of one local day, from what the lake and the ledger know, and kept there.

Gathers; what is counted is `capacity.peaks`'. A source that is silent gives no rows and a note. Telemetry is read
hour by hour: a day of a large cluster is never held. Asked again, a day gives the same rows, unless more is known by
then.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

from ops_pipelines.capacity.model import Resource
from ops_pipelines.core.cluster import HOUR, hour_of
from ops_pipelines.core.lake import Rows
from ops_pipelines.core.periods import BilledPart, CostMonth
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.costs.states import FoundStates, find_states
from ops_pipelines.efficiency.placement.report import absences_of
from ops_pipelines.teams.desk import TeamsDesk

if TYPE_CHECKING:
    from ops_pipelines.capacity.peaks.day import DayBook

TABLE = "daily_peaks"
_LOOK_BACK = timedelta(days=1)
"""So far back a node's state and its jobs began that last into the day; as placement looks back."""
_ENDS_WITHIN = timedelta(days=30)
"""Accounting lists attempts by the hour of their end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaySummed:
    """What is known of one local day."""

    day: date
    zone: str
    at: datetime
    """Where its rows stand: the beginning of the day, in UTC."""
    hour_count: int
    """Hours that begin in the day."""
    rows: Rows
    """Of `daily_peaks`, in their order; none of a day that is not over."""
    shown: tuple[Mapping[str, object], ...]
    """The rows, for people."""
    missing: tuple[Resource, ...]
    """Of which nothing is told."""
    notes: tuple[str, ...]
    is_over: bool = True


def sum_day(desk: TeamsDesk, *, day: date) -> DaySummed:
    """Return the peaks of a local day. Raises LakeError and LedgerError."""
    from ops_pipelines.lake.schema import TABLES

    book = _open_book(desk, day=day)
    if desk.clock.now() < book.end:
        book.notes.append(f"{day} is not over in {book.zone}; its peaks are told after {book.end:%Y-%m-%d %H:%M} UTC")
        rows: list[dict[str, object]] = []
    else:
        _put_gpus(book, desk)
        _put_out(book, desk)
        _put_storage(book, desk)
        _put_telemetry(book, desk)
        rows = book.close()
    told = {row["resource"] for row in rows}
    return DaySummed(
        day=day,
        zone=book.zone,
        at=book.begins_at,
        hour_count=len(book.hours),
        rows=TABLES[TABLE].from_rows(rows),
        shown=tuple(rows),
        missing=tuple(each for each in Resource if each.value not in told),
        notes=tuple(dict.fromkeys(book.notes)),
        is_over=desk.clock.now() >= book.end,
    )


def keep_day(desk: TeamsDesk, summed: DaySummed) -> int:
    """Make these rows all that the lake says of the day; return how many. A day that is not over changes nothing.

    Raises LakeError.
    """
    if not summed.is_over:
        return 0
    desk.lake.replace_hour(TABLE, hour_of(summed.at), summed.rows)
    return summed.rows.num_rows


def _open_book(desk: TeamsDesk, *, day: date) -> "DayBook":
    from ops_pipelines.capacity.peaks.day import DayBook
    from ops_pipelines.lake.local_days import day_begins, first_hour

    start, end = (first_hour(each, zone=desk.zone) for each in (day, day + timedelta(days=1)))
    return DayBook(day=day, start=start, end=end, begins_at=day_begins(day, zone=desk.zone), zone=desk.zone.key)


# -- GPUs --


def _put_gpus(book: "DayBook", desk: TeamsDesk) -> None:
    from ops_pipelines.capacity.peaks.day import COLUMNS, put_gpus

    hourly = desk.lake.read("gpu_demand", start=book.start, end=book.end, columns=COLUMNS)
    put_gpus(book, hourly, caps=_caps_on(desk, book.day))


def _caps_on(desk: TeamsDesk, day: date) -> dict[tuple[TeamName, GpuType], float]:
    """Return the hard caps of contracts that hold on a day."""
    if desk.agreements is None:
        return {}
    return {
        (terms.team, kind): terms.cap
        for kind in sorted(desk.agreements.gpu_types)
        for terms in desk.agreements.terms_on(day, kind)
        if terms.cap < float("inf")
    }


def _put_out(book: "DayBook", desk: TeamsDesk) -> None:
    """Put what is broken, in maintenance and in pieces; nothing where nobody noted how nodes were."""
    from ops_pipelines.capacity.peaks.day import put_out
    from ops_pipelines.costs.holds import ALLOCATION_COLUMNS
    from ops_pipelines.costs.usage_ledger import read_usage

    known = _noted_hours(book, desk)
    if not known:
        book.notes.append("gpus_out, gpus_stranded: no hour of inventory is known; materialise it there")
        return
    since = book.start - _LOOK_BACK
    found = find_states(_part(since, book.end), desk)
    book.notes += [f"gpus_out: {note}" for note in found.notes]
    if desk.installed:
        allocations = desk.lake.read("job_allocations", start=book.start, end=book.end, columns=ALLOCATION_COLUMNS)
        part = _part(book.start, book.end)
        states = [
            each for each in found.states if each.since < book.end and (each.until is None or each.until > book.start)
        ]
        ledger = read_usage(part, nodes=desk.installed, states=states, allocations=allocations)
        put_out(book, ledger, known=known)
    else:
        book.notes.append("gpus_out: cluster.yaml names no nodes under `racks`; what is installed is not known")
    _put_stranded(book, desk, found=found, known=known)


def _put_stranded(book: "DayBook", desk: TeamsDesk, *, found: FoundStates, known: Iterable[int]) -> None:
    from ops_pipelines.capacity.peaks.day import put_stranded
    from ops_pipelines.efficiency.placement.rows import (
        ACCOUNTING_COLUMNS,
        ALLOCATION_COLUMNS,
        INVENTORY_COLUMNS,
        read_machines,
        read_stays,
    )

    lake, topology, since = desk.lake, desk.observatory.topology, book.start - _LOOK_BACK
    ended = lake.read("job_accounting", start=since, end=book.end + _ENDS_WITHIN, columns=ACCOUNTING_COLUMNS)
    held = lake.read("job_allocations", start=since, end=book.end, columns=ALLOCATION_COLUMNS)
    inventory = lake.read("inventory", start=since, end=book.end, columns=INVENTORY_COLUMNS)
    machines = read_machines(inventory, topology=topology)
    stays = read_stays(ended, held, topology=topology, since=since, until=book.end)
    put_stranded(
        book,
        machines.machines,
        stays.stays,
        absences=absences_of(found.states, since=since),
        type_of=desk.gpu_type_of,
        known=known,
    )


def _noted_hours(book: "DayBook", desk: TeamsDesk) -> list[int]:
    """Return the hours of the day in which somebody noted how nodes were."""
    from ops_pipelines.costs.holds import INVENTORY_COLUMNS, read_scheduler_states

    return [
        place
        for place, hour in enumerate(book.hours)
        if read_scheduler_states(desk.lake.read("inventory", start=hour, end=hour + HOUR, columns=INVENTORY_COLUMNS))
    ]


def _part(since: datetime, until: datetime) -> BilledPart:
    """Return the stretch as the side of costs asks for it; the month's name means nothing there."""
    month = CostMonth(year=since.year, month=since.month, begins_at=since, ends_at=until)
    return BilledPart(month=month, since=since, until=until)


# -- telemetry --


def _put_storage(book: "DayBook", desk: TeamsDesk) -> None:
    from ops_pipelines.capacity.peaks.day import LUSTRE_COLUMNS, MOUNT_COLUMNS, read_lustre, read_mounts

    for place, hour in enumerate(book.hours):
        # Two grid times are enough: file systems grow by days.
        until = hour + 2 * desk.observatory.step
        found = dict(read_lustre(desk.lake.read("storage_telemetry", start=hour, end=until, columns=LUSTRE_COLUMNS)))
        mounts = desk.lake.read("node_telemetry", start=hour, end=until, columns=MOUNT_COLUMNS)
        found |= read_mounts(mounts, known=list(found.values()))
        book.put(Resource.STORAGE_BYTES, {name: each.used_bytes for name, each in found.items()}, hour=place)
        book.limit(Resource.STORAGE_BYTES, {name: each.size_bytes for name, each in found.items()})
    if not book.told(Resource.STORAGE_BYTES):
        book.notes.append("storage_bytes: no shared file system tells its size and its room")


def _put_telemetry(book: "DayBook", desk: TeamsDesk) -> None:
    from ops_pipelines.capacity.peaks.day import FABRIC_COLUMNS, POWER_COLUMNS, read_links, read_power

    topology, summed, is_room_summed = desk.observatory.topology, set[str](), False
    for place, hour in enumerate(book.hours):
        fabric = desk.lake.read("fabric_telemetry", start=hour, end=hour + HOUR, columns=FABRIC_COLUMNS)
        links = read_links(fabric, topology=topology)
        book.put(Resource.NETWORK_RATIO, links, hour=place)
        book.limit(Resource.NETWORK_RATIO, dict.fromkeys(links, 1.0))
        facility = desk.lake.read("facility_telemetry", start=hour, end=hour + HOUR, columns=POWER_COLUMNS)
        power = read_power(facility, topology=topology)
        book.put(Resource.RACK_WATTS, power.racks, hour=place)
        book.limit(Resource.RACK_WATTS, power.limits)
        book.put(Resource.COOLING_WATTS, power.room, hour=place)
        summed |= set(power.summed)
        is_room_summed |= power.is_room_summed
    if summed:
        book.notes.append(
            f"rack_watts: no meter tells {len(summed)} racks, such as {min(summed)}; there the BMCs of all nodes are "
            "added up, without switches"
        )
    if is_room_summed:
        book.notes.append("cooling_watts: no meter tells what the room draws; its racks are added up")
    for resource, what in (
        (Resource.NETWORK_RATIO, "no link tells its traffic and its rate"),
        (Resource.RACK_WATTS, "no rack tells its power, and of none all nodes do"),
        (Resource.COOLING_WATTS, "nothing tells what the room draws"),
    ):
        if not book.told(resource):
            book.notes.append(f"{resource.value}: {what}")
