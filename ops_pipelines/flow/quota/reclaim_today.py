"""What preemption would give back to one team now, by type of GPU: read from the scheduler and its settings.

Reads and counts; which jobs are taken is `reclaim`'s. Idle GPUs come first: nothing is preempted for what stands free.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import JobState, JobStatus
from ops_pipelines.core.proposal import GpuType, SupplyLine, TeamName
from ops_pipelines.core.sources import SourceError
from ops_pipelines.flow.quota.reclaim import Preemption, ReclaimReport, preemption_of, report_reclaim
from ops_pipelines.flow.quota.supply import count_supply, stands_at
from ops_pipelines.teams.desk import TeamsDesk

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
    """Return what the team would get back if it wanted all of its guarantee now; nothing for an organisation.

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
        notes.append(f"of which type the GPUs of {shown} are cannot be told: counted in no line of preemption")
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
