"""Jobs that hang: no sign of life moves any more; and the rank that does not wait as the others do.

A sign moves, is still, or nobody knows; one that moves is enough to live. Who is called hung is `hang`'s business.

Floors stand between what a waiting job shows (nothing but keep-alives and metadata) and the faintest work that was met:
one writer of a few MB/s, one GPU at 5 %, one busy core. They are assumptions; docs/DIAGNOSIS.md measures them.

All ranks of a collective that hangs spin alike, but for the one that never came to it. Named is one GPU or one node; of
several nodes none. That the job hangs is `hang`'s finding.

A collective that never ends logs nothing and shows full utilisation. A checkpoint, an evaluation, the loading of data
and compilation all move something (`signs_of_life`), so that no time limit is needed. Who differs is `odd_ranks`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.core.identity import GpuUuid, NodeName, PciAddress
from ops_pipelines.core.observation import NO_NODE, Signal
from ops_pipelines.observe.detectors.shared import (
    Allocation,
    Columns,
    allocations,
    job_component,
    most_reach,
    row_max,
    row_mean,
    row_median,
    rows_since,
)
from ops_pipelines.observe.panels.panel import (
    LOOKBACK_SECONDS,
    Detection,
    Flags,
    Layer,
    Numbers,
    Panel,
    counted,
    held_lately,
    lasting,
    runs_of,
)

# -- what proves that a job lives --


ACTIVITY_FLOORS = {
    # A kernel that spins runs no tensor instruction at all.
    "tensor_active_ratio": 0.003,
    "fp16_active_ratio": 0.02,
    "fp32_active_ratio": 0.02,
    "fp64_active_ratio": 0.02,
    # It polls a few flags: about 0.01 (dcgm_fields.csv, DCGM_FI_PROF_DRAM_ACTIVE).
    "dram_active_ratio": 0.03,
}
POWER_MOVES_RATIO = 0.15
"""Only where no activity is measured: a rank that spins draws the same within a few percent."""
NVLINK_FLOOR_BYTES_PER_SECOND = 1e7
FABRIC_FLOOR_BYTES_PER_SECOND = 1e6
"""Keep-alives and subnet management are kilobytes."""
SHARED_FLOOR_BYTES_PER_SECOND = 3e5
DISK_FLOOR_BYTES_PER_SECOND = 3e8
"""Caches and the system's logs write megabytes whatever the job does; a checkpoint on a local disk fills it."""
SPIN_CORES_PER_RANK = 3.0
"""Nobody who only waits burns more: a core in the driver, one in the proxy of the collective."""
STEADY_CORES, STEADY_CORES_PER_DOUBLING = 0.13, 0.0065
"""Below that, waiting threads are reported by their steadiness: standard deviation of one node over a minute and a
half, and what the unsteadiest of twice as many nodes shows more."""
CORES_APART = 0.4
"""One node above the median of its job, or above what it burnt in an earlier wait."""
_ANY = 1e-9
"""Steps or lines per second: even one in any gap."""
_LEAST_PEERS = 3
_BASELINE_WINDOWS = 25
_LEAST_KNOWN_SHARE = 0.5
"""Of the parts: one node's silent exporter does not blind us for a job of many nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One kind of sign over the rows of an allocation."""

    moves: Flags
    """(rows,)"""
    is_known: Flags
    """(rows,): enough parts gave a sample, or one of them moved."""


def read_signs(panel: Panel, held: Allocation) -> Mapping[str, Sign]:
    """Return the signs of a job by what a person calls them; those that nobody measures are left out."""
    one = np.array([held.job_column], dtype=np.intp)
    ranks_per_node = max(1.0, len(held.gpus) / max(1, len(held.nodes)))

    def grows(layer: Layer, column: str, columns: Columns, *, floor: float) -> Sign:
        return _sign(held.growth(layer, column, columns=columns), floor=floor)

    found = {
        "GPU activity": read_gpu_activity(panel, held),
        "NVLink": grows(panel.gpus, "nvlink_bandwidth_bytes", held.gpus, floor=NVLINK_FLOOR_BYTES_PER_SECOND),
        "network": grows(panel.nodes, "fabric_bytes", held.nodes, floor=FABRIC_FLOOR_BYTES_PER_SECOND),
        "shared storage": _either(
            grows(panel.nodes, "shared_read_bytes", held.nodes, floor=SHARED_FLOOR_BYTES_PER_SECOND),
            grows(panel.nodes, "shared_written_bytes", held.nodes, floor=SHARED_FLOOR_BYTES_PER_SECOND),
        ),
        "local disks": _local_disks(panel, held),
        "CPU": grows(panel.nodes, "cpu_busy_seconds", held.nodes, floor=SPIN_CORES_PER_RANK * ranks_per_node),
        "steps": grows(panel.jobs, "step_count", one, floor=_ANY),
        "log lines": grows(panel.jobs, "line_count", one, floor=_ANY),
    }
    return {name: sign for name, sign in found.items() if sign.is_known.any()}


def recent_mean(values: Numbers, rows: int) -> Numbers:
    """Return the mean of the known values of the last `rows` rows, this one included; NaN where none is known."""
    known = ~np.isnan(values)
    total, count = np.zeros(values.shape), np.zeros(values.shape, dtype=np.int32)
    filled = np.where(known, values, 0.0)
    for back in range(min(rows, len(values))):
        total[back:] += filled[: len(values) - back]
        count[back:] += known[: len(values) - back]
    found = np.full(values.shape, np.nan)
    np.divide(total, count, out=found, where=count > 0)
    return found


def read_gpu_activity(panel: Panel, held: Allocation) -> Sign:
    """Return the sign that nearly every job that lives shows all the time: who sees it need not read the others."""
    measured = [
        _sign(held.of(panel.gpus, column, columns=held.gpus), floor=floor)
        for column, floor in ACTIVITY_FLOORS.items()
        if column in panel.gpus
    ]
    if any(sign.is_known.any() for sign in measured):
        return _either(*measured)
    power = held.of(panel.gpus, "power_watts", columns=held.gpus).astype(np.float64)
    if not power.size:
        return Sign(moves=np.zeros(len(power), dtype=bool), is_known=np.zeros(len(power), dtype=bool))
    change = np.full(power.shape, np.nan)
    change[1:] = np.abs(power[1:] - power[:-1]) / np.maximum(power[:-1], 1.0)
    return _sign(change, floor=POWER_MOVES_RATIO)


def _local_disks(panel: Panel, held: Allocation) -> Sign:
    columns = panel.disks.columns_of(panel.nodes.parts[column].node for column in held.nodes)
    return _either(
        *(
            _sign(held.growth(panel.disks, column, columns=columns), floor=DISK_FLOOR_BYTES_PER_SECOND)
            for column in ("read_bytes", "written_bytes")
        )
    )


def _sign(values: Numbers, *, floor: float) -> Sign:
    """Return where any part reaches its floor, and where enough parts are known to say that none does."""
    moves = row_max(values) >= floor
    enough = max(1.0, _LEAST_KNOWN_SHARE * values.shape[1])
    return Sign(moves=moves, is_known=moves | (np.count_nonzero(~np.isnan(values), axis=1) >= enough))


def _either(*signs: Sign) -> Sign:
    """Return the sign that moves where any of them does; it is known as soon as one is."""
    return Sign(
        moves=np.logical_or.reduce([sign.moves for sign in signs]),
        is_known=np.logical_or.reduce([sign.is_known for sign in signs]),
    )


def burns_like_waiting(panel: Panel, held: Allocation, *, waits: Flags, rows: NDArray[np.intp], window: int) -> Flags:
    """Return for each of `rows` whether the CPUs of the job do no more than waiting threads do; True if not measured.

    `waits` says of every row whether its GPUs are at rest after a first step: what a node burnt in such a time within
    `_BASELINE_WINDOWS` windows before is what its waiting costs.
    """
    cores = held.growth(panel.nodes, "cpu_busy_seconds", columns=held.nodes)
    if np.isnan(cores).all() or not len(rows):
        return np.ones(len(rows), dtype=bool)
    mean = recent_mean(cores, window)
    square = recent_mean(cores**2, window)
    deviation = np.sqrt(np.maximum(square - mean**2, 0.0) * (window / (window - 1)))
    tolerance = STEADY_CORES + STEADY_CORES_PER_DOUBLING * np.log2(len(held.nodes))
    is_unsteady = deviation[rows] > np.maximum(tolerance, 0.012 * mean[rows])
    is_apart = (mean[rows] - row_median(mean[rows])[:, np.newaxis]) > CORES_APART
    if len(held.nodes) < _LEAST_PEERS:
        is_apart[:] = False
    waited = np.where((counted(waits, window) >= window)[:, np.newaxis], mean, np.inf)
    is_above = np.zeros(is_apart.shape, dtype=bool)
    for place, row in enumerate(rows):
        before = waited[max(0, row - _BASELINE_WINDOWS * window + 1) : row + 1].min(axis=0)
        is_above[place] = mean[row] - before > CORES_APART
    return np.array(~(is_unsteady | is_apart | is_above).any(axis=1), dtype=bool)


# -- in a job whose ranks all wait --


RECENT_SECONDS = 60
WAITS_ABOVE_RATIO, ABSENT_BELOW_RATIO = 0.9, 0.5
MEMORY_GONE_RATIO = 0.2
"""Of the median: pipeline stages differ, but not by this much."""
ACTIVITY_APART_RATIO, POWER_APART_RATIO, POWER_APART_WATTS = 0.3, 0.25, 40.0
SPREADS_APART = 6.0
"""Besides: so many robust standard deviations of the job's own ranks."""
IDLE_CPU_RATIO, LEAST_CPU_CORES = 0.3, 4.0
LARGEST_SHARE = 0.4
"""More ranks than this share are no exception, unless they are one node of several."""
_MAD_TO_SIGMA = 1.4826
_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OddRanks:
    """Who differs over the rows `first` to `last` of an allocation, both included."""

    first: int
    last: int
    node: NodeName
    gpu: PciAddress | None
    gpu_uuid: GpuUuid | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Oddity:
    how: str
    holds: Flags
    """(rows, GPUs of the job)"""


def find_odd_ranks(panel: Panel, held: Allocation, *, first: int, last: int) -> Iterator[OddRanks]:
    """Yield who differs in the rows `first` to `last` of an allocation, a new one where that changes."""
    rows = panel.rows_in(RECENT_SECONDS)
    begin = max(0, first - rows + 1)
    interval = slice(begin, last + 1)
    oddities = [
        replace(oddity, holds=oddity.holds[first - begin :])
        for oddity in _oddities(panel, held, interval, rows=rows, lately=first)
    ]
    if not oddities:
        yield OddRanks(first=first, last=last, node=NO_NODE, gpu=None, gpu_uuid=None, text="its ranks are not compared")
        return
    flags = np.logical_or.reduce([oddity.holds for oddity in oddities])
    changes = np.flatnonzero((flags[1:] != flags[:-1]).any(axis=1)) + 1
    open_one: OddRanks | None = None
    for start, end in zip([0, *changes.tolist()], [*changes.tolist(), len(flags)], strict=True):
        named = _name(panel, held, oddities, row=start)
        if open_one is not None and (named.node, named.gpu) == (open_one.node, open_one.gpu):
            open_one = replace(open_one, last=first + end - 1)
            continue
        if open_one is not None:
            yield open_one
        open_one = replace(named, first=first + start, last=first + end - 1)
    if open_one is not None:
        yield open_one


def _oddities(panel: Panel, held: Allocation, rows_of: slice, *, rows: int, lately: int) -> list[_Oddity]:
    def recent(column: str) -> Numbers:
        return recent_mean(held.of(panel.gpus, column, columns=held.gpus)[rows_of], rows)

    if not len(held.gpus):
        return []
    utilisation, memory = recent("utilisation_ratio"), recent("memory_used_bytes")
    waits = utilisation >= WAITS_ABOVE_RATIO
    most_wait = 2 * np.count_nonzero(waits, axis=1) >= np.count_nonzero(~np.isnan(utilisation), axis=1)
    usual_memory = row_median(memory)[:, np.newaxis]
    power = recent("power_watts")
    watts_apart = np.maximum(POWER_APART_RATIO * np.nan_to_num(row_median(power)), POWER_APART_WATTS)
    found = [
        _Oddity(how="is not in the collective", holds=(utilisation <= ABSENT_BELOW_RATIO) & most_wait[:, np.newaxis]),
        _Oddity(how="has freed its memory", holds=memory < MEMORY_GONE_RATIO * usual_memory),
        _Oddity(
            how="shows other SM activity",
            holds=_is_apart(recent("sm_active_ratio"), least=np.full(len(power), ACTIVITY_APART_RATIO)),
        ),
        _Oddity(how="draws other power", holds=_is_apart(power, least=watts_apart)),
        _Oddity(how="gives no samples any more", holds=_vanished(panel, held, rows_of, rows=rows, lately=lately)),
        _Oddity(how="is on a node whose CPU is idle", holds=_idle_host(panel, held, rows_of, rows=rows)),
    ]
    return found if (~np.isnan(utilisation) | ~np.isnan(power) | ~np.isnan(memory)).any() else []


def _is_apart(values: Numbers, *, least: Numbers) -> Flags:
    median = row_median(values)[:, np.newaxis]
    away = np.abs(values - median)
    spread = row_median(away)[:, np.newaxis] * _MAD_TO_SIGMA
    return (away >= least[:, np.newaxis]) & (away > SPREADS_APART * spread)


def _vanished(panel: Panel, held: Allocation, rows_of: slice, *, rows: int, lately: int) -> Flags:
    """Return which GPUs are gone while another of their node is seen, or with their node altogether."""
    seen = held.seen(panel.gpus, columns=held.gpus)
    was_seen = seen[max(0, lately - 4 * rows) : lately].any(axis=0)
    recently: Flags = np.array(held_lately(seen, rows))[rows_of]
    node_recently: Flags = np.array(held_lately(held.seen(panel.nodes, columns=held.nodes), rows))[rows_of]
    host = _hosts(panel, held)
    of_node = np.stack([recently[:, host == place].any(axis=1) for place in range(len(held.nodes))], axis=1)
    # With its node altogether: it is silent, or dead. With its siblings still seen: it fell off the bus.
    may_be_named: Flags = np.array(of_node | ~node_recently)[:, host]
    return np.array(~recently & was_seen & may_be_named, dtype=bool)


def _idle_host(panel: Panel, held: Allocation, rows_of: slice, *, rows: int) -> Flags:
    if "cpu_busy_seconds" not in panel.nodes:
        return np.zeros((rows_of.stop - rows_of.start, len(held.gpus)), dtype=bool)
    cores = recent_mean(held.growth(panel.nodes, "cpu_busy_seconds", columns=held.nodes)[rows_of], rows)
    median = row_median(cores)[:, np.newaxis]
    idle = (cores < IDLE_CPU_RATIO * median) & (median >= LEAST_CPU_CORES)
    return idle[:, _hosts(panel, held)]


def _hosts(panel: Panel, held: Allocation) -> Columns:
    """Return for each GPU of the job the place of its node among the job's nodes."""
    order = {panel.nodes.parts[column].node: place for place, column in enumerate(held.nodes)}
    return np.array([order[panel.gpus.parts[gpu].node] for gpu in held.gpus], dtype=np.intp)


def _name(panel: Panel, held: Allocation, oddities: list[_Oddity], *, row: int) -> OddRanks:
    """Return whom the oddities of one row point at."""
    how = {oddity.how: np.flatnonzero(oddity.holds[row]) for oddity in oddities}
    odd = np.unique(np.concatenate(list(how.values())))
    parts = [panel.gpus.parts[held.gpus[column]] for column in odd]
    nodes = sorted({part.node for part in parts})
    nobody = OddRanks(first=row, last=row, node=NO_NODE, gpu=None, gpu_uuid=None, text="all ranks wait alike")
    if not parts:
        return nobody
    told = "; ".join(f"{words}: {len(columns)}" for words, columns in how.items() if len(columns))
    if len(nodes) > 1:
        shown = ", ".join(nodes[:_SHOWN]) + (f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else "")
        return replace(nobody, text=f"{len(parts)} of {len(held.gpus)} ranks differ, on {shown} ({told}): no one node")
    if len(held.nodes) == 1 and (len(parts) > 1 or len(parts) > LARGEST_SHARE * len(held.gpus)):
        return replace(nobody, text=f"{len(parts)} of {len(held.gpus)} ranks differ on its only node ({told})")
    if len(parts) == 1:
        part, what = parts[0], "; ".join(words for words, columns in how.items() if len(columns))
        return replace(
            nobody,
            node=part.node,
            gpu=PciAddress(part.device),
            gpu_uuid=part.uuid,
            text=f"GPU {part.device} of {part.node} differs from all others: it {what}",
        )
    return replace(nobody, node=nodes[0], text=f"{len(parts)} ranks of {nodes[0]} differ from all others ({told})")


# -- jobs that hang --


STILL_SECONDS = 90
"""All still for so long is a hang: six rows of 15 s, stated 105 s after the onset at the latest. A log that speaks once
a minute is never silent for so long."""
FAINT_PROVE_SECONDS = 900
"""Log lines alone, or a few cores, for longer than any real pause (600 s) are a heartbeat and prove nothing more."""
PROCESSES_GONE_SECONDS = 300
"""With all memory freed the program has ended: its job may do so, too, within minutes."""
LEAST_ACTIVE_SECONDS = 300
"""Without a step counter: so much GPU activity was seen before."""
RESTLESS_STILL_SECONDS = 240
"""Of cores that worked on while the GPUs rested: compilers and loaders stop for a minute or two between their parts.
Assumption."""
_EDGE_ROWS = 2
"""The sample in which a job stops is half work."""
LONG_STILL_SECONDS = 1_800
"""Still for so long needs no proof that it moved before."""
LEAST_KINDS = 2
SPINS_ABOVE_RATIO = 0.9
MEMORY_OF_A_PROGRAM_BYTES = 2 * 2.0**30
"""A CUDA context alone takes about 0.5 GiB."""
WAITS_FOR_STORAGE_ABOVE_RATIO = 0.3
"""Kernel pressure (PSI), mean of the job's nodes: then it waits for storage (`stall`), and does not hang."""
_GAP_SAMPLES = 3
"""Growth looks up to two samples back: that much less of the look-back is left."""
_FAINT = "log lines"


def detect_hangs(panel: Panel) -> Iterator[Detection]:
    """Yield JOB_HUNG for each interval in which a job hangs, again where another rank comes to differ."""
    still_rows = panel.rows_in(STILL_SECONDS)
    for held in allocations(panel):
        if not lasting(~read_gpu_activity(panel, held).moves, still_rows).any():
            continue  # its GPUs alone show that it lives
        signs = read_signs(panel, held)
        for interval in runs_of(_hangs(panel, held, signs)[:, np.newaxis]):
            for odd in find_odd_ranks(panel, held, first=interval.first, last=interval.last):
                yield _detection(panel, held, signs, odd, stretch_first=interval.first)


def _hangs(panel: Panel, held: Allocation, signs: Mapping[str, Sign]) -> Flags:
    count = held.end - held.first
    if len(signs) < LEAST_KINDS or "GPU activity" not in signs:
        return np.zeros(count, dtype=bool)
    lookback, still_rows = panel.rows_in(LOOKBACK_SECONDS) - _GAP_SAMPLES, panel.rows_in(STILL_SECONDS)
    moves = _strong_moves(signs)
    hangs = lasting(~moves, still_rows)
    stopped, known = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for name, sign in signs.items():
        is_known = counted(sign.is_known, still_rows) >= still_rows - 1
        stopped += (counted(sign.moves, lookback) > 0) & is_known
        known += is_known
        # Nobody can step without a GPU, so steps that are not counted any more hide nothing; all else may.
        if name != "steps":
            hangs &= is_known | np.equal(counted(sign.is_known, lookback), 0)
    is_long = (rows_since(moves) >= panel.rows_in(LONG_STILL_SECONDS)) & (known >= LEAST_KINDS)
    spins = most_reach(held.of(panel.gpus, "utilisation_ratio", columns=held.gpus), SPINS_ABOVE_RATIO)
    has_worked = _has_worked(panel, held, signs, spins=spins, lookback=lookback)
    hangs &= has_worked & ((stopped >= LEAST_KINDS) | is_long)
    is_gone = row_max(held.of(panel.gpus, "memory_used_bytes", columns=held.gpus)) < MEMORY_OF_A_PROGRAM_BYTES
    hangs &= ~is_gone | lasting(~moves, panel.rows_in(PROCESSES_GONE_SECONDS))
    hangs &= ~_waits_for_storage(panel, held, rows=still_rows)
    faint_counts = ~lasting(~moves, panel.rows_in(FAINT_PROVE_SECONDS))
    if _FAINT in signs:
        hangs &= ~(faint_counts & (counted(signs[_FAINT].moves, still_rows) > 0))
    rows = np.flatnonzero(hangs & faint_counts)
    rests = ~signs["GPU activity"].moves & has_worked
    is_quiet = ~faint_counts
    is_quiet[rows] = burns_like_waiting(panel, held, waits=rests, rows=rows, window=still_rows)
    # Cores that were at work after the GPUs had stopped may pause, too: then a minute and a half of quiet is no proof.
    was_restless = np.zeros(count, dtype=bool)
    was_restless[rows] = ~is_quiet[rows] & (rows_since(moves)[rows] >= still_rows + _EDGE_ROWS)
    worked_on = rows_since(was_restless) < rows_since(moves)
    is_quiet &= ~worked_on | lasting(is_quiet, panel.rows_in(RESTLESS_STILL_SECONDS))
    # Once quiet, what a daemon burns later is no life: until something moves that only the job can move.
    return hangs & (rows_since(is_quiet) < rows_since(moves))


def _strong_moves(signs: Mapping[str, Sign]) -> Flags:
    return np.array(np.logical_or.reduce([sign.moves for name, sign in signs.items() if name != _FAINT]), dtype=bool)


def _waits_for_storage(panel: Panel, held: Allocation, *, rows: int) -> Flags:
    stalled = row_mean(held.growth(panel.nodes, "pressure_io_stalled_seconds", columns=held.nodes))
    return np.array(recent_mean(stalled, rows) >= WAITS_FOR_STORAGE_ABOVE_RATIO, dtype=bool)


def _has_worked(panel: Panel, held: Allocation, signs: Mapping[str, Sign], *, spins: Flags, lookback: int) -> Flags:
    """Return where the attempt is past its first step, as far as the look-back shows it."""
    count = held.end - held.first
    is_old = np.arange(count) >= lookback
    steps = held.of(panel.jobs, "step_count", columns=np.array([held.job_column], dtype=np.intp))[:, 0]
    grows = signs["steps"].moves if "steps" in signs else np.zeros(count, dtype=bool)
    began_anew = np.zeros(count, dtype=bool)
    began_anew[1:] = steps[1:] < steps[:-1]
    has_stepped = (counted(grows, lookback) > 0) & (rows_since(grows) < rows_since(began_anew))
    # Without a counter: GPUs computed for minutes, and the ranks of one program spoke with one another.
    least = panel.rows_in(LEAST_ACTIVE_SECONDS)
    together = [signs[name].moves for name in ("NVLink", "network") if name in signs]
    spoke = np.logical_or.reduce([*together, np.zeros(count, dtype=bool)])
    trained = (counted(signs["GPU activity"].moves, lookback) >= least) & (
        spins | ((counted(spoke & spins, lookback) >= least) & (len(held.gpus) > 1))
    )
    uncounted = np.equal(counted(~np.isnan(steps), lookback), 0)
    return np.array(has_stepped | (uncounted & trained) | (is_old & (spins | (np.nan_to_num(steps) > 0))), dtype=bool)


def _detection(
    panel: Panel, held: Allocation, signs: Mapping[str, Sign], odd: OddRanks, *, stretch_first: int
) -> Detection:
    job = panel.job(held.job_column)
    last_moved = _last_moved(signs, row=stretch_first, still_rows=panel.rows_in(STILL_SECONDS))
    began_at = panel.time(held.first + last_moved)
    first_seen_at = panel.time(held.first + odd.first)
    still = ", ".join(name for name, sign in signs.items() if sign.is_known[: odd.first + 1].any())
    utilisation = row_median(held.of(panel.gpus, "utilisation_ratio", columns=held.gpus)[odd.first : odd.first + 1])[0]
    looks = "" if np.isnan(utilisation) else f"; the median rank shows {utilisation:.0%} utilisation"
    return Detection(
        signal=Signal.JOB_HUNG,
        node=odd.node,
        gpu=odd.gpu,
        gpu_uuid=odd.gpu_uuid,
        component=job_component(job) if odd.node == NO_NODE else None,
        job=job,
        began_at=began_at,
        first_seen_at=first_seen_at,
        last_seen_at=panel.time(held.first + odd.last),
        value=(first_seen_at - began_at).total_seconds(),
        text=f"job {job} hangs: nothing moved since {began_at:%H:%M:%S}; {odd.text}{looks}; still: {still}",
    )


def _last_moved(signs: Mapping[str, Sign], *, row: int, still_rows: int) -> int:
    """Return the row of the last movement up to `row`. Lines count if they stopped: else they were no proof."""
    moved = _strong_moves(signs)[: row + 1]
    if _FAINT in signs and not signs[_FAINT].moves[max(0, row + 1 - still_rows) : row + 1].any():
        moved = moved | signs[_FAINT].moves[: row + 1]
    return int(row - rows_since(moved)[row]) if moved.any() else 0
