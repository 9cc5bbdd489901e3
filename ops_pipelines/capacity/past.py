"""The days of the past: put together each night, and read for a quarter.

Gathers; what is counted of a day is `peak_days`', which batches are due is `planning`'s. A source that is silent gives
no rows and a note. Telemetry is read hour by hour: a day of a large cluster is never held. Asked again, a day gives the
same rows, unless more is known by then.

Too little for any forecast is an error that says what to do; less than it should be is a note. Failures are counted
over a year, or since the ledger started.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from ops_pipelines.capacity.model import Resource
from ops_pipelines.capacity.planning import Batch
from ops_pipelines.core.cluster import HOUR, hour_of
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.periods import BilledPart, CostMonth
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.core.sources import Rows
from ops_pipelines.costs.states import FoundStates, find_states
from ops_pipelines.efficiency.placement.day import absences_of
from ops_pipelines.review.cost import spans_out
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.price import InstalledNode

if TYPE_CHECKING:
    from ops_pipelines.capacity.peak_days import DayBook

TABLE = "daily_peaks"
_LOOK_BACK_OF_A_DAY = timedelta(days=1)
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
    """Of which nothing is reported."""
    notes: tuple[str, ...]
    is_over: bool = True


def sum_day(desk: TeamsDesk, *, day: date) -> DaySummed:
    """Return the peaks of a local day. Raises LakeError and LedgerError."""
    from ops_pipelines.lake.schema import TABLES

    book = _open_book(desk, day=day)
    if desk.clock.now() < book.end:
        book.notes.append(
            f"{day} is not over in {book.zone}; its peaks are reported after {book.end:%Y-%m-%d %H:%M} UTC"
        )
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
    from ops_pipelines.capacity.peak_days import DayBook
    from ops_pipelines.core.periods import day_begins, first_hour

    start, end = (first_hour(each, zone=desk.zone) for each in (day, day + timedelta(days=1)))
    return DayBook(day=day, start=start, end=end, begins_at=day_begins(day, zone=desk.zone), zone=desk.zone.key)


# -- GPUs --


def _put_gpus(book: "DayBook", desk: TeamsDesk) -> None:
    from ops_pipelines.capacity.peak_days import COLUMNS, put_gpus

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
    from ops_pipelines.capacity.peak_days import put_out
    from ops_pipelines.costs.holds import ALLOCATION_COLUMNS
    from ops_pipelines.costs.usage_ledger import read_usage

    known = _noted_hours(book, desk)
    if not known:
        book.notes.append("gpus_out, gpus_stranded: no hour of inventory is known; materialise it there")
        return
    since = book.start - _LOOK_BACK_OF_A_DAY
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
    from ops_pipelines.capacity.peak_days import put_stranded
    from ops_pipelines.efficiency.placement.rows import (
        ACCOUNTING_COLUMNS,
        ALLOCATION_COLUMNS,
        INVENTORY_COLUMNS,
        read_machines,
        read_stays,
    )

    lake, topology, since = desk.lake, desk.observatory.topology, book.start - _LOOK_BACK_OF_A_DAY
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
    """Return the interval as the side of costs asks for it; the month's name means nothing there."""
    month = CostMonth(year=since.year, month=since.month, begins_at=since, ends_at=until)
    return BilledPart(month=month, since=since, until=until)


# -- telemetry --


def _put_storage(book: "DayBook", desk: TeamsDesk) -> None:
    from ops_pipelines.capacity.peak_days import LUSTRE_COLUMNS, MOUNT_COLUMNS, read_lustre, read_mounts

    for place, hour in enumerate(book.hours):
        # Two grid times are enough: file systems grow by days.
        until = hour + 2 * desk.observatory.step
        found = dict(read_lustre(desk.lake.read("storage_telemetry", start=hour, end=until, columns=LUSTRE_COLUMNS)))
        mounts = desk.lake.read("node_telemetry", start=hour, end=until, columns=MOUNT_COLUMNS)
        found |= read_mounts(mounts, known=list(found.values()))
        book.put(Resource.STORAGE_BYTES, {name: each.used_bytes for name, each in found.items()}, hour=place)
        book.limit(Resource.STORAGE_BYTES, {name: each.size_bytes for name, each in found.items()})
    if not book.told(Resource.STORAGE_BYTES):
        book.notes.append("storage_bytes: no shared file system reports its size and its room")


def _put_telemetry(book: "DayBook", desk: TeamsDesk) -> None:
    from ops_pipelines.capacity.peak_days import FABRIC_COLUMNS, POWER_COLUMNS, read_links, read_power

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
            f"rack_watts: no meter reports {len(summed)} racks, such as {min(summed)}; there the BMCs of all nodes are "
            "added up, without switches"
        )
    if is_room_summed:
        book.notes.append("cooling_watts: no meter reports what the room draws; its racks are added up")
    for resource, what in (
        (Resource.NETWORK_RATIO, "no link reports its traffic and its rate"),
        (Resource.RACK_WATTS, "no rack reports its power, and of none all nodes do"),
        (Resource.COOLING_WATTS, "nothing reports what the room draws"),
    ):
        if not book.told(resource):
            book.notes.append(f"{resource.value}: {what}")


# -- the days that forecasts and plans are made from --


if TYPE_CHECKING:
    from ops_pipelines.capacity.peak_history import PeakHistory, RecordedDays

LEAST_DAYS = 14
"""Of which anything must be known, and within so many before the forecast's day the newest of them must lie."""
RECENT_DAYS = 28
CAUGHT_UP_DAYS = 2
READ_DAYS = 3 * 366
"""Older days change no forecast of a year, and are not read."""
_LEAST_RECENT_RATIO = 0.9
_EPOCH = date(1970, 1, 1)
"""Nothing was measured before; the calendar's first days have no days before them to read."""


class NoHistory(LookupError):
    """Too few days are known for a forecast: says how many, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """How many of the last four weeks are known."""

    known: int
    expected: int
    """Days of the last four weeks since the first that is known."""
    missing: tuple[date, ...]

    @property
    def known_ratio(self) -> float:
        return self.known / self.expected if self.expected else 0.0

    @property
    def is_enough(self) -> bool:
        """Whether orders may follow from it: at most two days of four weeks are missing."""
        return self.known_ratio >= _LEAST_RECENT_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Everything that was known on one morning of the days before it."""

    as_of: date
    history: "PeakHistory"
    """Treated: what forecasts are made from."""
    recorded: "RecordedDays"
    """As it was reported."""
    completeness: Completeness


def catch_up(desk: TeamsDesk, *, as_of: date) -> tuple[date, ...]:
    """Count the last two days before `as_of` that nobody counted, and return those of which there is anything.

    Days are counted by the clock of UTC: on a cluster far from it the last one is not counted yet when its quarter
    begins. Raises LakeError, LedgerError.
    """
    from ops_pipelines.capacity.peak_history import RecordedDays

    since = datetime(as_of.year, as_of.month, as_of.day, tzinfo=UTC)
    rows = desk.lake.read(TABLE, start=since - timedelta(days=CAUGHT_UP_DAYS + 1), end=since + timedelta(days=1))
    known = RecordedDays(rows, until=as_of, zone=desk.zone).known_days()
    found = []
    for number in range(CAUGHT_UP_DAYS, 0, -1):
        day = as_of - timedelta(days=number)
        if day not in known:
            summed = sum_day(desk, day=day)
            if summed.rows.num_rows and keep_day(desk, summed):
                found.append(day)
    return tuple(found)


def read_past(desk: TeamsDesk, *, as_of: date) -> Past:
    """Return what is known of the days before `as_of`.

    Raises NoHistory, LakeError, and ValueError where the day lies in the future.
    """
    from ops_pipelines.capacity.peak_history import RecordedDays, read_history
    from ops_pipelines.capacity.read_series import SumsAlone

    today = desk.clock.now().astimezone(desk.zone).date()
    if as_of > today:
        raise ValueError(f"a forecast as of {as_of} was asked for, and today is {today} in {desk.zone.key}; no later")
    if as_of < _EPOCH:
        _refuse_too_little(frozenset(), as_of=as_of)
    # A day of another zone begins up to 14 hours from where the same date begins in UTC.
    midnight = datetime(as_of.year, as_of.month, as_of.day, tzinfo=UTC)
    rows = desk.lake.read(TABLE, start=midnight - timedelta(days=READ_DAYS), end=midnight + timedelta(days=1))
    recorded = RecordedDays(rows, until=as_of, zone=desk.zone)
    known = recorded.known_days()
    _refuse_too_little(known, as_of=as_of)
    try:
        history = read_history(
            rows,
            until=as_of,
            zone=desk.zone,
            holidays=() if desk.capacity is None else tuple(desk.capacity.holidays),
        )
    except SumsAlone as problem:
        raise NoHistory(str(problem)) from problem
    return Past(
        as_of=as_of,
        history=history,
        recorded=recorded,
        completeness=_completeness(known, as_of=as_of),
    )


def _refuse_too_little(known: frozenset[date], *, as_of: date) -> None:
    what = "materialise daily_peaks there, or make the forecast of a later day"
    if not known:
        raise NoHistory(f"no day before {as_of} is known; {LEAST_DAYS} are needed: {what}")
    if len(known) < LEAST_DAYS:
        raise NoHistory(
            f"{len(known)} days before {as_of} are known, the first is {min(known)}; {LEAST_DAYS} are needed: {what}"
        )
    if (as_of - max(known)).days > LEAST_DAYS:
        raise NoHistory(
            f"nothing is known of the {(as_of - max(known)).days - 1} days before {as_of}, the newest that is known is "
            f"{max(known)}: {what}"
        )


def _completeness(known: frozenset[date], *, as_of: date) -> Completeness:
    expected = min(RECENT_DAYS, (as_of - min(known)).days)
    days = [as_of - timedelta(days=number) for number in range(expected, 0, -1)]
    missing = tuple(each for each in days if each not in known)
    return Completeness(known=len(days) - len(missing), expected=len(days), missing=missing)


# -- what was bought at once --


_LOOK_BACK = timedelta(days=365)
_YEAR_SECONDS = 365.25 * 86_400
_UNSAID_BEFORE = 1990
"""A node whose rack states no day is in the register since 1970: of its age nobody knows anything."""
Spans = Mapping[NodeName, Sequence[tuple[datetime, datetime]]]


def gather_batches(desk: TeamsDesk, past: Past) -> tuple[Batch, ...]:
    """Return the batches that stand on the day of the forecast, by asset and day. Raises LedgerError."""
    from ops_pipelines.core.periods import day_begins

    until = day_begins(past.as_of, zone=desk.zone)
    there: defaultdict[tuple[str, str, datetime], list[InstalledNode]] = defaultdict(list)
    for each in desk.installed:
        if each.since <= until and (each.until is None or each.until > until) and each.gpu_count:
            there[each.asset, each.gpu_type, each.since].append(each)
    counted_since = _counted_since(desk.cluster.ledger, until=until)
    out = {} if counted_since is None else _spans_out(desk.cluster.ledger, since=counted_since, until=until)
    watts = _watts_by_rack(past)
    counted = None if counted_since is None else (counted_since, until)
    return tuple(_batch(nodes, desk=desk, counted=counted, out=out, watts=watts) for _, nodes in sorted(there.items()))


def _batch(
    nodes: Sequence[InstalledNode],
    *,
    desk: TeamsDesk,
    counted: tuple[datetime, datetime] | None,
    out: Spans,
    watts: Mapping[str, float],
) -> Batch:
    first = nodes[0]
    racks = sorted({_rack_of(desk, each.node) for each in nodes} - {""})
    gpus = sum(each.gpu_count for each in nodes)
    seconds = 0.0 if counted is None else sum(_seconds(*counted, since=each.since) for each in nodes)
    lost = sum((end - begin).total_seconds() for each in nodes for begin, end in out.get(each.node, ()))
    return Batch(
        asset=first.asset,
        racks=tuple(racks),
        gpu_type=first.gpu_type,
        gpus=gpus,
        gpus_per_node=first.gpu_count,
        installed_since=_day_of(first.since, desk),
        failures=sum(len(out.get(each.node, ())) for each in nodes) if seconds else None,
        node_years=seconds / _YEAR_SECONDS,
        # Spans of two incidents on one node may overlap: no more is lost than there was.
        hours_lost_ratio=min(lost / seconds, 0.99) if seconds else None,
        watts_per_gpu=_watts_per_gpu(racks, desk=desk, watts=watts),
    )


def _counted_since(ledger: Ledger, *, until: datetime) -> datetime | None:
    """Return since when failures are on record; None: nothing is, by then."""
    first = next(iter(ledger.entries(after=0, limit=1)), None)
    if first is None or first.written_at >= until:
        return None
    return max(first.written_at, until - _LOOK_BACK)


def _spans_out(ledger: Ledger, *, since: datetime, until: datetime) -> Spans:
    found: defaultdict[NodeName, list[tuple[datetime, datetime]]] = defaultdict(list)
    for incident in ledger.incidents_since(since):
        for node, begin, end in spans_out(incident, ledger.records(incident.incident), now=until):
            if since <= begin < until:
                found[node].append((begin, min(end, until)))
    return found


def _seconds(begin: datetime, end: datetime, *, since: datetime) -> float:
    return max(0.0, (end - max(begin, since)).total_seconds())


def _rack_of(desk: TeamsDesk, node: NodeName) -> str:
    place = desk.cluster.rules.topology.places.get(node)
    return "" if place is None else place.rack


def _day_of(since: datetime, desk: TeamsDesk) -> date | None:
    return None if since.year < _UNSAID_BEFORE else since.astimezone(desk.zone).date()


def _watts_by_rack(past: Past) -> Mapping[str, float]:
    """Return the mean draw of each rack that is measured."""
    history = past.history.of(Resource.RACK_WATTS)
    if history is None:
        return {}
    return {key.name: sum(means) / len(means) for key, means in history.means.items() if means and key.name}


def _watts_per_gpu(racks: Iterable[str], *, desk: TeamsDesk, watts: Mapping[str, float]) -> float | None:
    """Return the mean draw of a GPU with its share of the rack; None where a rack of the batch is not measured."""
    named = list(racks)
    if not named or any(rack not in watts for rack in named):
        return None
    gpus = sum(each.gpu_count for each in desk.installed if each.until is None and _rack_of(desk, each.node) in named)
    return sum(watts[rack] for rack in named) / gpus if gpus else None
