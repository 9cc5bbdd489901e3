"""A server that answers `/loki/api/v1/query_range` as Loki's documentation says: start inclusive, end exclusive."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


@dataclass
class FakeLoki:
    """Entries as (nanoseconds, labels, line), and what is to be demanded of who asks."""

    url: str = ""
    entries: list[tuple[int, dict[str, str], str]] = field(default_factory=list)
    max_page: int = 5000
    tenant: str | None = None
    authorization: str | None = None
    status: int = 200
    body: bytes | None = None
    """Answered instead of streams."""
    query_count: int = 0

    def add(self, nanoseconds: int, text: str, **labels: str) -> None:
        self.entries.append((nanoseconds, labels, text))

    def demand_basic(self, user: str, password: str) -> None:
        self.authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@contextmanager
def serve_loki() -> Iterator[FakeLoki]:
    """Run a fake until the block ends."""
    fake = FakeLoki()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = _answer(fake, self.path, dict(self.headers.items()))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(fake: FakeLoki, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    parts = urlsplit(path)
    if parts.path != "/loki/api/v1/query_range":
        return 404, b"404 page not found"
    if fake.tenant is not None and headers.get("X-Scope-OrgID") != fake.tenant:
        return 401, b"no org id"
    if fake.authorization is not None and headers.get("Authorization") != fake.authorization:
        return 401, b"who are you"
    if fake.status != 200:
        return fake.status, b"echoed secret"
    if fake.body is not None:
        return 200, fake.body
    asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
    start, end, limit = int(asked["start"]), int(asked["end"]), int(asked["limit"])
    if limit > fake.max_page or asked["direction"] != "forward" or not asked["query"].startswith("{"):
        return 400, b"max entries limit per query exceeded"
    fake.query_count += 1
    chosen = sorted((entry for entry in fake.entries if start <= entry[0] < end), key=lambda entry: entry[0])[:limit]
    streams: dict[str, dict[str, object]] = {}
    for nanoseconds, labels, text in chosen:
        stream = streams.setdefault(json.dumps(labels, sort_keys=True), {"stream": labels, "values": []})
        values = stream["values"]
        assert isinstance(values, list)
        values.append([str(nanoseconds), text])
    answer = {"status": "success", "data": {"resultType": "streams", "result": list(streams.values()), "stats": {}}}
    return 200, json.dumps(answer).encode()
