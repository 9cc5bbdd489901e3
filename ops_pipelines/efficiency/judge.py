"""All rules of advice over all that is known: what they find, and by what each kind is measured."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from ops_pipelines.efficiency.advice import AdviceKind, Finding
from ops_pipelines.efficiency.advice_on_holding import (
    idle_ratio,
    judge_gpu_type,
    judge_idle,
    judge_memory,
    judge_wall_time,
    light_ratio,
    unneeded_memory_ratio,
    unneeded_time_ratio,
)
from ops_pipelines.efficiency.advice_on_running import (
    COMMUNICATES,
    SMALL,
    STALLED,
    FileGroup,
    excess_ratio,
    judge_batch,
    judge_communication,
    judge_files,
    judge_input,
    judge_interval,
    judge_saving,
    judge_straggler,
    straggler_ratio,
    unsaved_ratio,
)
from ops_pipelines.efficiency.work import JobWork, NodeFailures
from ops_pipelines.teams.settings import AdviceSettings

_OF_USE: Sequence[Callable[[JobWork, AdviceSettings], Finding | None]] = (
    judge_idle, judge_input, judge_communication, judge_batch, judge_gpu_type, judge_memory, judge_wall_time,
    judge_straggler,
)  # fmt: skip
_OF_SAVES: Sequence[Callable[[JobWork, AdviceSettings, NodeFailures], Finding | None]] = (judge_saving, judge_interval)
_VERDICTS = {
    AdviceKind.INPUT_STALL: STALLED,
    AdviceKind.COMMUNICATION_BOUND: COMMUNICATES,
    AdviceKind.SMALL_BATCH: SMALL,
}


def judge(works: Iterable[JobWork], settings: AdviceSettings, *, failures: NodeFailures) -> tuple[Finding, ...]:
    """Return what the rules find in jobs, by team and subject; jobs that held nothing are passed over."""
    found: list[Finding] = []
    for work in sorted(works, key=lambda each: (each.team, each.subject)):
        if work.held_gpu_hours <= 0:
            continue
        judged = [rule(work, settings) for rule in _OF_USE]
        judged += [rule(work, settings, failures) for rule in _OF_SAVES]
        found += [each for each in judged if each is not None]
    return tuple(found)


def judge_storage(
    groups: Iterable[FileGroup], settings: AdviceSettings, *, since: datetime, until: datetime
) -> tuple[Finding, ...]:
    """Return what the rules find in files."""
    ordered = sorted(groups, key=lambda each: (each.team, each.path, each.is_checkpoints))
    judged = (judge_files(each, settings, since=since, until=until) for each in ordered)
    return tuple(each for each in judged if each is not None)


def measure(kind: AdviceKind, work: JobWork, settings: AdviceSettings, *, failures: NodeFailures) -> float | None:
    """Return what advice of this kind is judged by (smaller is better); None where it is not known."""
    if work.held_gpu_hours <= 0:
        return None
    if kind is AdviceKind.WRONG_GPU_TYPE:
        return light_ratio(work, settings) if work.gpu_type in settings.lesser_types else 0.0
    if kind is AdviceKind.OVER_ASKED_MEMORY:
        return unneeded_memory_ratio(work)
    if kind is AdviceKind.WALL_TIME_FAR_ABOVE_NEED:
        return unneeded_time_ratio(work)
    if kind is AdviceKind.NO_CHECKPOINTS:
        return unsaved_ratio(work)
    if kind is AdviceKind.WRONG_CHECKPOINT_INTERVAL:
        return excess_ratio(work, failures)
    if work.seen_gpu_hours < settings.least_seen_ratio * work.held_gpu_hours:
        return None
    if kind is AdviceKind.IDLE_ALLOCATION:
        return idle_ratio(work)
    if kind is AdviceKind.STRAGGLER:
        return straggler_ratio(work)
    verdict = _VERDICTS.get(kind)
    return None if verdict is None else work.ratio_of(verdict)
