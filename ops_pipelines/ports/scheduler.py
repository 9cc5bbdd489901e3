"""The workload manager: what nodes and jobs are doing, and the commands that move them.

Slurm and Kubernetes both fit: drain is "no new work" (Slurm DRAIN, Kubernetes cordon), a held job is one that
will not start until released (Slurm requeuehold, Kubernetes suspend).
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Protocol

from ops_pipelines.domain.guardrails.fencing_room import SchedulerLimits
from ops_pipelines.domain.identity import JobAttempt, JobId, NodeName
from ops_pipelines.domain.observation import JobStatus, NodeStatus


class Scheduler(Protocol):
    """Reads nodes and jobs; sends commands.

    Every method returns or raises within its command limit (below 5 s, a third of the lease). All raise
    `SourceUnavailable` (no answer: effect unknown), `SourceRefused` (answered no: no effect) or
    `SourceNonsense`. A command that returns was accepted; whether it *happened* is read back by the caller.
    Commands are idempotent: asking for what already is succeeds and changes nothing.
    """

    def read_nodes(self) -> tuple[NodeStatus, ...]:
        """Return every node that the scheduler knows, in no particular order."""
        ...

    def read_jobs(self) -> tuple[JobStatus, ...]:
        """Return every job that is pending or has processes, and those that ended within the last minutes."""
        ...

    def read_limits(self) -> SchedulerLimits:
        """Return what the scheduler is set to do by itself, above all when it gives a silent node up."""
        ...

    def drain(self, nodes: Collection[NodeName], *, reason: str) -> None:
        """Let no new work start on `nodes`; running jobs go on. One command for the whole batch.

        An empty batch or reason raises ValueError: empty never means all. The reason is read back in
        `NodeStatus.reason`. The caller has made sure that nobody else's drain is overwritten.
        """
        ...

    def resume(self, node: NodeName) -> None:
        """Take back the drain (and a down state, if the node answers); a node in service stays as it is."""
        ...

    def hold(self, job: JobId) -> None:
        """Requeue a running job and hold it (or hold a pending one): it will not start before `release`.

        Returns at once; the processes of the attempt end later, on a reachable node. Refused if the job is
        unknown, has ended, or must not be requeued.
        """
        ...

    def requeue(self, job: JobId) -> None:
        """Send a running job back to pending without a hold. Not a fence: its processes may outlive the call."""
        ...

    def exclude(self, job: JobId, nodes: Collection[NodeName]) -> None:
        """Keep a pending job off `nodes`, in addition to the nodes that it is kept off already.

        Refused while the job runs. An empty collection raises ValueError.
        """
        ...

    def readmit(self, job: JobId, nodes: Collection[NodeName]) -> None:
        """Let a pending job onto `nodes` again that it was kept off; nodes that it is not kept off change nothing.

        Refused while the job runs. An empty collection raises ValueError.
        """
        ...

    def release(self, job: JobId) -> None:
        """Let a held job start when there is room. Refused if the job is unknown or has ended."""
        ...

    def mark(self, attempts: Collection[JobAttempt]) -> None:
        """Mark running jobs held: they run on, and start nowhere else before they are let go. One command for all.

        A job that is held already stays as it is. An empty collection raises ValueError. If some of several have ended
        or are on another attempt, the others are marked all the same, and SourceUnavailable says to read the jobs.
        """
        ...

    def unmark(self, jobs: Mapping[JobId, int | None]) -> None:
        """Release marked jobs in one go, and bring priorities back that somebody had set by hand: as they were then.

        Otherwise as `mark`. Jobs that their users hold by now, that are not held, unknown or over, are let be.
        """
        ...

    def reserve(self, nodes: Collection[NodeName], *, name: str, until: datetime) -> None:
        """Keep idle nodes free under `name` until `until` at the latest: nobody's job starts there.

        No job ever runs in it: it is handed over by `unreserve` just before the job that it is for is released. Refused
        if a node is not free. An empty collection raises ValueError. Reserving again under the same name replaces it.
        """
        ...

    def unreserve(self, name: str) -> None:
        """Give the nodes of a reservation back; one that is gone already stays gone."""
        ...

    def book(self, nodes: Collection[NodeName], *, name: str, begins_at: datetime, ends_at: datetime) -> None:
        """Announce maintenance: no job starts on `nodes` that would run into it; running ones are let be.

        Given back by `unreserve`. Booking again under the same name replaces it. An empty collection raises ValueError.
        """
        ...

    def put_last(self, node: NodeName) -> None:
        """Choose the node for new jobs only where no other fits. Shown as `NodeStatus.is_last_choice`."""
        ...

    def put_back(self, node: NodeName) -> None:
        """Choose the node like any other again."""
        ...

    def declare_down(self, node: NodeName, *, reason: str) -> None:
        """Tell the scheduler that a node that is already powered off is gone, so that its jobs stop completing.

        Never a fence: on a node that still runs this starts a second copy of the job.
        """
        ...
