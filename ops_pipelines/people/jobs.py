"""What the owners of jobs and their teams are notified of in one incident: what we did to a job, and what it lost.
Pure.

That a job will be moved, or erred by itself, an act of the plan notifies its owner (`remediate.verbs`); a note says it
only where that act came to nothing. In observe mode nobody's job is touched, so there is nothing to tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.identity import JobAttempt, JobId, digest_of
from ops_pipelines.core.incident import Incident, IncidentState, Recovery
from ops_pipelines.core.notes import (
    Audience,
    KeptNote,
    Lane,
    Note,
    Severity,
    TellRules,
    body_of,
    clock_time,
    gpu_hours,
    minutes,
    names_of,
    next_time,
    short_cause,
    subject_of,
)
from ops_pipelines.core.observation import JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSituation:
    """One incident, the jobs that it touched, and what was reported of it."""

    incident: Incident
    records: Sequence[ActionRecord]
    """Every act of it, and every message to an owner of the last day."""
    recoveries: Sequence[Recovery]
    """What is known of each job that we moved."""
    jobs: Mapping[JobId, JobStatus]
    """What the scheduler still knows."""
    told: Sequence[KeptNote]
    rules: TellRules
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What one job lost to an interruption, as far as it is known."""

    waited: str
    done_again: str
    """Empty: the time of its checkpoint is unknown."""
    gpu_hours: float | None
    """None: unknown."""


def tell_job_people(situation: JobSituation) -> tuple[Note, ...]:
    """Return the notes for owners and teams that are true now."""
    notes: list[Note] = []
    for recovery in situation.recoveries:
        job = situation.jobs.get(recovery.attempt.job)
        if job is not None:
            notes += _of_moved(situation, recovery, job)
    notes += _of_own_errors(situation)
    notes += _of_nodes(situation)
    return tuple(notes)


def loss_of(recovery: Recovery, *, until: datetime) -> Loss:
    """Return what a move has cost up to `until`: the wait, and the work since the checkpoint that is done again."""
    waited = until - recovery.held_at
    if recovery.checkpointed_at is None:
        return Loss(waited=minutes(waited), done_again="", gpu_hours=None)
    again = max(timedelta(0), recovery.held_at - recovery.checkpointed_at)
    hours = (waited + again).total_seconds() / 3600 * recovery.gpu_count
    return Loss(waited=minutes(waited), done_again=minutes(again), gpu_hours=max(0.0, hours))


def _of_moved(situation: JobSituation, recovery: Recovery, job: JobStatus) -> list[Note]:
    incident = situation.incident
    if recovery.resumed_at is not None:
        return _goes_on(situation, recovery, job, resumed_at=recovery.resumed_at)
    if recovery.ended_as:
        text = (
            f"job {job.job}, which we moved at {clock_time(recovery.held_at)}, has not run since: {recovery.ended_as}"
        )
        must = "look whether you want to submit it again; we no longer follow it"
        return _end_of_move(situation, recovery, job, text=text, must=must, severity=Severity.WARNING)
    if not incident.is_open:
        text = f"job {job.job} was moved at {clock_time(recovery.held_at)} and waits for a place since"
        must = "nothing; the scheduler starts it when there is room"
        return _end_of_move(situation, recovery, job, text=text, must=must, severity=Severity.NOTICE)
    if _has_owner_been_told(situation, recovery.attempt):
        return []
    text = f"job {job.job} was moved off {names_of(incident)} at {clock_time(recovery.held_at)}"
    return [
        _to_owner(
            situation,
            job,
            stage=f"moved-{_name_of(recovery.attempt)}",
            title=f"your {text}",
            body=body_of(
                [
                    ("What happened", incident.cause),
                    ("What we did", text),
                    ("What you lose", "the work since its last checkpoint; how much is reported when it runs again"),
                    ("What you must do", "nothing"),
                ]
            ),
            line=text,
        )
    ]


def _goes_on(situation: JobSituation, recovery: Recovery, job: JobStatus, *, resumed_at: datetime) -> list[Note]:
    incident = situation.incident
    loss = loss_of(recovery, until=resumed_at)
    if loss.gpu_hours is None:
        lost = f"{loss.waited} of waiting, and the work since its last checkpoint, whose time is not known"
    else:
        lost = f"{loss.waited} of waiting and {loss.done_again} of work done again: {gpu_hours(loss.gpu_hours)}"
    moved = f"job {job.job} was moved off {names_of(incident)} at {clock_time(recovery.held_at)}"
    title = f"your job {job.job} runs again"
    to_owner = _to_owner(
        situation,
        job,
        stage=f"goes-on-{_name_of(recovery.attempt)}",
        title=title,
        lines_title="{count} of your jobs run again",
        body=body_of(
            [
                ("What happened", incident.cause),
                ("What we did", f"{moved}; it runs again since {clock_time(resumed_at)}"),
                ("What you lose", lost),
                ("What you must do", "nothing; you hear of it once more only if it makes no progress"),
            ]
        ),
        line=f"{moved} and runs again since {clock_time(resumed_at)}: {lost}",
        lost_gpu_hours=loss.gpu_hours or 0.0,
        is_last=True,
    )
    to_team = _to_team(
        situation,
        job.account,
        stage=f"goes-on-{_name_of(recovery.attempt)}",
        line=f"job {job.job} of {job.user} ({recovery.gpu_count} GPUs): moved off {names_of(incident)} at "
        f"{clock_time(recovery.held_at)}, runs again since {clock_time(resumed_at)}; lost {lost}",
        lost_gpu_hours=loss.gpu_hours or 0.0,
    )
    return [to_owner, *to_team]


def _end_of_move(
    situation: JobSituation, recovery: Recovery, job: JobStatus, *, text: str, must: str, severity: Severity
) -> list[Note]:
    incident = situation.incident
    stage = f"ends-{_name_of(recovery.attempt)}"
    to_owner = _to_owner(
        situation,
        job,
        stage=stage,
        title=f"your {text}"[:120],
        lines_title="{count} of your jobs were moved",
        body=body_of(
            [("What happened", incident.cause), ("How it is", text), ("What you must do", must)],
        ),
        line=text,
        severity=severity,
        is_last=True,
    )
    return [to_owner, *_to_team(situation, job.account, stage=stage, line=f"{text} ({job.user})")]


def _of_own_errors(situation: JobSituation) -> list[Note]:
    """Return for each team which of its jobs erred by themselves; the owner was notified by the act."""
    incident = situation.incident
    if incident.response is not Response.NOTIFY_OWNER:
        return []
    notes: list[Note] = []
    for attempt in sorted(incident.victims):
        job = situation.jobs.get(attempt.job)
        if job is not None and _has_owner_been_told(situation, attempt):
            line = f"job {job.job} of {job.user} erred by itself: {short_cause(incident)}"
            notes += _to_team(situation, job.account, stage=f"erred-{_name_of(attempt)}", line=line)
    return notes


def _of_nodes(situation: JobSituation) -> list[Note]:
    """Return for each team whose jobs were hit what became of the node, once that is settled."""
    incident = situation.incident
    if incident.response not in REPAIRS or incident.state is IncidentState.MERGED or incident.is_open:
        return []
    hit = {situation.jobs[each.job].account for each in incident.victims if each.job in situation.jobs}
    heard = {each.note.recipient for each in situation.told if each.note.audience is Audience.TEAM}
    lasted = minutes((incident.closed_at or situation.now) - incident.opened_at)
    line = f"{names_of(incident)}, which your jobs ran on, had trouble for {lasted}: {short_cause(incident)}"
    return [note for account in sorted(hit | heard) for note in _to_team(situation, account, stage="node", line=line)]


def _has_owner_been_told(situation: JobSituation, attempt: JobAttempt) -> bool:
    """Return whether an act notified the owner of this attempt, or is still at it: it is tried until it is over."""
    return any(
        each.action.verb is Verb.NOTIFY_OWNER
        and each.action.attempt == attempt
        and (each.outcome is None or each.outcome.kind is OutcomeKind.DONE)
        for each in situation.records
    )


def _name_of(attempt: JobAttempt) -> str:
    return digest_of(attempt.job, attempt.started_at.isoformat())[:12]


def _to_owner(
    situation: JobSituation,
    job: JobStatus,
    *,
    stage: str,
    title: str,
    body: str,
    line: str,
    lines_title: str = "",
    severity: Severity = Severity.NOTICE,
    lost_gpu_hours: float = 0.0,
    is_last: bool = False,
) -> Note:
    incident = situation.incident
    return Note(
        key=f"{incident.incident}/owner/{stage}",
        audience=Audience.OWNER,
        recipient=job.user,
        thread=incident.incident,
        subject=subject_of(incident),
        title=title,
        body=body,
        line=line,
        lines_title=lines_title,
        severity=severity,
        lane=Lane.AT_ONCE,
        likeness=stage.rpartition("-")[0],
        made_at=situation.now,
        ready_at=situation.now + situation.rules.group_window,
        lost_gpu_hours=lost_gpu_hours,
        is_last=is_last,
    )


def _to_team(
    situation: JobSituation, account: str, *, stage: str, line: str, lost_gpu_hours: float = 0.0
) -> tuple[Note, ...]:
    """Return one line of the team's digest; none where the scheduler names no account."""
    if not account:
        return ()
    incident = situation.incident
    return (
        Note(
            key=f"{incident.incident}/team/{digest_of(account)[:12]}/{stage}",
            audience=Audience.TEAM,
            recipient=account,
            thread=incident.incident,
            subject=subject_of(incident),
            title=line[:120],
            body=line,
            line=line,
            severity=Severity.INFO,
            lane=Lane.DIGEST,
            likeness="team",
            made_at=situation.now,
            ready_at=next_time(situation.rules.digest_at, situation.rules.zone, situation.now),
            lost_gpu_hours=lost_gpu_hours,
        ),
    )
