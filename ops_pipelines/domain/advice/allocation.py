"""Advice on what is held and not used: GPUs that do nothing, and work that a smaller GPU could do."""

from ops_pipelines.domain.advice.advice import AdviceKind, Confidence, Finding
from ops_pipelines.domain.advice.weighing import is_a_session, not_measured, of_work, serves, shown_hours, weigh
from ops_pipelines.domain.advice.work import JobWork
from ops_pipelines.teams.settings import AdviceSettings


def idle_ratio(work: JobWork) -> float:
    """Return the share of what was held that did nothing; of half-idle hours, half."""
    return min(1.0, (work.idle_gpu_hours + work.half_idle_gpu_hours / 2) / work.held_gpu_hours)


def judge_idle(work: JobWork, settings: AdviceSettings) -> Finding | None:
    """GPUs that were held for hours and did nothing."""
    idle, half = work.idle_gpu_hours, work.half_idle_gpu_hours
    if idle <= 0 and half <= 0:
        if work.early_idle_gpu_hours < settings.least_gain_gpu_hours:
            return None
        young = of_work(
            AdviceKind.IDLE_ALLOCATION, work, evidence=("idle at the start of jobs alone",), low=0.0, expected=0.0,
            do="nothing", confidence=Confidence.LOW, measure=0.0,
        )  # fmt: skip
        return weigh(young, settings, against=(f"the jobs were younger than {_minutes(settings)}",))
    if work.longest_idle_hours < settings.idle_least_hours:
        short = f"it was idle for {work.longest_idle_hours:g} h on end at most"
    else:
        short = None
    advice = of_work(
        AdviceKind.IDLE_ALLOCATION,
        work,
        evidence=(
            f"{shown_hours(idle + half)} of {shown_hours(work.held_gpu_hours)} held had GPUs on which nothing ran",
            f"longest on end: {work.longest_idle_hours:g} h",
        ),
        low=idle,
        expected=idle + half / 2,
        do=(
            "end jobs when their work is done; ask for the GPUs that are used, and for them only when data and image "
            "are in place"
            if half <= idle
            else "ask for as many GPUs as the program uses: half of them or more did nothing"
        ),
        confidence=Confidence.HIGH if half <= idle else Confidence.MEDIUM,
        measure=idle_ratio(work),
        but=("hours are means: a burst of less than three minutes in an hour does not show",),
    )
    return weigh(advice, settings, against=(serves(work), is_a_session(work), short))


def light_ratio(work: JobWork, settings: AdviceSettings) -> float | None:
    """Return 1 if all that they did would fit a smaller GPU, 0 if not; None where that is not known."""
    size, used, busy = work.device_memory_bytes, work.most_memory_used_ratio, work.mean_utilisation_ratio
    if size is None or used is None or busy is None:
        return None
    is_light = (
        busy <= settings.light_most_utilisation_ratio
        and used * size <= settings.light_most_memory_bytes
        and work.gpu_counts == frozenset({1})
    )
    return 1.0 if is_light else 0.0


def judge_gpu_type(work: JobWork, settings: AdviceSettings) -> Finding | None:
    """One GPU of a large type, little used, where the operator named a lesser type."""
    lesser = settings.lesser_types.get(work.gpu_type)
    if lesser is None or light_ratio(work, settings) != 1.0:
        return None
    size, used, busy = work.device_memory_bytes, work.most_memory_used_ratio, work.mean_utilisation_ratio
    if size is None or used is None or busy is None:
        return None
    idle = idle_ratio(work)
    advice = of_work(
        AdviceKind.WRONG_GPU_TYPE,
        work,
        evidence=(
            f"{busy:.0%} busy in the mean, at most {used * size / 1e9:.1f} GB of device memory, one GPU",
            f"on {work.gpu_type}, of which {shown_hours(work.held_gpu_hours)} were held",
        ),
        low=work.seen_gpu_hours,
        expected=work.held_gpu_hours,
        do=f"ask for {lesser} in place of {work.gpu_type}",
        confidence=Confidence.MEDIUM,
        measure=1.0,
        but=("it frees this type; the work needs as many hours or more on the other",),
    )
    mostly_idle = "most of it was idle: another type would be idle, too" if idle >= 0.5 else None
    return weigh(
        advice,
        settings,
        against=(serves(work), is_a_session(work), not_measured(work, settings), mostly_idle),
    )


def _minutes(settings: AdviceSettings) -> str:
    return f"{settings.idle_grace.total_seconds() / 60:g} minutes"
