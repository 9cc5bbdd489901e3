"""What was kept of jobs: who held which node when, and how fast their steps were. What that means is the caller's."""

from collections.abc import Collection
from datetime import datetime
from typing import Protocol

from ops_pipelines.domain.identity import JobId, NodeName
from ops_pipelines.ports.lake import Rows


class PastWork(Protocol):
    """Tells of jobs of the past, up to about an hour ago. Both raise LakeError."""

    def allocations(self, *, nodes: Collection[NodeName], start: datetime, end: datetime) -> Rows:
        """Return the rows of `job_allocations` of these nodes in the hours of [start, end).

        The same row may come twice. No node gives no row.
        """
        ...

    def steps(self, *, jobs: Collection[JobId], start: datetime, end: datetime) -> Rows:
        """Return `node`, `device` (`job:<id>`), `time` and `step_seconds` of these jobs in [start, end).

        Samples, or means of five minutes where samples are aggregated already. No job gives no row.
        """
        ...
