"""What happened to single parts at single times, noted down while the day runs and put into the matrices at its end.

A stroke changes one column of some parts over some rows. What is noted belongs to whoever tells the story
(`pauses`, `negatives`, `faults`); how a healthy part looks is `render`.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray


class Brush(Enum):
    """How a stroke changes what is there."""

    SET = "set"
    ADD = "add"
    SCALE = "scale"


@dataclass(frozen=True, slots=True)
class Stroke:
    """One change: rows `first` to `end` (half-open) of some parts; values are a number, one a row, or rows by parts."""

    parts: slice | int | list[int]
    first: int
    end: int
    brush: Brush
    value: float | NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Growth:
    """A counter of one part grew by `amount` in the time before row `row`."""

    part: int
    row: int
    amount: float


@dataclass(kw_only=True)
class Canvas:
    """All changes of one day, by layer and column (`gpus/xid`). Rates carry the name of their counter."""

    row_count: int
    step_seconds: int
    strokes: dict[str, list[Stroke]] = field(default_factory=lambda: defaultdict(list))
    growths: dict[str, list[Growth]] = field(default_factory=lambda: defaultdict(list))
    gaps: list[tuple[str, slice | int, int, int]] = field(default_factory=list)
    """(layer, parts, first row, end row): no samples."""
    reboots: list[tuple[int, int, float]] = field(default_factory=list)
    """(node, first row of the new boot, its time in seconds of the day): every counter of the node begins anew."""
    restarts: list[tuple[str, str, slice | int, int]] = field(default_factory=list)
    """(layer, column, parts, row): one counter begins anew."""

    def row(self, seconds: float) -> int:
        """Return the first row at or after a time of the day, within 0 and `row_count`."""
        return int(min(max(np.ceil(seconds / self.step_seconds), 0), self.row_count))

    def paint(
        self,
        column: str,
        parts: slice | int | list[int],
        span: tuple[float, float],
        brush: Brush,
        value: float | NDArray[np.floating],
    ) -> None:
        """Note a change of `column` over a span of seconds. A `value` of rows starts at the span's first row."""
        first, end = self.row(span[0]), self.row(span[1])
        if first < end:
            if isinstance(value, np.ndarray):
                value = value[: end - first]
            self.strokes[column].append(Stroke(parts, first, end, brush, value))

    def row_count_of(self, span: tuple[float, float]) -> int:
        return max(0, self.row(span[1]) - self.row(span[0]))

    def grow(self, column: str, part: int, at: float, amount: float = 1.0) -> None:
        """Note that a counter grew; nothing after the day's last row."""
        row = self.row(at)
        if row < self.row_count:
            self.growths[column].append(Growth(part, row, amount))

    def hide(self, layer: str, parts: slice | int, span: tuple[float, float]) -> None:
        """Note that parts had no samples over a span of seconds."""
        first, end = self.row(span[0]), self.row(span[1])
        if first < end:
            self.gaps.append((layer, parts, first, end))

    def reboot(self, node: int, silent_from: float, back_at: float) -> None:
        """Note that a node was silent, and that all its counters are fresh when it is back."""
        for layer, width in (("gpus", 8), ("ports", 8), ("disks", 2), ("nodes", 1)):
            self.hide(layer, slice(node * width, (node + 1) * width), (silent_from, back_at))
        row = self.row(back_at)
        if row < self.row_count:
            self.reboots.append((node, row, back_at))
