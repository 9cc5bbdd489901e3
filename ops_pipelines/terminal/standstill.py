"""A person's word to stop and to go on: in the pause file of each state directory that is known, and in the ledger.

The file comes first, because it needs nothing but a directory. The ledger is told within a limit: a database that is
away must not keep whoever stops the autopilot waiting, and finds the file when it is back.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ops_pipelines.core.entries import LedgerError, Pause
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.resources.config.kept_files import state_directories
from ops_pipelines.resources.state_files import PauseFile

if TYPE_CHECKING:
    from ops_pipelines.core.cluster import Cluster

LEDGER_LIMIT_SECONDS = 1.0
"""Of the three seconds in which a pause has to stand, the start of the program takes the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What came of the files."""

    places: tuple[Path, ...]
    """Files that were written, or taken away."""
    problems: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Recorded:
    """What came of telling the ledger."""

    cluster: str = ""
    problem: str | None = "it has not answered yet"
    """Why it does not know; None: it does."""
    fault: Exception | None = field(default=None, repr=False)
    """What nobody thought of."""


def pause_beside(order: Pause, cluster_file: Path, *, state: Path | None) -> Beside:
    """Write the pause file into every state directory that is known."""
    directories = state_directories(cluster_file, named=state)
    written, problems = [], []
    for directory in directories:
        file = PauseFile(directory)
        try:
            file.put(order)
        except OSError as problem:
            problems.append(f"{file.path} cannot be written: {problem.strerror}; run this as a user who may")
        else:
            written.append(file.path)
    if not directories:
        problems.append(f"no state directory is known: {cluster_file} does not name one that is there")
    return Beside(places=tuple(written), problems=tuple(problems))


def lift_beside(cluster_file: Path, *, state: Path | None) -> Beside:
    """Take the pause file out of every state directory that is known."""
    lifted, problems = [], []
    for directory in state_directories(cluster_file, named=state):
        file = PauseFile(directory)
        try:
            was = file.remove()
        except OSError as problem:
            problems.append(f"STILL paused: {file.path} cannot be taken away ({problem.strerror}); do it as who may")
        else:
            lifted += [file.path] if was is not None else []
    return Beside(places=tuple(lifted), problems=tuple(problems))


def pause_in_ledger(order: Pause, open_cluster: Callable[[], "Cluster"], *, is_paused: bool) -> Recorded:
    """Write the pause into the ledger; where a file `is_paused` already, wait no longer than the limit for it."""
    recorded = Recorded()

    def tell() -> None:
        from ops_pipelines.people import orders

        try:
            cluster = open_cluster()
            recorded.cluster = cluster.name
            orders.pause(cluster, actor=order.actor, reason=order.reason)
            recorded.problem = None
        except (PolicyError, LedgerError, OSError) as problem:
            recorded.problem = str(problem)
        except Exception as problem:  # Carried over to the thread that waits, which raises it.
            recorded.fault = problem

    teller = threading.Thread(target=tell, daemon=True, name="ledger")
    teller.start()
    teller.join(LEDGER_LIMIT_SECONDS if is_paused else None)
    if recorded.fault is not None and not is_paused:
        raise recorded.fault
    if recorded.fault is not None:
        recorded.problem = str(recorded.fault) or type(recorded.fault).__name__
    return recorded
