"""Decoded series, the hard gates that their points pass, and the points that are refused with their reason.

What can be but is not well is no gate's business: that is the expectations' and `observe.rules`'s.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from hashlib import sha256
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.lake.quantities import CountsReasons, Quantity, Refused, readable

# -- decoded series, unbelieved --


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeriesBlock:
    """Points of many series: those of series i stand together, in the order of the source."""

    names: Sequence[str]
    labels: Sequence[Mapping[str, str]]
    """Per series, without its name. Equal label sets may be one object: do not change them."""
    counts: NDArray[np.int64]
    """Points of each series; their sum is the length of `times` and `values`."""
    times: NDArray[np.int64]
    """Milliseconds since 1970, UTC."""
    values: NDArray[np.float64]
    """As the source wrote them: NaN and infinities included."""
    lines: NDArray[np.int64] | None = None
    """The line of each point in its file, from 1; None where the source has no lines."""
    known: dict[object, object] | None = None
    """For who reads many blocks of these names and labels: what it made of them alone. None: there is this one."""

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.labels) == len(self.counts):
            raise ValueError("names, labels and counts differ in length")
        if not int(self.counts.sum()) == len(self.times) == len(self.values):
            raise ValueError("the counts do not add up to the points")


# -- the hard gates of samples --


MAX_AHEAD = timedelta(seconds=60)
"""Clocks of sources may be this far ahead of ours."""
OLDEST_MS = 946_684_800_000
"""2000-01-01. Older stamps are seconds taken for milliseconds, or a clock that was never set."""
NEWEST_MS = 253_402_300_799_999
"""The end of the year 9999: what a timestamp can hold."""

_STALE_BITS = np.int64(0x7FF0000000000002)
"""The NaN by which Prometheus says that a series ended. It is no measurement, and no error either."""


class Fate(IntEnum):
    """What became of one point. From TWO_NODES on it is refused; `reason` is then the code."""

    IGNORED = 0
    ACCEPTED = 1
    TWO_NODES = 2
    NO_DEVICE = 3
    BAD_PCI_ADDRESS = 4
    BAD_TIME = 5
    IN_FUTURE = 6
    NOT_FINITE = 7
    BLANK_VALUE = 8
    OUT_OF_RANGE = 9
    NOT_WHOLE = 10
    CONFLICTING_DUPLICATE = 11

    @property
    def reason(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What one series name must pass on its way into a column."""

    quantity: Quantity
    factor: float
    """From the source's unit to the column's."""
    may_be_blank: bool
    """The source is DCGM, which writes certain numbers for `not available`."""
    is_computed: bool = False
    """The value is a query's, where NaN says that there was nothing to compute from: it is ignored."""

    def convert(self, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return values in the column's unit. A factor such as 0.01 divides: 255 percent are 2.55, not a bit more."""
        if self.factor == 1:
            return raw
        divisor = round(1 / self.factor) if self.factor else 0
        with np.errstate(over="ignore", invalid="ignore"):
            if self.factor < 1 and divisor and abs(divisor * self.factor - 1) < 1e-12:
                return np.divide(raw, divisor)
            return np.multiply(raw, self.factor)

    def judge(
        self, raw: NDArray[np.float64], converted: NDArray[np.float64], fates: NDArray[np.uint8]
    ) -> NDArray[np.uint8]:
        """Return the fates after the gates of values; the first gate that refuses a point names the reason.

        `fates` is what was decided of each point before: points that are not ACCEPTED keep their fate.
        """
        with np.errstate(invalid="ignore"):
            is_fine = (converted >= self.quantity.low) & (converted <= self.quantity.high) & np.isfinite(converted)
            is_whole = np.floor(converted) == converted if self.quantity.is_whole else None
            blank = is_blank(raw) if self.may_be_blank else None
        verdict = np.where(is_fine, np.uint8(Fate.ACCEPTED), np.uint8(Fate.OUT_OF_RANGE))
        if is_whole is not None:
            verdict[is_fine & ~is_whole] = Fate.NOT_WHOLE
        if blank is not None:
            verdict[blank] = Fate.BLANK_VALUE
        if not is_fine.all():
            verdict[~np.isfinite(raw)] = Fate.NOT_FINITE
            if self.is_computed:
                verdict[np.isnan(raw)] = Fate.IGNORED
            verdict[raw.view(np.int64) == _STALE_BITS] = Fate.IGNORED
        return np.where(fates == Fate.ACCEPTED, verdict, fates)


def is_blank(raw: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which values are DCGM's blanks: `not available`, `not found`, `not supported`, `not permitted`.

    They start at 0x7ffffff0 (32-bit), 2**47 (float) and 0x7ffffffffffffff0 (64-bit, which rounds to 2**63); 16 numbers
    are kept for each (DCGM dcgm_structs.h).
    """
    in_32_bits = (raw >= 0x7FFFFFF0) & (raw <= 0x7FFFFFFF)
    as_float = (raw >= 2.0**47) & (raw < 2.0**47 + 16)
    # VictoriaMetrics keeps about 15 digits: 2**63 comes back as 9223372036854774784.
    in_64_bits = np.abs(raw - 2.0**63) <= 4096
    found: NDArray[np.bool_] = in_32_bits | as_float | in_64_bits
    return found


def judge_times(times: NDArray[np.int64], *, at: datetime | None, max_ahead: timedelta) -> NDArray[np.uint8]:
    """Return the fate of each point by its time alone: ACCEPTED, BAD_TIME or IN_FUTURE. `at` None: no future."""
    fates = np.full(len(times), Fate.ACCEPTED, np.uint8)
    if len(times) == 0:
        return fates
    if at is not None:
        limit = int((at + max_ahead).timestamp() * 1000)
        fates[times > limit] = Fate.IN_FUTURE
    if times.min() < OLDEST_MS or times.max() > NEWEST_MS:
        fates[(times < OLDEST_MS) | (times > NEWEST_MS)] = Fate.BAD_TIME
    return fates


def explain(fate: Fate, gate: Gate, *, value: float, at: datetime | None) -> str:
    """Return what was found and what was expected, for a point that the gates of values or times refused."""
    quantity = gate.quantity
    shown = f"{value:g}" if gate.factor == 1 else f"{value:g} x {gate.factor:g} {quantity.unit}"
    match fate:
        case Fate.NOT_FINITE:
            return f"{value} is no measurement; expected a number"
        case Fate.BLANK_VALUE:
            return f"{value:g} is DCGM's word for a value that it does not have"
        case Fate.OUT_OF_RANGE:
            return f"{shown} is impossible; expected {quantity.low:g}..{quantity.high:g} {quantity.unit}"
        case Fate.NOT_WHOLE:
            return f"{shown} is impossible; expected a whole number"
        case Fate.IN_FUTURE:
            return f"the sample is from the future; it was {at.isoformat() if at else 'earlier'}: check the clocks"
        case Fate.BAD_TIME:
            return "the time lies before the year 2000 or after 9999; expected milliseconds since 1970"
        case Fate.CONFLICTING_DUPLICATE:
            return f"{value:g} is the second value of one series at one time; the first was kept"
        case _:
            return fate.reason.replace("_", " ")


# -- refused points of a block as a sequence of `Refused` --


_LONGEST_NAME = 600


class RefusedPoints(Sequence[Refused]):
    """The refused points of one block, in its order. Keeps the block in memory for as long as it is kept itself."""

    def __init__(
        self,
        block: SeriesBlock,
        *,
        points: NDArray[np.int64],
        fates: NDArray[np.uint8],
        tables: Sequence[str],
        table_codes: NDArray[np.uint8],
        explain: Callable[[int, int], str],
    ) -> None:
        """Take the refused points with the fate and the code of the table of each. `explain(series, point)`: detail."""
        self._block = block
        self._points = points
        self._fates = fates
        self._tables = tables
        self._table_codes = table_codes
        self._explain = explain
        self._ends = np.cumsum(block.counts)

    def __len__(self) -> int:
        return len(self._points)

    @overload
    def __getitem__(self, index: int) -> Refused: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Refused]: ...
    def __getitem__(self, index: int | slice) -> Refused | Sequence[Refused]:
        if isinstance(index, slice):
            return [self._make(place) for place in range(*index.indices(len(self)))]
        return self._make(range(len(self))[index])

    def __iter__(self) -> Iterator[Refused]:
        return map(self._make, range(len(self)))

    def count_reasons(self) -> dict[str, int]:
        """Return reason -> how many, without making one of them."""
        codes, counts = np.unique(self._fates, return_counts=True)
        return {Fate(code).reason: count for code, count in zip(codes.tolist(), counts.tolist(), strict=True)}

    def _make(self, place: int) -> Refused:
        point = int(self._points[place])
        series = int(np.searchsorted(self._ends, point, side="right"))
        fate = Fate(int(self._fates[place]))
        name = name_series(self._block, series)
        value, time = float(self._block.values[point]), int(self._block.times[point])
        if self._block.lines is not None:
            record = f"line {self._block.lines[point]}"
        else:
            record = f"{name} {show_time(time)}"
            if fate is Fate.CONFLICTING_DUPLICATE:
                record = f"{record} {value!r}"
        return Refused(
            record=record,
            reason=fate.reason,
            detail=self._explain(series, point),
            text=readable(f"{name} {value!r} {time}"),
            into=self._tables[int(self._table_codes[place])],
            at=_believed(time, fate),
        )


class Joined(Sequence[Refused]):
    """Several sequences as one, without making their elements."""

    def __init__(self, *parts: Sequence[Refused]) -> None:
        self._parts = [part for part in parts if len(part)]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @overload
    def __getitem__(self, index: int) -> Refused: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Refused]: ...
    def __getitem__(self, index: int | slice) -> Refused | Sequence[Refused]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        for part in self._parts:
            if place < len(part):
                return part[place]
            place -= len(part)
        raise IndexError(index)

    def __iter__(self) -> Iterator[Refused]:
        for part in self._parts:
            yield from part

    def count_reasons(self) -> Mapping[str, int]:
        """Return reason -> how many."""
        counts: Counter[str] = Counter()
        for part in self._parts:
            counts.update(part.count_reasons() if isinstance(part, CountsReasons) else (each.reason for each in part))
        return counts


def _believed(time_ms: int, fate: Fate) -> datetime | None:
    if fate in (Fate.BAD_TIME, Fate.IN_FUTURE) or not OLDEST_MS <= time_ms <= NEWEST_MS:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def name_series(block: SeriesBlock, series: int) -> str:
    """Return the series as PromQL writes it, readable; a long name is cut, and still differs where the series do."""
    inside = ",".join(f'{key}="{value}"' for key, value in sorted(block.labels[series].items()))
    name = f"{block.names[series]}{{{inside}}}" if inside else block.names[series]
    if len(name) <= _LONGEST_NAME:
        return readable(name)
    return f"{readable(name[:_LONGEST_NAME])}~{sha256(name.encode(errors='surrogatepass')).hexdigest()[:12]}"


def show_time(time_ms: int) -> str:
    """Return a time for people; the number itself where no calendar reaches it."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
