"""What `status` and `incidents` show where the cluster cannot be opened: what is broken, and who paused.

Of all else nothing is known, and so it is said: an answer without incidents would read as if there were none.
"""

from pathlib import Path
from typing import NoReturn

import typer

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.entries import LedgerDamaged, LedgerError, Pause
from ops_pipelines.core.health import Health, HealthWord
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.resources.config.kept_files import state_directories
from ops_pipelines.resources.state_files import PauseFile
from ops_pipelines.terminal.edge import ExitCode, complain
from ops_pipelines.terminal.incident_views import IncidentsView
from ops_pipelines.terminal.status_views import StatusView, view_health

CANNOT_OPEN = (PolicyError, LedgerError)
"""What stands in the way of opening a cluster, and is no fault of ours."""
_NOT_KNOWN = "whether the autopilot runs, and when it last beat, is not known"


def status_without(problem: Exception, cluster_file: Path, *, state: Path | None) -> StatusView:
    """Return what is known all the same."""
    pause = found_pause(cluster_file, state=state)
    since = "" if pause is None else f"{pause.since:%Y-%m-%d %H:%M:%S} UTC"
    paused = "" if pause is None else f"paused by {pause.actor} since {since}: {pause.reason}"
    reasons = tuple(each for each in (_what(problem), paused, _NOT_KNOWN) if each)
    health = Health(word=HealthWord.BLIND, reasons=reasons)
    return StatusView(
        cluster=str(cluster_file),
        taken_at=SystemClock().now(),
        health=view_health(health, None),
        mode=None,
        paused=pause,
        is_autopilot_alive=None,
        nodes_by_state=None,
        jobs_by_state=None,
        marked_jobs=None,
        open_incidents_by_state=None,
        actions_by_outcome=None,
        waiting_evidence_count=None,
        problems=(str(problem),),
    )


def incidents_without(problem: Exception, cluster_file: Path) -> IncidentsView:
    """Return that the incidents are not known, and why."""
    return IncidentsView(
        cluster=str(cluster_file), taken_at=SystemClock().now(), incidents=None, problems=(str(problem),)
    )


def found_pause(cluster_file: Path, *, state: Path | None) -> Pause | None:
    """Return the pause in the first state directory that holds one."""
    found = (PauseFile(place).read() for place in state_directories(cluster_file, named=state))
    return next((pause for pause in found if pause is not None), None)


def end_without(problem: Exception) -> NoReturn:
    """Name what is broken, and end with the exit code for it."""
    complain(str(problem))
    raise typer.Exit(ExitCode.DAMAGED if isinstance(problem, LedgerDamaged) else ExitCode.NO_ANSWER) from problem


def _what(problem: Exception) -> str:
    what = "the ledger" if isinstance(problem, LedgerError) else "the configuration"
    return f"{what} cannot be read; why is on standard error"
