"""What all faults share: finding a target that is clear of others, what a broken job does, repairs, and the truth.

A job whose rank is gone either aborts within a minute (the rank's process died, its peers see closed sockets) or waits
for its collective timeout (RSC and Llama 3 report both; timeouts of 600 s are PyTorch's default). Who repairs acts as
sites do: half of the nodes are drained within minutes by a health check, the others when a person gets to it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from numpy.random import Generator

from ops_pipelines.core.fault import Component
from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import JobState
from ops_pipelines_lab.simulator.replay import texts
from ops_pipelines_lab.simulator.replay.cluster import Cluster
from ops_pipelines_lab.simulator.replay.day import GPUS_PER_NODE, Brush, Canvas, FaultClass, Fleet, Truth
from ops_pipelines_lab.simulator.replay.jobs import NEVER, Attempt, Freeze, Look
from ops_pipelines_lab.simulator.replay.texts import Scribe

APART_SECONDS = 3600.0
"""Between two faults of one node or job."""
_REASONS = ("ticket {n}", "health check failed: prolog", "hw: see ticket {n}", "drained by oncall", "check node")
_MAX_TIMEOUT_LINES = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairTimes:
    """When a node is taken out, is rebooted, runs again, and takes work again."""

    drained: float
    rebooted: float
    back: float
    returned: float


@dataclass(frozen=True, slots=True)
class Window:
    """Time kept for a wide fault: nothing else on these nodes."""

    nodes: frozenset[int]
    began: float
    ended: float


@dataclass(kw_only=True)
class Injector:
    """Puts faults into a cluster, and remembers the truth."""

    rng: Generator
    cluster: Cluster
    truths: list[Truth] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    unfinished: list[Callable[[], None]] = field(default_factory=list)
    """What is stated of faults that take hours and were still continuing when the day ended."""
    _quiet_nodes: dict[int, float] = field(default_factory=dict)
    _quiet_jobs: dict[JobId, float] = field(default_factory=dict)

    @property
    def now(self) -> float:
        return self.cluster.now

    @property
    def canvas(self) -> Canvas:
        return self.cluster.canvas

    @property
    def scribe(self) -> Scribe:
        return self.cluster.scribe

    @property
    def fleet(self) -> Fleet:
        return self.cluster.fleet

    # Targets

    def is_clear(self, nodes: Iterable[int], jobs: Iterable[JobId], *, until: float, own: Window | None = None) -> bool:
        """Return whether no other fault is on these nodes and jobs within an hour of now and of `until`."""
        touched = frozenset(nodes)
        if any(self._quiet_nodes.get(node, -1.0) > self.now for node in touched):
            return False
        if any(self._quiet_jobs.get(job, -1.0) > self.now for job in jobs):
            return False
        for window in self.windows:
            if window is own or not touched & window.nodes:
                continue
            if until + APART_SECONDS > window.began and self.now < window.ended + APART_SECONDS:
                return False
        return True

    def claim(self, nodes: Iterable[int], jobs: Iterable[JobId], *, until: float) -> None:
        """Keep other faults off these nodes and jobs until an hour after `until`."""
        for node in nodes:
            self._quiet_nodes[node] = max(self._quiet_nodes.get(node, 0.0), until + APART_SECONDS)
        for job in jobs:
            self._quiet_jobs[job] = max(self._quiet_jobs.get(job, 0.0), until + APART_SECONDS)

    def is_sound(self, node: int) -> bool:
        life = self.cluster.lives[node]
        return life.is_responding and not (life.is_drained or life.is_down or life.keep_free)

    def pick_attempt(
        self, *, min_nodes: int = 1, max_nodes: int = 1024, is_stepping: bool = True, lasts: float = 3600
    ) -> Attempt | None:
        """Return a training that is clear of faults, small ones a little likelier than their share of the nodes."""
        found = [
            attempt
            for attempt in self.cluster.running.values()
            if attempt.is_training
            and min_nodes <= len(attempt.nodes) <= max_nodes
            and (not is_stepping or self.is_stepping(attempt))
            and all(self.is_sound(node) for node in attempt.nodes)
            and self.is_clear(attempt.nodes, [attempt.job], until=self.now + lasts)
        ]
        if not found:
            return None
        weights = [len(attempt.nodes) ** 0.5 for attempt in found]
        return found[int(self.rng.choice(len(found), p=[weight / sum(weights) for weight in weights]))]

    def is_stepping(self, attempt: Attempt) -> bool:
        """Return whether it has made steps for a while and makes them now."""
        settled = attempt.first_step + max(90.0, 3 * attempt.program.style.step_seconds)
        return settled < self.now and not attempt.is_resting(self.now, 75.0)

    def pick_node(self, *, lasts: float = 5400, idle_share: float = 0.12) -> tuple[int, Attempt | None] | None:
        """Return a node that is clear of faults, and what runs on it."""
        if self.rng.random() >= idle_share:
            attempt = self.pick_attempt(is_stepping=False, lasts=lasts)
            if attempt is not None:
                return int(self.rng.choice(attempt.nodes)), attempt
        found = [
            node
            for node in range(self.fleet.node_count)
            if self.is_sound(node)
            and self.is_clear(self._nodes_with(node), self._jobs_on(node), until=self.now + lasts)
        ]
        if not found:
            return None
        node = found[int(self.rng.integers(len(found)))]
        return node, self.cluster.holder(node)

    def _nodes_with(self, node: int) -> tuple[int, ...]:
        holder = self.cluster.holder(node)
        return (node,) if holder is None else holder.nodes

    def _jobs_on(self, node: int) -> list[JobId]:
        holder = self.cluster.holder(node)
        return [] if holder is None else [holder.job]

    def gpu_of(self, node: int, attempt: Attempt | None) -> int:
        """Return a GPU of the node, one that the job uses if there is a job."""
        width = GPUS_PER_NODE if attempt is None else attempt.program.gpus_per_node
        return node * GPUS_PER_NODE + int(self.rng.integers(width))

    # Truth

    def tell(
        self,
        fault: FaultClass,
        *,
        onset: float,
        end: float,
        culprit: Component,
        own: Iterable[int] = (),
        affected: Iterable[int] = (),
        jobs: Iterable[JobId] = (),
        steps_began: float | None = None,
        victims_until: float | None = None,
    ) -> None:
        """Note a fault: `own` nodes are at fault (or hold the part that is), `affected` ones only suffer."""
        own, affected, jobs = frozenset(own), frozenset(affected), frozenset(jobs)
        self.claim(own, jobs, until=end)
        self.claim(affected, (), until=end if victims_until is None else victims_until)
        at = self.scribe.at
        self.truths.append(
            Truth(
                fault=fault,
                onset=at(onset),
                end=at(end),
                culprit=culprit,
                affected_nodes=frozenset(self.fleet.names[node] for node in affected - own),
                affected_jobs=jobs,
                steps_began_at=None if steps_began is None else at(steps_began),
            )
        )

    def told(self) -> tuple[Truth, ...]:
        return tuple(sorted(self.truths, key=lambda truth: truth.onset))

    def close(self) -> None:
        """Tell of what was still continuing at the end of the day."""
        for tell in self.unfinished:
            tell()

    # Consequences

    def show_xid(self, gpu: int, code: int, at: float, *, share: float = 0.8) -> None:
        """Let the sensors show a code, until the driver is loaded again; some drivers show some codes never."""
        if self.rng.random() < share:
            self.canvas.paint("gpus/xid", gpu, (at, NEVER), Brush.SET, float(code))

    def repair(self, node: int, *, soon: float | None = None) -> RepairTimes:
        """Let people take the node out and put it right; nothing new starts on it meanwhile."""
        rng, now = self.rng, self.now
        if soon is not None:
            drained = now + soon
        elif rng.random() < 0.5:
            drained = now + float(rng.uniform(45, 300))
        else:
            drained = now + float(rng.uniform(600, 2400))
        rebooted = drained + float(rng.uniform(90, 1200))
        back = rebooted + float(rng.uniform(240, 900))
        times = RepairTimes(drained=drained, rebooted=rebooted, back=back, returned=back + float(rng.uniform(60, 900)))
        self.cluster.lives[node].keep_free = True
        reason = _REASONS[int(rng.integers(len(_REASONS)))].format(n=int(rng.integers(40_000, 60_000)))
        self.cluster.take_out(
            node,
            drained=drained,
            rebooted=rebooted,
            silent_seconds=back - rebooted,
            returned=times.returned,
            reason=reason,
        )
        return times

    def break_job(
        self,
        attempt: Attempt,
        node: int,
        *,
        gpu: int | None = None,
        says: tuple[str, ...] = (),
        waits: bool | None = None,
        state: JobState = JobState.FAILED,
        blames_peer_ports: bool = False,
        idle_gpus: tuple[int, ...] | None = None,
    ) -> float:
        """Let a job die of what happened to one of its nodes; return when it is over.

        `says` is what the broken rank writes, if it can. `waits`: peers wait for the collective timeout; None: drawn.
        """
        rng, now, style = self.rng, self.now, attempt.program.style
        is_alone = len(attempt.nodes) == 1
        waiting = bool(rng.random() < 0.3) if waits is None else waits
        if not waiting:
            over = now + float(rng.uniform(6, 60))
        elif style.watchdog_seconds < NEVER:
            over = now + style.watchdog_seconds + float(rng.uniform(1, 25))
        else:
            over = now + float(rng.uniform(1200, 3000))  # somebody notices
        if idle_gpus is None:
            idle_gpus = (gpu,) if gpu is not None else ()
        freeze = Freeze(began=now + float(rng.uniform(0, 2)), ended=over, idle_gpus=idle_gpus)
        attempt.freeze(freeze)
        self.cluster.prolong(attempt, over + 60)
        place = attempt.nodes.index(node)
        rank = place * GPUS_PER_NODE + (0 if gpu is None else gpu % GPUS_PER_NODE)
        for text in says:
            self.scribe.job(attempt, now + float(rng.uniform(0.5, 6)), text, rank=rank)
        if not is_alone and waiting and style.watchdog_seconds < NEVER:
            self.write_timeouts(attempt, over)
        elif not is_alone:
            self.write_resets(attempt, now + float(rng.uniform(1, 5)), node, status=12 if blames_peer_ports else None)
        self.cluster.at(over, lambda: self._die(attempt, node, rank, state))
        return over

    def _die(self, attempt: Attempt, node: int, rank: int, state: JobState) -> None:
        if attempt.ended is not None:
            return
        rng, cluster = self.rng, self.cluster
        name = self.fleet.names[node]
        cluster.write_teardown(attempt, share=0.85)
        if state is JobState.FAILED:
            self.scribe.job(attempt, self.now, texts.task_exit(name, rank, int(rng.choice([1, 134, 250]))), rank=0)
            if rng.random() < 0.7:
                text = texts.step_cancelled(
                    attempt.job, self.fleet.names[attempt.nodes[0]], self.scribe.at(self.now), ""
                )
                self.scribe.job(attempt, self.now + 0.5, text)
        cluster.end(attempt, state)
        if rng.random() < 0.85:
            cluster.restart(attempt, after=float(rng.uniform(90, 700)))

    def write_timeouts(self, attempt: Attempt, at: float) -> None:
        """Write what NCCL's watchdog says on most ranks when a collective has run too long."""
        rng = self.rng
        work = int(rng.integers(2000, 900_000))
        ranks = len(attempt.nodes) * GPUS_PER_NODE
        share = float(rng.uniform(0.3, 1.0))
        chosen = [rank for rank in range(ranks) if rng.random() < share]
        if len(chosen) > _MAX_TIMEOUT_LINES:
            chosen = sorted(int(rank) for rank in rng.choice(chosen, size=_MAX_TIMEOUT_LINES, replace=False))
        seconds = attempt.program.style.watchdog_seconds
        for rank in chosen:
            time = at - float(rng.uniform(0.2, 8))
            stamp = self.scribe.at(time)
            self.scribe.job(attempt, time, texts.watchdog_timeout(rng, rank, stamp, work, seconds), rank=rank)
            if rng.random() < 0.5:
                self.scribe.job(attempt, time + 0.2, texts.watchdog_exception(rng, rank, stamp, work), rank=rank)

    def write_resets(self, attempt: Attempt, at: float, node: int, *, status: int | None = None) -> None:
        """Write what peers say when a rank is gone: sockets closed, or completions that never came (status 12)."""
        rng = self.rng
        for _ in range(int(rng.integers(1, min(16, 3 * len(attempt.nodes))))):
            rank = int(rng.integers(len(attempt.nodes) * GPUS_PER_NODE))
            name = self.fleet.names[attempt.nodes[rank // GPUS_PER_NODE]]
            time = at + float(rng.exponential(3))
            if status is not None and rng.random() < 0.7:
                text = texts.completion_error(rng, name, rank % 8, node, status)
            else:
                text = texts.connection_reset(rng, name, rank % 8, self.scribe.at(time), node)
            self.scribe.job(attempt, time, text, rank=rank)

    def hold(self, attempt: Attempt, began: float, ended: float, *, look: Look | None = None) -> None:
        """Let a job wait for a while and continue."""
        attempt.freeze(Freeze(began=began, ended=ended, look=look))
        self.cluster.prolong(attempt, ended + 300)

    def slow(self, attempt: Attempt, began: float, ended: float, factor: float) -> None:
        """Let a job make its steps at `factor` of their usual rate."""
        attempt.slowdowns.append((began, ended, factor))
        self.cluster.prolong(attempt, min(ended, self.now + 5400))
