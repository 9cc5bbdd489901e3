"""Advice on how jobs run: waiting for input or network, saving too often or never, files that nobody reads.

The verdicts are those of catalogue/efficiency_rules.csv; here it is asked whether a share of them is worth saying.

How often is best: T = sqrt(2 * save * MTBF) (Young, A first order approximation to the optimum checkpoint interval,
CACM 1974; Daly, FGCS 2006, gives the higher order). At an interval T a share save / T + T / (2 * MTBF) is lost.

Advice, never deletion: whose files they are decides. A file without a time of its last read is never called unused.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.efficiency.advice import (
    Advice,
    AdviceKind,
    Confidence,
    Finding,
    Gain,
    JobWork,
    NodeFailures,
    is_a_session,
    not_measured,
    of_work,
    serves,
    shown_hours,
    weigh,
)
from ops_pipelines.report.numbers import bytes_words
from ops_pipelines.teams.desk import AdviceSettings

# -- advice on how GPUs were used --


STALLED, COMMUNICATES, SMALL = "input_stalled", "communication_bound", "small_kernels"
_OF_THE_RANK = frozenset({"straggler_lags"})
"""Its host and input are the program's; all other stragglers are parts that are slow: health, not advice."""


def judge_input(work: JobWork, settings: AdviceSettings) -> Finding | None:
    """GPUs that waited for data."""
    ratio, use = work.ratio_of(STALLED), work.uses.get(STALLED)
    if use is None or ratio < settings.stall_least_ratio:
        early = work.early_gpu_hours.get(STALLED, 0.0)
        if early < settings.least_gain_gpu_hours or work.seen_gpu_hours <= 0:
            return None
        warm = of_work(
            AdviceKind.INPUT_STALL, work, evidence=("it waited for data in its first hours",), low=0.0, expected=0.0,
            do="nothing", confidence=Confidence.LOW, measure=ratio,
        )  # fmt: skip
        return weigh(warm, settings, against=("it waited for data in its first hour alone, while caches fill",))
    waited = use.gpu_hours * (1 - (use.utilisation_ratio or 0.0))
    advice = of_work(
        AdviceKind.INPUT_STALL,
        work,
        evidence=(
            f"{ratio:.0%} of the measured time ({shown_hours(use.gpu_hours)}) GPUs waited for input",
            "not known how busy they were in it"
            if use.utilisation_ratio is None
            else f"in it they were busy {use.utilisation_ratio:.0%} of the time",
        ),
        low=waited / 2 if use.utilisation_ratio is not None else 0.0,
        expected=waited if use.utilisation_ratio is not None else use.gpu_hours / 2,
        do=(
            "give the loader more workers and let it fetch ahead, keep decoded data on local NVMe, read large files in "
            "place of many small ones"
        ),
        confidence=Confidence.MEDIUM if use.utilisation_ratio is not None else Confidence.LOW,
        measure=ratio,
        but=("evaluations and checkpoints wait for storage, too",),
    )
    return weigh(advice, settings, against=(serves(work), is_a_session(work), not_measured(work, settings)))


def judge_communication(work: JobWork, settings: AdviceSettings) -> Finding | None:
    """GPUs that waited for the network while all ranks did alike."""
    ratio, use = work.ratio_of(COMMUNICATES), work.uses.get(COMMUNICATES)
    if use is None or ratio < settings.communication_least_ratio:
        return None
    expected = use.gpu_hours * settings.communication_gain_ratio
    advice = of_work(
        AdviceKind.COMMUNICATION_BOUND,
        work,
        evidence=(
            f"{ratio:.0%} of the measured time ({shown_hours(use.gpu_hours)}) links were full and tensor pipes waited",
        ),
        low=expected / 3,
        expected=expected,
        do=(
            "let communication overlap with computing, use larger buckets or fewer ranks a collective, keep tensor "
            "parallelism within a node; ask for nodes below one leaf switch"
        ),
        confidence=Confidence.LOW,
        measure=ratio,
        but=("how much of it can be hidden depends on the model; the gain is an assumption",),
    )
    hung = "it hung in a collective: an incident, not a way of working" if _hung(work, use.gpu_hours) else None
    one = "one rank lagged, and the others waited for it" if work.straggler_gpu_hours else None
    return weigh(advice, settings, against=(serves(work), hung, one, not_measured(work, settings)))


def judge_batch(work: JobWork, settings: AdviceSettings) -> Finding | None:
    """Kernels that leave most of the GPU empty, with memory to spare."""
    ratio, use = work.ratio_of(SMALL), work.uses.get(SMALL)
    if use is None or ratio < settings.small_batch_least_ratio:
        return None
    memory, active = use.memory_used_ratio, use.sm_active_ratio
    # With twice the SM activity the same work takes half of the time; more than the target is promised to nobody.
    saved = 0.25 if active is None else max(0.0, 1 - active / settings.sm_target_ratio)
    advice = of_work(
        AdviceKind.SMALL_BATCH,
        work,
        evidence=(
            f"{ratio:.0%} of the measured time ({shown_hours(use.gpu_hours)}) kernels were too small for the GPU",
            *(() if active is None else (f"SMs were active {active:.0%} of the time",)),
            *(() if memory is None else (f"{memory:.0%} of device memory was in use",)),
        ),
        low=use.gpu_hours * saved / 2 if active is not None else 0.0,
        expected=use.gpu_hours * saved,
        do="try a larger batch, compiled or fused kernels, CUDA graphs; or share the GPU (MIG, several runs)",
        confidence=Confidence.MEDIUM if active is not None and memory is not None else Confidence.LOW,
        measure=ratio,
        but=("a larger batch may need another learning rate",),
    )
    full = (
        f"{memory:.0%} of device memory was in use: a larger batch may not fit"
        if memory is not None and memory > settings.small_batch_most_memory_ratio
        else None
    )
    return weigh(advice, settings, against=(serves(work), is_a_session(work), full, not_measured(work, settings)))


def straggler_ratio(work: JobWork) -> float:
    """Return the share of the measured time in which one rank held the others up by what its program does."""
    hours = sum(work.straggler_gpu_hours.get(rule, 0.0) for rule in _OF_THE_RANK)
    return 0.0 if work.seen_gpu_hours <= 0 else min(1.0, hours / work.seen_gpu_hours)


def judge_straggler(work: JobWork, settings: AdviceSettings) -> Finding | None:
    """One rank that the others wait for."""
    if not work.straggler_gpu_hours or work.seen_gpu_hours <= 0:
        return None
    hours = sum(work.straggler_gpu_hours.values())
    if hours / work.seen_gpu_hours < settings.straggler_least_ratio:
        return None
    own = sum(work.straggler_gpu_hours.get(rule, 0.0) for rule in _OF_THE_RANK)
    advice = of_work(
        AdviceKind.STRAGGLER,
        work,
        evidence=(
            f"{hours / work.seen_gpu_hours:.0%} of the measured time ({shown_hours(hours)}) one GPU lagged behind "
            f"its peers; {len(work.straggler_gpus)} different ones",
        ),
        low=own * settings.straggler_low_ratio,
        expected=own * settings.straggler_loss_ratio,
        do="look at the input and the host work of the rank that lags: its share of the data, its loader, its logging",
        confidence=Confidence.LOW,
        measure=straggler_ratio(work),
        but=("a slow host shows in the same way",),
    )
    part = "its clock or its part is slow: that is health, and the operators'" if own < hours / 2 else None
    same = "always the same GPU: more likely the part than the program" if len(work.straggler_gpus) == 1 else None
    return weigh(advice, settings, against=(serves(work), part, same, not_measured(work, settings)))


def _hung(work: JobWork, gpu_hours: float) -> bool:
    return work.hung_gpu_hours > gpu_hours / 2


# -- advice on saving work --


_LOW_RATE_RATIO = 0.5
"""Assumption: the low gain counts with half as many failures as were seen."""


def best_interval_hours(*, save_hours: float, between_failures_hours: float) -> float:
    """Return after how long to save again (Young); a save cannot begin before the last has ended."""
    if save_hours <= 0 or between_failures_hours <= 0:
        raise ValueError(
            f"a save of {save_hours} h and {between_failures_hours} h between failures; expected both above 0"
        )
    return max(save_hours, math.sqrt(2 * save_hours * between_failures_hours))


def lost_ratio(*, interval_hours: float, save_hours: float, between_failures_hours: float) -> float:
    """Return the share of time that saves and work done again take at this interval; at most 1."""
    return min(1.0, save_hours / interval_hours + interval_hours / (2 * between_failures_hours))


def unsaved_ratio(work: JobWork) -> float | None:
    """Return 1 if their lines tell of no save, 0 if of any; None where no lines of a training are at hand."""
    if work.saves.save_count:
        return 0.0
    return 1.0 if work.saves.has_lines and work.saves.is_training else None


def judge_saving(work: JobWork, settings: AdviceSettings, failures: NodeFailures) -> Finding | None:
    """Long trainings that save nothing."""
    if unsaved_ratio(work) != 1.0 or work.saves.longest_hours < settings.unsaved_least_hours:
        return None
    between = failures.hours_between(work.saves.node_count)
    longest = work.saves.longest_hours
    # Half of an attempt is lost when it fails, and so many of the hours held end in a failure.
    lost = 0.0 if between is None else work.held_gpu_hours * min(1.0, longest / (2 * between))
    advice = of_work(
        AdviceKind.NO_CHECKPOINTS,
        work,
        evidence=(
            f"a training ran for {longest:,.1f} h, and none of its lines mentions a checkpoint",
            _told_failures(failures, work.saves.node_count, between),
        ),
        low=lost * _LOW_RATE_RATIO,
        expected=lost,
        do="save model, optimizer and step regularly, and let the job resume from the newest checkpoint",
        confidence=Confidence.MEDIUM,
        measure=1.0,
        but=("a checkpoint that no line mentions is not seen",),
    )
    return weigh(advice, settings, against=(serves(work), is_a_session(work), _few_failures(failures, settings)))


def excess_ratio(work: JobWork, failures: NodeFailures) -> float | None:
    """Return the share of time that the present interval loses beyond the best one; None where it is not known."""
    between = failures.hours_between(work.saves.node_count)
    if between is None or not work.saves.intervals_hours or not work.saves.save_seconds:
        return None
    present, save = median(work.saves.intervals_hours), median(work.saves.save_seconds) / 3600
    if present <= 0 or save <= 0:
        return None
    best = best_interval_hours(save_hours=save, between_failures_hours=between)
    now = lost_ratio(interval_hours=present, save_hours=save, between_failures_hours=between)
    return max(0.0, now - lost_ratio(interval_hours=best, save_hours=save, between_failures_hours=between))


def judge_interval(work: JobWork, settings: AdviceSettings, failures: NodeFailures) -> Finding | None:
    """Saves that come far too often or too seldom for how long they take and how often nodes fail."""
    excess, saves = excess_ratio(work, failures), work.saves
    between = failures.hours_between(saves.node_count)
    if excess is None or between is None:
        return None
    present, save = median(saves.intervals_hours), median(saves.save_seconds) / 3600
    best = best_interval_hours(save_hours=save, between_failures_hours=between)
    factor = settings.interval_least_factor
    if best / factor < present < best * factor:
        return None
    is_too_often = present < best
    advice = of_work(
        AdviceKind.WRONG_CHECKPOINT_INTERVAL,
        work,
        evidence=(
            f"saved every {_shown(present)}, a save takes {_shown(save)} (medians of {len(saves.intervals_hours)} "
            f"and {len(saves.save_seconds)})",
            _told_failures(failures, saves.node_count, between),
            f"best is about {_shown(best)} (Young 1974)",
        ),
        low=work.held_gpu_hours * excess * _LOW_RATE_RATIO,
        expected=work.held_gpu_hours * excess,
        do=f"save every {_shown(best)}: {'less' if is_too_often else 'more'} often than now",
        confidence=Confidence.MEDIUM,
        measure=excess,
        but=("failures of programs count in no mean time between failures of nodes",),
    )
    beside = "saves continue beside the training, and cost next to nothing" if saves.is_asynchronous else None
    few = (
        f"{len(saves.intervals_hours)} times between saves were seen; too few to judge by"
        if len(saves.intervals_hours) < settings.least_interval_count
        else None
    )
    return weigh(
        advice,
        settings,
        against=(
            serves(work),
            is_a_session(work),
            few,
            beside if is_too_often else None,
            _few_failures(failures, settings),
        ),
    )


def _told_failures(failures: NodeFailures, node_count: int, between: float | None) -> str:
    if between is None:
        seen = failures.failure_count or "no"
        return f"{seen} failure{'s' if failures.failure_count > 1 else ''} in {failures.node_hours:,.0f} node-hours"
    return (
        f"{failures.failure_count} failures in {failures.node_hours:,.0f} node-hours: on {node_count} nodes one in "
        f"{between:,.1f} h"
    )


def _few_failures(failures: NodeFailures, settings: AdviceSettings) -> str | None:
    if failures.failure_count >= settings.least_failure_count:
        return None
    return f"{failures.failure_count} failures of nodes were seen; too few to say how often one comes"


def _shown(hours: float) -> str:
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{hours * 60:.1f} min" if hours * 60 >= 1 else f"{hours * 3600:.0f} s"


# -- advice on files that nobody reads --


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup:
    """Files of one team that belong together: the checkpoints of a run, or a directory of data."""

    team: TeamName
    path: str
    """On one line and short; untrusted."""
    is_checkpoints: bool
    size_bytes: int
    """Of all of them."""
    count: int
    old_size_bytes: int = 0
    """Of those that were read and written last before the limit; of checkpoints never the newest."""
    old_count: int = 0
    last_used_at: datetime | None = None
    """Newest read or write of any."""
    unknown_count: int = 0
    """Those whose last read nobody knows."""


def judge_files(group: FileGroup, settings: AdviceSettings, *, since: datetime, until: datetime) -> Finding | None:
    """Files that nobody has touched for long."""
    limit = settings.stale_after if group.is_checkpoints else settings.unused_after
    if not group.old_count:
        return None
    kind = AdviceKind.STALE_CHECKPOINTS if group.is_checkpoints else AdviceKind.UNUSED_DATASETS
    last = "never as far as known" if group.last_used_at is None else f"{group.last_used_at:%Y-%m-%d}"
    advice = Advice(
        kind=kind,
        team=group.team,
        subject=group.path,
        since=since,
        until=until,
        evidence=(
            f"{group.old_count} of {group.count} files, {bytes_words(group.old_size_bytes)}, were neither read nor "
            f"written for {limit / timedelta(days=1):g} days",
            f"anything of it was last used: {last}",
        ),
        counter_evidence=("a file may be kept on purpose, as the record of a result",),
        gain=Gain(size_bytes=group.old_size_bytes),
        what_to_do=(
            "keep the newest and the published checkpoints, move or delete the others yourself"
            if group.is_checkpoints
            else "archive it, or delete it yourself if it can be made again"
        ),
        confidence=Confidence.MEDIUM,
        measure=float(group.old_size_bytes),
        held_gpu_hours=0.0,
    )
    # A data set is used as a whole: one file that was read keeps all the others.
    used = (
        "a part of it was used"
        if not group.is_checkpoints and group.old_count + group.unknown_count < group.count
        else None
    )
    unknown = f"of {group.unknown_count} files nobody knows when they were last read" if group.unknown_count else None
    return weigh(advice, settings, against=(unknown, used))
