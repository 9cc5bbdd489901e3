"""The days that forecasts and plans are made from: `daily_peaks` before one day, read once for both.

What is too little for any forecast is an error that says what to do; what is merely less than it should be is told.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from ops_pipelines.flow.capacity.days import TABLE, keep_day, sum_day
from ops_pipelines.teams.desk import TeamsDesk

if TYPE_CHECKING:
    from ops_pipelines.frames.peaks.history import PeakHistory
    from ops_pipelines.frames.peaks.weekly import RecordedDays

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
    from ops_pipelines.frames.peaks.weekly import RecordedDays

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
    from ops_pipelines.frames.peaks.history import read_history
    from ops_pipelines.frames.peaks.read_series import SumsAlone
    from ops_pipelines.frames.peaks.weekly import RecordedDays

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
