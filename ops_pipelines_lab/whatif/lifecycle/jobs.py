"""Jobs of the simulated cluster: gangs of some nodes, as long as drawn. Values only; who starts when is `queue`'s."""

import math
import random
from dataclasses import dataclass, field

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
