"""All that one day's placement is said to have been, and its sentences. Values, and words made from them alone."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ops_pipelines.efficiency.placement.fragmentation import BrokenDomain, Fit, HourIndex, NodeHint, Within
from ops_pipelines.efficiency.placement.scheduler_policy import PolicyFindings
from ops_pipelines.efficiency.placement.straddling import Level, Straddle
from ops_pipelines.efficiency.placement.stranded import StrandedGpus, Why
from ops_pipelines.efficiency.placement.waits import LONG_SECONDS, BackfillHint, Hole, QueueTimes, Reversal


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDay:
    """What was found of one stretch of time."""

    start: datetime
    end: datetime
    node_count: int
    gpu_count: int
    started_count: int
    """Attempts with GPUs that started in it."""
    straddles: tuple[Straddle, ...] = ()
    broken: tuple[BrokenDomain, ...] = ()
    fits: tuple[Fit, ...] = ()
    """At its end."""
    hours: tuple[HourIndex, ...] = ()
    node_hints: tuple[NodeHint, ...] = ()
    stranded: StrandedGpus = field(default_factory=lambda: StrandedGpus(stranded=(), free_gpu_hours=0.0))
    backfill: tuple[BackfillHint, ...] = ()
    holes: tuple[Hole, ...] = ()
    queue_times: tuple[QueueTimes, ...] = ()
    reversals: tuple[Reversal, ...] = ()
    policy: PolicyFindings | None = None
    """None: nobody tells how the scheduler is set up."""


def describe(day: PlacementDay) -> tuple[str, ...]:
    """Return the day in sentences, what matters most first. Names in them are those of cluster.yaml and of teams."""
    return tuple(_sentences(day))


def _sentences(day: PlacementDay) -> Iterator[str]:
    if not day.started_count:
        yield "No job with GPUs started."
    yield from _of_straddles(day.straddles)
    if day.broken:
        yield (
            f"{_many(len(day.broken), 'small job')} broke up a whole NVLink domain although a broken one had room "
            "for it."
        )
    yield from _of_stranded(day.stranded)
    yield from _of_pieces(day)
    yield from _of_queues(day)
    if day.backfill:
        hours = sum(each.earlier_seconds for each in day.backfill) / 3600
        yield (
            f"{_many(len(day.backfill), 'job')} would have started earlier, {hours:.0f} hours together, with the "
            "time limit that such jobs need."
        )
    if day.holes:
        yield f"{sum(each.gpu_hours for each in day.holes):.0f} GPU-hours stood free right before reservations."
    if day.policy is None:
        yield "How the scheduler is set up is not known."
    elif day.policy.findings:
        works = "works" if len(day.policy.findings) == 1 else "work"
        yield f"{_many(len(day.policy.findings), 'setting')} of the scheduler {works} against fair waiting."


def _of_straddles(straddles: Sequence[Straddle]) -> Iterator[str]:
    """Yield a sentence for each way in which jobs stood apart; each start is in one, however many levels it left."""
    by_start: defaultdict[tuple[str, datetime], list[Straddle]] = defaultdict(list)
    for each in straddles:
        by_start[each.stay.job, each.stay.began_at].append(each)
    by_levels: defaultdict[tuple[Level, ...], list[Sequence[Straddle]]] = defaultdict(list)
    for ways in by_start.values():
        by_levels[tuple(level for level in Level if any(each.level is level for each in ways))].append(ways)
    for levels in sorted(by_levels, key=lambda each: [*map(list(Level).index, each)]):
        jobs = by_levels[levels]
        sizes = Counter(len(ways[0].stay.gpus) for ways in jobs)
        avoidable = sum(any(each.is_avoidable for each in ways) for ways in jobs)
        whose = f"of {min(sizes)} nodes" if len(sizes) == 1 else f"of {min(sizes)} to {max(sizes)} nodes"
        need = "none of them could have stood better" if not avoidable else f"{avoidable} of them need not have"
        where = " and ".join(_PLURALS[level] for level in levels)
        yield f"{_many(len(jobs), 'job')} {whose} stood in several {where}; {need}."


_PLURALS = {Level.NVLINK_DOMAIN: "NVLink domains", Level.LEAF_SWITCH: "leaf switches", Level.RACK: "racks"}


def _of_stranded(found: StrandedGpus) -> Iterator[str]:
    if not found.stranded:
        return
    by_why: defaultdict[Why, float] = defaultdict(float)
    for each in found.stranded:
        by_why[each.why] += each.gpu_hours
    most = max(by_why, key=lambda why: (by_why[why], why.value))
    total = sum(by_why.values())
    yield (
        f"{total:.0f} of {found.free_gpu_hours:.0f} free GPU-hours could not be had, most of them because: "
        f"{most.value} ({by_why[most]:.0f})."
    )


def _of_pieces(day: PlacementDay) -> Iterator[str]:
    if day.hours:
        worst = max(day.hours, key=lambda each: (each.index_ratio, each.hour))
        mean = sum(each.index_ratio for each in day.hours) / len(day.hours)
        if worst.index_ratio > 0:
            yield (
                f"{mean:.0%} of the whole nodes that the free GPUs would make were in pieces, at worst "
                f"{worst.index_ratio:.0%} in the hour from {worst.hour:%Y-%m-%d %H:%M} UTC on."
            )
    kept_out = [fit for fit in day.fits if fit.within is Within.ANYWHERE and fit.by_count > fit.could_start == 0]
    if kept_out:
        smallest = min(kept_out, key=lambda fit: (fit.node_count, fit.gpus_per_node))
        size = f"{smallest.node_count} nodes" if smallest.node_count > 1 else f"{smallest.gpus_per_node} GPUs"
        yield f"At the end no job of {size} could start, though so many GPUs were free."


def _of_queues(day: PlacementDay) -> Iterator[str]:
    every = [each for each in day.queue_times if each.team is None]
    count = sum(each.job_count for each in every)
    if count:
        long = sum(round(each.long_ratio * each.job_count) for each in every)
        worst = max(every, key=lambda each: (each.p90_seconds, each.job_count))
        yield (
            f"{long} of {_many(count, 'job')} waited longer than {LONG_SECONDS / 3600:.0f} h; of {worst.size.value} "
            f"one in ten waited {worst.p90_seconds / 3600:.1f} h or longer"
            f"{' (too few jobs to say more)' if worst.is_few else ''}."
        )
    for each in day.reversals:
        yield (
            f"Over all sizes {each.seems_better} waited less than {each.is_better}; within each size that both have "
            "it waited longer. Compare them by size."
        )


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
