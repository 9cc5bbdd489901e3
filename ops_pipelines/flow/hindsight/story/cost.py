"""What one incident cost, in GPU-hours, from what the ledger recorded: by the fault, by our acts, by waiting.

Work that is lost counts once, from the checkpoint to the end of the attempt: that it is computed again afterwards is
the same loss. What nobody recorded is not counted, and said.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.identity import JobAttempt, NodeName
from ops_pipelines.core.incident import Incident, Recovery
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.plan import Moment
from ops_pipelines.flow.hindsight.story.chain import MadePlan
from ops_pipelines.flow.hindsight.story.words import names_words
from ops_pipelines.flow.hindsight.time_saved import RecentRemediation

_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """One job that suffered, with what it lost. Name, user and account are the user's text."""

    job: str
    name: str
    user: str
    account: str
    gpu_count: int | None
    fate: str
    """What became of it, in words."""
    held_at: datetime | None
    stopped_at: datetime | None
    """When its work ended: when the fault ended it, else when we held it; None where nobody moved it."""
    resumed_at: datetime | None
    progressed_at: datetime | None
    lost_by_fault_gpu_hours: float | None
    """Work since its checkpoint that the fault threw away. None: not known."""
    lost_by_us_gpu_hours: float | None
    """Work since its checkpoint that our hold threw away. None: not known."""
    waiting_gpu_hours: float | None
    """Between its end and its next start. None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Sums in GPU-hours, of what is known; `not_counted` says what is missing."""

    by_fault: float
    by_our_acts: float
    waiting: float
    out_of_service: float
    """What the node could not do between its drain and its return, less what jobs still did there before they left."""
    saved: float | None
    """By the chosen moments against interrupting every job at once, as expected then. None: no moment was chosen."""
    saved_against_nothing: float | None
    """By the chosen moments against leaving every job under the fault until its end, as expected then."""
    not_counted: tuple[str, ...]

    @property
    def lost(self) -> float:
        """What jobs lost. The capacity out of service is not in it: nobody says that a job would have used it."""
        return self.by_fault + self.by_our_acts + self.waiting


def victims_of(
    incident: Incident, records: Collection[ActionRecord], jobs: Mapping[str, JobStatus], *, now: datetime
) -> tuple[Victim, ...]:
    """Return every job that ran on the culprits or was moved, by its id; `jobs` is how the scheduler saw them."""
    recoveries = {each.attempt: each for each in incident.recoveries}
    holds = {each.action.attempt: each for each in _done(records, Verb.HOLD) if each.action.attempt is not None}
    attempts = sorted(incident.victims | recoveries.keys() | holds.keys())
    return tuple(
        _victim(attempt, incident, recoveries.get(attempt), holds.get(attempt), jobs.get(attempt.job), now=now)
        for attempt in attempts
    )


def cost_of(
    incident: Incident,
    records: Collection[ActionRecord],
    victims: Collection[Victim],
    plans: Collection[MadePlan],
    savings: RecentRemediation,
    *,
    gpus_per_node: int,
    now: datetime,
) -> Cost:
    """Return the sums over one incident."""
    saved = [each.saved_gpu_hours for each in savings.savings]
    out = _out_of_service(incident, records, gpus_per_node=gpus_per_node, now=now)
    against_nothing = list(_against_nothing(plans, {each.attempt for each in savings.savings}))
    return Cost(
        by_fault=sum(each.lost_by_fault_gpu_hours or 0.0 for each in victims),
        by_our_acts=sum(each.lost_by_us_gpu_hours or 0.0 for each in victims),
        waiting=sum(each.waiting_gpu_hours or 0.0 for each in victims),
        out_of_service=out,
        saved=sum(saved) if saved else None,
        saved_against_nothing=sum(against_nothing) if against_nothing else None,
        not_counted=tuple(_not_counted(incident, victims, savings, out_of_service=out)),
    )


def _victim(
    attempt: JobAttempt,
    incident: Incident,
    recovery: Recovery | None,
    hold: ActionRecord | None,
    job: JobStatus | None,
    *,
    now: datetime,
) -> Victim:
    gpu_count = (recovery.gpu_count if recovery is not None else 0) or (hold.gpu_count if hold is not None else 0)
    gpu_count = gpu_count or (job.gpu_count if job is not None else 0)
    end = incident.closed_at or now
    held_at = recovery.held_at if recovery is not None else (hold.begun_at if hold is not None else None)
    has_ended = hold is not None and hold.action.has_ended
    stopped_at = held_at
    if held_at is not None and has_ended:
        stopped_at = min(held_at, max(incident.began_at, attempt.started_at))
    by_fault, by_us, waiting = None, None, None
    if stopped_at is not None and gpu_count:
        saved_at = recovery.checkpointed_at if recovery is not None else None
        saved_at = saved_at if saved_at is not None or hold is None else hold.checkpointed_at
        work = None if saved_at is None else gpu_count * (max(timedelta(0), stopped_at - saved_at) / _HOUR)
        by_fault, by_us = (work, 0.0) if has_ended else (0.0, work)
        again = recovery.resumed_at if recovery is not None else None
        until = again if again is not None else (None if recovery is None or recovery.ended_as else end)
        waiting = None if until is None else gpu_count * (max(timedelta(0), until - stopped_at) / _HOUR)
    return Victim(
        job=attempt.job,
        name="" if job is None else job.name,
        user="" if job is None else job.user,
        account="" if job is None else job.account,
        gpu_count=gpu_count or None,
        fate=_fate(recovery, hold),
        held_at=held_at,
        stopped_at=stopped_at,
        resumed_at=None if recovery is None else recovery.resumed_at,
        progressed_at=None if recovery is None else recovery.progressed_at,
        lost_by_fault_gpu_hours=by_fault,
        lost_by_us_gpu_hours=by_us,
        waiting_gpu_hours=waiting,
    )


def _fate(recovery: Recovery | None, hold: ActionRecord | None) -> str:
    if recovery is None:
        return "left where it was" if hold is None else "held, and not yet followed"
    if recovery.progressed_at is not None:
        return "moved; a newer checkpoint shows that it goes on"
    if recovery.ended_as:
        return f"moved; {recovery.ended_as}"
    if recovery.resumed_at is not None:
        return "moved; runs again, not yet seen beyond its checkpoint"
    return "moved; waits to start again"


def _out_of_service(
    incident: Incident, records: Collection[ActionRecord], *, gpus_per_node: int, now: datetime
) -> float:
    holds = [each for each in _done(records, Verb.HOLD) if each.attempt_nodes and not each.action.has_ended]
    out = 0.0
    for node, begin, end in spans_out(incident, records, now=now):
        used = 0.0
        for hold in holds:
            if node in hold.attempt_nodes and hold.action.attempt is not None:
                stayed = min(hold.begun_at, end) - max(hold.action.attempt.started_at, begin)
                used += hold.gpu_count / len(hold.attempt_nodes) * (max(timedelta(0), stayed) / _HOUR)
        out += max(0.0, gpus_per_node * ((end - begin) / _HOUR) - used)
    return out


def spans_out(
    incident: Incident, records: Collection[ActionRecord], *, now: datetime
) -> Iterator[tuple[NodeName, datetime, datetime]]:
    """Yield from when until when each node was drained for this incident.

    A node that relapses on probation is out twice, and was in service between. Where no return is on record, it is
    out until the incident says that it is back, else until the incident is closed, else until now.
    """
    ends = _done(records, Verb.RESUME)
    for node in sorted({each.action.node for each in _done(records, Verb.DRAIN) if each.action.node is not None}):
        drains = sorted(_at(each) for each in _done(records, Verb.DRAIN) if each.action.node == node)
        resumes = sorted(_at(each) for each in ends if each.action.node == node)
        free_from: datetime | None = None
        for drained in drains:
            if free_from is not None and drained < free_from:
                continue  # Drained once more while it was out.
            back = next((at for at in resumes if at >= drained), None) or _back_at(incident, drained) or now
            yield node, drained, max(drained, back)
            free_from = back


def _back_at(incident: Incident, drained: datetime) -> datetime | None:
    known = (incident.returned_at, incident.closed_at)
    return next((at for at in known if at is not None and at >= drained), None)


def _at(record: ActionRecord) -> datetime:
    assert record.outcome is not None, "asked of what is done only"
    return record.outcome.finished_at


def _against_nothing(plans: Collection[MadePlan], counted: Collection[JobAttempt]) -> Iterator[float]:
    """Yield what each counted job was expected to save against going on under the fault, of its newest plan."""
    newest = {timing.attempt: timing for made in plans for timing in made.plan.timings if timing.attempt in counted}
    for timing in newest.values():
        costs = {option.moment: option.lost_gpu_hours for option in timing.options}
        if Moment.JOB_END in costs and timing.moment in costs:
            yield costs[Moment.JOB_END] - costs[timing.moment]


def _not_counted(
    incident: Incident, victims: Collection[Victim], savings: RecentRemediation, *, out_of_service: float
) -> Iterator[str]:
    moved = [each for each in victims if each.held_at is not None]
    unknown = [each.job for each in moved if None in (each.lost_by_fault_gpu_hours, each.lost_by_us_gpu_hours)]
    if unknown:
        yield f"the lost work of job {names_words(sorted(unknown))}: the age of its checkpoint is not known"
    followed = [each.job for each in moved if each.waiting_gpu_hours is None]
    if followed:
        yield f"the waiting of job {names_words(sorted(followed))}: nobody saw it start again"
    still = [each.job for each in moved if each.waiting_gpu_hours is not None and each.resumed_at is None]
    if still and incident.is_open:
        yield f"what job {names_words(sorted(still))} will still wait"
    left = [each.job for each in victims if each.held_at is None]
    if left:
        yield f"what job {names_words(sorted(left))} lost: it was not moved by us, so nobody measured it"
    if left and out_of_service > 0:
        yield f"what job {names_words(sorted(left))} still did there after the drain: out of service is an upper bound"
    if savings.uncounted_job_count:
        yield f"the savings of {savings.uncounted_job_count} job(s) whose other moments were not computed"
    if moved:
        yield "the slowness of jobs under the fault, and the time from their start to their first step"


def _done(records: Collection[ActionRecord], verb: Verb) -> list[ActionRecord]:
    return [each for each in records if each.action.verb is verb and each.took_effect]
