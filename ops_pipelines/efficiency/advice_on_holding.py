"""Advice on what is held and not used: idle GPUs and their ladder of warnings, host memory, time limits.

The ladder is off unless policy.yaml turns it on, and ends nothing: the last note names the command, and a person types
it. Services and sessions never get there. Hours whose use was not measured are not idle.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.cluster import HOUR, hour_of
from ops_pipelines.core.identity import digest_of
from ops_pipelines.core.notes import ON_CALL, Audience, Lane, Note, Outbox, Severity, TellRules
from ops_pipelines.core.observation import JobState, JobStatus, Workload
from ops_pipelines.efficiency.advice import (
    AdviceKind,
    Attempt,
    Confidence,
    Finding,
    JobWork,
    is_a_session,
    not_measured,
    of_work,
    one_line,
    serves,
    shown_hours,
    weigh,
)
from ops_pipelines.report.numbers import bytes_words
from ops_pipelines.teams.desk import AdviceSettings, LadderSettings, TeamsDesk

# -- the ladder of a GPU that stays idle --


_JOB = re.compile(r"[0-9]{1,12}(?:[_+][0-9]{1,9})?", re.ASCII)
"""The ids that Slurm writes; nothing else of a job is ever part of a command."""


class LadderStep(Enum):
    """What is reported, in this order."""

    FIRST_WARNING = "first_warning"
    SECOND_WARNING = "second_warning"
    ASK_TO_RELEASE = "ask_to_release"
    """To the owner and the operators, with the command that would end the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleAttempt:
    """A running attempt all of whose GPUs do nothing."""

    job: str
    started_at: datetime
    idle_since: datetime
    gpu_count: int
    is_service: bool = False
    is_interactive: bool = False


def due_step(
    attempt: IdleAttempt, settings: LadderSettings, *, told: frozenset[LadderStep], now: datetime
) -> LadderStep | None:
    """Return the step that is due and was not taken; None for none. No step is passed over: each is reported before the
    next, so that nobody is asked to end a job whose owner was not warned twice.
    """
    if not settings.is_on or attempt.is_service:
        return None
    idle = now - max(attempt.idle_since, attempt.started_at)
    steps: tuple[tuple[LadderStep, timedelta], ...] = (
        (LadderStep.FIRST_WARNING, settings.first_warning_after),
        (LadderStep.SECOND_WARNING, settings.second_warning_after),
        (LadderStep.ASK_TO_RELEASE, settings.release_after),
    )
    for step, after in steps:
        if step in told:
            continue
        if idle < after or (step is LadderStep.ASK_TO_RELEASE and attempt.is_interactive):
            return None
        return step
    return None


def ending_command(job: str) -> str | None:
    """Return the command that ends a job, for a person to type; None for an id that Slurm would not write."""
    return f"scancel {job}" if _JOB.fullmatch(job) else None


# -- advice on what is held and not used --


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


# -- advice on what is asked of the scheduler and not needed --


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
            f"{bytes_words(asked_for)} were asked for, {bytes_words(most)} were the most in use, "
            f"in {len(known)} attempts",
            f"beside it {shown_hours(blocked)} of other GPUs had no memory left",
        ),
        low=0.0,
        expected=blocked,
        do=f"ask for {bytes_words(enough)}",
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


SOURCE = "messages of idle GPUs"
_BACK = timedelta(hours=24)
_COLUMNS = ("job", "node", "time", "verdict", "rule", "gpu_count")


def walk_ladder(desk: TeamsDesk) -> int:
    """Hand in the notes that are due and return how many are new. Raises LakeError, LedgerError, SourceError."""
    from ops_pipelines.efficiency.other_rows import idle_since

    outbox, settings = desk.cluster.outbox, desk.advice.ladder
    if outbox is None or not settings.is_on:
        return 0
    until = hour_of(desk.clock.now())
    running = {str(job.job): job for job in desk.cluster.scheduler.read_jobs() if job.state is JobState.RUNNING}
    rows = desk.lake.read("gpu_efficiency", start=until - _BACK, end=until, columns=_COLUMNS)
    found = idle_since(rows, jobs=frozenset(running), until=until)
    notes = [
        note
        for name, (since, gpus) in sorted(found.items())
        for note in _notes(running[name], since, gpus, desk, outbox, until=until)
    ]
    if not notes:
        return 0
    after = desk.cluster.ledger.cursor(SOURCE)
    cursor = max(after or "", until.isoformat())
    return outbox.hand_in(notes, source=SOURCE, after=after, cursor=cursor, now=desk.clock.now())


def _notes(
    job: JobStatus, since: datetime, gpus: float, desk: TeamsDesk, outbox: Outbox, *, until: datetime
) -> Iterable[Note]:
    if job.started_at is None:
        return ()
    attempt = IdleAttempt(
        job=job.job,
        started_at=job.started_at,
        idle_since=since,
        gpu_count=round(gpus),
        is_service=job.workload is Workload.INFERENCE,
        is_interactive=job.workload is Workload.INTERACTIVE,
    )
    thread = f"idle-{digest_of(job.job, job.started_at.isoformat())[:12]}"
    told = frozenset(
        step for step in LadderStep for kept in outbox.notes_of(thread) if kept.note.key.endswith(f"/{step.value}")
    )
    step = due_step(attempt, desk.advice.ladder, told=told, now=until)
    if step is None:
        return ()
    recipients: Mapping[Audience, str] = {Audience.OWNER: job.user}
    if step is LadderStep.ASK_TO_RELEASE:
        recipients = {**recipients, Audience.ON_CALL: ON_CALL}
    rules, now = desk.cluster.tell_rules, desk.clock.now()
    return tuple(
        _note(attempt, step, audience, recipient, thread=thread, rules=rules, until=until, now=now)
        for audience, recipient in recipients.items()
    )


def _note(
    attempt: IdleAttempt,
    step: LadderStep,
    audience: Audience,
    recipient: str,
    *,
    thread: str,
    rules: TellRules,
    until: datetime,
    now: datetime,
) -> Note:
    hours = (until - max(attempt.idle_since, attempt.started_at)) / HOUR
    job = one_line(attempt.job, at_most=40)
    title = f"job {job}: nothing ran on its {attempt.gpu_count} GPUs for {hours:.0f} h"
    command = ending_command(attempt.job)
    if step is not LadderStep.ASK_TO_RELEASE:
        must = "end the job if it is done; you are notified once more, then the operators, too"
    elif command is None:
        must = "end the job, or say that it is needed"
    else:
        must = f"end the job, or say that it is needed: `{command}` ends it. Nothing is ended for you"
    return Note(
        key=f"{thread}/{audience.value}/{step.value}",
        audience=audience,
        recipient=recipient,
        thread=thread,
        subject=f"job {job} holds GPUs that do nothing",
        title=title,
        body=f"{title}.\nWhat you must do: {must}.",
        line=title,
        severity=Severity.WARNING if step is LadderStep.ASK_TO_RELEASE else Severity.NOTICE,
        lane=Lane.AT_ONCE,
        likeness=f"idle {step.value}",
        made_at=now,
        ready_at=now + rules.group_window,
    )
