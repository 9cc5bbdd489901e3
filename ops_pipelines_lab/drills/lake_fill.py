"""The drills' last look: hours of the lake filled through the real UI's API, and every asset holds what it should.

Judged on the files of the lake and on Dagster's own records; never on what a run says of itself.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.cluster import Observatory, hour_of
from ops_pipelines_lab.drills.dagster_api import ENDED, DagsterApi
from ops_pipelines_lab.drills.stack import DagsterStack

ASSETS = (
    *("gpu_telemetry", "node_telemetry", "fabric_telemetry", "storage_telemetry", "facility_telemetry"),
    *("application_telemetry", "platform_telemetry", "job_accounting", "job_allocations", "job_steps"),
    *("job_logs", "kernel_events", "inventory", "gpu_efficiency", "monitoring_coverage", "gpu_demand"),
)
_LIMIT_SECONDS = 900.0
"""Where the hour ends meanwhile, the run of its schedule comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFill:
    """What the lake holds after a fill."""

    row_counts: dict[str, int]
    """Table -> rows of the hours that were filled."""
    differences: tuple[str, ...]
    """What is not as it should be; empty if all is well."""

    def __str__(self) -> str:
        filled = [f"{name} {count}" for name, count in self.row_counts.items() if count]
        return f"lake: {', '.join(filled)}"


def fill_lake(
    stack: DagsterStack,
    observatory: Observatory,
    *,
    hour_count: int,
    may_be_empty: Sequence[str],
    pass_time: Callable[[float], None],
) -> LakeFill:
    """Fill the running hour and those before it, `hour_count` in all, and return what came of it."""
    hours = _hours(observatory, hour_count)
    api = DagsterApi(stack.url, token=stack.token)
    backfill = _launch(api, hours)
    differences = _await_runs(api, backfill, pass_time=pass_time)
    counts = {name: _count_rows(observatory, name, hours) for name in ASSETS}
    differences += [f"{name} is empty" for name, count in counts.items() if not count and name not in may_be_empty]
    differences += [f"{each} failed" for each in _failed_checks(api)]
    return LakeFill(row_counts=counts, differences=tuple(differences))


def start_fill(stack: DagsterStack, observatory: Observatory, *, hour_count: int) -> str:
    """Begin to fill the running hour and those before it, `hour_count` in all; return the back-fill's id at once."""
    return _launch(DagsterApi(stack.url, token=stack.token), _hours(observatory, hour_count))


def _hours(observatory: Observatory, count: int) -> list[datetime]:
    newest = hour_of(observatory.clock.now())
    return [newest - timedelta(hours=back) for back in reversed(range(count))]


def _launch(api: DagsterApi, hours: Sequence[datetime]) -> str:
    return api.launch_backfill(assets=ASSETS, partitions=[f"{hour:%Y-%m-%d-%H:%M}" for hour in hours])


def _await_runs(api: DagsterApi, backfill: str, *, pass_time: Callable[[float], None]) -> list[str]:
    until = time.monotonic() + _LIMIT_SECONDS
    while time.monotonic() < until:
        runs = api.runs_of(backfill)
        if runs and all(run.status in ENDED for run in runs):
            return [f"run {run.run_id} ended as {run.status}" for run in runs if run.status != "SUCCESS"]
        pass_time(0.5)
    return [f"back-fill {backfill} did not end within {_LIMIT_SECONDS:.0f} s"]


def _count_rows(observatory: Observatory, table: str, hours: Sequence[datetime]) -> int:
    return sum(observatory.lake.read_hour(table, hour).num_rows for hour in hours)


def _failed_checks(api: DagsterApi) -> list[str]:
    """Return the blocking checks that failed. Warnings are for people: a drill takes series away on purpose."""
    return [
        f"{asset}: {check}"
        for asset in ASSETS
        for check, state in api.check_states(asset).items()
        if state == "FAILED" and check.endswith("hard_gates")
    ]
