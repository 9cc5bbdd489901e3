"""Jobs on nodes: which node is idle, who runs where, what a failure or a drain does to them, and what is lost.

Which job starts next is `partition`'s; what breaks and when is `world`'s.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ops_pipelines_lab.whatif.lifecycle.jobs import Job, JobMix
from ops_pipelines_lab.whatif.lifecycle.nodes import MODELS, Node
from ops_pipelines_lab.whatif.lifecycle.partition import Partition
from ops_pipelines_lab.whatif.lifecycle.scenario import Site


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
    """Whom the work tells of what follows."""

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
        """Let no new job start on a node; its job goes on."""
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
        """End the job of a node: it goes back to its last checkpoint."""
        if node.job is not None:
            self._fail(node.job, node.model)
            self.fill(node.model)

    def take_out(self, node: Node) -> None:
        """Let a node fail, with its job. What can start elsewhere does when the world has been told: `fill`."""
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
