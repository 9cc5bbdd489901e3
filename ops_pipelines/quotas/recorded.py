"""Recorded demand from a Parquet file, believed or refused row by row.

A file with faults is refused with all of them at once: each names the column, how many rows have it and the first of
them. Missing hours are carried only if asked, and then named. An hour belongs to the local day in which it begins.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ops_pipelines.core.periods import LocalDay, days_of
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.quotas.demand import DemandDay

# -- rows of a file of recorded demand, believed or refused --


_HOUR = 3600
_NUMBERS = ("capacity_gpus", "gpus_running_avg", "gpus_demand_avg")
_NEEDED = ("hour_ts", "team", *_NUMBERS)
_BESIDE = ("gpus_pending_avg", "gpus_pending_max", "gpus_idle_avg", "jobs_running_avg")
"""Columns of the format that nothing here is computed from."""
_MAY_BE_NEGATIVE = "gpus_idle_avg"
"""A team that runs more than its capacity has less than none idle."""
_EARLIEST, _LATEST = (
    int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()),
    int(datetime(2100, 1, 1, tzinfo=UTC).timestamp()),
)
"""Seconds outside are milliseconds, or no times at all."""

Floats: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]


class RefusedDemand(ValueError):
    """A file of demand that cannot be believed."""

    def __init__(self, name: str, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n  ".join((f"{name} is refused:", *faults)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedRows:
    """The rows of a file: arrays have an entry a row, in the file's order."""

    hour: Whole
    """Where it begins, in seconds since 1970."""
    team: Whole
    """Place in `teams`."""
    teams: tuple[TeamName, ...]
    """In alphabetical order."""
    demand: Floats
    running: Floats
    capacity: Mapping[TeamName, float]
    notes: tuple[str, ...]


def read_rows(table: pa.Table, *, name: str) -> RecordedRows:
    """Return the rows of the file called `name`. Raises RefusedDemand with every fault."""
    absent = [column for column in _NEEDED if column not in table.column_names]
    if absent:
        found = ", ".join(table.column_names[:20]) or "none"
        raise RefusedDemand(name, [f"the column {each} is missing; found {found}" for each in absent])
    if not table.num_rows:
        raise RefusedDemand(name, ["it has no rows; expected one for each hour and team"])
    faults: list[str] = []
    hours = _hours(table["hour_ts"], faults)
    teams, places = _teams(table["team"], faults)
    beside = [column for column in _BESIDE if column in table.column_names]
    numbers = {column: _numbers(column, table[column], faults) for column in (*_NUMBERS, *beside)}
    if faults:
        raise RefusedDemand(name, faults)
    faults += _told_twice(hours, teams=teams, places=places)
    faults += _other_phases(hours)
    faults += _changed_capacity(numbers["capacity_gpus"], hours=hours, teams=teams, places=places)
    if faults:
        raise RefusedDemand(name, faults)
    capacity = np.zeros(len(teams))
    capacity[places] = numbers["capacity_gpus"]
    return RecordedRows(
        hour=hours,
        team=places,
        teams=teams,
        demand=numbers["gpus_demand_avg"],
        running=numbers["gpus_running_avg"],
        capacity=dict(zip(teams, capacity.tolist(), strict=True)),
        notes=tuple(f"the column {each} is missing; nothing depends on it" for each in _BESIDE if each not in beside),
    )


def _hours(column: pa.ChunkedArray, faults: list[str]) -> Whole:
    try:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            raise pa.ArrowInvalid("a text is no number")
        hours: Whole = column.cast(pa.int64()).to_numpy() if not column.null_count else np.zeros(0, np.int64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        hours = np.zeros(0, np.int64)
    if pa.types.is_temporal(column.type) or not len(hours):
        empty = f" with {column.null_count} empty cells" if column.null_count else ""
        faults.append(f"hour_ts is {column.type}{empty}; expected whole seconds since 1970 in each row")
        return hours
    is_wrong = (hours < _EARLIEST) | (hours >= _LATEST)
    if is_wrong.any():
        faults.append(
            f"hour_ts: {_first(is_wrong, shown=hours[is_wrong][0])}; expected seconds since 1970, from 2000 to 2099"
        )
    return hours


def _teams(column: pa.ChunkedArray, faults: list[str]) -> tuple[tuple[TeamName, ...], Whole]:
    """Return the teams in alphabetical order, and the place of each row's."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        faults.append(f"team is {column.type}; expected texts")
        return (), np.zeros(0, np.int64)
    filled = pc.fill_null(column, "")
    is_empty = pc.equal(pc.utf8_trim_whitespace(filled), "").to_numpy()
    if is_empty.any():
        first = int(np.argmax(is_empty))
        shown = repr(column[first].as_py())
        faults.append(f"team: {_first(is_empty, shown=shown)}; expected the name of a team in each row")
    # Each name is read once: comparing a text in each of a million rows takes longer than all else.
    encoded = filled.dictionary_encode().combine_chunks()
    names = encoded.dictionary.to_pylist()
    order = sorted(range(len(names)), key=names.__getitem__)
    ranks = np.empty(len(names), np.int64)
    ranks[order] = np.arange(len(names))
    return tuple(TeamName(names[each]) for each in order), ranks[encoded.indices.to_numpy()]


def _numbers(name: str, column: pa.ChunkedArray, faults: list[str]) -> Floats:
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)):
        faults.append(f"{name} is {column.type}; expected numbers")
        return np.zeros(0)
    numbers: Floats = column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
    is_no_number = ~np.isfinite(numbers)
    if is_no_number.any():
        faults.append(f"{name}: {_first(is_no_number, shown=numbers[is_no_number][0])}; expected a number in each row")
    is_negative = numbers < 0
    if is_negative.any() and name != _MAY_BE_NEGATIVE:
        faults.append(f"{name}: {_first(is_negative, shown=numbers[is_negative][0])}; expected 0 or more in each row")
    return numbers


def _told_twice(hours: Whole, *, teams: Sequence[TeamName], places: Whole) -> list[str]:
    order = np.lexsort((places, hours))
    is_same = (np.diff(hours[order]) == 0) & (np.diff(places[order]) == 0)
    if not is_same.any():
        return []
    one, other = sorted(order[int(np.argmax(is_same)) :][:2].tolist())
    return [
        f"hours of teams reported again in {_rows(int(is_same.sum()))}, the first is row {other + 1}: "
        f"{teams[places[other]]} at {hours[other]} as in row {one + 1}; expected one row for each hour and team"
    ]


def _other_phases(hours: Whole) -> list[str]:
    is_other = (hours - hours[0]) % _HOUR != 0
    if not is_other.any():
        return []
    return [f"hour_ts: {_first(is_other, shown=hours[is_other][0])}; expected whole hours from {hours[0]} of row 1 on"]


def _changed_capacity(capacity: Floats, *, hours: Whole, teams: Sequence[TeamName], places: Whole) -> list[str]:
    order = np.lexsort((hours, places))
    has_changed = (np.diff(places[order]) == 0) & (np.diff(capacity[order]) != 0)
    found: dict[int, str] = {}
    for each in np.flatnonzero(has_changed).tolist():
        before, after = order[each], order[each + 1]
        place = int(places[after])
        found.setdefault(
            place,
            f"capacity_gpus of {teams[place]} changes from {capacity[before]:g} to {capacity[after]:g} "
            f"at {hours[after]}; expected one capacity for each team: cut the file there",
        )
    return list(found.values())


def _first(is_wrong: NDArray[np.bool_], *, shown: object) -> str:
    return (
        f"{_rows(int(is_wrong.sum()))} cannot be believed, the first is row {int(np.argmax(is_wrong)) + 1} with {shown}"
    )


def _rows(count: int) -> str:
    return f"{count} row{'s' if count > 1 else ''}"


# -- recorded demand --


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
_TOO_MANY = "more hours are missing than there are, which is too much to carry; give a file of one interval of time"


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
        """Return what is missing in words: intervals that nobody has, then a line for each team that lacks others."""
        if len(self._at) == self._count * len(self._rows.teams):
            return []
        told = np.unique(self._at)
        found = [f"no team has {self._stretch(begin, count)}" for begin, count in _holes(told)]
        if len(found) > _MOST_STRETCHES:
            found[_MOST_STRETCHES:] = [f"and so for {len(found) - _MOST_STRETCHES} more intervals"]
        # Of each team only the hours that another one has: those that nobody has are reported already.
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
