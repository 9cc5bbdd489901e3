"""Attempts -> spans in which a job ran or waited, and why it waits.

Demand is what more GPUs, or a higher quota, would have started: also what the team's own cap holds back. A reason that
the table does not have counts; whoever asks is told which.

A job waits from the time at which it could have started to its start; one that was requeued, from the end of one
attempt to the start of the next. Why a wait does not count is `wait_reasons`, or that no quota could ever start it.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

import numpy as np

from ops_pipelines.quotas.wanted.attempts import NEVER, Attempts, Flags, Texts
from ops_pipelines.quotas.wanted.recorded import Whole

# -- why a job waits, in the scheduler's word -> whether its wait is demand --


class Counts(Enum):
    YES = "yes"
    NO = "no"
    FROM_ELIGIBLE = "from_eligible"
    """From the time at which the scheduler says that it could have started; where it says none, not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitReason:
    """One row of the catalogue."""

    reason: str
    """As the scheduler writes it; `*` stands for anything."""
    counts: Counts
    says: str
    source: str
    checked_on: date


_WORD = re.compile(r"[A-Za-z_ ]+")
_COLUMNS = ("reason", "counts", "says", "source", "checked_on")


@cache
def read_wait_reasons() -> tuple[WaitReason, ...]:
    """Return the rows; the first that fits counts. Raises ValueError with the line that cannot be right."""
    text = files("ops_pipelines.catalogue").joinpath("wait_reasons.csv").read_text(encoding="utf-8")
    found = []
    for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            found.append(_row(row))
        except (KeyError, ValueError, TypeError) as exc:
            raise ValueError(f"catalogue/wait_reasons.csv, line {number}: {exc}") from exc
    return tuple(found)


def find_reason(text: str) -> WaitReason | None:
    """Return the row for a reason, also for `ReqNodeNotAvail, UnavailableNodes:gpu003`; None if there is none."""
    found = _WORD.match(text.strip().lstrip("("))
    word = found[0].strip().replace(" ", "_") if found else ""
    return next((row for row in read_wait_reasons() if fnmatchcase(word, row.reason)), None)


def _row(row: Mapping[str, str]) -> WaitReason:
    if not all(row[name] for name in _COLUMNS):
        raise ValueError(f"expected all of {', '.join(_COLUMNS)}")
    return WaitReason(
        reason=row["reason"],
        counts=Counts(row["counts"]),
        says=row["says"],
        source=row["source"],
        checked_on=date.fromisoformat(row["checked_on"]),
    )


# -- attempts -> stretches of time in which a job ran or waited, each moment of a job once --


_HOLD_OFF = timedelta(seconds=180) // timedelta(microseconds=1)
"""A requeued job may become eligible so long after its end by Slurm's own doing; later, somebody held it."""
COUNTS = ""
"""What stands in `Waits.why_not` for a wait that counts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waits:
    """Stretches in which jobs waited: a row each."""

    of: Whole
    """Which attempt waited, or came of it: place in the attempts."""
    begin: Whole
    end: Whole
    """NEVER: it waits still."""
    why_not: Sequence[str]
    """Why it is no demand."""
    unknown_reasons: Mapping[str, int]
    """Reasons that the catalogue does not have, and how many waits they count for."""
    stale: int
    """Rows of waiting jobs that later rows have overtaken."""


def find_waits(found: Attempts) -> Waits:
    """Return when the jobs of these attempts waited."""
    has_run = found.started != NEVER
    # The attempt before: for one that ran the row before it, for one that did not the last that began before its end.
    before = _attempts_before(found, has_run=has_run)
    had_one = before >= 0
    ended_before = np.where(had_one, found.ended[before], -1)
    interrupted = had_one & found.is_interrupted[before]
    could_start = _could_start(found)
    requeued_at = np.where(_is_later(could_start, ended_before + _HOLD_OFF), could_start, ended_before)
    begin = np.where(
        interrupted & (ended_before != NEVER),
        requeued_at,
        np.where(could_start == NEVER, NEVER, np.maximum(could_start, ended_before)),
    )
    end = np.where(has_run, found.started, found.ended)
    is_new = found.submitted >= ended_before
    # A row of a waiting job that was read before the job ran: nobody waits any more.
    is_stale = ~has_run & had_one & ((ended_before >= end) | (~interrupted & ~is_new))
    waits = (begin < end) & ~is_stale
    places = np.flatnonzero(waits)
    ends = _once_at_a_time(found.job[places], begin[places], end[places])
    reasons = _verdicts(found.texts["reason"])
    why_not = _why_not(found, places, reasons=reasons, is_requeued=interrupted, is_held_back=_beyond(found, places))
    return Waits(
        of=places,
        begin=begin[places],
        end=ends,
        why_not=why_not,
        unknown_reasons=_unknown(found.texts["reason"], places),
        stale=int(is_stale.sum()),
    )


def _attempts_before(found: Attempts, *, has_run: Flags) -> Whole:
    """Return for each row the place of the last attempt of its job that started before it did, or gave up; else -1."""
    ran = np.flatnonzero(has_run)
    moments, ranks = np.unique(
        np.concatenate((found.started[ran], np.where(has_run, found.started, found.ended))), return_inverse=True
    )
    keys = found.job.astype(np.int64) * (len(moments) + 1)
    # Attempts stand by job and start, so that their keys rise.
    order = np.argsort(keys[ran] + ranks[: len(ran)], kind="stable")
    sorted_keys = (keys[ran] + ranks[: len(ran)])[order]
    place = np.searchsorted(sorted_keys, keys + ranks[len(ran) :], side="left") - 1
    before = np.full(len(keys), -1)
    is_there = place >= 0
    before[is_there] = ran[order][place[is_there]]
    is_there &= found.job[before] == found.job
    return np.where(is_there, before, -1)


def _could_start(found: Attempts) -> Whole:
    """Return when each could first have started; NEVER where nobody says."""
    no_time = found.eligible == NEVER
    submitted = np.where(found.submitted == NEVER, -1, found.submitted)
    return np.where(no_time, found.submitted, np.maximum(found.eligible, submitted))


def _is_later(times: Whole, than: Whole) -> Flags:
    is_later: Flags = (times != NEVER) & (times > than)
    return is_later


def _once_at_a_time(job: Whole, begin: Whole, end: Whole) -> Whole:
    """Return the ends, none later than where the next wait of the same job begins."""
    order = np.lexsort((end, begin, job))
    cut = end[order]
    is_followed = np.append(job[order][1:] == job[order][:-1], False) if len(order) else np.zeros(0, np.bool_)
    following = np.append(begin[order][1:], NEVER) if len(order) else begin
    cut = np.where(is_followed, np.minimum(cut, following), cut)
    ends = np.empty_like(end)
    ends[order] = cut
    return ends


def _beyond(found: Attempts, places: Whole) -> Flags:
    """Return which waiting tasks are more than their array lets run at once."""
    arrays, limits = found.texts["array_job"].codes[places], found.task_limit[places]
    order = np.lexsort((found.gpus[places], found.submitted[places], arrays))
    begins = np.searchsorted(arrays[order], arrays[order], side="left")
    is_beyond = np.empty(len(places), np.bool_)
    is_beyond[order] = (limits[order] > 0) & (np.arange(len(places)) - begins >= limits[order])
    return is_beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdicts:
    """For each distinct reason: whether it counts, and what it means."""

    counts: Sequence[Counts]
    says: Sequence[str]


def _verdicts(reasons: Texts) -> _Verdicts:
    rows = [find_reason(word) if word else None for word in reasons.words]
    return _Verdicts(
        counts=[Counts.YES if row is None else row.counts for row in rows],
        says=["" if row is None else f"{word}: {row.says}" for row, word in zip(rows, reasons.words, strict=True)],
    )


def _why_not(
    found: Attempts, places: Whole, *, reasons: _Verdicts, is_requeued: Flags, is_held_back: Flags
) -> Sequence[str]:
    codes = found.texts["reason"].codes[places].tolist()
    is_told = ((found.eligible != NEVER) | is_requeued)[places].tolist()
    return [
        reasons.says[code]
        if reasons.counts[code] is Counts.NO or (reasons.counts[code] is Counts.FROM_ELIGIBLE and not told)
        else _BEYOND
        if beyond
        else COUNTS
        for code, told, beyond in zip(codes, is_told, is_held_back.tolist(), strict=True)
    ]


_BEYOND = "tasks beyond what their array lets run at once"


def _unknown(reasons: Texts, places: Whole) -> Mapping[str, int]:
    counts = np.bincount(reasons.codes[places], minlength=len(reasons.words))
    return {
        word: int(count)
        for word, count in sorted(zip(reasons.words, counts.tolist(), strict=True))
        if word and count and find_reason(word) is None
    }
