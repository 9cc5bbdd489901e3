"""Jobs that hang: after a first step, no sign of life moves any more; and the rank that differs from all others.

A collective that never ends logs nothing and shows full utilisation. A checkpoint, an evaluation, the loading of data
and compilation all move something (`signs_of_life`), so that no time limit is needed. Who differs is `odd_ranks`.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from ops_pipelines.core.observation import NO_NODE, Signal
from ops_pipelines.frames.detectors.allocations import (
    Allocation,
    allocations,
    job_component,
    most_reach,
    row_max,
    row_mean,
    row_median,
    rows_since,
)
from ops_pipelines.frames.detectors.odd_ranks import OddRanks, find_odd_ranks
from ops_pipelines.frames.detectors.signs_of_life import (
    Sign,
    burns_like_waiting,
    read_gpu_activity,
    read_signs,
    recent_mean,
)
from ops_pipelines.frames.panels.detection import Detection, counted, lasting, stretches
from ops_pipelines.frames.panels.panel import LOOKBACK_SECONDS, Flags, Panel

STILL_SECONDS = 90
"""All still for so long is a hang: six rows of 15 s, said 105 s after the onset at the latest. A log that speaks once a
minute is never silent for so long."""
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
    """Yield JOB_HUNG for each stretch in which a job hangs, anew where another rank comes to differ."""
    still_rows = panel.rows_in(STILL_SECONDS)
    for held in allocations(panel):
        if not lasting(~read_gpu_activity(panel, held).moves, still_rows).any():
            continue  # its GPUs alone show that it lives
        signs = read_signs(panel, held)
        for stretch in stretches(_hangs(panel, held, signs)[:, np.newaxis]):
            for odd in find_odd_ranks(panel, held, first=stretch.first, last=stretch.last):
                yield _detection(panel, held, signs, odd, stretch_first=stretch.first)


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
