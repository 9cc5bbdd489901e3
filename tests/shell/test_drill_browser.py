"""The browser of the drills: it asks this machine alone, and says what it was answered."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ops_pipelines_lab.drills.dagster_api import open_page
from ops_pipelines_lab.drills.stack import port_beside


class _Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200 if self.path == "/page" else 404, b"a page")

    def do_POST(self) -> None:
        self._answer(200, self.rfile.read(int(self.headers["Content-Length"])))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the name is the library's
        """Say nothing."""

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def answering() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Answering)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_page_a_refusal_and_a_form_are_told_apart() -> None:
    with answering() as url:
        page, refused = open_page(f"{url}/page"), open_page(f"{url}/other")
        sent = open_page(f"{url}/page", form={"confirm": "PLAN-1&x=2"})

    assert (page.status, page.page) == (200, "a page")
    assert (refused.status, refused.is_ok) == (404, False)
    assert sent.page == "confirm=PLAN-1%26x%3D2"


def test_nobody_who_answers_is_no_page() -> None:
    with answering() as url:
        pass

    shown = open_page(url)

    assert shown.status == 0
    assert not shown.is_ok
    assert shown.page


@pytest.mark.parametrize(
    "url",
    ["http://ops.example/", "http://127.0.0.1.ops.example/", "file:///etc/hostname", "http://127.0.0.1@ops.example/"],
)
def test_nobody_but_this_machine_is_asked(url: str) -> None:
    with pytest.raises(ValueError, match="not on this machine"):
        open_page(url)


def test_pages_stand_beside_the_ui_unless_somebody_listens_there() -> None:
    with answering() as url:
        taken = int(url.rpartition(":")[2])

        chosen = port_beside(taken - 1)

    assert chosen != taken
    assert port_beside(65_535) < 65_535
