"""What a site has beside its cluster: a chat for our messages, people whom Alertmanager notifies, alarms of its own.

`python -m ops_pipelines_lab.drills.lab_site --directory DIR --port N` serves until it is terminated, on 127.0.0.1 only:
POST /messages and POST /people keep each JSON body as a line of a file, GET /metrics shows the alarms as a series.
What the files hold is read through `SiteFiles`, which other processes use too.
"""

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ops_pipelines.core.identity import NodeName

ALARM_SERIES = "site_disk_io_saturated"
"""1 for each node that the site's own exporter finds saturated. No metric of ours, so that nothing else looks at it."""
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_BYTES = 4 * 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFiles:
    """Where a site keeps what it was sent, and the alarms that it raises."""

    directory: Path

    @property
    def messages(self) -> Path:
        return self.directory / "messages.jsonl"

    @property
    def people(self) -> Path:
        return self.directory / "people.jsonl"

    def make(self) -> None:
        """Make the files, empty: nobody was notified of anything."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.messages.touch()
        self.people.touch()

    def raise_alarm(self, node: NodeName) -> None:
        """Let the site's exporter find the node saturated, until `end_alarm`."""
        self._write_alarms({*self.alarms(), node})

    def end_alarm(self, node: NodeName) -> None:
        self._write_alarms({*self.alarms()} - {node})

    def alarms(self) -> tuple[NodeName, ...]:
        """Return the nodes that the exporter finds saturated, by name."""
        try:
            return tuple(NodeName(line) for line in self._alarms.read_text().splitlines())
        except FileNotFoundError:
            return ()

    def received(self) -> tuple[Mapping[str, object], ...]:
        """Return the messages that arrived, in order."""
        return _read_lines(self.messages)

    def told_people(self) -> tuple[Mapping[str, object], ...]:
        """Return what Alertmanager sent people, in order: bodies of its webhook."""
        return _read_lines(self.people)

    @property
    def _alarms(self) -> Path:
        return self.directory / "alarms"

    def _write_alarms(self, nodes: set[NodeName]) -> None:
        new = self._alarms.with_suffix(".new")
        new.write_text("".join(f"{node}\n" for node in sorted(nodes)))
        new.replace(self._alarms)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(argv)
    files = SiteFiles(directory=options.directory)
    files.make()
    server = open_server(files, port=options.port)
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not in the handler itself: `shutdown` waits for the loop that the handler interrupts.
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()
    server.server_close()
    return 0


def open_server(files: SiteFiles, *, port: int) -> ThreadingHTTPServer:
    """Return a server that listens, on a free port for 0, and does not serve yet."""
    server = ThreadingHTTPServer(("127.0.0.1", port), _handler_for(files))
    server.daemon_threads = True
    return server


def _handler_for(files: SiteFiles) -> type[BaseHTTPRequestHandler]:
    kept_in = {"/messages": files.messages, "/people": files.people}
    one_at_a_time = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/metrics":
                self._answer(HTTPStatus.NOT_FOUND)
                return
            lines = [f"# TYPE {ALARM_SERIES} gauge\n"]
            lines += [f'{ALARM_SERIES}{{node="{node}"}} 1\n' for node in files.alarms()]
            self._answer(HTTPStatus.OK, "".join(lines).encode())

        def do_POST(self) -> None:
            path = kept_in.get(self.path)
            if path is None:
                self._answer(HTTPStatus.NOT_FOUND)
                return
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > _MOST_BYTES:
                self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
                return
            try:
                line = json.dumps(json.loads(self.rfile.read(int(length))))
            except ValueError:
                self._answer(HTTPStatus.BAD_REQUEST)
                return
            with one_at_a_time, path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
            self._answer(HTTPStatus.OK)

        def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the standard library
            """Say nothing: what arrived is in the files."""

    return Handler


def _read_lines(path: Path) -> tuple[Mapping[str, object], ...]:
    """Return each whole line; the last one may just be being written."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    found = (json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n"))
    return tuple(each for each in found if isinstance(each, dict))


if __name__ == "__main__":
    sys.exit(main())
