"""One job as commands need it. The components of a heterogeneous job (`40+0`, `40+1`) are joined into one, because
Slurm moves them as one: it requeues and releases them through the leader alone, and starts none without the others.

Apart they would be a trap: who fences the nodes of one component and releases the job starts a second copy of the
others. Only exclusions are kept by each component for itself. Measured on 22.05.8.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import JobState, JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """What Slurm keeps a record of: the whole job, or one component of a heterogeneous one."""

    job: JobId
    excluded_nodes: frozenset[NodeName]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job, with what commands and checkpoints need besides its status."""

    status: JobStatus
    leader: JobId
    """Whom to name in a command: the leader of a heterogeneous job, else the job itself."""
    components: tuple[Component, ...]
    """At least one; exclusions are set on each."""
    is_waiting_array: bool
    """True for the tasks of an array that have not started: no command can name them alone."""
    checkpoint_path: str | None
    """What the comment declares; untrusted."""

    @property
    def ids(self) -> frozenset[JobId]:
        """Every id by which somebody may name the job."""
        return frozenset({self.status.job, *(component.job for component in self.components)})


def join_components(rows: Sequence[JobRow]) -> tuple[JobRow, ...]:
    """Return one row a job, under the id of its leader, in the order in which the leaders were first named."""
    by_leader: dict[JobId, list[JobRow]] = {}
    for row in rows:
        by_leader.setdefault(row.leader, []).append(row)
    return tuple(_join(leader, parts) for leader, parts in by_leader.items())


def _join(leader: JobId, parts: Sequence[JobRow]) -> JobRow:
    if len(parts) == 1 and parts[0].status.job == leader:
        return parts[0]
    # The leader is the first of its components: what users say once (name, comment) they say there.
    first, *_ = ordered = sorted(
        parts, key=lambda part: (part.status.job != leader, len(part.status.job), part.status.job)
    )
    all_of = [part.status for part in ordered]
    living = [status for status in all_of if status.ended_at is None]
    has_ended = not living
    return replace(
        first,
        status=replace(
            first.status,
            job=leader,
            state=min((status.state for status in living or all_of), key=_TELLING.index),
            # Slurm starts it only when no component is held, but one hold of a user's keeps nothing after his release.
            is_held=not has_ended and all(status.is_held for status in living),
            is_held_by_user=any(status.is_held_by_user for status in living),
            is_requeueable=all(status.is_requeueable for status in all_of),
            nodes=frozenset[NodeName]().union(*(status.nodes for status in all_of)),
            gpu_count=sum(status.gpu_count for status in all_of),
            started_at=min((status.started_at for status in all_of if status.started_at is not None), default=None),
            ended_at=max((status.ended_at for status in all_of if status.ended_at), default=None)
            if has_ended
            else None,
            restart_count=max(status.restart_count for status in all_of),
            excluded_nodes=frozenset.intersection(*(status.excluded_nodes for status in all_of)),
            ends_by=min((status.ends_by for status in all_of if status.ends_by is not None), default=None),
        ),
        leader=leader,
        components=tuple(component for part in ordered for component in part.components),
        is_waiting_array=False,
    )


_TELLING = (
    JobState.UNKNOWN,
    JobState.RUNNING,
    JobState.SUSPENDED,
    JobState.COMPLETING,
    JobState.PENDING,
    *(
        state
        for state in JobState
        if state
        not in {
            JobState.UNKNOWN,
            JobState.RUNNING,
            JobState.SUSPENDED,
            JobState.COMPLETING,
            JobState.PENDING,
            JobState.COMPLETED,
        }
    ),
    JobState.COMPLETED,
)
"""Of the states of the components that live (else of all), the first here is the job's: a job has processes as long
as one component has, and has completed only if every component has."""
