"""Jobs on nodes of the simulated cluster: which node is idle, who runs where, which job of a partition starts next,
what a failure or a drain does to them, and what is lost.

Jobs are gangs of some nodes, as long as drawn. First come, first served, with backfill: behind a gang that waits for
room starts only what is over before its room is there, or takes nodes that it will not need (Slurm: sched/backfill).
What breaks and when is `world`'s, and so is time.
"""

import math
import random
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from ops_pipelines_lab.whatif.lifecycle.scenario import Site


@dataclass(slots=True)
class Job:
    number: int
    size: int
    work_seconds: float
    limit_seconds: float
    nodes: list[int] = field(default_factory=list)
    began_at: float = 0.0
    resumed_from: float = 0.0
    """Work that was saved before this attempt."""
    attempt: int = 0
    drained_count: int = 0
    """Of its nodes: they will take nobody else when it ends."""
    capped_count: int = 0
    """Of its nodes: they will take no wide gang when it ends."""

    @property
    def ends_by(self) -> float:
        """When it ends at the latest, as its user asked."""
        return self.began_at + self.limit_seconds


class JobMix:
    """The jobs that people bring to the nodes of one model, one after the other without end."""

    def __init__(self, site: Site, *, node_count: int, seed: str) -> None:
        self._site = site
        self._random = random.Random(seed)
        sizes = site.sizes_of(node_count)
        self._sizes = [size for size, _ in sizes]
        self._weights = [sum(share for _, share in sizes[: place + 1]) for place in range(len(sizes))]
        self._count = 0

    def draw(self) -> Job:
        """Return the next job."""
        site, random_ = self._site, self._random
        size = random_.choices(self._sizes, cum_weights=self._weights)[0]
        work = min(
            site.median_job_seconds * math.exp(site.job_sigma * random_.gauss(0, 1)),
            site.longest_job_seconds,
        )
        limit = work * random_.uniform(site.shortest_limit_factor, site.longest_limit_factor)
        self._count += 1
        return Job(number=self._count, size=size, work_seconds=work, limit_seconds=limit)


MODELS = ("a", "b")


class Event(Enum):
    JOB_END = 0
    FAILURE = 1
    """In the background: on this node, whatever it runs."""
    BAD_FAILURE = 2
    """By the new version."""
    HANG = 3
    REPAIRED = 4
    VISIT_END = 5
    CALL = 6
    """Who rolls out asked to be called."""


@dataclass(slots=True)
class Node:
    number: int
    model: int
    rack: int
    factor: float
    """Of its step time: above 1 it is slower than others."""
    is_measured: bool = False
    """Whether its runs are kept."""
    runs: list[float] = field(default_factory=list)
    """Seconds of a step, a value a run, since it is measured."""
    job: Job | None = None
    is_drained: bool = False
    is_out: bool = False
    """Failed, or in a visit."""
    is_updated: bool = False
    is_capped: bool = False
    """Takes no wide gangs: it soaks."""
    updated_at: float = 0.0
    worked_seconds: float = 0.0
    """Under jobs that are over, since it was updated."""
    visit: int = 0
    """How many there were: what was expected for another is forgotten."""
    epoch: int = 0
    """Grows with each change of version: what was expected for another is forgotten."""


class Watcher(Protocol):
    """Who rolls out, as the world notifies them of what happens."""

    def node_free(self, number: int) -> None:
        """A drained node has no job any more, or is repaired."""
        ...

    def visit_ended(self, number: int) -> None: ...

    def node_failed(self, number: int) -> None:
        """Something broke on a node that is not in a visit."""
        ...

    def called(self, mark: int) -> None:
        """The time of a `call_at` has come."""
        ...


class Nobody:
    """Watches a world without a rollout."""

    def node_free(self, number: int) -> None: ...

    def visit_ended(self, number: int) -> None: ...

    def node_failed(self, number: int) -> None: ...

    def called(self, mark: int) -> None: ...


QUEUE_LENGTH = 64
"""# Assumption: the queue never empties, and backfill looks this deep (Slurm's bf_max_job_test is 500)."""
_End = tuple[float, int, Job]


class Partition:
    """Idle nodes, the queue, and when running jobs end at the latest."""

    def __init__(self, mix: JobMix, *, gang_cap: int) -> None:
        self.idle: list[int] = []
        self.capped: set[int] = set()
        """Nodes that take no gang wider than the cap."""
        self._gang_cap = gang_cap
        self._mix = mix
        self._queue = [mix.draw() for _ in range(QUEUE_LENGTH)]
        self._ends: list[_End] = []

    def put_first(self, job: Job) -> None:
        """Put a job back that failed: before any other."""
        self._queue.insert(0, job)

    def ended(self, job: Job) -> None:
        """Forget a job that runs no more; its nodes are given back one by one."""
        del self._ends[bisect_left(self._ends, (job.ends_by, job.number, job))]

    def next_starts(self, now: float) -> list[tuple[Job, list[int]]]:
        """Return which jobs start now and where; they have left the queue, and their nodes are idle no more."""
        started: list[tuple[Job, list[int]]] = []
        queue, cap = self._queue, self._gang_cap
        aside = self._capped_first() if self.capped else 0
        while self.idle and queue[0].size <= len(self.idle) - (aside if queue[0].size > cap else 0):
            aside -= self._start(queue.pop(0), now, started, aside)
            if not queue:
                queue.append(self._mix.draw())
        if self.idle:
            self._fill_in(now, started, aside)
        while len(queue) < QUEUE_LENGTH:
            queue.append(self._mix.draw())
        return started

    def _fill_in(self, now: float, started: list[tuple[Job, list[int]]], aside: int) -> None:
        """Start what does not hold up the job in front, which waits for room."""
        queue, cap, front = self._queue, self._gang_cap, self._queue[0]
        is_front_wide = front.size > cap
        room, spare = self._room_for(front, aside if is_front_wide else 0)
        left, free, place = room - now, len(self.idle), 1
        while free:
            # Narrow jobs may take what the wide gang in front is kept off anyway.
            spare_narrow = spare + (aside if is_front_wide else 0)
            for at in range(place, len(queue)):
                job = queue[at]
                size = job.size
                if size > free or (job.limit_seconds > left and size > (spare if size > cap else spare_narrow)):
                    continue
                if size <= cap or size <= free - aside:
                    break
            else:
                return
            place = at
            del queue[place]
            of_capped = self._start(job, now, started, aside)
            aside, free = aside - of_capped, free - size
            if job.limit_seconds > left:
                spare -= size - (of_capped if is_front_wide else 0)

    def _start(self, job: Job, now: float, started: list[tuple[Job, list[int]]], aside: int) -> int:
        """Start a job on idle nodes; return how many of them are capped."""
        skipped, of_capped = (aside, 0) if job.size > self._gang_cap else (0, min(aside, job.size))
        job.nodes, job.began_at, job.capped_count = self.idle[skipped : skipped + job.size], now, of_capped
        del self.idle[skipped : skipped + job.size]
        insort(self._ends, (job.ends_by, job.number, job))
        started.append((job, job.nodes))
        return of_capped

    def _capped_first(self) -> int:
        """Put capped nodes in front, so that narrow jobs leave the others to gangs; return how many there are."""
        capped = [each for each in self.idle if each in self.capped]
        if capped:
            self.idle[:] = capped + [each for each in self.idle if each not in self.capped]
        return len(capped)

    def _room_for(self, job: Job, aside: int) -> tuple[float, int]:
        """Return when a job that waits has room, by the limits of those that run, and what is left over then."""
        size, have, is_wide = job.size, len(self.idle) - aside, job.size > self._gang_cap
        for at, _, running in self._ends:
            have += running.size - running.drained_count
            if is_wide:
                have -= running.capped_count
            if have >= size:
                return at, have - size
        return math.inf, 0


@dataclass(slots=True)
class Losses:
    """Node-seconds that did no new work."""

    not_running: float = 0.0
    recomputed: float = 0.0
    restarted: float = 0.0

    @property
    def total(self) -> float:
        return self.not_running + self.recomputed + self.restarted


@dataclass(frozen=True, slots=True, kw_only=True)
class Tells:
    """Whom the work notifies of what follows."""

    ends_at: Callable[[float, int, int], None]
    """When an attempt ends, if nothing comes between: time, key of the job, attempt."""
    is_free: Callable[[int], None]
    """A drained node has no job any more."""
    run_over: Callable[[Job], None]
    """A job came to its end."""


class Work:
    """What runs on the nodes of a cluster."""

    def __init__(self, site: Site, nodes: Sequence[Node], *, seed: int, gang_cap: int, tells: Tells) -> None:
        self.now = 0.0
        self.losses = Losses()
        self._site, self._nodes, self._tells = site, nodes, tells
        counts = (site.node_count - site.second_model_count, site.second_model_count)
        self._partitions = [
            Partition(JobMix(site, node_count=count, seed=f"jobs {model} {seed}"), gang_cap=gang_cap)
            for model, count in zip(MODELS, counts, strict=True)
        ]
        self._jobs: list[dict[int, Job]] = [{} for _ in MODELS]
        self._jobless_count = len(nodes)
        for node in nodes:
            self._partitions[node.model].idle.append(node.number)
        for model in range(len(MODELS)):
            self.fill(model)

    def pass_to(self, now: float) -> None:
        """Let time pass in which nothing changes."""
        self.losses.not_running += self._jobless_count * (now - self.now)
        self.now = now

    def drain(self, node: Node) -> None:
        """Let no new job start on a node; its job continues."""
        node.is_drained = True
        if node.job is not None:
            node.job.drained_count += 1
            node.job.capped_count -= node.is_capped
        elif not node.is_out:
            self._partitions[node.model].idle.remove(node.number)

    def undrain(self, node: Node) -> None:
        node.is_drained = False
        if node.job is not None:
            node.job.drained_count -= 1
            node.job.capped_count += node.is_capped
        elif not node.is_out:
            self._put_back(node)

    def set_cap(self, node: Node, *, is_capped: bool) -> None:
        """Keep wide gangs off a node, or let them on it again."""
        if node.is_capped is is_capped:
            return
        node.is_capped = is_capped
        if node.job is not None and not node.is_drained:
            node.job.capped_count += 1 if is_capped else -1
        capped = self._partitions[node.model].capped
        if is_capped:
            capped.add(node.number)
        else:
            capped.discard(node.number)

    def kill(self, node: Node) -> None:
        """End the job of a node: it returns to its last checkpoint."""
        if node.job is not None:
            self._fail(node.job, node.model)
            self.fill(node.model)

    def take_out(self, node: Node) -> None:
        """Let a node fail, with its job. What can start elsewhere does when the world has been notified: `fill`."""
        node.is_out = True
        if node.job is not None:
            self._fail(node.job, node.model)
        elif not node.is_drained:
            self._partitions[node.model].idle.remove(node.number)

    def fill(self, model: int) -> None:
        """Start what can start on the nodes of a model."""
        nodes, jobs = self._nodes, self._jobs[model]
        for job, numbers in self._partitions[model].next_starts(self.now):
            restart = self._restart_of(job)
            self.losses.restarted += restart * job.size
            for number in numbers:
                nodes[number].job = job
            self._jobless_count -= job.size
            jobs[job.number] = job
            ends_at = self.now + restart + job.work_seconds - job.resumed_from
            self._tells.ends_at(ends_at, len(MODELS) * job.number + model, job.attempt)

    def bring_in(self, node: Node) -> None:
        """Let a node take jobs again that had failed."""
        node.is_out = False
        if node.is_drained:
            self._tells.is_free(node.number)
        else:
            self._put_back(node)

    def end_by_itself(self, key: int, attempt: int) -> None:
        """Let an attempt come to its end, unless something came between."""
        number, model = divmod(key, len(MODELS))
        job = self._jobs[model].get(number)
        if job is None or job.attempt != attempt:
            return
        self._tells.run_over(job)
        self._end(job, model)
        self.fill(model)

    def _put_back(self, node: Node) -> None:
        self._partitions[node.model].idle.append(node.number)
        self.fill(node.model)

    def _fail(self, job: Job, model: int) -> None:
        """End an attempt: what it did since its checkpoint is done again, by the same job, before any other."""
        every = self._site.checkpoint_every_seconds
        ran = max(0.0, self.now - job.began_at - self._restart_of(job))
        saved = math.floor(ran / every) * every
        self.losses.recomputed += (ran - saved) * job.size
        self._end(job, model)
        job.resumed_from += saved
        job.attempt += 1
        self._partitions[model].put_first(job)

    def _end(self, job: Job, model: int) -> None:
        partition = self._partitions[model]
        partition.ended(job)
        del self._jobs[model][job.number]
        self._jobless_count += job.size
        idle, nodes, now = partition.idle, self._nodes, self.now
        for number in job.nodes:
            node = nodes[number]
            node.job = None
            if node.is_updated:
                node.worked_seconds += now - job.began_at
            if node.is_out:
                continue
            if node.is_drained:
                self._tells.is_free(number)
            else:
                idle.append(number)
        job.nodes = []
        job.drained_count = job.capped_count = 0

    def _restart_of(self, job: Job) -> float:
        return self._site.restart_seconds if job.attempt else 0.0
