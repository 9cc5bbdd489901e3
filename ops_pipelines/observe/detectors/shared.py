"""What detectors share: counters over gaps and restarts, peers, and which job holds which nodes.

Exact in whole numbers, and each row from the rows before it: a detector says the same of a grid time whether it sees a
day or the minutes before. No limit of any fault is here.

Numbers only. Who is whose neighbour, and how far is too far, is for each detector in `detectors` to say.

What the detectors of jobs share: slices of a panel, and numbers put together over the parts of one job. What any of it
means is the detectors' business.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.identity import JobId, PciAddress
from ops_pipelines.core.observation import Signal
from ops_pipelines.observe.panels.panel import Detection, Flags, Layer, Numbers, Panel, Part, runs_of

# -- what detectors share --


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

    Over gaps of up to GAP_SECONDS the sample before the gap counts. A counter that falls was restarted: it reports
    nothing at that sample, and nothing at the next: some exporters read 0 once and then the old total again.
    """
    moving = _moving(layer, column)
    if not len(moving):
        return Growth(moving, np.zeros((len(panel.times), 0)))
    samples = layer.values[column][:, moving]
    counts = np.zeros(samples.shape)
    np.subtract(samples[1:], samples[:-1], out=counts[1:], dtype=np.float64)
    unknown = np.isnan(samples)
    _bridge(counts, samples, unknown, rows=panel.rows_in(GAP_SECONDS) + 1)
    restarted = np.nonzero(counts < 0)
    counts[restarted] = 0
    after, places = restarted[0] + 1, restarted[1]
    counts[after[after < len(counts)], places[after < len(counts)]] = 0
    counts[np.isnan(counts)] = 0
    enough = counts.sum(axis=0, dtype=np.float64) >= least
    return Growth(moving[enough], counts[:, enough])


def _bridge(counts: Numbers, samples: Numbers, unknown: Flags, *, rows: int) -> None:
    """Set the growth of the first sample after each gap: since the newest sample at most `rows` before it."""
    row, place = np.nonzero(unknown[:-1] & ~unknown[1:])
    row += 1
    for back in range(2, rows + 1):
        row, place = row[row >= back], place[row >= back]
        before = samples[row - back, place]
        found = ~np.isnan(before)
        now = samples[row[found], place[found]]
        counts[row[found], place[found]] = np.subtract(now, before[found], dtype=np.float64)
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
    """Return parts that no layer lists as such, so that they can be notified: nodes by their GPUs, racks by their
    nodes."""
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
    """Yield one detection for each interval of `said`, in the words that hold at its first row.

    `said` and `signs` are (times, columns); `describe` is asked for (row, place in `columns`). The trouble began at the
    first of `signs` within the `sign_rows` up to the row at which it was stated. A part without `kind` that is no port
    and no disk is a GPU if it names a device, else a node.
    """
    signs = said if signs is None else signs
    kind = kind or {id(panel.ports): ComponentKind.LINK, id(panel.disks): ComponentKind.DISK}.get(id(layer))
    for interval in runs_of(said):
        part = layer.parts[columns[interval.column]]
        text, value = describe(interval.first, interval.column)
        began = first_row(signs, column=interval.column, row=interval.first, rows=sign_rows)
        is_gpu = kind is None and bool(part.device)
        component = None if kind is None else Component(kind=kind, name=part.device, node=part.node or None)
        yield Detection(
            signal=signal,
            node=part.node,
            began_at=panel.time(began),
            first_seen_at=panel.time(interval.first),
            last_seen_at=panel.time(interval.last),
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
    """Yield what is stated of counters; `words` takes the number that decided as {0}. All matrices are as in
    `grown`."""
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


# -- how far parts stand apart from their neighbours --


MAD_TO_SIGMA = 1.4826
"""Of a normal distribution, the standard deviation over the median absolute deviation."""
_CELLS_AT_ONCE = 4_000_000
"""Bounds the memory of comparisons in which each part has other peers."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """A partition of columns."""

    index: NDArray[np.intp]
    """Column -> its group."""
    members: NDArray[np.intp]
    """(groups, size of the largest) -> column; -1 where a group is smaller."""

    def __len__(self) -> int:
        return len(self.members)

    @property
    def sizes(self) -> NDArray[np.intp]:
        return np.asarray((self.members >= 0).sum(axis=1), dtype=np.intp)


def group_by(labels: Sequence[Hashable]) -> Groups:
    """Return the columns grouped by equal label, groups in the order of their first column."""
    order: dict[Hashable, list[int]] = {}
    for column, label in enumerate(labels):
        order.setdefault(label, []).append(column)
    width = max(map(len, order.values()), default=0)
    index = np.zeros(len(labels), dtype=np.intp)
    members = np.full((len(order), width), -1, dtype=np.intp)
    for group, columns in enumerate(order.values()):
        index[columns] = group
        members[group, : len(columns)] = columns
    return Groups(index, members)


def gathered(values: Numbers, groups: Groups) -> Numbers:
    """Return values (times, columns) as (times, groups, members); NaN where a group is smaller than the largest."""
    members = groups.members
    if np.array_equal(members.ravel(), np.arange(values.shape[1])):
        return values.reshape(len(values), *members.shape)  # the usual case: eight GPUs a node, one node after another
    found = values[:, members]
    found[:, members < 0] = np.nan
    return found


def group_count(flags: Flags, groups: Groups) -> NDArray[np.int32]:
    """Return (times, groups): for how many members the flag holds."""
    counts = np.zeros((len(flags), len(groups)), dtype=np.int32)
    if groups.members.shape[1] > len(groups):
        for group, columns in enumerate(groups.members):
            counts[:, group] = flags[:, columns[columns >= 0]].sum(axis=1)
        return counts
    for columns in groups.members.T:
        counts += flags[:, columns] & (columns >= 0)
    return counts


def median(values: Numbers) -> Numbers:
    """Return the median along the last axis, NaN left out; NaN where nothing is left."""
    if not values.shape[-1]:
        return np.full(values.shape[:-1], np.nan, dtype=values.dtype)
    in_order = np.sort(values, axis=-1)  # NaN comes last
    counts = values.shape[-1] - np.isnan(in_order).sum(axis=-1)
    low = np.maximum(counts - 1, 0) // 2
    high = np.where(counts > 0, counts // 2, 0)
    pair = np.take_along_axis(in_order, np.stack((low, high), axis=-1), axis=-1)
    return np.asarray((pair[..., 0] + pair[..., 1]) / 2, dtype=values.dtype)


def group_median(values: Numbers, groups: Groups) -> Numbers:
    """Return (times, groups): the median of each group, NaN left out; NaN where a group has no sample."""
    return median(gathered(values, groups))


def robust_z(values: Numbers, groups: Groups, *, least_spread: float) -> Numbers:
    """Return how many robust standard deviations each value lies above the median of its group.

    The spread is 1.4826 x MAD, and never less than `least_spread` (in the unit of the values): peers that agree to the
    last digit would make an outlier of any noise. NaN where the value is NaN.
    """
    members = gathered(values, groups)
    middle = median(members)
    spread = np.maximum(median(np.abs(members - middle[..., None])) * MAD_TO_SIGMA, least_spread)
    return np.asarray((values - middle[:, groups.index]) / spread[:, groups.index], dtype=values.dtype)


def excess_over_busier(
    values: Numbers, *, work: Sequence[Numbers], groups: Groups, candidates: Flags, slack_ratio: float, peer_count: int
) -> Numbers:
    """Return by how much each value exceeds the median of the peers that work at least as hard; NaN elsewhere.

    Peers are the others of the group of whom each measure of work is at least (1 - `slack_ratio`) of one's own: who
    gives off more than its busier neighbours has no work to excuse it. NaN where it is no candidate, and with fewer
    than `peer_count` such peers. All matrices are (times, columns).
    """
    excess = np.full(values.shape, np.nan, dtype=np.float32)
    rows, columns = np.nonzero(candidates & ~np.isnan(values))
    step = max(1, _CELLS_AT_ONCE // max(1, groups.members.shape[1]))
    for first in range(0, len(rows), step):
        row, column = rows[first : first + step], columns[first : first + step]
        peers = groups.members[groups.index[column]]
        beside = row[:, None]
        unfit = (peers < 0) | (peers == column[:, None])
        for measure in work:
            unfit |= ~(measure[beside, peers] >= measure[row, column][:, None] * (1 - slack_ratio))
        theirs = np.where(unfit, np.nan, values[beside, peers])
        enough = (~np.isnan(theirs)).sum(axis=1) >= peer_count
        excess[row, column] = np.where(enough, values[row, column] - median(theirs), np.nan)
    return excess


def above_least(values: Numbers, groups: Groups, *, limit: float) -> Flags:
    """Return where a value exceeds the least of its group by `limit` or more.

    Anyone who exceeds the median of any part of its group by that much does this too: a cheap way to candidates.
    """
    if not groups.members.size:
        return np.zeros(values.shape, dtype=bool)
    least = np.fmin.reduce(gathered(values, groups), axis=2)
    return np.asarray(values - least[:, groups.index] >= limit)


def most_of_group(flags: Flags, known: Flags, groups: Groups, *, least: int) -> Flags:
    """Return (times, groups): at least `least` known members, and at least half of them, have the flag."""
    if not flags.any():
        return np.zeros((len(flags), len(groups)), dtype=bool)
    counts = group_count(flags & known, groups)
    return np.asarray((counts >= least) & (2 * counts >= group_count(known, groups)))


# -- which job holds which nodes, from which grid time to which --


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A job holds the same nodes over rows `first` to `end`, `end` not included."""

    job_column: int
    first: int
    end: int
    nodes: Columns
    """Columns of the layer `nodes`."""
    gpus: Columns
    """Columns of the layer `gpus`."""

    @property
    def rows(self) -> slice:
        return slice(self.first, self.end)

    def of(self, layer: Layer, column: str, *, columns: Columns) -> Numbers:
        """Return the samples of these columns while the job runs; all NaN if nobody measures the quantity."""
        if column not in layer:
            return np.full((self.end - self.first, len(columns)), np.nan)
        return layer.value(column)[self.rows, columns]

    def seen(self, layer: Layer, *, columns: Columns) -> Flags:
        """Return where any quantity of these columns has a sample."""
        if not layer.values:
            return np.zeros((self.end - self.first, len(columns)), dtype=bool)
        return layer.present[self.rows, columns]

    def growth(self, layer: Layer, column: str, *, columns: Columns) -> Numbers:
        """Return how fast a counter of these columns grew, per second; see `growth_over_gaps`."""
        found = growth_over_gaps(self.of(layer, column, columns=columns), step_seconds=layer.step_seconds)
        found[:1] = np.nan  # the sample before it belongs to anyone who held the node then
        return found


def allocations(panel: Panel) -> Iterator[Allocation]:
    """Yield what jobs hold, by time of beginning. A job whose set of nodes changes has another allocation."""
    held = panel.held_by
    if not len(held) or not held.shape[1]:
        return
    changes = np.flatnonzero((held[1:] != held[:-1]).any(axis=1)) + 1

    def allocation(key: tuple[int, tuple[int, ...]], *, first: int, end: int) -> Allocation:
        job_column, nodes = key
        return Allocation(
            job_column=job_column,
            first=first,
            end=end,
            nodes=np.array(nodes, dtype=np.intp),
            gpus=panel.gpus.columns_of(panel.nodes.parts[node].node for node in nodes),
        )

    open_since: dict[tuple[int, tuple[int, ...]], int] = {}
    for row in [0, *changes.tolist()]:
        now = _holders(held[row])
        for key in [key for key in open_since if key not in now]:
            yield allocation(key, first=open_since.pop(key), end=row)
        for key in now:
            open_since.setdefault(key, row)
    for key, first in open_since.items():
        yield allocation(key, first=first, end=len(held))


def growth_over_gaps(samples: Numbers, *, step_seconds: int) -> Numbers:
    """Return how fast counters grew up to each row, per second; over one missing sample, the mean of the two steps.

    NaN at the first row, where the sample is missing, after longer gaps, and where a counter fell: it began again.
    """
    grown = np.full(samples.shape, np.nan)
    np.subtract(samples[1:], samples[:-1], out=grown[1:], dtype=np.float64)
    if len(samples) > 2:
        over_gap = np.subtract(samples[2:], samples[:-2], dtype=np.float64) / 2
        np.copyto(grown[2:], over_gap, where=np.isnan(samples[1:-1]))
    grown[grown < 0] = np.nan
    grown /= step_seconds
    return grown


def rows_since(flags: Flags) -> NDArray[np.int64]:
    """Return for each row how many rows ago a flag (times,) last held; more than there are rows if it never did."""
    rows = np.arange(len(flags))
    last = np.maximum.accumulate(np.where(flags, rows, -len(flags) - 1))
    return rows - last


def row_median(values: Numbers) -> NDArray[np.float64]:
    """Return the median of each row over its known values; NaN for a row without any."""
    known = np.count_nonzero(~np.isnan(values), axis=1)
    ordered = np.sort(values, axis=1).astype(np.float64)  # NaN comes last
    found = np.full(len(values), np.nan)
    given = np.flatnonzero(known)
    upper, lower = known[given] // 2, (known[given] - 1) // 2
    found[given] = (ordered[given, lower] + ordered[given, upper]) / 2
    return found


def most_reach(values: Numbers, floor: float) -> Flags:
    """Return for each row whether at least half of the known values reach `floor`; False for a row without any."""
    known, reach = np.count_nonzero(~np.isnan(values), axis=1), np.count_nonzero(values >= floor, axis=1)
    return np.array((2 * reach >= known) & (known > 0), dtype=bool)


def row_mean(values: Numbers) -> NDArray[np.float64]:
    """Return the mean of the known values of each row; NaN for a row without any."""
    known = ~np.isnan(values)
    found = np.full(len(values), np.nan)
    total = np.where(known, values, 0.0).sum(axis=1, dtype=np.float64)
    np.divide(total, known.sum(axis=1), out=found, where=known.any(axis=1))
    return found


def row_max(values: Numbers) -> NDArray[np.float64]:
    """Return the largest known value of each row; NaN for a row without any."""
    found = np.max(np.where(np.isnan(values), -np.inf, values), axis=1, initial=-np.inf)
    return np.where(np.isneginf(found), np.nan, found)


def job_component(job: JobId) -> Component:
    return Component(kind=ComponentKind.JOB, name=job)


def _holders(row: NDArray[np.int32]) -> dict[tuple[int, tuple[int, ...]], None]:
    return {(int(job), tuple(np.flatnonzero(row == job).tolist())): None for job in np.unique(row[row >= 0])}
