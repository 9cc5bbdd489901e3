"""Refused points of a block as a sequence of `Refused`: made when asked for, so that a million of them cost little."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.frames.metrics.gates import NEWEST_MS, OLDEST_MS, Fate
from ops_pipelines.frames.metrics.series import SeriesBlock
from ops_pipelines.frames.parsed import CountsReasons, Refused, readable

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
