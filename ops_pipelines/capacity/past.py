"""The days that forecasts and plans are made from, and batches of hardware with what became of them.

What is too little for any forecast is an error that says what to do; what is merely less than it should be is told.

Gathers for `capacity.refresh`, which judges. Failures are counted over a year, or since the ledger began.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from ops_pipelines.capacity.days import TABLE, keep_day, sum_day
from ops_pipelines.capacity.model import Resource
from ops_pipelines.capacity.refresh import Batch
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.review.story.cost import spans_out
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.price import InstalledNode

# -- the days that forecasts and plans are made from --


if TYPE_CHECKING:
    from ops_pipelines.capacity.peaks.history import PeakHistory, RecordedDays

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
    """As it was told."""
    completeness: Completeness


def catch_up(desk: TeamsDesk, *, as_of: date) -> tuple[date, ...]:
    """Count the last two days before `as_of` that nobody counted, and return those of which there is anything.

    Days are counted by the clock of UTC: on a cluster far from it the last one is not counted yet when its quarter
    begins. Raises LakeError, LedgerError.
    """
    from ops_pipelines.capacity.peaks.history import RecordedDays

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
    from ops_pipelines.capacity.peaks.history import RecordedDays, read_history
    from ops_pipelines.capacity.peaks.read_series import SumsAlone

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
"""A node whose rack states no day stands since 1970 in the register: of its age nobody knows anything."""
Spans = Mapping[NodeName, Sequence[tuple[datetime, datetime]]]


def gather_batches(desk: TeamsDesk, past: Past) -> tuple[Batch, ...]:
    """Return the batches that stand on the day of the forecast, by asset and day. Raises LedgerError."""
    from ops_pipelines.lake.local_days import day_begins

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
