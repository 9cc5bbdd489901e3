"""Walks the ladder of idle GPUs, each hour: who is warned, and who is asked to let go. Off unless policy.yaml says so.

Ends nothing: the last note names the command, and a person types it. Hours whose use was not measured are not idle.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from ops_pipelines.core.cluster import HOUR, hour_of
from ops_pipelines.core.identity import digest_of
from ops_pipelines.core.notes import ON_CALL, Audience, Lane, Note, Outbox, Severity, TellRules
from ops_pipelines.core.observation import JobState, JobStatus, Workload
from ops_pipelines.efficiency.advice import one_line
from ops_pipelines.efficiency.advice_on_holding import IdleAttempt, LadderStep, due_step, ending_command
from ops_pipelines.teams.desk import TeamsDesk

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
        must = "end the job if it is done; you are told once more, then the operators are told, too"
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
