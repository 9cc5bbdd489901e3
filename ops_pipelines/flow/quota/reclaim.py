"""Which jobs preemption would end if a lender wanted its GPUs back: a report for people. Nothing is sent, or held.

Borrowers' youngest jobs come first: least work is lost. Services are never named, nor jobs that do not say that they
keep checkpoints, nor such as have not run for a while yet. Whether the scheduler would do it at all is its own setting.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.domain.identity import JobId
from ops_pipelines.domain.observation import Checkpointing, JobState, JobStatus, Workload
from ops_pipelines.domain.quota.terms import TeamName

LEAST_RUN = timedelta(hours=2)
"""What began later is left alone: it would lose the little that it did, and its start-up once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """What the scheduler is set to."""

    mode: str
    """As Slurm's PreemptMode: OFF, REQUEUE, CANCEL, SUSPEND ..."""
    exempt: timedelta
    """As Slurm's PreemptExemptTime: a job is safe for so long; 0: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """One job that would give its GPUs back."""

    job: JobId
    team: TeamName
    gpu_count: int
    ran: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimReport:
    """What a lender would get back at once, and what stands in the way."""

    lender: TeamName
    wanted_gpus: float
    jobs: tuple[Reclaimed, ...]
    """In the order in which they would be taken."""
    missing_gpus: float
    """What no such job could give: waited for until jobs end."""
    scheduler: str
    """Whether the scheduler would do so, in words."""


def report_reclaim(
    lender: TeamName,
    wanted_gpus: float,
    jobs: Iterable[JobStatus],
    *,
    beyond: Mapping[TeamName, float],
    preemption: Preemption | None,
    now: datetime,
    least_run: timedelta = LEAST_RUN,
) -> ReclaimReport:
    """Return whose jobs would end for the lender.

    `beyond`: the GPUs that each team runs beyond its guarantee: none gives more, and a job is taken only as a whole.
    `preemption` None: the scheduler's setting is not known.
    """
    left, spare = wanted_gpus, dict(beyond)
    taken = []
    for job, ran in _candidates(jobs, lender=lender, least_run=_longest(least_run, preemption), now=now):
        team = TeamName(job.account)
        if left <= 0:
            break
        if job.gpu_count > spare.get(team, 0.0):
            continue
        taken.append(Reclaimed(job=job.job, team=team, gpu_count=job.gpu_count, ran=ran))
        spare[team] -= job.gpu_count
        left -= job.gpu_count
    return ReclaimReport(
        lender=lender,
        wanted_gpus=wanted_gpus,
        jobs=tuple(taken),
        missing_gpus=max(0.0, left),
        scheduler=_says(preemption),
    )


def _candidates(
    jobs: Iterable[JobStatus], *, lender: TeamName, least_run: timedelta, now: datetime
) -> list[tuple[JobStatus, timedelta]]:
    found = []
    for job in jobs:
        if job.state is not JobState.RUNNING or job.started_at is None or job.account == lender or not job.gpu_count:
            continue
        is_service = bool(job.service) or job.workload is Workload.INFERENCE
        is_safe = job.checkpointing is Checkpointing.YES and job.is_requeueable
        if not is_service and is_safe and now - job.started_at >= least_run:
            found.append((job, now - job.started_at))
    return sorted(found, key=lambda each: (each[1], each[0].job))


def _longest(least_run: timedelta, preemption: Preemption | None) -> timedelta:
    return least_run if preemption is None else max(least_run, preemption.exempt)


def _says(preemption: Preemption | None) -> str:
    if preemption is None:
        return "whether the scheduler preempts is not known; see PreemptMode and PreemptExemptTime in slurm.conf"
    if preemption.mode.upper() == "OFF":
        return "PreemptMode is OFF: nothing is preempted, the lender waits until jobs end"
    kept = "" if "REQUEUE" in preemption.mode.upper() else "; with another mode than REQUEUE jobs are not started again"
    return f"PreemptMode is {preemption.mode[:40]}, a job is safe for {preemption.exempt}{kept}"
