"""Jobs without progress: GPUs held idle, waiting for data, a loss that is no number; and attempts that fail.

A service that waits for traffic has its model in memory, and is not idle; partly used jobs are `efficiency`'s. A job
that waits for storage is secondary by nature: a pause of a healthy job moves bytes and ends within ten minutes. Of
attempts that failed it is found whether the job fails wherever it runs, or the node fails whatever runs there; time
limits, cancellations and preemptions are no failures.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import comb

import numpy as np

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import NO_NODE, JobState, JobStatus, Signal
from ops_pipelines.observe.detectors.hang import recent_mean
from ops_pipelines.observe.detectors.node import NOTHING_BELOW_BYTES_PER_SECOND
from ops_pipelines.observe.detectors.shared import Allocation, Columns, allocations, job_component, row_max, row_mean
from ops_pipelines.observe.panels.panel import (
    LOOKBACK_SECONDS,
    Detection,
    Flags,
    Numbers,
    Panel,
    counted,
    lasting,
    runs_of,
)

# -- GPUs that a job holds and never uses --


IDLE_SECONDS = 1_800
REST_BELOW = {
    "utilisation_ratio": 0.02,
    "sm_active_ratio": 0.02,
    "graphics_active_ratio": 0.02,
    "tensor_active_ratio": 0.01,
    # A CUDA context alone takes about 0.5 GiB; two of them, and nothing else.
    "memory_used_bytes": 2 * 2.0**30,
}


def detect_idle_gpus(panel: Panel) -> Iterator[Detection]:
    """Yield GPUS_IDLE where every GPU of a job rested for IDLE_SECONDS. Activity and memory must both be measured."""
    rows = panel.rows_in(IDLE_SECONDS)
    for held in allocations(panel):
        if held.end - held.first < rows or not len(held.gpus):
            continue
        largest = {name: row_max(held.of(panel.gpus, name, columns=held.gpus)) for name in REST_BELOW}
        in_use = np.logical_or.reduce([largest[name] >= REST_BELOW[name] for name in REST_BELOW])
        activity_known = np.logical_or.reduce(
            [~np.isnan(largest[name]) for name in REST_BELOW if name != "memory_used_bytes"]
        )
        rests = ~in_use & activity_known & ~np.isnan(largest["memory_used_bytes"])
        job = panel.job(held.job_column)
        for interval in runs_of(lasting(rests[:, np.newaxis], rows)):
            began_at = panel.time(held.first + interval.first - rows + 1)
            yield Detection(
                signal=Signal.GPUS_IDLE,
                node=NO_NODE,
                component=job_component(job),
                job=job,
                began_at=began_at,
                first_seen_at=panel.time(held.first + interval.first),
                last_seen_at=panel.time(held.first + interval.last),
                value=float(len(held.gpus)),
                text=f"job {job} holds {len(held.gpus)} GPUs and has used none of them since {began_at:%H:%M}: no"
                " activity, nothing in their memory",
            )


# -- jobs that look busy and wait --


WINDOW_SECONDS = 900
"""Longer than any pause of a healthy job (600 s)."""
LOOKS_BUSY_ABOVE_RATIO, LITTLE_WORK_BELOW_RATIO = 0.7, 0.1
"""Utilisation counts resident kernels; tensor activity the work (dcgm_fields.csv: training shows 0.3 to 0.5)."""
STALLED_ABOVE_RATIO = 0.3
"""Kernel pressure (PSI), mean of the job's nodes; a healthy loader stays below 0.05."""
WAITS_ABOVE_TICKS_PER_SECOND = 1e7
"""Congestion: a port that has data and no credit counts ticks of some nanoseconds; this is several percent of them."""
NOTHING_SECONDS = 60
_ROUNDING = 1 + 1e-9
"""The mean of numbers may lie below the least of them by its rounding."""
STORAGE, NETWORK = 1, 2
_REASONS = {STORAGE: "storage", NETWORK: "the network"}


def detect_stalled_jobs(panel: Panel) -> Iterator[Detection]:
    """Yield JOB_STALLED with code 1 (storage) or 2 (network). Without tensor activity nothing is stated."""
    window, soon = panel.rows_in(WINDOW_SECONDS), panel.rows_in(NOTHING_SECONDS)
    for held in allocations(panel):
        busy = row_mean(held.of(panel.gpus, "utilisation_ratio", columns=held.gpus))
        work = row_mean(held.of(panel.gpus, "tensor_active_ratio", columns=held.gpus))
        if not (work < LITTLE_WORK_BELOW_RATIO * _ROUNDING).any():
            continue  # who always works is never stalled: the rest need not be read
        stalled = row_mean(held.growth(panel.nodes, "pressure_io_stalled_seconds", columns=held.nodes))
        congested = _wait_ticks(panel, held)
        looks_busy = recent_mean(busy, window) >= LOOKS_BUSY_ABOVE_RATIO
        looks_busy &= recent_mean(work, window) < LITTLE_WORK_BELOW_RATIO
        looks_busy[: window - 1] = False
        gets_nothing = (work < LITTLE_WORK_BELOW_RATIO) & (stalled >= STALLED_ABOVE_RATIO)
        gets_nothing &= _shared_bytes(panel, held) < NOTHING_BELOW_BYTES_PER_SECOND
        storage = (looks_busy & (recent_mean(stalled, window) >= STALLED_ABOVE_RATIO)) | lasting(gets_nothing, soon)
        network = looks_busy & (recent_mean(congested, window) >= WAITS_ABOVE_TICKS_PER_SECOND) & ~storage
        for code, flags, numbers in ((STORAGE, storage, stalled), (NETWORK, network, congested)):
            for interval in runs_of(flags[:, np.newaxis]):
                first = interval.first
                rows = window if looks_busy[first] else soon
                yield _detection(
                    panel,
                    held,
                    code=code,
                    first=first,
                    last=interval.last,
                    rows=rows,
                    words=f"utilisation {busy[first]:.0%}, tensor pipes {work[first]:.0%}",
                    value=float(numbers[first]),
                )


def _shared_bytes(panel: Panel, held: Allocation) -> Numbers:
    """Return what shared storage moved for the busiest node of the job, per second."""
    read = row_max(held.growth(panel.nodes, "shared_read_bytes", columns=held.nodes))
    written = row_max(held.growth(panel.nodes, "shared_written_bytes", columns=held.nodes))
    return np.fmax(read, written)


def _wait_ticks(panel: Panel, held: Allocation) -> Numbers:
    columns = panel.ports.columns_of(panel.nodes.parts[column].node for column in held.nodes)
    return row_mean(held.growth(panel.ports, "transmit_wait_count", columns=columns))


def _detection(
    panel: Panel, held: Allocation, *, code: int, first: int, last: int, rows: int, words: str, value: float
) -> Detection:
    job = panel.job(held.job_column)
    began_at = panel.time(held.first + max(0, first - rows + 1))
    return Detection(
        signal=Signal.JOB_STALLED,
        node=NO_NODE,
        component=job_component(job),
        job=job,
        code=code,
        began_at=began_at,
        first_seen_at=panel.time(held.first + first),
        last_seen_at=panel.time(held.first + last),
        value=value,
        text=f"job {job} looks busy and waits for {_REASONS[code]} since {began_at:%H:%M}: {words}",
    )


# -- the loss of a training --


BROKEN_SECONDS = 60
"""One sample may be a batch of bad data; four in a row are the training."""
SPIKE_SECONDS = 120
"""Small spikes pass within a minute or two (BLOOM and OPT chronicles)."""
BASELINE_SECONDS = 1_800
LEAST_BASELINE_SAMPLES = 40
"""Ten minutes of samples: less shows no spread."""
SPREADS_ABOVE = 8.0
ABOVE_RATIO = 0.3
"""Besides: all of them so far above the median. Losses of small batches scatter by less."""
_LEAST_SPREAD_RATIO = 0.01
_MAD_TO_SIGMA = 1.4826


def detect_losses(panel: Panel) -> Iterator[Detection]:
    """Yield LOSS_NOT_FINITE and LOSS_SPIKE. NaN is no sample; what is infinite was no number where it was written."""
    if "loss" not in panel.jobs:
        return
    for held in allocations(panel):
        column = np.array([held.job_column], dtype=np.intp)
        loss = held.of(panel.jobs, "loss", columns=column).astype(np.float64)
        if np.isnan(loss).all():
            continue
        rows = panel.rows_in(BROKEN_SECONDS)
        goes_on = _goes_on(panel, held, column, rows=rows)
        broken = lasting(np.isinf(loss), rows) & goes_on
        for interval in runs_of(broken):
            yield _loss_detection(
                panel, held, Signal.LOSS_NOT_FINITE, interval.first, interval.last, rows, "is no number"
            )
        rows = panel.rows_in(SPIKE_SECONDS)
        spikes, ratios = _spikes(panel, loss, rows=rows)
        for interval in runs_of(spikes & goes_on):
            ratio = float(ratios[interval.first])
            words = f"is {ratio:.1f} times its median of the half hour before"
            yield _loss_detection(
                panel, held, Signal.LOSS_SPIKE, interval.first, interval.last, rows, words, value=ratio
            )


def _goes_on(panel: Panel, held: Allocation, column: Columns, *, rows: int) -> Flags:
    """Return where steps were made meanwhile, or nobody counts them: a gauge keeps the loss of one bad step."""
    steps = held.growth(panel.jobs, "step_count", columns=column)
    flags: Flags = (counted(steps > 0, rows) > 0) | np.equal(counted(~np.isnan(steps), rows), 0)
    return flags


def _spikes(panel: Panel, loss: Numbers, *, rows: int) -> tuple[Flags, Numbers]:
    """Return where the last samples are all far above those before, and by which factor."""
    baseline_rows = panel.rows_in(min(BASELINE_SECONDS, LOOKBACK_SECONDS)) - rows
    finite = np.where(np.isinf(loss), np.nan, loss)[:, 0]
    flags, ratios = np.zeros(loss.shape, dtype=bool), np.full(len(loss), np.nan)
    for row in range(rows, len(finite)):
        recent = finite[row - rows + 1 : row + 1]
        lowest = recent.min()  # NaN if one is not known
        # Medians are costly: only where the lowest of the last samples is above the sample before their baseline ends.
        if not lowest > 0:
            continue
        before = finite[max(0, row - rows + 1 - baseline_rows) : row - rows + 1]
        known = before[~np.isnan(before)]
        if len(known) < LEAST_BASELINE_SAMPLES or lowest <= known.min() * (1 + ABOVE_RATIO):
            continue
        median = float(np.median(known))
        spread = max(float(np.median(np.abs(known - median))) * _MAD_TO_SIGMA, _LEAST_SPREAD_RATIO * abs(median))
        if lowest > median * (1 + ABOVE_RATIO) and lowest > median + SPREADS_ABOVE * spread:
            flags[row, 0], ratios[row] = True, lowest / median
    return flags, ratios


def _loss_detection(
    panel: Panel,
    held: Allocation,
    signal: Signal,
    first: int,
    last: int,
    rows: int,
    words: str,
    *,
    value: float | None = None,
) -> Detection:
    job = panel.job(held.job_column)
    began_at = panel.time(held.first + max(0, first - rows + 1))
    return Detection(
        signal=signal,
        node=NO_NODE,
        component=job_component(job),
        job=job,
        began_at=began_at,
        first_seen_at=panel.time(held.first + first),
        last_seen_at=panel.time(held.first + last),
        value=value,
        text=f"the loss of job {job} {words} since {began_at:%H:%M:%S}",
    )


WINDOW = timedelta(hours=6)
LEAST_FAILURES = 3
SHORT_LIFE = timedelta(minutes=30)
"""A program or a node that is broken shows it early (a loop: the median life); later, jobs fail for many reasons."""
LEAST_WEIGHT = 1.0
"""Of a node's failures: a job of n nodes counts 1/n for each of them."""
FALSE_ALARM_RATE = 0.002
"""Chance that any node of the cluster looks so bad by accident, once a window."""
LEAST_BASE_RATE = 0.02
"""Of attempts that fail: never believed to be better, however few were seen."""
_OWN_FAILURES = frozenset({JobState.FAILED, JobState.OUT_OF_MEMORY})
_NODE_FAILURES = frozenset({JobState.FAILED, JobState.NODE_FAIL})
"""A job that used up its memory did so itself."""
_JUDGED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.OUT_OF_MEMORY, JobState.NODE_FAIL})
_OVER = _JUDGED | {JobState.CANCELLED, JobState.TIMEOUT, JobState.PREEMPTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """One attempt of a job that is over."""

    job: JobId
    name: str
    user: str
    nodes: frozenset[NodeName]
    started_at: datetime
    ended_at: datetime
    state: JobState

    @property
    def program(self) -> tuple[str, str]:
        """Return what is the same over resubmissions: user and name."""
        return (self.user, self.name)

    @property
    def life(self) -> timedelta:
        return self.ended_at - self.started_at


def ended_attempts(jobs: Iterable[JobStatus]) -> list[EndedAttempt]:
    """Return the attempts that are over, of what the scheduler says of jobs; those of unknown times are left out."""
    return [
        EndedAttempt(
            job=job.job,
            name=job.name,
            user=job.user,
            nodes=job.nodes,
            started_at=job.started_at,
            ended_at=job.ended_at,
            state=job.state,
        )
        for job in jobs
        if job.state in _OVER and job.started_at is not None and job.ended_at is not None
    ]


def detect_failures(
    attempts: Iterable[EndedAttempt],
    *,
    at: datetime,
    window: timedelta = WINDOW,
    surviving_count: int = 0,
    booted_at: Mapping[NodeName, datetime] | None = None,
) -> list[Detection]:
    """Return JOB_CRASH_LOOP and NODE_FAILS_JOBS as of `at`, from attempts that ended in the `window` before it.

    Older attempts only tell how often attempts fail early where nothing is wrong. So does `surviving_count`, how many
    attempts run now for longer than SHORT_LIFE: without them a cluster of long jobs looks as if most failed.
    What began on a node before its last boot, `booted_at`, is not held against the node: it may have been repaired.
    Neither the order of attempts nor that one is notified twice changes anything.
    """
    known = _latest(each for each in attempts if each.state in _JUDGED and each.ended_at <= at)
    judged = [each for each in known if at - window < each.ended_at]
    loops = list(_crash_loops(known, since=at - window))
    looping = {program for program, _ in loops}
    found = [detection for _, detection in loops]
    found += _failing_nodes(
        [each for each in judged if each.program not in looping],
        known=[each for each in known if each.program not in looping],
        surviving_count=surviving_count,
        booted_at=booted_at or {},
    )
    return sorted(found, key=lambda each: each.position)


def _latest(attempts: Iterable[EndedAttempt]) -> list[EndedAttempt]:
    """Return each attempt once, by time; where two tellings differ, the one that ended later."""
    found: dict[tuple[JobId, datetime], EndedAttempt] = {}
    for each in sorted(attempts, key=lambda each: (each.ended_at, each.state.value, each.program, sorted(each.nodes))):
        found[each.job, each.started_at] = each
    return sorted(found.values(), key=lambda each: (each.ended_at, each.job, each.started_at))


def _crash_loops(attempts: Sequence[EndedAttempt], *, since: datetime) -> Iterator[tuple[tuple[str, str], Detection]]:
    told: set[tuple[str, str]] = set()
    for groups in (_grouped(attempts, lambda each: each.job), _grouped(attempts, lambda each: each.program)):
        for group in groups.values():
            run = _failures_at_the_end(group)
            if len(run) < LEAST_FAILURES or run[-LEAST_FAILURES].ended_at <= since or run[-1].program in told:
                continue
            lives = sorted(each.life for each in run)
            stayed = frozenset.intersection(*(each.nodes for each in run))
            # A large job seldom gets none of its nodes again.
            if lives[len(lives) // 2] > SHORT_LIFE or len(stayed) > min(len(each.nodes) for each in run) // 8:
                continue
            told.add(run[-1].program)
            yield run[-1].program, _loop(run)


def _grouped(
    attempts: Sequence[EndedAttempt], key: Callable[[EndedAttempt], Hashable]
) -> Mapping[Hashable, list[EndedAttempt]]:
    groups: dict[Hashable, list[EndedAttempt]] = defaultdict(list)
    for each in attempts:
        groups[key(each)].append(each)
    return groups


def _failures_at_the_end(group: Sequence[EndedAttempt]) -> list[EndedAttempt]:
    """Return the unbroken run of failures that ends a group: one success shows that it can run."""
    run: list[EndedAttempt] = []
    for each in group:
        run = [*run, each] if each.state in _OWN_FAILURES else []
    return run


def _loop(run: Sequence[EndedAttempt]) -> Detection:
    last = run[-1]
    nodes = frozenset[NodeName]().union(*(each.nodes for each in run))
    return Detection(
        signal=Signal.JOB_CRASH_LOOP,
        node=NO_NODE,
        # Submitted again, it has another id each time: the first one stays its name.
        component=job_component(run[0].job),
        job=run[0].job,
        began_at=run[0].ended_at,
        first_seen_at=run[LEAST_FAILURES - 1].ended_at,
        last_seen_at=last.ended_at,
        value=float(len(run)),
        text=f"{last.name} of {last.user} failed {len(run)} times in a row on {len(nodes)} nodes that changed, last as"
        f" job {last.job}: it is the job",
    )


def _failing_nodes(
    attempts: Sequence[EndedAttempt],
    *,
    known: Sequence[EndedAttempt],
    surviving_count: int,
    booted_at: Mapping[NodeName, datetime],
) -> Iterator[Detection]:
    """Yield the nodes that explain failures better than chance does, the best first; what one explains is taken out.

    So a node that only shared the jobs of a bad one is left without failures of its own.
    """
    runs = {
        node: [each for each in mine if node not in booted_at or each.started_at >= booted_at[node]]
        for node, mine in _grouped_by_node(attempts).items()
    }
    # Who ran fewer programs cannot be blamed, so only these are tried, and chance has so many tries.
    tried = {node for node, mine in runs.items() if len({each.program for each in mine}) >= LEAST_FAILURES}
    base_rate = _base_rate(known, suspects=_suspects(known), surviving_count=surviving_count)
    failed = [each for each in attempts if _fails_early(each)]
    left = set(failed)
    while left:
        scores = {node: _score(node, runs[node], failed, left=left, base_rate=base_rate) for node in tried}
        ranked = sorted((score, node) for node, score in scores.items() if score is not None)
        if not ranked or ranked[0][0] * len(tried) > FALSE_ALARM_RATE:
            return
        best, node = ranked[0]
        mine = [each for each in runs[node] if each in left]
        rivals = [other for score, other in ranked[1:] if score <= best and left.intersection(runs[other]) == set(mine)]
        left -= set(mine)
        if not rivals:
            yield _failing(node, mine, runs[node])


def _fails_early(attempt: EndedAttempt) -> bool:
    return attempt.state in _NODE_FAILURES and attempt.life <= SHORT_LIFE


def _suspects(known: Sequence[EndedAttempt]) -> set[NodeName]:
    """Return the nodes on which, at any time, so many programs failed early within a window: they show no base rate."""
    found: set[NodeName] = set()
    for node, mine in _grouped_by_node([each for each in known if _fails_early(each)]).items():
        firsts = sorted({each.program: each.ended_at for each in reversed(mine)}.values())
        runs = zip(firsts, firsts[LEAST_FAILURES - 1 :], strict=False)
        if any(last - first <= WINDOW for first, last in runs):
            found.add(node)
    return found


def _base_rate(known: Sequence[EndedAttempt], *, suspects: set[NodeName], surviving_count: int) -> float:
    """Return how likely a program fails early where nothing is wrong: on nodes without so many failures."""
    usual = [each for each in known if not each.nodes & suspects]
    failed = {each.program for each in usual if _fails_early(each)}
    others = sum(not _fails_early(each) for each in usual) + surviving_count
    return max(LEAST_BASE_RATE, (len(failed) + 1) / (len(failed) + others + 2))


def _grouped_by_node(attempts: Sequence[EndedAttempt]) -> dict[NodeName, list[EndedAttempt]]:
    runs: dict[NodeName, list[EndedAttempt]] = defaultdict(list)
    for each in attempts:
        for node in sorted(each.nodes):
            runs[node].append(each)
    return runs


def _score(
    node: NodeName,
    mine: Sequence[EndedAttempt],
    failed: Sequence[EndedAttempt],
    *,
    left: set[EndedAttempt],
    base_rate: float,
) -> float | None:
    """Return how likely chance alone fails so many programs on a node; None if they are too few, or fail elsewhere.

    `failed`: all early failures, wherever; those of them in `left` are not explained by another node.
    """
    unexplained = [each for each in mine if each in left]
    if len({each.program for each in unexplained}) < LEAST_FAILURES:
        return None
    failed_elsewhere = {each.program for each in failed if node not in each.nodes}
    programs: dict[tuple[str, str], float] = {}
    for each in unexplained:
        if each.program not in failed_elsewhere:
            programs[each.program] = max(programs.get(each.program, 0.0), 1 / len(each.nodes))
    if len(programs) < LEAST_FAILURES or sum(programs.values()) < LEAST_WEIGHT:
        return None
    return _tail(len({each.program for each in mine}), len(programs), base_rate)


def _tail(count: int, least: int, rate: float) -> float:
    """Return the chance of `least` or more of `count` independent failures at a rate."""
    return sum(comb(count, k) * rate**k * (1 - rate) ** (count - k) for k in range(least, count + 1))


def _failing(node: NodeName, failed: Sequence[EndedAttempt], ran: Sequence[EndedAttempt]) -> Detection:
    programs = sorted({each.name for each in failed})
    return Detection(
        signal=Signal.NODE_FAILS_JOBS,
        node=node,
        began_at=failed[0].ended_at,
        first_seen_at=failed[-1].ended_at,
        last_seen_at=failed[-1].ended_at,
        value=float(len(failed)),
        text=f"{len(failed)} of {len(ran)} attempts on {node} failed, of different programs that do not fail elsewhere:"
        f" {', '.join(programs[:5])}",
    )
