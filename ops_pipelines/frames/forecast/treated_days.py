"""Daily maxima with holes -> without: what becomes of days that are missing, and who looks renamed. Words for each.

One treatment, for demand that was recorded elsewhere (`recorded_peaks`) and for the lake's own days (`peaks.history`):
a short gap is carried from the day before it, after a long one a series begins anew, and after its last day a series
wants nothing. Whose days they are, and whether a day counts, the callers say.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from ops_pipelines.frames.forecast.daily_peaks import IDLE_BELOW_GPUS, Floats

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
