"""Silent nodes by the dozen: how often two copies of a job write one checkpoint when everything of ours is late.

A cell is a silence limit of Slurm's, one disturbance of our own program, and with or without the start guard. In each
round slurmd is killed on several nodes at once while the jobs there keep writing. Counted is what the write logs
say. Bringing a lab up for a cell, and the other parts of `make trial`, are `trial`'s business.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import JobState, NodeState
from ops_pipelines_lab.drills.lab_stage import LabView, saved_step
from ops_pipelines_lab.drills.stack import CODE_SERVER, DAEMON, DagsterStack
from ops_pipelines_lab.drills.writer_watch import WRITE_LOG_SUFFIX, Write, find_overlaps, read_writes
from ops_pipelines_lab.simulator.adapters import SimulatedFleet

_STOPPED_SECONDS = 300.0
"""How long the daemon is still: as long as a suspended machine, or a host that swaps."""
_RESTART_SECONDS = 5.0
"""After this long a service manager starts a code server again that was killed."""
_LEASE_SECONDS = 30.0
"""How long another process holds the lease: two of its lives."""
_READY_SECONDS = 180.0
_SETTLED_SECONDS = 420.0
"""Beyond Slurm's own silence limit and the longest disturbance: by then a job continues, or is held."""
_GO_ON_SECONDS = 300.0
"""After the power was cut: the guard looks again, Slurm waits out the credential, the job starts."""
_OVERLAP_SECONDS = 120.0
"""How long two writers are watched, to see how long they write side by side."""
_SILENT_COPY_SECONDS = 5.0
"""A copy saves each second: one that has not for so long has ended."""


class Disturbance(Enum):
    """What is wrong with our own program while the nodes fall silent."""

    NONE = "none"
    BUSY = "every core busy"
    DAEMON_STOPPED = "daemon stopped for 300 s"
    CODE_SERVER_KILLED = "code server killed"
    LEASE_LOST = "lease lost"
    EPHEMERAL = "code server of the daemon's own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One way in which things are wrong at once."""

    disturbance: Disturbance
    slurmd_timeout_seconds: int
    is_guarded: bool = True

    def __str__(self) -> str:
        guard = "guard" if self.is_guarded else "no guard"
        return f"{self.disturbance.value}, SlurmdTimeout {self.slurmd_timeout_seconds} s, {guard}"


@dataclass(slots=True, kw_only=True)
class _Job:
    """One job whose node falls silent."""

    job: JobId
    node: NodeName
    checkpoint: Path
    silent_at: float
    goes_on_after: float | None = None

    def writes(self) -> tuple[Write, ...]:
        log = self.checkpoint.with_name(self.checkpoint.name + WRITE_LOG_SUFFIX)
        return read_writes(log.read_text()) if log.exists() else ()


@dataclass(slots=True, kw_only=True)
class CellResult:
    """What came of one cell."""

    cell: Cell
    silent_count: int = 0
    marked_count: int = 0
    """Jobs that stood held before Slurm gave their node up."""
    by_itself_count: int = 0
    """Jobs that continued without anybody's help."""
    overlaps_seconds: list[float] = field(default_factory=list)
    """For each job of which two copies wrote: for how long."""
    went_on_after_seconds: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Jobs that did not continue even after their node was without power, with their state."""

    def __str__(self) -> str:
        after = sorted(self.went_on_after_seconds)
        went_on = f"after {after[len(after) // 2]:.0f} s (at most {after[-1]:.0f})" if after else "never"
        longest = f", for up to {max(self.overlaps_seconds):.1f} s" if self.overlaps_seconds else ""
        return (
            f"{self.cell}: {self.silent_count} silent, {self.marked_count} marked in time, two writers "
            f"{len(self.overlaps_seconds)} time(s){longest}; {self.by_itself_count} continued by themselves, "
            f"{went_on}; {len(self.lost)} lost"
        )

    @property
    def failures(self) -> tuple[str, ...]:
        """Return what must not be; of a cell without the guard, nothing: it shows what the guard is for."""
        if not self.cell.is_guarded:
            return ()
        told = [f"{self.cell}: job {each}" for each in self.lost]
        if self.overlaps_seconds:
            worst = max(self.overlaps_seconds)
            told.append(f"{self.cell}: {len(self.overlaps_seconds)} time(s) two writers, for up to {worst:.1f} s")
        return tuple(told)


class SilentNodes:
    """Plays one cell on a running lab."""

    def __init__(self, view: LabView, cell: Cell, *, at_once: int) -> None:
        self._view, self._cell, self._at_once = view, cell, at_once
        self._slurm = view.stage.slurm
        self.result = CellResult(cell=cell)

    def play(self, node_count: int) -> CellResult:
        """Let `node_count` nodes fall silent, some at a time, and return what came of it."""
        for number, size in enumerate(_batches(node_count, self._at_once)):
            self._play_round(number, size)
        return self.result

    def _play_round(self, number: int, size: int) -> None:
        jobs = self._submit(number, size)
        with disturbed(self._cell.disturbance, self._view.stage.stack, self._view.stage.cluster):
            for each in jobs:
                each.silent_at = time.monotonic()
                self._slurm.kill_node(each.node)
            self._watch(jobs)
        self.result.by_itself_count += sum(each.goes_on_after is not None for each in jobs)
        # What is left waits for a person: who cuts the power of its node, and does nothing else.
        left = [each for each in jobs if each.goes_on_after is None]
        switches = SimulatedFleet(self._view.stage.twin)
        for each in left:
            self._slurm.power_off_node(each.node)
            switches.power_off(each.node)
        self._wait(f"{len(left)} job(s) to continue", lambda: self._go_on(jobs), limit_seconds=_GO_ON_SECONDS)
        self._wait("the old copies to end", lambda: self._have_old_ended(jobs), limit_seconds=_OVERLAP_SECONDS)
        for each in jobs:
            self._take_stock(each)
        self._view.say(str(self.result))
        for each in left:
            switches.power_on(each.node)
        self._slurm.clear()

    def _submit(self, number: int, size: int) -> list[_Job]:
        stage = self._view.stage
        names = [f"cell-{number}-{each}" for each in range(size)]
        submitted = {
            name: self._slurm.submit_training(
                name=name,
                node_count=1,
                comment=f"workload=training ckpt={stage.checkpoints / name}",
                checkpoint=stage.checkpoints / name,
                step_seconds=0.5,
                steps_per_checkpoint=2,
                time_limit=timedelta(hours=2),
            )
            for name in names
        }
        self._wait(
            "every job to save",
            lambda: all(saved_step(stage.checkpoints / name) > 0 for name in names),
            limit_seconds=_READY_SECONDS,
        )
        jobs = []
        for name, job in submitted.items():
            status = self._view.job(job)
            assert status is not None  # It saves, so it runs.
            node = min(status.nodes)
            jobs.append(_Job(job=job, node=node, checkpoint=stage.checkpoints / name, silent_at=0.0))
        return jobs

    def _watch(self, jobs: Sequence[_Job]) -> None:
        """Look until each job continues, or is held after Slurm gave its node up; note who was marked before."""
        marked: set[JobId] = set()
        deadline = time.monotonic() + self._cell.slurmd_timeout_seconds + _SETTLED_SECONDS

        def is_settled() -> bool:
            with self._view.one_look():
                nodes = self._view.nodes()
                self._go_on(jobs)
                waiting = 0
                for each in jobs:
                    status, node = self._view.job(each.job), nodes.get(each.node)
                    if status is None or node is None:
                        return False
                    is_given_up = node.state is NodeState.DOWN
                    if status.is_held and status.state is JobState.RUNNING and not is_given_up:
                        marked.add(each.job)
                    is_held = status.is_held and status.state is JobState.PENDING
                    waiting += each.goes_on_after is None and not (is_held and is_given_up)
                return waiting == 0

        while not is_settled() and time.monotonic() < deadline:
            time.sleep(0.5)
        self.result.marked_count += len(marked)

    def _go_on(self, jobs: Sequence[_Job]) -> bool:
        """Note which jobs save away from their silent node; return whether all do."""
        for each in jobs:
            if each.goes_on_after is None and any(write.writer.node != each.node for write in each.writes()):
                each.goes_on_after = time.monotonic() - each.silent_at
        return all(each.goes_on_after is not None for each in jobs)

    def _have_old_ended(self, jobs: Sequence[_Job]) -> bool:
        """Return whether no copy has written lately on the node that its job was lost with."""
        lately = (time.time() - _SILENT_COPY_SECONDS) * 1e6
        old = (write for each in jobs for write in each.writes() if write.writer.node == each.node)
        return all(write.at_microseconds < lately for write in old)

    def _take_stock(self, job: _Job) -> None:
        result = self.result
        result.silent_count += 1
        overlaps = find_overlaps(job.writes())
        if overlaps:
            result.overlaps_seconds.append(max(each.overlap_microseconds for each in overlaps) / 1e6)
        if job.goes_on_after is not None:
            result.went_on_after_seconds.append(job.goes_on_after)
            return
        status = self._view.job(job.job)
        how = "gone" if status is None else f"{status.state.value}{', held' if status.is_held else ''}"
        result.lost.append(f"{job.job} did not continue: {how}, {self._slurm.reason_of(job.job)}")

    def _wait(self, what: str, is_so: Callable[[], bool], *, limit_seconds: float) -> None:
        deadline = time.monotonic() + limit_seconds
        while not is_so():
            if time.monotonic() > deadline:
                self._view.say(f"waited {limit_seconds:g} s for {what}, in vain")
                return
            time.sleep(0.5)


@contextmanager
def disturbed(disturbance: Disturbance, stack: DagsterStack, cluster: Cluster) -> Iterator[None]:
    """Disturb our own program from now on, and end it when the block ends; what lasts shorter ends by itself."""
    match disturbance:
        case Disturbance.NONE | Disturbance.EPHEMERAL:  # The latter is how the lab was brought up.
            yield
        case Disturbance.BUSY:
            with _every_core_busy():
                yield
        case Disturbance.DAEMON_STOPPED:
            stack.suspend(DAEMON)
            with _meanwhile(_STOPPED_SECONDS, lambda: stack.resume(DAEMON)):
                yield
        case Disturbance.CODE_SERVER_KILLED:
            stack.kill(CODE_SERVER)
            with _meanwhile(_RESTART_SECONDS, stack.start_code_server):
                yield
        case Disturbance.LEASE_LOST:
            stack.suspend(CODE_SERVER)
            with _meanwhile(_LEASE_SECONDS, lambda: stack.resume(CODE_SERVER)), _lease_of_another(cluster):
                yield


@contextmanager
def _every_core_busy() -> Iterator[None]:
    """Keep each core busy twice over, with children of normal priority."""
    burn = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    children = [subprocess.Popen(burn, stdin=subprocess.DEVNULL) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


@contextmanager
def _meanwhile(seconds: float, then: Callable[[], None]) -> Iterator[None]:
    """Do `then` after so many seconds, whatever happens in the block; at its end at the latest."""
    is_over = threading.Event()

    def wait_and_do() -> None:
        is_over.wait(seconds)
        then()

    thread = threading.Thread(target=wait_and_do, name="end of the disturbance", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def _lease_of_another(cluster: Cluster) -> Iterator[None]:
    """Take the lease for a process that does nothing with it, as soon as it runs out, and keep it for a while."""
    is_over = threading.Event()

    def take_and_keep() -> None:
        deadline = time.monotonic() + _LEASE_SECONDS
        while not is_over.is_set() and time.monotonic() < deadline:
            cluster.ledger.take_lease(holder="trial", ttl=timedelta(seconds=5), now=cluster.clock.now())
            is_over.wait(1.0)

    thread = threading.Thread(target=take_and_keep, name="another's lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _batches(count: int, size: int) -> list[int]:
    return [size] * (count // size) + ([count % size] if count % size else [])
