"""A page of another origin in a real browser whose user is logged in: what it can make the web interface do."""

import asyncio
import hashlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ops_pipelines.gateway import COOKIE, Gateway, Logins, TokenFile
from tests.lab.browser import Browser

pytestmark = pytest.mark.live

TOKEN = "a-token-of-the-operator"
LAUNCH = "mutation{launchRun(executionParams:{}){__typename}}"
BODY = f'{{"query":"{LAUNCH}"}}'
WAYS = {
    "image": f'<img src="DOOR/graphql?query={quote(LAUNCH)}" onerror="done()">',
    "form": (
        "<iframe name=f onload=done()></iframe><form id=g target=f method=post enctype=text/plain "
        f'action="DOOR/graphql?query={quote(LAUNCH)}"></form><script>g.submit()</script>'
    ),
    "fetch": (
        f"<script>fetch('DOOR/graphql?query={quote(LAUNCH)}', {{method: 'POST', mode: 'no-cors', "
        f"credentials: 'include', body: '{BODY}'}}).then(done, done)</script>"
    ),
    "fetch of JSON": (
        "<script>fetch('DOOR/graphql', {method: 'POST', credentials: 'include', "
        f"headers: {{'content-type': 'application/json'}}, body: '{BODY}'}}).then(done, done)</script>"
    ),
}


class Launches:
    """Is where Dagster does: counts whatever asks for a launch, in any way that Dagster would take."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        if request.method in ("GET", "POST") and "launchRun" in f"{request.url}{await request.body()!r}":
            self.count += 1
        await JSONResponse({"data": {}})(scope, receive, send)


@contextmanager
def served(app: ASGIApp) -> Iterator[int]:
    """Serve an application on a free loopback port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", proxy_headers=False, lifespan="off"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def attacked(app: ASGIApp, way: str, browser: Browser) -> Iterator[None]:
    """Open a page of another port that tries this way. Ports share cookies: the browser's user is logged in."""
    with served(app) as door:
        script = "<script>function done() { document.body.append('tried') }</script>"
        page = f"<body>{script}{WAYS[way].replace('DOOR', f'http://127.0.0.1:{door}')}</body>"

        async def evil(scope: Scope, receive: Receive, send: Send) -> None:
            answer = HTMLResponse(page)
            answer.set_cookie(COOKIE, TOKEN)
            await answer(scope, receive, send)

        with served(evil) as port:
            browser.open(f"http://127.0.0.1:{port}/", until=["tried</body>"])
            yield


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return Browser(tmp_path)


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    file = tmp_path / "web.tokens"
    file.write_text(f"ada:{hashlib.sha256(TOKEN.encode()).hexdigest()}\n")
    file.chmod(0o600)
    return TokenFile(file)


@pytest.mark.parametrize("way", WAYS)
def test_a_page_of_another_origin_launches_nothing_and_is_logged(
    way: str, browser: Browser, tokens: TokenFile, caplog: pytest.LogCaptureFixture
) -> None:
    behind = Launches()

    with attacked(Gateway(behind, logins=Logins(tokens=tokens)), way, browser):
        pass

    assert behind.count == 0
    assert "ops_pipelines.gateway:gateway.py" in caplog.text
    assert "refused" in caplog.text


@pytest.mark.parametrize("way", ["image", "form", "fetch"])
def test_without_the_door_the_same_page_launches(way: str, browser: Browser) -> None:
    """Else the test above would show nothing."""
    behind = Launches()

    with attacked(behind, way, browser):
        pass

    assert behind.count >= 1


def test_a_foreign_name_that_leads_to_this_machine_shows_nothing_and_is_logged(
    tmp_path: Path, tokens: TokenFile, caplog: pytest.LogCaptureFixture
) -> None:
    """DNS rebinding: for the browser, page and interface are of one origin."""
    behind = Launches()
    browser = Browser(tmp_path, flags=["--host-resolver-rules=MAP evil.example 127.0.0.1", "--no-proxy-server"])

    with served(Gateway(behind, logins=Logins(tokens=tokens))) as door:
        shown = browser.open(f"http://evil.example:{door}/", until=["refused: this Host is none of ours"])

    assert "launchRun" not in shown
    assert 'host="evil.example:' in caplog.text
