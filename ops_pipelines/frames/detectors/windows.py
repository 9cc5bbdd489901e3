"""What detectors share: counters that grow over gaps and restarts, flags carried over gaps, and flags told as words.

Exact in whole numbers, and each row from the rows before it: a detector says the same of a grid time whether it sees
a day or the minutes before. No limit of any fault stands here.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.identity import PciAddress
from ops_pipelines.core.observation import Signal
from ops_pipelines.frames.panels.detection import Detection, stretches
from ops_pipelines.frames.panels.panel import Flags, Layer, Numbers, Panel, Part

GAP_SECONDS = 60
"""A state is believed for so long without a sample, and a counter compared over so long a gap. Assumption: four samples
of 15 s, which outlasts the restart of an exporter."""

Columns = NDArray[np.intp]
Told = tuple[str, float | None]
"""The words after the part's name, and the number that decided."""


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """How much counters grew at each grid time since the sample before."""

    columns: Columns
    """Columns of the layer; those whose counter moved too little are left out."""
    counts: NDArray[np.float64]
    """(times, columns). 0 where nothing is known: without a sample, after a long gap, at a restart."""

    @property
    def grew(self) -> Flags:
        return np.greater(self.counts, 0)

    def within(self, rows: int) -> NDArray[np.float64]:
        """Return how much each counter grew within the last `rows` grid times, this one included."""
        sums = np.cumsum(self.counts, axis=0)
        if len(sums) > rows:
            sums[rows:] -= sums[:-rows].copy()
        return sums


def growth(panel: Panel, layer: Layer, column: str, *, least: float = 1) -> Growth:
    """Return the growth of a counter; parts whose counter grew by less than `least` in all are left out.

    Over gaps of up to GAP_SECONDS the sample before the gap counts. A counter that falls was restarted: it tells
    nothing at that sample, and nothing at the next: some exporters read 0 once and then the old total again.
    """
    moving = _moving(layer, column)
    if not len(moving):
        return Growth(moving, np.zeros((len(panel.times), 0)))
    samples = layer.values[column][:, moving]
    counts = np.zeros(samples.shape, dtype=samples.dtype)
    np.subtract(samples[1:], samples[:-1], out=counts[1:])
    unknown = np.isnan(samples)
    _bridge(counts, samples, unknown, rows=panel.rows_in(GAP_SECONDS) + 1)
    restarted = np.nonzero(counts < 0)
    counts[restarted] = 0
    after, places = restarted[0] + 1, restarted[1]
    counts[after[after < len(counts)], places[after < len(counts)]] = 0
    counts[np.isnan(counts)] = 0
    enough = counts.sum(axis=0, dtype=np.float64) >= least
    return Growth(moving[enough], counts[:, enough].astype(np.float64))


def _bridge(counts: Numbers, samples: Numbers, unknown: Flags, *, rows: int) -> None:
    """Set the growth of the first sample after each gap: since the newest sample at most `rows` before it."""
    row, place = np.nonzero(unknown[:-1] & ~unknown[1:])
    row += 1
    for back in range(2, rows + 1):
        row, place = row[row >= back], place[row >= back]
        before = samples[row - back, place]
        found = ~np.isnan(before)
        counts[row[found], place[found]] = samples[row[found], place[found]] - before[found]
        row, place = row[~found], place[~found]


def _moving(layer: Layer, column: str) -> Columns:
    samples = layer.values.get(column)
    if samples is None or not samples.size:
        return np.empty(0, dtype=np.intp)
    return np.flatnonzero(np.fmax.reduce(samples, axis=0) > np.fmin.reduce(samples, axis=0))


def ever(flags: Flags) -> Columns:
    """Return the columns in which a flag ever holds: most never do, and need no further look."""
    return np.flatnonzero(flags.any(axis=0))


def carried(flags: Flags, known: Flags, rows: int) -> Flags:
    """Return the flags, each held over up to `rows` following grid times at which nothing is known."""
    found = flags & known
    unknown = ~known
    if not unknown.any():
        return found
    for _ in range(rows):
        longer = found.copy()
        longer[1:] |= unknown[1:] & found[:-1]
        if np.array_equal(longer, found):
            break
        found = longer
    return found


def state_holds(panel: Panel, layer: Layer, column: str, holds: Callable[[Numbers], Flags]) -> tuple[Flags, Columns]:
    """Return where a state holds, over short gaps too, and the columns in which it ever does."""
    samples = layer.values.get(column)
    if samples is None or not samples.size:
        return np.zeros((len(panel.times), 0), dtype=bool), np.empty(0, dtype=np.intp)
    columns = ever(holds(samples))
    chosen = samples[:, columns]
    return carried(holds(chosen), ~np.isnan(chosen), panel.rows_in(GAP_SECONDS)), columns


def mean_lately(samples: Numbers, rows: int) -> Numbers:
    """Return the mean of the last `rows` samples, NaN left out; NaN where half of them or more are missing."""
    known = ~np.isnan(samples)
    total = _sum_lately(np.where(known, samples, 0).astype(np.float32, copy=False), rows)
    count = _sum_lately(known.astype(np.float32), rows)
    return np.divide(total, count, out=np.full(samples.shape, np.nan, dtype=np.float32), where=count > rows / 2)


def _sum_lately(values: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
    """Return sums over the last `rows` rows, by doubling: the order of additions, and so the rounding, does not depend
    on where the matrix begins, as that of a running sum would."""
    total, block, size, done = np.zeros_like(values), values, 1, 0
    while rows:
        if rows & 1:
            total[done:] += block[: max(0, len(block) - done)]
            done += size
        rows >>= 1
        if rows:
            longer = block.copy()
            longer[size:] += block[:-size]
            block, size = longer, 2 * size
    return total


def first_row(flags: Flags, *, column: int, row: int, rows: int) -> int:
    """Return the first of the `rows` grid times up to and including `row` at which a flag held; `row` if none."""
    start = max(0, row - rows + 1)
    window = flags[start : row + 1, column]
    return start + int(np.argmax(window)) if window.any() else row


def newest(samples: NDArray[np.floating], *, column: int, row: int, rows: int) -> float:
    """Return the newest sample of the `rows` grid times up to and including `row`; NaN if there is none."""
    window = samples[max(0, row - rows + 1) : row + 1, column]
    known = window[~np.isnan(window)]
    return float(known[-1]) if len(known) else float("nan")


def layer_of(panel: Panel, parts: Iterable[Part]) -> Layer:
    """Return parts that no layer lists as such, so that they can be told: nodes by their GPUs, racks by their nodes."""
    return Layer(parts=tuple(parts), values={}, step_seconds=panel.step_seconds)


def told(
    panel: Panel,
    layer: Layer,
    said: Flags,
    *,
    columns: Columns,
    signal: Signal,
    describe: Callable[[int, int], Told],
    signs: Flags | None = None,
    sign_rows: int = 1,
    code: int | None = None,
    kind: ComponentKind | None = None,
) -> Iterator[Detection]:
    """Yield one detection for each stretch of `said`, in the words that hold at its first row.

    `said` and `signs` are (times, columns); `describe` is asked for (row, place in `columns`). The trouble began at the
    first of `signs` within the `sign_rows` up to the row at which it was said. A part without `kind` that is no port
    and no disk is a GPU if it names a device, else a node.
    """
    signs = said if signs is None else signs
    kind = kind or {id(panel.ports): ComponentKind.LINK, id(panel.disks): ComponentKind.DISK}.get(id(layer))
    for stretch in stretches(said):
        part = layer.parts[columns[stretch.column]]
        text, value = describe(stretch.first, stretch.column)
        began = first_row(signs, column=stretch.column, row=stretch.first, rows=sign_rows)
        is_gpu = kind is None and bool(part.device)
        component = None if kind is None else Component(kind=kind, name=part.device, node=part.node or None)
        yield Detection(
            signal=signal,
            node=part.node,
            began_at=panel.time(began),
            first_seen_at=panel.time(stretch.first),
            last_seen_at=panel.time(stretch.last),
            text=f"{component or (f'GPU {part.device} of {part.node}' if is_gpu else part.node)} {text}",
            gpu=PciAddress(part.device) if is_gpu else None,
            gpu_uuid=part.uuid,
            component=component,
            code=code,
            value=value,
        )


def told_counts(
    panel: Panel,
    layer: Layer,
    grown: Growth,
    *,
    said: Flags,
    values: NDArray[np.float64],
    signal: Signal,
    words: str,
    sign_rows: int,
    signs: Flags | None = None,
) -> Iterator[Detection]:
    """Yield what is said of counters; `words` takes the number that decided as {0}. All matrices are as in `grown`."""
    places = ever(said)
    values = values[:, places]

    def describe(row: int, place: int) -> Told:
        value = float(values[row, place])
        return words.format(value), value

    yield from told(
        panel,
        layer,
        said[:, places],
        columns=grown.columns[places],
        signal=signal,
        describe=describe,
        signs=(grown.grew if signs is None else signs)[:, places],
        sign_rows=sign_rows,
    )
