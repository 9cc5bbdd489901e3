"""The port `PastWork` on rows in memory, for tests that need neither files nor hours."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.sources import LakeError
from ops_pipelines.lake.schema import TABLES

Row = dict[str, Any]


class KeptWork:
    """Rows of `job_allocations` and of `application_telemetry`; `fails` names the question that gets no answer."""

    def __init__(self, allocations: Sequence[Row] = (), steps: Sequence[Row] = (), *, fails: str = "") -> None:
        self._allocations = tuple(allocations)
        self._steps = tuple(steps)
        self._fails = fails

    def allocations(self, *, nodes: Collection[NodeName], start: datetime, end: datetime) -> pa.Table:
        self._maybe_fail("allocations")
        hour = timedelta(hours=1)
        found = [each for each in self._allocations if each["node"] in nodes and start - hour < each["time"] < end]
        return TABLES["job_allocations"].from_rows(found)

    def steps(self, *, jobs: Collection[JobId], start: datetime, end: datetime) -> pa.Table:
        self._maybe_fail("steps")
        devices = {f"job:{job}" for job in jobs}
        found = [each for each in self._steps if each["device"] in devices and start <= each["time"] < end]
        return TABLES["application_telemetry"].from_rows(found)

    def _maybe_fail(self, question: str) -> None:
        if self._fails == question:
            raise LakeError("the disk is full")
