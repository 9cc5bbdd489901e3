"""What the lab's drill plays on, and how it looks: at Slurm, at the ledger, at the checkpoints.

What is broken is the acts' business, what must be so at the end `lab_judge`'s.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.cluster import Cluster, Observatory
from ops_pipelines.core.entries import Entry, LedgerError
from ops_pipelines.core.identity import IncidentId, JobId, NodeName
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import JobStatus, NodeStatus
from ops_pipelines.core.sources import SourceError
from ops_pipelines_lab.drills.daemon_processes import wait_until
from ops_pipelines_lab.drills.lab_surroundings import Addresses
from ops_pipelines_lab.drills.postgres_server import PostgresServer
from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster
from ops_pipelines_lab.drills.stack import DagsterStack
from ops_pipelines_lab.drills.writer_watch import WriterWatch
from ops_pipelines_lab.simulator.twin import Twin

_PAGE_COUNT = 1000
_COMMAND_SECONDS = 240.0
"""Far above what a command takes, on a loaded machine too."""


class DrillError(RuntimeError):
    """The drill did not end as stated. The message says what was found."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What the drill plays on."""

    cluster: Cluster
    observatory: Observatory
    slurm: SlurmCluster
    postgres: PostgresServer
    twin: Twin
    stack: DagsterStack
    cluster_file: Path
    checkpoints: Path
    application_log: Path
    around: Addresses
    """The site's chat, in which messages arrive; Alertmanager, if it is installed; our own web process."""
    take_up_rollouts: Callable[[], None]
    """Gives nodes software of their own, writes releases, and lets Slurm reboot from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What must be so, and how it reads when it is not."""

    is_so: bool
    otherwise: str


@dataclass(slots=True)
class _Glance:
    """What was read of slow systems in one look at all acts."""

    nodes: dict[NodeName, NodeStatus] | None = None
    jobs: tuple[JobStatus, ...] | None = None
    incidents: tuple[Incident, ...] | None = None
    records: dict[IncidentId, tuple[ActionRecord, ...]] = field(default_factory=dict)


class LabView:
    """Looks and waits. While a system does not answer there is nothing to see of it, which is no error here."""

    def __init__(self, stage: Stage, console: Console, watch: WriterWatch) -> None:
        self.stage = stage
        self.watch = watch
        self.since = stage.cluster.clock.now()
        self._console = console
        self._began = time.monotonic()
        self._glance: _Glance | None = None

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """Read each system once while many acts look at it: a drill must not slow down what it watches."""
        self._glance = _Glance()
        try:
            yield
        finally:
            self._glance = None

    def is_quiet(self) -> bool:
        """Return whether nothing is seen to be wrong: while the lab starts, metrics may come late."""
        is_anything_open = any(incident.is_open for incident in self.incidents())
        return not is_anything_open and not self.stage.cluster.ledger.conditions()

    def is_no_node_in_trouble(self) -> bool:
        """Return whether no node is seen to be wrong; what concerns ourselves, as that we are late, may stay open."""
        is_any_in_trouble = any(incident.is_open and incident.nodes for incident in self.incidents())
        return not is_any_in_trouble and not self.stage.cluster.ledger.conditions()

    def begin(self) -> None:
        """Count from now on: what came and went while the lab started is no part of the drill."""
        self.since = self.stage.cluster.clock.now()

    def say(self, what: str) -> None:
        self._console.print(f"{time.monotonic() - self._began:5.0f} s  {what}", markup=False, soft_wrap=True)

    def wait(self, what: str, is_so: Callable[[], bool], *, limit_seconds: float, every_seconds: float = 0.3) -> None:
        """Return as soon as `is_so()` holds; raise at once when a process is gone or two writers were seen."""

        def is_so_and_all_is_well() -> bool:
            self.stage.stack.refuse_dead()
            self.watch.refuse_two_writers()
            return is_so()

        wait_until(what, is_so_and_all_is_well, timeout_seconds=limit_seconds, every_seconds=every_seconds)

    # -- Slurm --

    def nodes(self) -> dict[NodeName, NodeStatus]:
        """Return every node by name; empty while the scheduler does not answer."""
        glance = self._glance or _Glance()
        if glance.nodes is None:
            try:
                glance.nodes = {node.node: node for node in self.stage.cluster.scheduler.read_nodes()}
            except SourceError:
                glance.nodes = {}
        return glance.nodes

    def job(self, job: JobId) -> JobStatus | None:
        glance = self._glance or _Glance()
        if glance.jobs is None:
            try:
                glance.jobs = self.stage.cluster.scheduler.read_jobs()
            except SourceError:
                glance.jobs = ()
        return next((each for each in glance.jobs if each.job == job), None)

    def is_in_service(self, node: NodeName) -> bool:
        status = self.nodes().get(node)
        return status is not None and not status.is_drained and status.is_responding

    # -- the ledger --

    def incidents(self) -> tuple[Incident, ...]:
        """Return every incident since the drill began."""
        glance = self._glance or _Glance()
        if glance.incidents is None:
            try:
                glance.incidents = self.stage.cluster.ledger.incidents_since(self.since)
            except LedgerError:
                glance.incidents = ()
        return glance.incidents

    def incidents_of(self, node: NodeName) -> tuple[Incident, ...]:
        return tuple(incident for incident in self.incidents() if node in incident.nodes)

    def entries(self) -> Iterator[Entry]:
        """Return every line of the chain, in order."""
        after = 0
        while page := self.stage.cluster.ledger.entries(after=after, limit=_PAGE_COUNT):
            yield from page
            after = page[-1].seq

    def records_of(self, node: NodeName) -> tuple[ActionRecord, ...]:
        """Return every action of the node's incidents, in the order started."""
        return tuple(each for incident in self.incidents_of(node) for each in self._records(incident))

    def records(self) -> tuple[ActionRecord, ...]:
        """Return every action of every incident since the drill began."""
        return tuple(each for incident in self.incidents() for each in self._records(incident))

    def _records(self, incident: Incident) -> tuple[ActionRecord, ...]:
        known = {} if self._glance is None else self._glance.records
        if incident.incident not in known:
            try:
                known[incident.incident] = self.stage.cluster.ledger.records(incident.incident)
            except LedgerError:
                return ()
        return known[incident.incident]

    # -- people --

    def program(self, *words: str) -> list[str]:
        """Return `ops-pipelines` with these words, on the lab's cluster."""
        return [
            str(Path(sys.executable).with_name("ops-pipelines")),
            *words,
            "--cluster",
            str(self.stage.cluster_file),
        ]

    def command(self, *words: str) -> str:
        """Run `ops-pipelines` as a person at a terminal would; return what it printed.

        Raises DrillError if it refused.
        """
        done = subprocess.run(
            self.program(*words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            said = " / ".join((done.stderr or done.stdout).strip().splitlines())[-500:]
            raise DrillError(f"ops-pipelines {' '.join(words)} ended with {done.returncode}: {said}")
        return done.stdout


def saved_step(checkpoint: Path) -> int:
    """Return the step in the checkpoint; 0 if there is none yet."""
    try:
        return int(checkpoint.read_text())
    except (FileNotFoundError, ValueError):
        return 0
