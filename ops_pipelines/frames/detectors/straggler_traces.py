"""Who holds up a pipelined training, by its operator traces: one slow worker, or the way in which the model is split.

Ranks of one pipeline stage run the same layers: one that computes longer than its peers of the stage is slow. A stage
whose ranks all compute longer than the other stages is the split's doing and no worker's. Only computing is compared:
how long a send or a collective takes says how long it waited for somebody else. Finding a straggler in the telemetry of
GPUs, while it happens, is `detectors.straggler`; which node a rank ran on is the scheduler's knowledge.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.frames.detectors.peers import Groups, gathered, group_by, group_median, median, robust_z
from ops_pipelines.frames.panels.panel import Flags, Numbers

COMPUTING = frozenset({"forward-compute", "backward-compute"})
"""Operators as ByteDance's tracer names them (ByteDance-Seed/StragglerAnalysis)."""
TRACE_COLUMNS = ("rank", "stage", "step", "optype", "duration")
SLOW_ABOVE_RATIO = 0.1
"""# Assumption: in the public traces ranks of one stage agree within 1 %, and stages split evenly within 6 %."""
LEAST_SPREADS = 5.0
LEAST_SPREAD_RATIO = 0.01
LEAST_STEPS_RATIO = 0.5
"""Of the steps: long sequences make another rank the slowest in each step, a slow worker stays the same one."""
LEAST_PEERS = 2
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
    """Stages whose slowest rank stands so far above its fastest, and nobody can say which of them is wrong."""
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
        & (_known_count(times.seconds, groups)[:, groups.index] > LEAST_PEERS)
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
    return "; ".join(told) or f"no rank and no stage stands apart in {step_count} steps"
