"""The twin's face to tools that scrape and tail: exporters' text over HTTP, and a kernel log in a real file.

`python -m ops_pipelines_lab.simulator.exporter --state DIR --port N --kernel-log FILE` serves until it is terminated.
GET /metrics/<node> is all exporters of one node: 503 while it is off or cannot be reached, 404 for an unknown node.
GPUs are named by `Hostname`; the node's other series name no node, as in reality: the scrape's `instance` must.
GET /facility is what is measured outside the nodes: BMCs (by `Hostname`), racks, the site.
GET /scheduler is the pretended scheduler's exporter: not to be scraped where a real Slurm runs beside the twin.
GET /metrics is the GPUs of all nodes in one answer. It listens on 127.0.0.1 only.
"""

import argparse
import fcntl
import signal
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.identity import NodeName
from ops_pipelines_lab.simulator.exposition import write
from ops_pipelines_lab.simulator.facility_metrics import facility_readings
from ops_pipelines_lab.simulator.gpu_activity import gpu_readings
from ops_pipelines_lab.simulator.layers import readings_of_node
from ops_pipelines_lab.simulator.platform_metrics import platform_readings
from ops_pipelines_lab.simulator.twin import Twin

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
    A last line torn by a killed writer is cut off and written anew.
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
