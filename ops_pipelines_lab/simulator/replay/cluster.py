"""The scheduler of a recorded day: who runs where, who ends how, which nodes are drained, down and back.

A loop over events in time. What an attempt looks like is `render`'s business; faults come from `make` and use
`kill`, `take_out` and the free lists here. Nothing here knows the truth.
Long, because starting, ending, draining and filling change one state.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import JobState, JobStatus, NodeState, NodeStatus, Workload
from ops_pipelines_lab.simulator.replay import jobs as pauses
from ops_pipelines_lab.simulator.replay import texts
from ops_pipelines_lab.simulator.replay.day import Brush, Canvas, Fleet, PauseKind, Repair
from ops_pipelines_lab.simulator.replay.jobs import NEVER, Attempt, Program, draw_duration, draw_program, draw_state
from ops_pipelines_lab.simulator.replay.texts import Scribe

_SIZES = (1, 2, 4, 8, 16, 32, 64)
_KINDS = (Workload.TRAINING, Workload.INFERENCE, Workload.BATCH, Workload.INTERACTIVE)
_IDLE_SHARE = 0.06
_KILLED = frozenset({JobState.PREEMPTED, JobState.TIMEOUT, JobState.CANCELLED})


@dataclass(slots=True, kw_only=True)
class NodeLife:
    """How the scheduler sees one node."""

    holder: Attempt | None = None
    is_drained: bool = False
    is_responding: bool = True
    is_down: bool = False
    reason: str | None = None
    reason_set: float | None = None
    booted: float = 0.0
    keep_free: bool = False
    """Nothing is started here for now: a fault's node before anybody drained it."""


@dataclass(kw_only=True)
class Cluster:
    """Events, attempts and nodes of one day."""

    rng: Generator
    fleet: Fleet
    canvas: Canvas
    scribe: Scribe
    seconds: float
    now: float = 0.0
    attempts: list[Attempt] = field(default_factory=list)
    """All, in the order of their start."""
    running: dict[int, Attempt] = field(default_factory=dict)
    """By their place in `attempts`, so that the order never depends on memory addresses."""
    lives: list[NodeLife] = field(init=False)
    repairs: list[Repair] = field(default_factory=list)
    node_changes: list[tuple[float, int, NodeStatus]] = field(default_factory=list)
    job_changes: list[tuple[float, JobStatus]] = field(default_factory=list)
    starts_again_at: float = 0.0
    """Before this nothing starts: the prolog waits for shared storage."""
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _event_count: int = 0
    _job_count: int = 0
    _checkpoints: dict[JobId, float] = field(default_factory=dict)
    _failed_twice: set[tuple[str, str]] = field(default_factory=set)
    """(name, user) of programs that were submitted again at once after a failure."""

    def __post_init__(self) -> None:
        self.lives = [NodeLife(booted=-float(before)) for before in self.fleet.booted_before_seconds]
        self._job_count = int(self.rng.integers(10_000, 900_000))

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Let something happen at a time of the day, or at once if that is past."""
        self._event_count += 1
        heapq.heappush(self._events, (max(seconds, self.now), self._event_count, act))

    def run(self) -> None:
        """Let the day pass."""
        for node in range(self.fleet.node_count):
            self._note_node(node)
        self._fill(is_first=True)
        self.at(float(self.rng.uniform(20, 60)), self._fill_regularly)
        while self._events:
            time, _, act = heapq.heappop(self._events)
            if time >= self.seconds:
                break
            self.now = time
            act()

    # Work

    def holder(self, node: int) -> Attempt | None:
        return self.lives[node].holder

    def is_free(self, node: int) -> bool:
        life = self.lives[node]
        return life.holder is None and life.is_responding and not (life.is_drained or life.is_down or life.keep_free)

    def free_nodes(self) -> list[int]:
        if self.now < self.starts_again_at:
            return []
        return [node for node in range(self.fleet.node_count) if self.is_free(node)]

    def new_job(self) -> JobId:
        self._job_count += int(self.rng.integers(1, 9))
        return JobId(str(self._job_count))

    def start(
        self,
        program: Program,
        nodes: Iterable[int],
        *,
        seconds: float,
        state: JobState,
        job: JobId | None = None,
        restart_count: int = 0,
        began: float | None = None,
    ) -> Attempt:
        """Start an attempt now (or let it have started earlier, at the day's start) that would run for `seconds`."""
        started = self.now if began is None else began
        begin = max(pauses.draw_length(self.rng), 30.0)
        attempt = Attempt(
            job=job if job is not None else self.new_job(),
            program=program,
            nodes=tuple(sorted(nodes)),
            started=started,
            planned_end=self.now + seconds,
            planned_state=state,
            first_step=started + begin if program.kind is Workload.TRAINING else started + 20,
            restart_count=restart_count,
        )
        if attempt.is_training:
            pauses.plan_rests(self.rng, attempt, until=min(attempt.planned_end, self.seconds))
            for rest in attempt.rests:
                if rest.kind is PauseKind.CHECKPOINT:
                    self.at(rest.ended, lambda rest=rest: self._checkpointed(attempt, rest.ended))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        self.running[len(self.attempts)] = attempt
        self.attempts.append(attempt)
        for node in attempt.nodes:
            self.lives[node].holder = attempt
            self._note_node(node)
        self._note_job(attempt, JobState.RUNNING)
        self.at(attempt.planned_end, lambda: self._end_as_planned(attempt))
        return attempt

    def prolong(self, attempt: Attempt, until: float) -> None:
        """Let an attempt not end by itself before `until`."""
        if attempt.planned_end < until:
            attempt.planned_end = until
            self.at(until, lambda: self._end_as_planned(attempt))

    def end(self, attempt: Attempt, state: JobState) -> None:
        """End an attempt now; nothing if it is over."""
        if attempt.ended is not None:
            return
        attempt.ended, attempt.state = self.now, state
        self.running = {key: each for key, each in self.running.items() if each is not attempt}
        for node in attempt.nodes:
            if self.lives[node].holder is attempt:
                self.lives[node].holder = None
                self._note_node(node)
        self._note_job(attempt, state)

    def restart(self, attempt: Attempt, *, after: float, seconds: float | None = None) -> None:
        """Run the same job again on other nodes, as soon as there are enough after a while."""
        duration = seconds if seconds is not None else max(attempt.planned_end - self.now, 1800.0)
        self.at(self.now + after, lambda: self._try_restart(attempt, duration, 0))

    def _try_restart(self, attempt: Attempt, seconds: float, tries: int) -> None:
        free = self.free_nodes()
        if len(free) < attempt.program.node_count:
            if tries < 20:
                self.at(self.now + 120, lambda: self._try_restart(attempt, seconds, tries + 1))
            return
        self.start(
            attempt.program,
            self._choose(free, attempt.program.node_count),
            seconds=seconds,
            state=JobState.COMPLETED,
            job=attempt.job,
            restart_count=attempt.restart_count + 1,
        )

    def _end_as_planned(self, attempt: Attempt) -> None:
        if attempt.ended is not None or self.now < attempt.planned_end - 0.001:
            return
        self.write_end(attempt, attempt.planned_state)
        self.end(attempt, attempt.planned_state)
        # After a failure of their program, a third of the users submit it again at once.
        if attempt.planned_state is JobState.FAILED and self.rng.random() < 0.3:
            program, nodes = attempt.program, self.free_nodes()
            if len(nodes) >= program.node_count:
                duration = draw_duration(self.rng, program)
                # Some make the same mistake once more; who fails a third time is a fault of `make`'s.
                again = (program.name, program.user) not in self._failed_twice and self.rng.random() < 0.4
                self._failed_twice.add((program.name, program.user))
                state = JobState.FAILED if again else JobState.COMPLETED
                duration = float(self.rng.uniform(60, 900)) if again else duration
                self.start(program, self._choose(nodes, program.node_count), seconds=duration, state=state)
        elif attempt.planned_state is JobState.PREEMPTED and self.rng.random() < 0.7:
            self.restart(attempt, after=float(self.rng.uniform(300, 2400)))

    def write_end(self, attempt: Attempt, state: JobState) -> None:
        """Write what a job and its nodes say when it ends by itself or by somebody's will."""
        rng, scribe, now = self.rng, self.scribe, self.now
        names = self.fleet.names
        first = names[attempt.nodes[0]]
        if state is JobState.FAILED:
            rank = int(rng.integers(len(attempt.nodes) * attempt.program.gpus_per_node))
            if rng.random() < 0.1:
                scribe.job(attempt, now - 2, texts.out_of_memory(rng, rank % 8), rank=rank)
            elif rng.random() < 0.12:
                # One Xid of a program's own mistake, once: what every fleet has daily.
                node = attempt.nodes[rank // 8]
                pci = self.fleet.address(node * 8 + rank % 8)
                fault = texts.mmu_fault if rng.random() < 0.6 else texts.graphics_exception
                scribe.kernel(node, now - 3, fault(rng, pci))
                scribe.job(
                    attempt, now - 2, "RuntimeError: CUDA error: an illegal memory access was encountered", rank=rank
                )
            else:
                for text in texts.program_error(rng, int(rng.integers(100))):
                    scribe.job(attempt, now - 2, text, rank=rank)
            scribe.job(attempt, now - 1, texts.task_exit(first, rank, 1), rank=rank)
        elif state in _KILLED:
            why = {
                JobState.PREEMPTED: " DUE TO PREEMPTION",
                JobState.TIMEOUT: " DUE TO TIME LIMIT",
                JobState.CANCELLED: "",
            }[state]
            scribe.job(attempt, now - 1, texts.step_cancelled(attempt.job, first, scribe.at(now), why))
            self.write_teardown(attempt, share=0.5 if state is JobState.PREEMPTED else 0.25)
            if rng.random() < 0.3 and len(attempt.nodes) > 1:
                rank = int(rng.integers(len(attempt.nodes) * 8))
                peer = names[attempt.nodes[rank // 8]]
                reset = texts.connection_reset(rng, peer, rank % 8, scribe.at(now), attempt.nodes[0])
                scribe.job(attempt, now + 1, reset, rank=rank)
        elif state is JobState.OUT_OF_MEMORY:
            scribe.job(attempt, now - 1, texts.task_killed(first, 0, "Out Of Memory"))
            pid = int(rng.integers(9000, 900_000))
            message = f"Memory cgroup out of memory: Killed process {pid} (python3) total-vm:912345678kB"
            scribe.kernel(attempt.nodes[0], now - 1, message)
            self.canvas.grow("nodes/out_of_memory_kill_count", attempt.nodes[0], now)

    def write_teardown(self, attempt: Attempt, *, share: float, at: float | None = None) -> None:
        """Write the Xid 45 (some drivers: 43) that killed processes leave on their GPUs; `share` of jobs leave them."""
        rng, now = self.rng, self.now if at is None else at
        if rng.random() >= share:
            return
        every = rng.uniform(0.5, 1.0)
        as_43 = rng.random() < 0.12
        write = texts.user_channel_reset if as_43 else texts.killed_channel
        program = texts.process(rng)
        # DCGM shows the last code until the driver is loaded again, and some drivers' Xid 45 never.
        is_shown = rng.random() < 0.5
        for node in attempt.nodes:
            for slot in range(attempt.program.gpus_per_node):
                if rng.random() < every:
                    pci = self.fleet.address(slot)
                    text = write(rng, pci, program)
                    self.scribe.kernel(node, now + float(rng.exponential(1.5)), text)
                    if is_shown:
                        self.canvas.paint("gpus/xid", node * 8 + slot, (now, NEVER), Brush.SET, 43.0 if as_43 else 45.0)

    # Nodes

    def drain(self, node: int, reason: str) -> None:
        life = self.lives[node]
        if not life.is_drained:
            life.is_drained, life.reason, life.reason_set = True, reason, self.now
            self._note_node(node)

    def lose(self, node: int) -> None:
        """Let the scheduler hear nothing of a node from now on; after its timeout it calls the node down."""
        self.lives[node].is_responding = False
        self._note_node(node)
        self.at(self.now + 300, lambda: self._set_down(node))

    def _set_down(self, node: int) -> None:
        life = self.lives[node]
        if not life.is_responding and not life.is_down:
            life.is_down = True
            if life.reason is None:
                life.reason, life.reason_set = "Not responding", self.now
            if life.holder is not None:
                self.end(life.holder, JobState.NODE_FAIL)
            self._note_node(node)

    def go_silent(self, node: int, began: float, ended: float) -> None:
        """Let nothing of a node arrive for a while, and all its counters be fresh afterwards."""
        self.canvas.reboot(node, began, ended)
        self.scribe.silent.setdefault(node, []).append((began, ended))
        self.at(ended, lambda: self._booted(node, ended))

    def _booted(self, node: int, at: float) -> None:
        life = self.lives[node]
        life.booted = at
        self.scribe.boots[node] = at - 40
        for text in (
            "Linux version 6.8.0-60-generic (buildd@lcy02-amd64-054) (x86_64-linux-gnu-gcc-13) #63-Ubuntu SMP",
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024",
            "mlx5_core 0000:18:00.0: Port module event: module 0, Cable plugged",
        ):
            self.scribe.kernel(node, at + float(self.rng.uniform(0, 5)), text)
        self._note_node(node)

    def back(self, node: int) -> None:
        """Give a node back to the scheduler."""
        life = self.lives[node]
        life.is_drained = life.is_down = life.keep_free = False
        life.is_responding, life.reason, life.reason_set = True, None, None
        self._note_node(node)

    def take_out(
        self, node: int, *, drained: float, rebooted: float, silent_seconds: float, returned: float, reason: str
    ) -> None:
        """Let people drain a node, reboot or replace what is broken, and give it back; times of the day."""

        def begin() -> None:
            self.drain(node, reason)

        def reboot() -> None:
            life = self.lives[node]
            if life.holder is not None:
                self.end(life.holder, JobState.CANCELLED)
            life.is_responding = False
            self._note_node(node)
            self.go_silent(node, self.now, self.now + silent_seconds)

        def finish() -> None:
            self.back(node)
            self.repairs.append(
                Repair(
                    node=self.fleet.names[node],
                    drained_at=self.scribe.at(drained),
                    returned_at=self.scribe.at(returned),
                )
            )

        self.at(drained, begin)
        self.at(rebooted, reboot)
        self.at(returned, finish)

    # Filling

    def _fill_regularly(self) -> None:
        self._fill()
        self.at(self.now + float(self.rng.uniform(20, 90)), self._fill_regularly)

    def _fill(self, *, is_first: bool = False) -> None:
        rng = self.rng
        for _ in range(200):
            free = self.free_nodes()
            if len(free) <= max(1, round(_IDLE_SHARE * self.fleet.node_count)):
                return
            program = self._draw(len(free), is_first=is_first)
            duration = draw_duration(rng, program)
            state = draw_state(rng, program)
            if state is JobState.FAILED and rng.random() < 0.5:
                duration = float(rng.uniform(60, 900))  # Acme: script errors come within minutes
            elif state is JobState.PREEMPTED:
                duration = max(duration, 7200.0)  # RSC: preempted after two hours at the earliest
            began = None
            if is_first and rng.random() < 0.95:
                began = -float(rng.uniform(600, 12 * 3600))
                duration = float(rng.uniform(0.05, 1)) * duration + 300
            self.start(program, self._choose(free, program.node_count), seconds=duration, state=state, began=began)
            if not is_first and rng.random() < 0.4:
                return

    def _draw(self, free_count: int, *, is_first: bool) -> Program:
        rng, total = self.rng, self.fleet.node_count
        kind = _KINDS[int(rng.choice(4, p=[0.5, 0.12, 0.24, 0.14]))]
        largest = min(free_count, max(1, total // 4))
        if kind is Workload.INFERENCE:
            largest = min(largest, 4)
        elif kind is Workload.BATCH:
            largest = min(largest, 2)
        elif kind is Workload.INTERACTIVE:
            largest = 1
        elif is_first and free_count > 0.5 * total:
            return draw_program(
                rng, kind=kind, node_count=int(rng.choice([size for size in _SIZES if size <= largest][-3:]))
            )
        sizes = [size for size in _SIZES if size <= largest]
        weights = np.array([size**-0.35 for size in sizes])
        return draw_program(rng, kind=kind, node_count=int(rng.choice(sizes, p=weights / weights.sum())))

    def _choose(self, free: list[int], count: int) -> list[int]:
        """Return neighbours where there are enough, as topology-aware schedulers do; scattered nodes else."""
        start = int(self.rng.integers(0, len(free) - count + 1))
        if self.rng.random() < 0.15:
            return sorted(int(node) for node in self.rng.choice(free, size=count, replace=False))
        return free[start : start + count]

    # What the scheduler says

    def _checkpointed(self, attempt: Attempt, at: float) -> None:
        if attempt.ended is None and any(rest.ended == at for rest in attempt.rests):
            self._checkpoints[attempt.job] = at
            self._note_job(attempt, JobState.RUNNING)

    def _note_job(self, attempt: Attempt, state: JobState) -> None:
        program = attempt.program
        saved = self._checkpoints.get(attempt.job)
        self.job_changes.append(
            (
                self.now,
                JobStatus(
                    job=attempt.job,
                    state=state,
                    is_held=False,
                    is_requeueable=program.kind is not Workload.INTERACTIVE,
                    name=program.name,
                    user=program.user,
                    account=program.account,
                    workload=program.kind,
                    nodes=frozenset(self.fleet.names[node] for node in attempt.nodes),
                    gpu_count=len(attempt.nodes) * program.gpus_per_node,
                    started_at=self.scribe.at(attempt.started),
                    ended_at=None if attempt.ended is None else self.scribe.at(attempt.ended),
                    restart_count=attempt.restart_count,
                    excluded_nodes=frozenset(),
                    checkpointed_at=None if saved is None else self.scribe.at(saved),
                ),
            )
        )

    def _note_node(self, node: int) -> None:
        life = self.lives[node]
        holder = life.holder
        in_use = 0 if holder is None else holder.program.gpus_per_node
        if life.is_down:
            state = NodeState.DOWN
        elif holder is None:
            state = NodeState.IDLE
        else:
            state = NodeState.ALLOCATED if in_use == 8 else NodeState.MIXED
        self.node_changes.append(
            (
                self.now,
                node,
                NodeStatus(
                    node=self.fleet.names[node],
                    state=state,
                    is_drained=life.is_drained,
                    is_responding=life.is_responding,
                    reason=life.reason,
                    reason_set_at=None if life.reason_set is None else self.scribe.at(life.reason_set),
                    booted_at=self.scribe.at(life.booted),
                    gpu_count=8,
                    gpu_in_use_count=in_use,
                ),
            )
        )
