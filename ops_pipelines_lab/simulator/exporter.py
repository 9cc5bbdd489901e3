"""The metrics of the simulated cluster as others read them: the port `MetricSource`, every layer now and since its
beginning; and exporters' text over HTTP, with a kernel log in a real file, for tools that scrape and tail.

One grid time is exposition text in which each sample carries it; an interval is what a store that scraped every
exporter at each grid time would answer. What is measured belongs to the modules of each layer.

`python -m ops_pipelines_lab.simulator.exporter --state DIR --port N --kernel-log FILE` serves until it is terminated.
GET /metrics/<node> is all exporters of one node: 503 while it is off or cannot be reached, 404 for an unknown node.
GPUs are named by `Hostname`; the node's other series name no node, as in reality: the scrape's `instance` must.
GET /facility is what is measured outside the nodes: BMCs (by `Hostname`), racks, the site.
GET /scheduler is the simulated scheduler's exporter: not to be scraped where a real Slurm runs beside the twin.
GET /metrics is the GPUs of all nodes in one answer. It listens on 127.0.0.1 only.
"""

import argparse
import fcntl
import signal
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, islice
from pathlib import Path

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.sources import BodyKind, Page, Query
from ops_pipelines_lab.simulator.hardware import Node
from ops_pipelines_lab.simulator.jobs import Job
from ops_pipelines_lab.simulator.metrics import gpu_readings
from ops_pipelines_lab.simulator.node_metrics import (
    Reading,
    job_readings,
    jobs_by_first_node,
    node_readings,
    write,
    write_range,
)
from ops_pipelines_lab.simulator.site_metrics import (
    facility_readings,
    platform_readings,
    scrape_readings,
    storage_readings,
)
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
        """Yield one page for an interval of time: a follower only moves forward, so all nodes are in it."""

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


_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exporter:
    """An HTTP server on a thread of its own."""

    def __init__(self, twin: Twin, *, port: int) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler_for(twin))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="exporter", daemon=True)

    @property
    def port(self) -> int:
        """Return the port it listens on: the given one, or the free one found for port 0."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class KernelLogFile:
    """Appends the nodes' kernel lines to a file, each exactly once, over restarts and with several writers.

    The file itself is the memory: its complete lines are the lines written so far, so it must not be rotated.
    A last line torn by a killed writer is cut off and written again.
    """

    def __init__(self, twin: Twin, path: Path) -> None:
        self._twin = twin
        self._path = path

    def write_new(self) -> int:
        """Write the lines that are missing; return how many."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            complete, end, torn = file.read().rpartition(b"\n")
            if torn:
                file.truncate(len(complete) + len(end))
            written_count = complete.count(b"\n") + len(end)
            with self._twin.present() as world:
                missing = [line.text for line in world.hardware.lines[written_count:]]
            file.write("".join(f"{text}\n" for text in missing).encode())
        return len(missing)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return 0."""
    parser = argparse.ArgumentParser(description="Serve the metrics of a simulated cluster and write its kernel log.")
    parser.add_argument("--state", type=Path, required=True, help="directory of the twin")
    parser.add_argument("--port", type=int, required=True, help="port on 127.0.0.1")
    parser.add_argument("--kernel-log", type=Path, required=True, help="file to append kernel lines to")
    parser.add_argument("--interval-seconds", type=float, default=0.2, help="pause between looks for new lines")
    options = parser.parse_args(arguments)

    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    twin = Twin.attach(options.state, SystemClock())
    exporter = Exporter(twin, port=options.port)
    log_file = KernelLogFile(twin, options.kernel_log)
    exporter.start()
    try:
        while not stopping.is_set():
            log_file.write_new()
            stopping.wait(options.interval_seconds)
    finally:
        exporter.stop()
    return 0


def _handler_for(twin: Twin) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = _answer(twin, self.path)
            self.send_response(status)
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Say nothing: a scrape every second is no news."""

    return Handler


def _answer(twin: Twin, path: str) -> tuple[HTTPStatus, bytes]:
    """Return status and body for a request path."""
    match path.partition("?")[0].strip("/").split("/"):
        case ["metrics"]:
            with twin.present() as world:
                nodes = world.hardware.nodes.values()
                return HTTPStatus.OK, write(
                    reading for node in nodes for reading in gpu_readings(world.scenario, node, at=world.now)
                )
        case ["facility"]:
            with twin.present() as world:
                return HTTPStatus.OK, write(facility_readings(world, at=world.now))
        case ["scheduler"]:
            with twin.present() as world:
                return HTTPStatus.OK, write(platform_readings(world, at=world.now))
        case ["metrics", name]:
            with twin.present() as world:
                node = world.hardware.nodes.get(NodeName(name))
                if node is None:
                    return HTTPStatus.NOT_FOUND, b"there is no such node\n"
                if not node.answers:
                    return HTTPStatus.SERVICE_UNAVAILABLE, b""
                return HTTPStatus.OK, write(readings_of_node(world, node))
        case _:
            return HTTPStatus.NOT_FOUND, b"GET /metrics, /metrics/<node>, /facility or /scheduler\n"


if __name__ == "__main__":
    raise SystemExit(main())
