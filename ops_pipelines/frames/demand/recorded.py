"""Recorded demand, as a replay is given it: a Parquet file with a row for each hour and team -> local days.

Here: what must be in such a file, its faults by name, and the days. Hours made from accounting are `hourly`; what a
replay does with the days is `domain.quota.replay`. An hour belongs to the local day in which it begins.

Nothing is guessed: a file with faults is refused with all of them at once. Missing hours are carried only if asked,
and then named.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.domain.quota.demand import DemandDay
from ops_pipelines.frames.demand.recorded_rows import Floats, RecordedRows, RefusedDemand, Whole, read_rows
from ops_pipelines.lake.rates import LocalDay, days_of

_HOUR = 3600
_MOST_STRETCHES = 20


class MissingHours(Enum):
    """What becomes of hours that the file does not have between its first and its last."""

    REFUSE = "refuse"
    CARRY = "carry"
    """Each is as the team's hour before; 0 where the file has none before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDemand:
    """The demand of one cluster and one type of GPU."""

    capacity: Mapping[TeamName, float]
    """GPUs that each team had, in the teams' order."""
    days: tuple[DemandDay, ...]
    """In their order, without gaps; the first and the last may be parts of days."""
    notes: tuple[str, ...]
    """What a reader of the result should know: parts of days, columns that are missing, hours that were carried."""


def read_recorded(path: Path, *, timezone: str, missing: MissingHours = MissingHours.REFUSE) -> RecordedDemand:
    """Return what the file says. Raises RefusedDemand with every fault that was found."""
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise RefusedDemand(path.name, [f"{timezone!r} is no time zone; expected one such as Asia/Shanghai"]) from exc
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as exc:
        raise RefusedDemand(path.name, [f"no Parquet file that can be read: {exc}"]) from exc
    return recorded_of(table, zone=zone, missing=missing, name=path.name)


def recorded_of(table: pa.Table, *, zone: ZoneInfo, missing: MissingHours, name: str) -> RecordedDemand:
    """Return what a table with the columns of such a file says; `name` is for messages."""
    rows = read_rows(table, name=name)
    together = sum(rows.capacity.values())  # Not fsum, which raises where a sum is beyond all floats.
    if not 0 < together < math.inf:
        raise RefusedDemand(name, [f"capacity_gpus adds up to {together:g}; expected what can be shared out"])
    grid = _Grid(rows)
    gaps = grid.gaps()
    if gaps and (missing is MissingHours.REFUSE or not grid.is_mostly_there):
        raise RefusedDemand(name, [*gaps, _WHAT_TO_DO if missing is MissingHours.REFUSE else _TOO_MANY])
    demand, running = grid.spread(rows.demand), grid.spread(rows.running)
    days = days_of(grid.hours, zone=zone)
    return RecordedDemand(
        capacity=rows.capacity,
        days=tuple(_demand_days(days, rows.teams, demand=demand, running=running)),
        notes=(*rows.notes, *(f"carried from the hour before: {gap}" for gap in gaps), *_parts(days)),
    )


_WHAT_TO_DO = "give the missing hours, or ask for them to be carried from the hour before"
_TOO_MANY = "more hours are missing than there are, which is too much to carry; give a file of one stretch of time"


class _Grid:
    """All hours from the first to the last, for all teams: where the rows stand in it, and which are missing."""

    def __init__(self, rows: RecordedRows) -> None:
        self._rows = rows
        self._begins = int(rows.hour.min())
        self._count = int(rows.hour.max() - self._begins) // _HOUR + 1
        self._at = (rows.hour - self._begins) // _HOUR

    @property
    def hours(self) -> range:
        """Where each hour begins, in seconds since 1970."""
        return range(self._begins, self._begins + self._count * _HOUR, _HOUR)

    @property
    def is_mostly_there(self) -> bool:
        return len(self._at) * 2 >= self._count * len(self._rows.teams)

    def gaps(self) -> list[str]:
        """Return what is missing in words: stretches that nobody has, then a line for each team that lacks others."""
        if len(self._at) == self._count * len(self._rows.teams):
            return []
        told = np.unique(self._at)
        found = [f"no team has {self._stretch(begin, count)}" for begin, count in _holes(told)]
        if len(found) > _MOST_STRETCHES:
            found[_MOST_STRETCHES:] = [f"and so for {len(found) - _MOST_STRETCHES} more stretches"]
        # Of each team only the hours that another one has: those that nobody has are told already.
        for number, team in enumerate(self._rows.teams):
            lacked = np.setdiff1d(told, self._at[self._rows.team == number], assume_unique=True)
            if len(lacked):
                found.append(
                    f"{team} lacks {self._stretch(int(lacked[0]), len(lacked))} on, up to {self._moment(lacked[-1])}"
                )
        return found

    def spread(self, values: Floats) -> Floats:
        """Return values by hour and team; what is missing is as the hour before."""
        spread = np.full((self._count, len(self._rows.teams)), np.nan)
        spread[self._at, self._rows.team] = values
        is_there = ~np.isnan(spread)
        last = np.maximum.accumulate(np.where(is_there, np.arange(self._count)[:, None], -1), axis=0)
        carried = np.take_along_axis(spread, np.maximum(last, 0), axis=0)
        return np.where(last < 0, 0.0, carried)

    def _stretch(self, begin: int, count: int) -> str:
        return f"{count} hour{'s' if count > 1 else ''} from {self._moment(begin)}"

    def _moment(self, place: int) -> str:
        return datetime.fromtimestamp(self._begins + int(place) * _HOUR, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _holes(told: Whole) -> list[tuple[int, int]]:
    """Return where each hole begins, and how many hours it has."""
    after = np.flatnonzero(np.diff(told) > 1)
    return [(int(told[each]) + 1, int(told[each + 1] - told[each]) - 1) for each in after]


def _demand_days(
    days: Sequence[LocalDay], teams: Sequence[TeamName], *, demand: Floats, running: Floats
) -> Iterator[DemandDay]:
    for each in days:
        by_team = demand[each.first : each.after].T.tolist()
        yield DemandDay(
            day=each.day,
            hours={team: tuple(own) for team, own in zip(teams, by_team, strict=True)},
            ran_last=dict(zip(teams, running[each.after - 1].tolist(), strict=True)),
        )


def _parts(days: Sequence[LocalDay]) -> list[str]:
    """Return a note for each day of which the file has only a part: the first or the last."""
    return [
        f"{each.day} has {each.hour_count} of its {each.whole} hours" for each in days if each.hour_count < each.whole
    ]
