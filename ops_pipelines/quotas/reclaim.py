"""Which jobs preemption would end if a lender requested its GPUs back: a report, nothing is done.

Borrowers' youngest jobs come first: least work is lost. Services are never named, nor jobs that do not say that they
keep checkpoints, nor such as have not run for a while yet. Whether the scheduler would do it at all is its own setting.
Pure: what runs now is gathered by `reclaim_today`.

Reads and counts; which jobs are taken is `reclaim`'s. Idle GPUs come first: nothing is preempted for what is free.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import Checkpointing, JobState, JobStatus, Workload
from ops_pipelines.core.proposal import GpuType, SupplyLine, TeamName
from ops_pipelines.core.scheduler import SettingsRead, Values, seconds_of
from ops_pipelines.core.sources import SourceError
from ops_pipelines.quotas.today import count_supply, stands_at
from ops_pipelines.teams.desk import TeamsDesk

# -- which jobs preemption would end if a lender requested its GPUs back --


LEAST_RUN = timedelta(hours=2)
"""What began later is left alone: it would lose the little that it did, and its start-up once more."""
_NEVER = frozenset({"", "none", "preempt/none"})
_NO_TIME = frozenset({"", "none", "-1"})
_NAMED = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """What the scheduler is set to."""

    mode: str
    """As Slurm's PreemptMode: OFF, REQUEUE, CANCEL, SUSPEND ..."""
    exempt: timedelta
    """As Slurm's PreemptExemptTime: a job is safe for so long; 0: never."""
    kind: str = ""
    """As Slurm's PreemptType: by what one job ranks above another. Empty: not reported."""
    apart: tuple[str, ...] = ()
    """QOS or partitions that go by a mode of their own, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """One job that would give its GPUs back."""

    job: JobId
    team: TeamName
    gpu_count: int
    ran: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimReport:
    """What a lender would get back at once, and what is in the way."""

    lender: TeamName
    wanted_gpus: float
    jobs: tuple[Reclaimed, ...]
    """In the order in which they would be taken."""
    missing_gpus: float
    """What no such job could give: waited for until jobs end."""
    rule: str
    """Which jobs are never taken, in words."""
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
    parents: Mapping[TeamName, TeamName | None],
) -> ReclaimReport:
    """Return whose jobs would end for the lender.

    `beyond`: the GPUs that each team runs beyond its guarantee, and each organisation that `parents` names: none gives
    more, and a job is taken only as a whole. What passes within an organisation of the lender's own lowers nothing
    there. `preemption` None: the scheduler's setting is not known.
    """
    own = set(_chain(lender, parents))
    left, spare = wanted_gpus, dict(beyond)
    longest = LEAST_RUN if preemption is None else max(LEAST_RUN, preemption.exempt)
    taken = []
    for job, ran in _candidates(jobs, lender=lender, least_run=longest, now=now):
        team = TeamName(job.account)
        if left <= 0:
            break
        bound = [each for each in _chain(team, parents) if each not in own]
        if any(job.gpu_count > spare.get(each, 0.0) for each in bound):
            continue
        taken.append(Reclaimed(job=job.job, team=team, gpu_count=job.gpu_count, ran=ran))
        for each in bound:
            spare[each] -= job.gpu_count
        left -= job.gpu_count
    return ReclaimReport(
        lender=lender,
        wanted_gpus=wanted_gpus,
        jobs=tuple(taken),
        missing_gpus=max(0.0, left),
        rule=(
            f"borrowers' youngest first; never a service, nor a job that ran less than {longest}, keeps no checkpoints "
            "or may not be requeued; no team falls below its guarantee"
        ),
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


def preemption_of(settings: SettingsRead) -> Preemption | None:
    """Return what the scheduler is set to; None where it does not show it, or shows what is no time.

    The longest exempt time counts, of the cluster or a QOS: no job is reported as taken while it may be safe.
    """
    kind, mode = settings.cluster.get("PreemptType"), settings.cluster.get("PreemptMode")
    if kind is None or mode is None:
        return None
    if kind.lower() in _NEVER:
        return Preemption(mode="OFF", exempt=timedelta(), kind=kind)
    ranked, word = (settings.qos, "QOS") if kind.lower() == "preempt/qos" else (settings.partitions, "partition")
    times = [
        settings.cluster.get("PreemptExemptTime", ""),
        *(_own(each, "PreemptExemptTime") for each in ranked.values()),
    ]
    try:
        exempt = max(map(_exempt, times))
    except ValueError:
        return None
    apart = tuple(
        f"{word} {name[:_NAMED]}: {own[:_NAMED]}"
        for name, values in sorted(ranked.items())
        if (own := _own(values, "PreemptMode")).lower() not in ("", "cluster", mode.lower())
    )
    return Preemption(mode=mode, exempt=exempt, kind=kind, apart=apart)


def _own(values: Values, name: str) -> str:
    return values.get(name, "").strip()


def _exempt(text: str) -> timedelta:
    """Return a PreemptExemptTime. There -1 is as good as 0, unlike in other times."""
    if text.strip().lower() in _NO_TIME:
        return timedelta()
    seconds = seconds_of(text)
    if seconds is None:
        raise ValueError(f"{text[:_NAMED]!r} is no PreemptExemptTime; expected 01:00:00")
    return timedelta(seconds=seconds)


def _chain(team: TeamName, parents: Mapping[TeamName, TeamName | None]) -> Iterator[TeamName]:
    """Yield a team and the organisations above it."""
    above: TeamName | None = team
    while above is not None:
        yield above
        above = parents.get(above)


def _says(preemption: Preemption | None) -> str:
    if preemption is None:
        return "whether the scheduler preempts is not known; see PreemptMode and PreemptExemptTime in slurm.conf"
    if preemption.mode.upper() == "OFF":
        return "PreemptMode is OFF: nothing is preempted, the lender waits until jobs end"
    kept = "" if "REQUEUE" in preemption.mode.upper() else "; with another mode than REQUEUE jobs are not started again"
    apart = f" ({', '.join(preemption.apart)})" if preemption.apart else ""
    # A scheduler knows no guarantee: stated, or the list would be read as a promise.
    by = {"preempt/qos": "QOS", "preempt/partition_prio": "partition"}.get(preemption.kind.lower())
    ranks = f"; it goes by {by}, not by guarantee: only a job that ranks above these would end them" if by else ""
    return f"PreemptMode is {preemption.mode[:_NAMED]}{apart}, a job is safe for {preemption.exempt}{kept}{ranks}"


# -- what preemption would give back to one team now, by type of GPU --


Parents = Mapping[TeamName, TeamName | None]
_HOLDS_GPUS = frozenset({JobState.RUNNING, JobState.COMPLETING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """What one team would get back of one type now."""

    gpu_type: GpuType
    guarantee: float
    runs: int
    """GPUs that its own jobs hold."""
    free: int
    """Healthy GPUs that no job holds."""
    report: ReclaimReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaims:
    """By type, and what is not known of it, in words."""

    by_type: tuple[Reclaim, ...]
    notes: tuple[str, ...] = ()


def reclaims_of(team: TeamName, desk: TeamsDesk, *, now: datetime) -> Reclaims:
    """Return what the team would get back if it requested all of its guarantee now; nothing for an organisation.

    Raises NoTeams and LedgerError, and SourceError if the scheduler does not say what runs.
    """
    agreed = desk.agreed()
    if team in agreed.organisations:
        return Reclaims(by_type=())
    notes: list[str] = []
    preemption = _preemption(desk, notes)
    today = now.astimezone(desk.zone).date()
    supplies = count_supply(desk, now=now)
    jobs = [each for each in desk.cluster.scheduler.read_jobs() if each.state in _HOLDS_GPUS and each.gpu_count]
    by_type, mixed = _by_type(jobs, {each.node: each.gpu_type for each in desk.installed if stands_at(each, now)})
    if mixed:
        shown = ", ".join(str(each.job) for each in mixed[:5]) + (" ..." if mixed[5:] else "")
        notes.append(f"of which type the GPUs of {shown} are is not known: counted in no line of preemption")
    return Reclaims(
        by_type=tuple(
            _reclaim(
                team,
                line,
                by_type.get(line.gpu_type, []),
                guarantees={each.team: each.guarantee for each in agreed.terms_on(today, line.gpu_type)},
                parents=agreed.parents,
                out=supplies.out,
                preemption=preemption,
                now=now,
            )
            for line in supplies.lines
        ),
        notes=tuple(notes),
    )


def _reclaim(
    team: TeamName,
    line: SupplyLine,
    jobs: Collection[JobStatus],
    *,
    guarantees: Mapping[TeamName, float],
    parents: Parents,
    out: Collection[NodeName],
    preemption: Preemption | None,
    now: datetime,
) -> Reclaim:
    runs = _runs(jobs, parents)
    held = sum(each.gpu_count * sum(node not in out for node in each.nodes) / len(each.nodes) for each in jobs)
    free = max(0, int(line.installed - line.broken - line.in_rollouts - held))
    guarantee, own = guarantees.get(team, 0.0), runs.get(team, 0)
    report = report_reclaim(
        team,
        max(0.0, guarantee - own - free),
        # What ends on a broken node gives back nothing that could be used.
        (each for each in jobs if not any(node in out for node in each.nodes)),
        beyond={name: max(0.0, count - guarantees.get(name, 0.0)) for name, count in runs.items()},
        preemption=preemption,
        now=now,
        parents=parents,
    )
    return Reclaim(gpu_type=line.gpu_type, guarantee=guarantee, runs=own, free=free, report=report)


def _runs(jobs: Iterable[JobStatus], parents: Parents) -> Mapping[TeamName, int]:
    """Return the GPUs that each team holds, and each organisation through its teams."""
    found: defaultdict[TeamName, int] = defaultdict(int)
    for job in jobs:
        team: TeamName | None = TeamName(job.account)
        while team is not None:
            found[team] += job.gpu_count
            team = parents.get(team)
    return found


def _by_type(
    jobs: Iterable[JobStatus], type_of: Mapping[NodeName, GpuType]
) -> tuple[Mapping[GpuType, list[JobStatus]], list[JobStatus]]:
    """Return the jobs by the type of their nodes, and those on nodes of several types, or not installed."""
    found: defaultdict[GpuType, list[JobStatus]] = defaultdict(list)
    mixed = []
    for job in jobs:
        kinds = {type_of.get(node) for node in job.nodes}
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind is None:
            mixed.append(job)
        else:
            found[kind].append(job)
    return found, mixed


def _preemption(desk: TeamsDesk, notes: list[str]) -> Preemption | None:
    if desk.settings is None:
        return None
    try:
        return preemption_of(desk.settings.read())
    except SourceError as problem:
        notes.append(f"how the scheduler preempts could not be read: {problem}")
        return None
