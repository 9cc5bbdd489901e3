"""Daily maxima of demand, how holes in them are filled, sums of series, and windows of days.

A series is a team, or a sum of teams. Holes are treated in one way for demand that was recorded elsewhere
(`recorded_peaks`) and for the lake's own days (`peak_history`). Windows of every start count for calibration, for
there are few whole ones; those that are judged, a horizon apart, are among them and never overlap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

# -- daily maxima of demand, a column a series --


Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
Places: TypeAlias = NDArray[np.int64]

IDLE_BELOW_GPUS = 8.0
"""One node: a series that asked for less in four weeks is near idle, and is compared with others like it alone."""
RECENT_DAYS = 28
LEAST_DAYS = 14
"""What a series needs for more than the last value, and a cluster for its first forecast that is judged."""


class Treatment(Enum):
    """What a series is, as far as it changes how it is forecast."""

    ORDINARY = "ordinary"
    SHORT = "short"
    """Fewer than 14 days: its width is the pool's, its weights are the pool's."""
    NEW = "new"
    """Its first demand is less than four weeks old; so treated as ordinary, with the pool's weights at first."""
    NEAR_IDLE = "near_idle"
    """Less than a node in four weeks: its bound comes from near-idle series, in GPUs, not in ratios."""
    ZERO = "zero"
    """It never asked for anything: as near idle, from 0."""
    NO_DAYS = "no_days"
    """Nothing is known of it; nothing is forecast."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DailyPeaks:
    """Daily maxima of GPUs that were requested; raises ValueError for what cannot be such."""

    names: tuple[str, ...]
    first_day: date
    gpus: Floats
    """A row a day, a column a series; NaN where a series was not there yet."""
    cap_gpus: Floats
    """The most that each series can ask for; infinite where nothing holds it."""

    def __post_init__(self) -> None:
        if self.gpus.ndim != 2 or self.gpus.shape[1] != len(self.names) or self.cap_gpus.shape != (len(self.names),):
            raise ValueError(
                f"{self.gpus.shape} daily maxima and {self.cap_gpus.shape} caps were given for {len(self.names)} "
                "names; expected a row a day, a column and a cap for each name"
            )
        if len(set(self.names)) != len(self.names):
            raise ValueError("a series is named twice; expected a name for each: join those of one team first")
        if np.isinf(self.gpus).any() or (self.gpus < 0).any():
            raise ValueError("daily maxima below 0 or without end were given; expected 0 or more, NaN where absent")
        if np.isnan(self.cap_gpus).any() or (self.cap_gpus < 0).any():
            raise ValueError("a cap below 0 or none was given; expected 0 or more, infinite where nothing holds")
        if (np.isnan(self.gpus[1:]) & ~np.isnan(self.gpus[:-1])).any():
            raise ValueError("a series has a gap; expected days without one: fill it, or begin after it")

    @property
    def day_count(self) -> int:
        return int(self.gpus.shape[0])

    def day(self, place: int) -> date:
        return self.first_day + timedelta(days=place)

    def caps_at(self, place: int) -> Floats:
        """Return the caps that the days before a place bear out: one that a series was above is no cap."""
        highest = np.where(np.isnan(self.gpus[:place]), 0.0, self.gpus[:place]).max(axis=0, initial=0.0)
        return np.where(highest <= self.cap_gpus, self.cap_gpus, np.inf)

    def treatments(self) -> tuple[Treatment, ...]:
        """Return what each series is on the day after the last."""
        return tuple(_treatment(self.gpus[:, column]) for column in range(len(self.names)))


def without_caps(names: Sequence[str], first_day: date, gpus: Floats) -> DailyPeaks:
    return DailyPeaks(names=tuple(names), first_day=first_day, gpus=gpus, cap_gpus=np.full(len(names), np.inf))


def root(gpus: Floats) -> Floats:
    """Return where forecasts are made: the spread of demand grows about as the root of its level, and 0 is no abyss."""
    return np.asarray(np.sqrt(gpus))


def squared(roots: Floats) -> Floats:
    """Return GPUs again; what is below 0 is 0."""
    return np.asarray(np.square(np.maximum(roots, 0.0)))


def _treatment(gpus: Floats) -> Treatment:
    own = gpus[~np.isnan(gpus)]
    if not len(own):
        return Treatment.NO_DAYS
    if not own.any():
        return Treatment.ZERO
    if len(own) < LEAST_DAYS:
        return Treatment.SHORT
    if own[-RECENT_DAYS:].max() < IDLE_BELOW_GPUS:
        return Treatment.NEAR_IDLE
    if len(own) - int(np.argmax(own > 0)) < RECENT_DAYS:
        return Treatment.NEW
    return Treatment.ORDINARY


# -- daily maxima with holes -> without --


LONGEST_CARRIED_DAYS = 14
WHOLE_RATIO = 0.75
"""A day counts with so much of its hours."""
_RENAMED_WITHIN_DAYS = 3
_ALIKE_RATIO = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesNote:
    """What was done to one series."""

    column: int
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RenamedPair:
    """A series that begins as another of its size ends for good."""

    old: int
    new: int


def fill(
    maxima: Floats, days: Sequence[date], *, no_day: str, carries_last: bool = False
) -> tuple[Floats, list[SeriesNote]]:
    """Return (day, series) without gaps, and what was done.

    `days` follow each other. `no_day`: what to say of a series without any. `carries_last`: a series that is silent
    for no longer than a short gap at the end is carried there, too; else its end is the end of its demand.
    """
    filled = maxima.copy()
    notes = []
    known_until = int(np.flatnonzero(~np.isnan(maxima).all(axis=1)).max(initial=-1)) + 1
    for column in range(maxima.shape[1]):
        told = np.flatnonzero(~np.isnan(maxima[:, column]))
        if not len(told):
            notes.append(SeriesNote(column=column, words=no_day))
            continue
        gaps = np.flatnonzero(np.diff(told) > 1)
        for one, other in zip(told[gaps].tolist(), told[gaps + 1].tolist(), strict=True):
            gap = other - one - 1
            if gap > LONGEST_CARRIED_DAYS:
                filled[:other, column] = np.nan
                words = f"{gap} days are missing from {days[one + 1]} on; it begins after them"
            else:
                filled[one + 1 : other, column] = maxima[one, column]
                words = _carried(gap, days[one + 1])
            notes.append(SeriesNote(column=column, words=words))
        last = int(told[-1]) + 1
        if last < known_until:
            is_short = carries_last and known_until - last <= LONGEST_CARRIED_DAYS
            filled[last:known_until, column] = maxima[last - 1, column] if is_short else 0.0
            words = (
                _carried(known_until - last, days[last])
                if is_short
                else f"no hours from {days[last]} on; taken as no demand"
            )
            notes.append(SeriesNote(column=column, words=words))
    return filled, notes


def edges(filled: Floats) -> tuple[int, int]:
    """Return the place of the first day of which any series is known, and that after the last."""
    told = np.flatnonzero(~np.isnan(filled).all(axis=1))
    return int(told[0]), int(told[-1]) + 1


def look_renamed(filled: Floats) -> list[RenamedPair]:
    """Return each series that begins as another of its size ends for good; that it is the same, a person must say."""
    wanted = np.nan_to_num(filled) > 0
    pairs = []
    spans = [(np.flatnonzero(column)[[0, -1]].tolist() if column.any() else None) for column in wanted.T]
    for old, ended in enumerate(spans):
        if ended is None or ended[1] + LONGEST_CARRIED_DAYS >= len(filled):
            continue
        for new, began in enumerate(spans):
            if began is None or began[0] == 0 or not 0 < began[0] - ended[1] <= _RENAMED_WITHIN_DAYS:
                continue
            before = float(np.median(filled[max(0, ended[1] - 13) : ended[1] + 1, old]))
            after = float(np.median(filled[began[0] : began[0] + 14, new]))
            if max(before, after) >= IDLE_BELOW_GPUS and min(before, after) >= _ALIKE_RATIO * max(before, after):
                pairs.append(RenamedPair(old=old, new=new))
    return pairs


def _carried(gap: int, first: date) -> str:
    return f"{gap} day{'s' if gap > 1 else ''} from {first} on carried from the day before"


# -- sums of series --


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hierarchy:
    """Which series each sum has. No sum is a member of another: name its series again."""

    names: tuple[str, ...]
    is_member: Flags
    """(sum, series)."""


def with_sums(series: DailyPeaks, tree: Hierarchy, *, summed_gpus: Floats | None = None) -> DailyPeaks:
    """Return the series and after them the sums.

    `summed_gpus` are daily maxima of the sums, which are lower than sums of maxima; without them the latter are taken.
    """
    gpus = add_up(series.gpus, tree) if summed_gpus is None else summed_gpus
    caps = np.array([series.cap_gpus[members].sum() for members in tree.is_member])
    return DailyPeaks(
        names=(*series.names, *tree.names),
        first_day=series.first_day,
        gpus=np.concatenate([series.gpus, gpus], axis=1),
        cap_gpus=np.concatenate([series.cap_gpus, caps]),
    )


def add_up(gpus: Floats, tree: Hierarchy) -> Floats:
    """Return (..., sum) of (..., series); who is not there adds nothing, and nobody is NaN."""
    is_there = ~np.isnan(gpus)
    summed = np.where(is_there, gpus, 0.0) @ tree.is_member.T.astype(np.float64)
    return np.where(is_there @ tree.is_member.T, summed, np.nan)


# -- windows of days --


_FIRST_ORIGIN = 7
_STEPS_A_WINDOW = 13
"""Of long windows, calibration looks at so many starts a window: more are hardly new, and cost time."""
_PAST_DAYS = (7, 28, 182)
"""Of which the maxima are reported to anyone who predicts a peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """Places of days at which a forecast begins: the first day that is not known."""

    places: tuple[int, ...]
    step_days: int
    horizon_days: int

    @property
    def lag(self) -> int:
        """How many origins earlier a window must begin to be over at an origin."""
        return -(-self.horizon_days // self.step_days)

    def over_at(self, number: int) -> int:
        """Return how many of the first windows were over when that origin came."""
        return max(0, number - self.lag + 1)


def lay_origins(day_count: int, *, horizon_days: int, step_days: int | None = None) -> Origins:
    """Return the origins of all windows, or of the newest, up to the one that begins after the last day.

    `step_days` apart; None: so far that there are `_STEPS_A_WINDOW` of them in a window.
    """
    if horizon_days < 1:
        raise ValueError(f"a window of {horizon_days} days was asked for; expected 1 or more")
    most = max(1, horizon_days // _STEPS_A_WINDOW)
    step = step_days or next(each for each in range(most, 0, -1) if horizon_days % each == 0)
    begin = day_count - max(0, day_count - _FIRST_ORIGIN) // step * step
    return Origins(places=tuple(range(begin, day_count + 1, step)), step_days=step, horizon_days=horizon_days)


def judged_origins(day_count: int, *, horizon_days: int) -> tuple[int, ...]:
    """Return where windows begin that do not overlap and end with the last day.

    Each has two weeks before it, and one other window that was over when it began: nothing is calibrated otherwise.
    """
    least = max(LEAST_DAYS, _FIRST_ORIGIN + horizon_days)
    return tuple(range(day_count - horizon_days, least - 1, -horizon_days))[::-1]


def window_maxima(values: Floats, *, origins: Origins) -> Floats:
    """Return (origin, series): the peak of each window that is over, NaN for others and where a day is not known."""
    found = np.full((len(origins.places), values.shape[1]), np.nan)
    for number, place in enumerate(origins.places):
        if place + origins.horizon_days <= len(values):
            found[number] = values[place : place + origins.horizon_days].max(axis=0)
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """What was seen of each series before one origin, in roots; 0 where nothing was."""

    maxima: Floats
    """(past of 7, 28, 182 days, series)."""
    recent_peak: Floats
    """Of four weeks."""
    spread: Floats
    """Standard deviation over as many days as the window, four weeks at least, half a year at most."""
    change: Floats
    """Mean change from day to day over eight weeks."""


def look_back(values: Floats, *, origin: int, horizon_days: int) -> Seen:
    past = values[:origin]
    long = min(max(horizon_days, RECENT_DAYS), _PAST_DAYS[-1])
    maxima = np.stack([_largest(past[-days:]) for days in _PAST_DAYS])
    return Seen(
        maxima=maxima,
        recent_peak=maxima[1],
        spread=np.sqrt(_mean(np.square(past[-long:] - _mean(past[-long:])))),
        change=_mean(np.abs(np.diff(past[-2 * RECENT_DAYS :], axis=0))),
    )


def _largest(days: Floats) -> Floats:
    return np.asarray(np.where(np.isnan(days), 0.0, days).max(axis=0, initial=0.0))


def _mean(days: Floats) -> Floats:
    is_there = ~np.isnan(days)
    return np.asarray(np.where(is_there, days, 0.0).sum(axis=0) / np.maximum(is_there.sum(axis=0), 1))
