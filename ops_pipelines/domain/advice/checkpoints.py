"""Advice on saving work: jobs that never do, and those that do it far too often or too seldom.

How often is best: T = sqrt(2 * save * MTBF) (Young, A first order approximation to the optimum checkpoint interval,
CACM 1974; Daly, FGCS 2006, gives the higher order). At an interval T a share save / T + T / (2 * MTBF) is lost.
"""

import math
from statistics import median

from ops_pipelines.domain.advice.advice import AdviceKind, Confidence, Finding
from ops_pipelines.domain.advice.weighing import is_a_session, of_work, serves, weigh
from ops_pipelines.domain.advice.work import JobWork, NodeFailures
from ops_pipelines.teams.settings import AdviceSettings

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
            f"a training ran for {longest:,.1f} h, and none of its lines tells of a checkpoint",
            _told_failures(failures, work.saves.node_count, between),
        ),
        low=lost * _LOW_RATE_RATIO,
        expected=lost,
        do="save model, optimizer and step regularly, and let the job resume from the newest checkpoint",
        confidence=Confidence.MEDIUM,
        measure=1.0,
        but=("a checkpoint that no line tells of is not seen",),
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
    beside = "saves go on beside the training, and cost next to nothing" if saves.is_asynchronous else None
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
