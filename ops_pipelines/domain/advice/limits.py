"""Advice on what is asked of the scheduler and not needed: host memory that blocks GPUs, time limits far too long."""

from ops_pipelines.domain.advice.advice import AdviceKind, Confidence, Finding
from ops_pipelines.domain.advice.weighing import is_a_session, of_work, serves, shown_bytes, shown_hours, weigh
from ops_pipelines.domain.advice.work import Attempt, JobWork
from ops_pipelines.teams.settings import AdviceSettings

_ENDED_WELL = "COMPLETED"
_BY_THE_LIMIT = "TIMEOUT"
_BY_MEMORY = "OUT_OF_MEMORY"


def unneeded_memory_ratio(work: JobWork) -> float | None:
    """Return the share of the memory asked for that no attempt needed; None where use was not recorded."""
    known = _with_memory(work)
    if not known:
        return None
    return min(1 - used / asked for _, asked, used in known)


def judge_memory(work: JobWork, settings: AdviceSettings) -> Finding | None:
    """Host memory that was asked for, not used, and that GPUs stood beside without it."""
    unneeded = unneeded_memory_ratio(work)
    if unneeded is None or unneeded < settings.memory_least_unneeded_ratio:
        return None
    known = _with_memory(work)
    share = work.host_memory_bytes_per_gpu
    most = max(used for _, _, used in known)
    enough = most * settings.memory_margin_ratio
    blocked = 0.0 if share is None else sum(_blocked(each, asked, enough, share) for each, asked, _ in known)
    asked_for = max(asked for _, asked, _ in known)
    advice = of_work(
        AdviceKind.OVER_ASKED_MEMORY,
        work,
        evidence=(
            f"{shown_bytes(asked_for)} were asked for, {shown_bytes(most)} were the most in use, "
            f"in {len(known)} attempts",
            f"beside it {shown_hours(blocked)} of other GPUs had no memory left",
        ),
        low=0.0,
        expected=blocked,
        do=f"ask for {shown_bytes(enough)}",
        confidence=Confidence.MEDIUM,
        measure=unneeded,
        but=(
            "memory is sampled: a short peak may not show",
            "the blocked GPUs count as a gain only where somebody waits",
        ),
    )
    few = _few(len(known), settings)
    killed = "an attempt ran out of memory" if any(each.state == _BY_MEMORY for each in work.attempts) else None
    unknown = "how much memory a node has for each GPU is not known" if share is None else None
    return weigh(advice, settings, against=(is_a_session(work), few, killed, unknown))


def unneeded_time_ratio(work: JobWork) -> float | None:
    """Return the share of the time limit that even the longest attempt did not need; None without ended attempts."""
    limited = [each for each in work.attempts if each.limit_hours]
    if not limited:
        return None
    longest = max(each.elapsed_hours for each in limited)
    limit = min(each.limit_hours for each in limited if each.limit_hours)
    return max(0.0, 1 - longest / limit)


def judge_wall_time(work: JobWork, settings: AdviceSettings) -> Finding | None:
    """A time limit far above what any attempt needed, of jobs that waited."""
    unneeded = unneeded_time_ratio(work)
    if unneeded is None or unneeded < 1 - 1 / settings.wall_time_least_factor:
        return None
    limited = [each for each in work.attempts if each.limit_hours]
    longest = max(each.elapsed_hours for each in limited)
    limit = min(each.limit_hours for each in limited if each.limit_hours)
    waited = sum(each.waited_hours * each.gpu_count for each in limited)
    advice = of_work(
        AdviceKind.WALL_TIME_FAR_ABOVE_NEED,
        work,
        evidence=(
            f"the limit is {limit:,.1f} h, the longest of {len(limited)} attempts took {longest:,.1f} h",
            f"they waited {shown_hours(waited)} (time in the queue times GPUs)",
        ),
        low=0.0,
        expected=waited * settings.wall_time_gain_ratio,
        do=f"ask for {max(longest * 1.5, 0.5):,.1f} h: shorter jobs fit into gaps and start earlier",
        confidence=Confidence.LOW,
        measure=unneeded,
        but=("the gain is waiting time, and depends on the queue",),
    )
    requeued = "attempts were requeued: the limit must hold for the whole" if _were_requeued(work) else None
    hit = "an attempt ran into its limit" if any(each.state == _BY_THE_LIMIT for each in work.attempts) else None
    failed = (
        "too few attempts ended well"
        if sum(each.state == _ENDED_WELL for each in limited) < settings.least_attempt_count
        else None
    )
    return weigh(
        advice,
        settings,
        against=(serves(work), is_a_session(work), requeued, hit, _few(len(limited), settings), failed),
    )


def _with_memory(work: JobWork) -> list[tuple[Attempt, float, float]]:
    return [
        (each, each.asked_memory_bytes, each.used_memory_bytes)
        for each in work.attempts
        if each.asked_memory_bytes and each.used_memory_bytes
    ]


def _blocked(attempt: Attempt, asked: float, enough: float, share: float) -> float:
    """Return the hours of other GPUs that had no memory left because of what was not needed."""
    own = attempt.gpu_count * share
    beyond = max(0.0, asked - own) - max(0.0, enough - own)
    return max(0.0, beyond) / share * attempt.elapsed_hours


def _were_requeued(work: JobWork) -> bool:
    return any(each.restart_count or each.state in {"REQUEUED", "PREEMPTED", "NODE_FAIL"} for each in work.attempts)


def _few(count: int, settings: AdviceSettings) -> str | None:
    return f"{count} attempts ended; too few to judge by" if count < settings.least_attempt_count else None
