"""Stragglers: GPUs of one node apart from the peers of their job, by metrics and by operator traces.

In synchronous work all wait for the slowest. A GPU with slower clocks needs longer for the same kernels: its tensor
pipes are as busy as ever, and its peers', who wait, less than before. A GPU that is fed late is less busy than its
peers. So a lower clock is direct evidence, activity to either side indirect: that names nobody unless it came together
with a longer step, because ranks that were apart from the start are the way in which a program is split. Several in a
pattern are that, too. Whom heat or a power brake slows, as its own sensors show, is another detector's.

Ranks of one pipeline stage run the same layers: one that computes longer than its peers of the stage is slow. A stage
whose ranks all compute longer than the other stages is the split's doing and no worker's. Only computing is compared:
how long a send or a collective takes says how long it waited for somebody else. Finding a straggler in the telemetry of
GPUs, while it happens, is `detectors.straggler`; which node a rank ran on is the scheduler's knowledge.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.core.identity import NodeName, PciAddress
from ops_pipelines.core.observation import Signal
from ops_pipelines.observe.detectors.shared import (
    Allocation,
    Columns,
    Groups,
    allocations,
    gathered,
    group_by,
    group_median,
    median,
    most_reach,
    robust_z,
    row_median,
)
from ops_pipelines.observe.panels.panel import LOOKBACK_SECONDS, Detection, Flags, Numbers, Panel, counted

# -- stragglers --


WINDOW_SECONDS = 300
JUDGED_EVERY_SECONDS = 60
"""At whole minutes, so that the same moments are judged whatever the panel begins with."""
LEAST_WORKING_ROWS_RATIO = 0.5
"""Of the window: while the others wait, too (checkpoint, evaluation), ranks may differ for good reason."""
WORKS_ABOVE_RATIO = 0.02
"""Tensor activity of a rank at work; more than half of the ranks must be."""
SPEAKS_ABOVE_BYTES_PER_SECOND = 1e8
"""NVLink traffic of the median rank in synchronous work; in an evaluation everybody computes alone."""
STEPPED_SECONDS = 60
LEAST_PEERS = 3
LEAST_SPREADS = 5.0
CLOCK_BELOW_RATIO = 0.08
"""GPUs of one model and cluster differ by 8 % for power management alone (Sinha et al., arXiv 2208.11035)."""
ACTIVITY_APART_RATIO = 0.04
"""Relative to the peers' median: over five minutes ranks of one program agree within a percent."""
POWER_BELOW_RATIO = 0.06
STEP_LONGER_RATIO = 0.03
MOST_PARTS = 2
"""More GPUs than these on more than one node are a pattern."""
_SPREADS = {"sm_clock_hertz": 0.01, "tensor_active_ratio": 0.006, "sm_active_ratio": 0.006, "power_watts": 0.01}
"""Ranks never agree better than this share of the median."""
_ACTIVITIES = ("tensor_active_ratio", "sm_active_ratio")
_GAP_SAMPLES = 3
_MAD_TO_SIGMA = 1.4826
_HEAT_OR_BRAKE = 0x8 | 0x20 | 0x40 | 0x80
"""NVML clock event reasons: hardware slowdown, software and hardware thermal slowdown, power brake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Apart:
    """How far the ranks are from their peers at each judged row: shares of the median, and robust deviations."""

    share: Numbers
    z: Numbers


def detect_stragglers(panel: Panel) -> Iterator[Detection]:
    """Yield GPU_SLOW for one GPU, or one node, and interval."""
    for held in allocations(panel):
        models = np.array([panel.gpus.parts[column].model for column in held.gpus])
        for model in dict.fromkeys(models.tolist()):
            peers = held.gpus[models == model]
            if len(peers) > LEAST_PEERS:
                yield from _of_peers(panel, held, peers)


def _of_peers(panel: Panel, held: Allocation, peers: Columns) -> Iterator[Detection]:
    judged = np.flatnonzero(panel.times[held.rows] % JUDGED_EVERY_SECONDS < panel.step_seconds)
    window = panel.rows_in(WINDOW_SECONDS)
    judged = judged[judged >= window]
    if not len(judged):
        return
    works = _works_together(panel, held, peers)
    usual = panel.rows_in(LOOKBACK_SECONDS - STEPPED_SECONDS) - window - _GAP_SAMPLES

    def mean(column: str) -> _Means:
        return _Means(held.of(panel.gpus, column, columns=peers), works=works, window=window)

    def apart_now(column: str) -> _Apart | None:
        return _apart(mean(column).at(judged), spread=_SPREADS[column]) if column in panel.gpus else None

    if "tensor_active_ratio" not in panel.gpus:
        return
    means = {column: mean(column) for column in _ACTIVITIES if column in panel.gpus}
    nothing = np.zeros((len(judged), len(peers)), dtype=bool)
    clock = apart_now("sm_clock_hertz")
    slow_clock = nothing if clock is None else (clock.share <= -CLOCK_BELOW_RATIO) & (clock.z <= -LEAST_SPREADS)
    busier, lazier = _busier_and_lazier(means, judged)
    if not (slow_clock | busier | lazier).any():
        return  # nobody is apart: what else there is would only be a hint
    power = apart_now("power_watts")
    longer: Flags = np.logical_or(
        _step_is_longer(panel, held, judged, works=works, window=window, usual=usual),
        _works_less(means["tensor_active_ratio"], judged, usual=usual),
    )[:, np.newaxis]
    low_power = nothing if power is None else (power.share <= -POWER_BELOW_RATIO) & (power.z <= -LEAST_SPREADS)
    busier_before, lazier_before = _busier_and_lazier(means, judged - window)
    # Indirect evidence must hold in two windows that share no sample, and counts only as a change: what was so before
    # the step grew longer is how the work is split. Where somebody's clock is low, it needs no other explanation.
    changed: Flags = np.array((busier & busier_before) | (lazier & lazier_before), dtype=bool)
    changed &= ~_was_apart(means, judged, usual=usual) & longer
    changed &= ~slow_clock.any(axis=1, keepdims=True)
    hints = low_power.astype(np.int8) + busier + lazier + longer
    slow = ((slow_clock & (hints >= 1)) | changed) & ~_is_explained(panel, held, peers, judged, window=window)
    culprits = [_culprit(panel, peers, slow[place]) for place in range(len(judged))]
    evidence = {
        "its clock is {0:.0%} below its peers'": (slow_clock, None if clock is None else -clock.share),
        "it draws {0:.0%} less power": (low_power, None if power is None else -power.share),
        "it works on while its peers wait": (busier, None),
        "it is without work while its peers wait for it": (lazier, None),
        "the job's step takes longer than before": (np.broadcast_to(longer, slow.shape), None),
    }
    yield from _detections(panel, held, judged, culprits, slow, evidence, peers=peers, window=window)


def _works_together(panel: Panel, held: Allocation, peers: Columns) -> Flags:
    """Return the rows in which the ranks make steps together: only then is one that differs a straggler."""
    tensor = held.of(panel.gpus, "tensor_active_ratio", columns=peers)
    works = np.array(2 * np.count_nonzero(tensor >= WORKS_ABOVE_RATIO, axis=1) > len(peers), dtype=bool)
    steps = held.growth(panel.jobs, "step_count", columns=np.array([held.job_column], dtype=np.intp))[:, 0]
    if not np.isnan(steps).all():
        works &= counted(steps > 0, panel.rows_in(STEPPED_SECONDS)) > 0
    if "nvlink_bandwidth_bytes" in panel.gpus:
        traffic = held.growth(panel.gpus, "nvlink_bandwidth_bytes", columns=peers)
        works &= most_reach(traffic, SPEAKS_ABOVE_BYTES_PER_SECOND) | np.isnan(traffic).all(axis=1)
    return works


class _Means:
    """Means over windows of rows at work, for any row, from one running sum."""

    def __init__(self, values: Numbers, *, works: Flags, window: int) -> None:
        known = ~np.isnan(values) & works[:, np.newaxis]
        self._total = np.cumsum(np.where(known, values, 0.0), axis=0, dtype=np.float64)
        self._count = np.cumsum(known, axis=0, dtype=np.int32)
        self._window = window

    def at(self, rows: NDArray[np.intp], *, window: int | None = None) -> Numbers:
        """Return the mean over the window that ends at each row; NaN where too few of its rows are known."""
        rows_back = self._window if window is None else window
        ends, begins = np.maximum(rows, 0), rows - rows_back
        before = np.maximum(begins, 0)
        has_before = (begins >= 0)[:, np.newaxis]
        total = self._total[ends] - np.where(has_before, self._total[before], 0.0)
        count = self._count[ends] - np.where(has_before, self._count[before], 0)
        count[rows < 0] = 0
        enough = count >= max(1.0, LEAST_WORKING_ROWS_RATIO * self._window)
        found = np.full(total.shape, np.nan)
        np.divide(total, count, out=found, where=enough)
        return found


def _apart(values: Numbers, *, spread: float) -> _Apart:
    median = row_median(values)[:, np.newaxis]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(median > 0, values / median - 1, np.nan)
    deviation = row_median(np.abs(share))[:, np.newaxis] * _MAD_TO_SIGMA
    return _Apart(share=share, z=share / np.maximum(deviation, spread))


def _busier_and_lazier(means: dict[str, _Means], rows: NDArray[np.intp]) -> tuple[Flags, Flags]:
    """Return which ranks are busier, and which less busy, than their peers in the window that ends at each row."""
    apart = [_apart(means[column].at(rows), spread=_SPREADS[column]) for column in _ACTIVITIES if column in means]
    busier = [(each.share >= ACTIVITY_APART_RATIO) & (each.z >= LEAST_SPREADS) for each in apart]
    lazier = [(each.share <= -ACTIVITY_APART_RATIO) & (each.z <= -LEAST_SPREADS) for each in apart]
    return np.array(np.logical_or.reduce(busier), dtype=bool), np.array(np.logical_or.reduce(lazier), dtype=bool)


def _was_apart(means: dict[str, _Means], judged: NDArray[np.intp], *, usual: int) -> Flags:
    """Return which ranks were apart already at the far end of the look-back; True where that is not known."""
    found: Flags | None = None
    for column in _ACTIVITIES:
        if column in means:
            before = _apart(means[column].at(judged - usual), spread=_SPREADS[column])
            apart = np.isnan(before.share) | (np.abs(before.share) >= ACTIVITY_APART_RATIO / 2)
            found = apart if found is None else found | apart
    return found if found is not None else np.ones((len(judged), 0), dtype=bool)


def _step_is_longer(
    panel: Panel, held: Allocation, judged: NDArray[np.intp], *, works: Flags, window: int, usual: int
) -> Flags:
    """Return where a step takes longer than it did at the far end of the look-back; False where nobody says."""
    column = np.array([held.job_column], dtype=np.intp)
    steps = _Means(held.of(panel.jobs, "step_seconds", columns=column), works=works, window=window)
    now, before = steps.at(judged)[:, 0], steps.at(judged - usual)[:, 0]
    return np.array(now > before * (1 + STEP_LONGER_RATIO), dtype=bool)


def _works_less(tensor: _Means, judged: NDArray[np.intp], *, usual: int) -> Flags:
    """Return where the job as a whole does less than at the far end of the look-back: its steps take longer."""
    now, before = row_median(tensor.at(judged)), row_median(tensor.at(judged - usual))
    return np.array(now * (1 + STEP_LONGER_RATIO) < before, dtype=bool)


def _is_explained(panel: Panel, held: Allocation, peers: Columns, judged: NDArray[np.intp], *, window: int) -> Flags:
    """Return which GPUs say themselves that heat or a power brake slows them."""
    reasons = held.of(panel.gpus, "clock_event_reasons", columns=peers)
    slowed = (np.nan_to_num(reasons).astype(np.int64) & _HEAT_OR_BRAKE) != 0
    share = _Means(slowed.astype(np.float64), works=np.ones(len(slowed), dtype=bool), window=window).at(judged)
    return np.array(share > 0.2, dtype=bool)


@dataclass(frozen=True, slots=True)
class _Culprit:
    node: NodeName
    column: int | None
    """Of the layer `gpus`; None: the node as a whole."""


def _culprit(panel: Panel, peers: Columns, slow: Flags) -> frozenset[_Culprit]:
    """Return whom the slow ranks point at: GPUs, one node, or nobody where they are a pattern."""
    columns = [int(column) for column in peers[slow]]
    nodes = {panel.gpus.parts[column].node for column in columns}
    if not columns or 2 * len(columns) > len(peers):
        return frozenset()
    if len(columns) <= MOST_PARTS:
        return frozenset(_Culprit(panel.gpus.parts[column].node, column) for column in columns)
    return frozenset({_Culprit(next(iter(nodes)), None)}) if len(nodes) == 1 else frozenset()


def _detections(
    panel: Panel,
    held: Allocation,
    judged: NDArray[np.intp],
    culprits: list[frozenset[_Culprit]],
    slow: Flags,
    evidence: dict[str, tuple[Flags, Numbers | None]],
    *,
    peers: Columns,
    window: int,
) -> Iterator[Detection]:
    job = panel.job(held.job_column)
    every = panel.rows_in(JUDGED_EVERY_SECONDS)
    for culprit in sorted(frozenset().union(*culprits), key=lambda each: (each.node, each.column or -1)):
        places = [place for place, named in enumerate(culprits) if culprit in named]
        runs = np.split(places, np.flatnonzero(np.diff(judged[places]) > every) + 1)
        for run in runs:
            first, last = int(run[0]), int(run[-1])
            mine = slow[first] if culprit.column is None else peers == culprit.column
            told = [
                words.format(float(numbers[first, mine].mean()) if numbers is not None else 0.0)
                for words, (holds, numbers) in evidence.items()
                if holds[first, mine].any()
            ]
            part = None if culprit.column is None else panel.gpus.parts[culprit.column]
            who = f"GPU {part.device} of {culprit.node}" if part is not None else f"{mine.sum()} GPUs of {culprit.node}"
            shares = next((numbers for _, numbers in evidence.values() if numbers is not None), None)
            yield Detection(
                signal=Signal.GPU_SLOW,
                node=culprit.node,
                gpu=None if part is None else PciAddress(part.device),
                gpu_uuid=None if part is None else part.uuid,
                job=job,
                began_at=panel.time(held.first + max(0, int(judged[first]) - window + 1)),
                first_seen_at=panel.time(held.first + int(judged[first])),
                last_seen_at=panel.time(min(held.first + int(judged[last]) + every - 1, held.end - 1)),
                value=None if shares is None else float(shares[first, mine].mean()),
                text=f"{who} holds up job {job} with {len(peers)} ranks: {'; '.join(told)}",
            )


# -- who holds up a pipelined training, by its operator traces --


COMPUTING = frozenset({"forward-compute", "backward-compute"})
"""Operators as ByteDance's tracer names them (ByteDance-Seed/StragglerAnalysis)."""
TRACE_COLUMNS = ("rank", "stage", "step", "optype", "duration")
SLOW_ABOVE_RATIO = 0.1
"""# Assumption: in the public traces ranks of one stage agree within 1 %, and stages split evenly within 6 %."""
LEAST_SPREAD_RATIO = 0.01
LEAST_STEPS_RATIO = 0.5
"""Of the steps: long sequences make another rank the slowest in each step, a slow worker stays the same one."""
LEAST_TRACED_PEERS = 2
"""Of two ranks that differ nobody can say which one is wrong."""


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """How long ranks computed, from traces."""

    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    """Of each rank."""
    seconds: Numbers
    """(steps, ranks): a micro-batch forwards and backwards, the mean of the step; NaN where not all was traced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """One worker that holds up the others of its stage."""

    rank: int
    stage: int
    excess_ratio: float
    """By how much it computes longer than the median of its stage; 1.0 is twice as long. Median over the steps."""
    steps_ratio: float
    """In how large a share of the steps it stood apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageExcess:
    """One pipeline stage, and a ratio of times to go with it."""

    stage: int
    excess_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceVerdict:
    """What traces say of a job."""

    slow_ranks: tuple[SlowRank, ...]
    """The slowest first."""
    uneven_stages: tuple[StageExcess, ...]
    """Stages that compute longer than the median of the others, the longest first: how the model is split."""
    undecided_stages: tuple[StageExcess, ...]
    """Stages whose slowest rank is so far above its fastest, and nobody can say which of them is wrong."""
    explanation: str


def read_rank_times(rows: pa.Table, *, computing: Collection[str] = COMPUTING) -> RankTimes:
    """Return how long each rank computed in each step.

    `rows` has TRACE_COLUMNS, one row an operator, `duration` in seconds; one rank may stand for its tensor-parallel
    group. Raises ValueError if a column is absent, no row is of a `computing` operator, or a rank changes its stage.
    """
    absent = [name for name in TRACE_COLUMNS if name not in rows.column_names]
    if absent:
        raise ValueError(f"the trace has no column {', '.join(absent)}; expected {', '.join(TRACE_COLUMNS)}")
    names = rows["optype"].cast(pa.string())
    kept = rows.select(TRACE_COLUMNS).filter(pc.is_in(names, value_set=pa.array(sorted(computing), pa.string())))
    if not kept.num_rows:
        found = ", ".join(sorted(pc.unique(names).to_pylist())[:20])
        raise ValueError(f"no operator computes: found {found or 'no row'}; expected {', '.join(sorted(computing))}")
    means = kept.group_by(["step", "rank", "stage", "optype"]).aggregate([("duration", "mean")])
    steps, step_of = np.unique(means["step"].to_numpy(), return_inverse=True)
    ranks, rank_of = np.unique(means["rank"].to_numpy(), return_inverse=True)
    stages = np.full(len(ranks), -1, dtype=np.int64)
    stages[rank_of] = means["stage"].to_numpy()
    if (stages[rank_of] != means["stage"].to_numpy()).any():
        raise ValueError("a rank computes for more than one stage; expected one stage a rank")
    operators = {name: place for place, name in enumerate(sorted(computing))}
    place_of = np.array([operators[name] for name in means["optype"].to_pylist()], dtype=np.intp)
    cube = np.full((len(operators), len(steps), len(ranks)), np.nan)
    cube[place_of, step_of, rank_of] = means["duration_mean"].to_numpy()
    traced = ~np.isnan(cube).all(axis=(1, 2))  # forward only, as in inference, is a trace, too
    return RankTimes(
        steps=tuple(int(step) for step in steps),
        ranks=tuple(int(rank) for rank in ranks),
        stages=tuple(int(stage) for stage in stages),
        seconds=cube[traced].sum(axis=0),
    )


def judge_ranks(times: RankTimes) -> TraceVerdict:
    """Return who is slow, and which stages have more to do; steps that were not traced count for nobody."""
    groups = group_by(times.stages)
    middle = group_median(times.seconds, groups)
    share = times.seconds / middle[:, groups.index]
    apart: Flags = np.asarray(
        (share >= 1 + SLOW_ABOVE_RATIO)
        & (robust_z(share, groups, least_spread=LEAST_SPREAD_RATIO) >= LEAST_SPREADS)
        & (_known_count(times.seconds, groups)[:, groups.index] > LEAST_TRACED_PEERS)
    )
    known = (~np.isnan(times.seconds)).sum(axis=0)
    apart_ratio = apart.sum(axis=0) / np.maximum(known, 1)
    usual = median(share.T)
    is_slow = (apart_ratio >= LEAST_STEPS_RATIO) & (usual >= 1 + SLOW_ABOVE_RATIO)
    slow = [
        SlowRank(
            rank=times.ranks[place],
            stage=times.stages[place],
            excess_ratio=float(usual[place] - 1),
            steps_ratio=float(apart_ratio[place]),
        )
        for place in np.flatnonzero(is_slow).tolist()
    ]
    names = list(dict.fromkeys(times.stages))
    seconds = gathered(np.where(is_slow, np.nan, median(times.seconds.T))[np.newaxis], groups)[0]
    fastest, slowest = np.fmin.reduce(seconds, axis=1), np.fmax.reduce(seconds, axis=1)
    uneven = _uneven(fastest, names)
    undecided = _undecided(slowest / fastest - 1, names)
    slow.sort(key=lambda each: -each.excess_ratio)
    return TraceVerdict(
        slow_ranks=tuple(slow),
        uneven_stages=uneven,
        undecided_stages=undecided,
        explanation=_explain(slow, uneven, undecided, step_count=len(times.steps)),
    )


def _known_count(seconds: Numbers, groups: Groups) -> Numbers:
    return np.asarray((~np.isnan(gathered(seconds, groups))).sum(axis=2), dtype=np.float64)


def _uneven(fastest: Numbers, names: list[int]) -> tuple[StageExcess, ...]:
    """Return the stages whose fastest rank, one value a stage, takes longer than that of the other stages (median)."""
    found = []
    for place, stage in enumerate(names):
        others = float(median(np.delete(fastest, place)))  # NaN for the only stage: nothing to compare with
        if fastest[place] >= others * (1 + SLOW_ABOVE_RATIO):
            found.append(StageExcess(stage=stage, excess_ratio=float(fastest[place] / others - 1)))
    return tuple(sorted(found, key=lambda each: -each.excess_ratio))


def _undecided(excess: Numbers, names: list[int]) -> tuple[StageExcess, ...]:
    """Return the stages whose ranks, but for those that are named, disagree: one value a stage."""
    return tuple(
        StageExcess(stage=names[place], excess_ratio=float(excess[place]))
        for place in np.flatnonzero(excess >= SLOW_ABOVE_RATIO).tolist()
    )


def _explain(
    slow: list[SlowRank], uneven: tuple[StageExcess, ...], undecided: tuple[StageExcess, ...], *, step_count: int
) -> str:
    told = [
        f"rank {each.rank} computes {each.excess_ratio:.0%} longer than its peers of stage {each.stage}, "
        f"in {each.steps_ratio:.0%} of {step_count} steps"
        for each in slow
    ]
    told += [
        f"stage {each.stage} computes {each.excess_ratio:.0%} longer than the other stages, on all its ranks: "
        "the split of the model, and no worker"
        for each in uneven
    ]
    told += [
        f"ranks of stage {each.stage} differ by {each.excess_ratio:.0%}, and there are too few that agree to say who "
        "is slow"
        for each in undecided
    ]
    return "; ".join(told) or f"no rank and no stage is apart in {step_count} steps"
