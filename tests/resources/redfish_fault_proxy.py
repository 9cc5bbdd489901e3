"""Is between us and a BMC that works, and lets it fail as BMCs do: away, slow, busy, cut off, lying.

Over HTTP on the loopback, one connection a request. What the BMC would have done it does, unless the fault keeps the
request from it.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Kind(Enum):
    AWAY = "the connection is closed, and the BMC hears nothing"
    LOST = "the BMC does it, and its answer is lost"
    SLOW = "the BMC hears it once the proxy ends"
    SLOW_ANSWER = "the BMC does it, and its answer comes once it is released"
    BUSY = "503 with Retry-After, and the BMC hears nothing"
    GONE = "404, and the BMC hears nothing"
    CUT = "the answer ends in its middle"
    TOO_LONG = "the answer says that it is longer than it is"
    TOO_SHORT = "the answer says that it is shorter than it is"
    LIE = "the answer is another"


@dataclass
class Fault:
    """What happens to requests of one kind."""

    kind: Kind
    method: str = "GET"
    path: str = ""
    """A pattern that is found in the path."""
    times: int | None = None
    """How often; None: until it is taken away."""
    lie: Callable[[dict[str, object]], None] = lambda _: None
    """Changes the document."""
    retry_after: str = "30"


@dataclass
class FaultProxy:
    """The faults that hold now, and what was asked through it."""

    upstream: str
    url: str = ""
    faults: list[Fault] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: Kind, method: str = "GET", path: str = "", **more: object) -> Fault:
        fault = Fault(kind, method, path, **more)  # type: ignore[arg-type]  # of a fault, as the test writes them
        self.faults.append(fault)
        return fault

    def post_count(self, path: str = "UpdateService") -> int:
        return sum(method == "POST" and path in where for method, where in self.asked)

    def fault_for(self, method: str, path: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.method in (method, "*") and re.search(fault.path, path) and fault.times != 0:
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None


@contextmanager
def serve_proxy(upstream: str) -> Iterator[FaultProxy]:
    """Run a proxy before the BMC at `upstream` until the block ends."""
    proxy = FaultProxy(upstream)

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            proxy.asked.append((self.command, self.path))
            fault = proxy.fault_for(self.command, self.path)
            kind = None if fault is None else fault.kind
            if kind is Kind.AWAY:
                return
            if kind is Kind.SLOW:
                proxy.stopping.wait()
                return
            if kind is Kind.BUSY and fault is not None:
                self._answer(503, {"Retry-After": fault.retry_after}, b"")
                return
            if kind is Kind.GONE:
                self._answer(404, {"Content-Type": "application/json"}, b"{}")
                return
            status, headers, content = self._ask(body)
            if kind is Kind.LOST:
                return
            if kind is Kind.SLOW_ANSWER:
                proxy.let_go.wait()
            if kind is Kind.LIE and fault is not None:
                document = json.loads(content)
                fault.lie(document)
                content = json.dumps(document).encode()
            length = {Kind.TOO_LONG: len(content) + 50, Kind.TOO_SHORT: len(content) // 2}.get(kind, len(content))
            self._answer(status, headers, content[: len(content) // 2] if kind is Kind.CUT else content, length)

        def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            connection = HTTPConnection(urlsplit(proxy.upstream).netloc, timeout=10)
            try:
                connection.request(self.command, self.path, body=body or None, headers=dict(self.headers.items()))
                response = connection.getresponse()
                kept = {"content-type", "location", "x-auth-token"}
                headers = {name: value for name, value in response.getheaders() if name.lower() in kept}
                return response.status, headers, response.read()
            finally:
                connection.close()

        def _answer(self, status: int, headers: dict[str, str], content: bytes, length: int | None = None) -> None:
            with suppress(OSError):  # anyone who asked may have gone
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if status != 204:
                    self.send_header("Content-Length", str(len(content) if length is None else length))
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.stopping.set()
        proxy.let_go.set()
        server.shutdown()
        thread.join()
        server.server_close()
