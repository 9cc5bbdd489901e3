"""Rows of a file of recorded demand, believed or refused: columns, numbers, hours told twice, capacity that changes.

Whether hours are missing, and which local day they belong to, is `recorded`. A fault names the column, how many rows
have it and the first of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.core.proposal import TeamName

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
        f"hours of teams told again in {_rows(int(is_same.sum()))}, the first is row {other + 1}: "
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
