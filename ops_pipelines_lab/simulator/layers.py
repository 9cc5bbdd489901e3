"""The port `MetricSource` on the twin: every layer of the pretended cluster, now and since its beginning.

One grid time is exposition text in which each sample carries it; a stretch is what a store that scraped every exporter
at each grid time would answer. Who is asked where is `exporter`'s business, what is measured the modules' of
each layer.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, islice

from ops_pipelines.core.sources import BodyKind, Page, Query
from ops_pipelines_lab.simulator.exposition import Reading, write, write_range
from ops_pipelines_lab.simulator.facility_metrics import facility_readings
from ops_pipelines_lab.simulator.gpu_activity import gpu_readings
from ops_pipelines_lab.simulator.hardware import Node
from ops_pipelines_lab.simulator.job_metrics import job_readings, jobs_by_first_node
from ops_pipelines_lab.simulator.jobs import Job
from ops_pipelines_lab.simulator.node_metrics import node_readings
from ops_pipelines_lab.simulator.platform_metrics import platform_readings, scrape_readings
from ops_pipelines_lab.simulator.storage_metrics import storage_readings
from ops_pipelines_lab.simulator.twin import Follower, Twin
from ops_pipelines_lab.simulator.world import World

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES_PER_PAGE = 20
"""64 nodes have some 33,000 series: 20 times of them are 20 MB."""
_NODES_PER_PAGE = 64
"""A node has some 500 series: a page of 64 nodes has 7 MB."""


class SimulatedMetrics:
    """Every series of the twin on a grid. Safe for threads, as the twin is."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        self._latest = twin.follow()
        """For readers who move forward with time; who asks for the past gets a follower of his own."""

    @property
    def source(self) -> str:
        return "simulator"

    @property
    def has_history(self) -> bool:
        return True

    def read_range(
        self, queries: Sequence[Query], *, start: datetime, end: datetime, step_seconds: int
    ) -> Iterator[Page]:
        """Yield pages of at most 64 nodes for each grid time; nothing before the twin's beginning or after now.

        Queries are passed over: the twin gives everything that it has, under the names of the exporters.
        """
        step = timedelta(seconds=step_seconds)
        if step_seconds < 1 or (start - _EPOCH) % step or (end - _EPOCH) % step:
            raise ValueError(f"{start} to {end} is no range of whole steps of {step_seconds} s")
        first = start + max(0, -((start - self._twin.began_at) // step)) * step
        follower = self._latest if first >= self._latest.reached else self._twin.follow()
        last = min(end, self._twin.now())
        times = [first + number * step for number in range(max((last - first) // step + 1, 0))]
        if start == end:
            for at in times:
                yield from self._pages_at(follower, at)
        for position in range(0, 0 if start == end else len(times), _TIMES_PER_PAGE):
            yield from self._pages_of(follower, times[position : position + _TIMES_PER_PAGE])

    def _pages_at(self, follower: Follower, at: datetime) -> Iterator[Page]:
        names = [node.name for node in self._twin.scenario.nodes]
        for position in range(0, len(names), _NODES_PER_PAGE):
            with follower.reach(at) as world:
                nodes = islice(world.hardware.nodes.values(), position, position + _NODES_PER_PAGE)
                body = write(_of_nodes(world, nodes), at=at)
            yield self._page(body, at)
        with follower.reach(at) as world:
            body = write(_of_all(world), at=at)
        yield self._page(body, at)

    def _pages_of(self, follower: Follower, times: Sequence[datetime]) -> Iterator[Page]:
        """Yield one page for a stretch of time: a follower only moves forward, so all nodes are in it."""

        def readings() -> Iterator[tuple[datetime, Iterator[Reading]]]:
            for at in times:
                with follower.reach(at) as world:
                    yield at, chain(_of_nodes(world, iter(world.hardware.nodes.values())), _of_all(world))

        body = write_range(readings())
        yield Page(kind=BodyKind.RANGE_ANSWER, body=body, source=self.source, start=times[0], end=times[-1])

    def _page(self, body: bytes, at: datetime) -> Page:
        return Page(kind=BodyKind.EXPOSITION, body=body, source=self.source, start=at, end=at)


def readings_of_node(world: World, node: Node, *, own: str = "") -> Iterator[Reading]:
    """Return what the exporters on one node say; `own` is the label with which a scraper would name the node."""
    return _of_node(world, node, jobs_by_first_node(world).get(node.name, []), own=own)


def _of_nodes(world: World, nodes: Iterator[Node]) -> Iterator[Reading]:
    jobs = jobs_by_first_node(world)
    for node in nodes:
        yield from _of_node(world, node, jobs.get(node.name, []), own=f'instance="{node.name}"')


def _of_node(world: World, node: Node, jobs: list[Job], *, own: str) -> Iterator[Reading]:
    at = world.now
    yield from gpu_readings(world.scenario, node, at=at)
    yield from node_readings(node, at=at, own=own)
    yield from storage_readings(node, at=at, own=own)
    yield from job_readings(node, jobs, at=at, own=own)


def _of_all(world: World) -> Iterator[Reading]:
    yield from facility_readings(world, at=world.now)
    yield from platform_readings(world, at=world.now)
    yield from scrape_readings(world)
