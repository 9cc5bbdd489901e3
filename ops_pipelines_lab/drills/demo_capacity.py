"""The demo's quarter: the run that makes its report of a pretended year, and what the demo tells of it.

The year is pretended (`demand_past`); what is forecast and ordered of it is the program's.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from ops_pipelines.capacity.answers import report_in
from ops_pipelines.capacity.model import first_day_of, quarter_of
from ops_pipelines.resources.page_files import CAPACITY_DIRECTORY, PlanDirectory

PLAN_CAPACITY = "plan_capacity"


def quarter_run(now: datetime) -> Mapping[str, str]:
    """Return the job that plans the running quarter, with its partition. The demo's days are UTC's."""
    quarter = quarter_of(now.astimezone(UTC).date())
    return {PLAN_CAPACITY: first_day_of(quarter).isoformat()}


def capacity_line(state: Path, *, now: datetime, pages_url: str) -> str:
    """Return the first sentence of the quarter's report and where all of it is; that there is none, if so.

    Raises StatementFilesError where it cannot be read.
    """
    quarter = quarter_of(now.astimezone(UTC).date())
    kept = PlanDirectory(state / CAPACITY_DIRECTORY).read(f"{quarter}.json")
    if kept is None:
        return f"capacity: no report of {quarter} was kept"
    return f"capacity: {report_in(kept).headline[0]} {pages_url}/capacity"


def capacity_commands(cluster_file: str) -> tuple[str, ...]:
    """Return how a person of the endless demo looks at the quarter."""
    return tuple(f"ops-pipelines capacity {each} --cluster {cluster_file}" for each in ("report", "plan"))
