"""The door before Dagster's web interface: what a page of another origin can do, and what a login may."""

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest
from dagster_webserver.version import __version__ as installed
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from ops_pipelines.domain.policy import PolicyError
from ops_pipelines.gateway import Gateway, TokenFile, refuse_unknown_dagster
from ops_pipelines.login_tag import LOGIN_SCOPE

TOKEN = "a-token-of-enough-letters"
LAUNCH = "mutation M { launchRun(executionParams: {}) { __typename } }"
QUERY = "query Q { version }"
OWN = "http://127.0.0.1:3000"
LOGGED_IN = {"authorization": f"Bearer {TOKEN}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back over HTTP."""

    status_code: int
    headers: Mapping[str, str]
    text: str


class Browser:
    """Speaks ASGI to an application as a server does, with any header a page could send."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def get(self, path: str, *, params: Mapping[str, str] | None = None, headers: Mapping[str, str] = {}) -> Answer:
        return self._ask("GET", path, urlencode(params or {}), headers, b"")

    def post(self, path: str, *, content: bytes, headers: Mapping[str, str]) -> Answer:
        return self._ask("POST", path, "", headers, content)

    def connect(self, headers: Mapping[str, str], *texts: str) -> list[Message]:
        """Open a WebSocket and say the texts; return all that came back."""
        waiting: list[Message] = [
            {"type": "websocket.connect"},
            *({"type": "websocket.receive", "text": text} for text in texts),
            {"type": "websocket.disconnect", "code": 1000},
        ]
        return self._run({**_scope("/graphql", "", headers), "type": "websocket", "subprotocols": []}, waiting)

    def _ask(self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> Answer:
        scope = {**_scope(path, query, headers), "type": "http", "method": method}
        sent = self._run(scope, [{"type": "http.request", "body": body, "more_body": False}])
        begun = Headers(raw=sent[0]["headers"])
        text = b"".join(message.get("body", b"") for message in sent[1:]).decode()
        return Answer(status_code=sent[0]["status"], headers=begun, text=text)

    def _run(self, scope: Scope, waiting: list[Message]) -> list[Message]:
        sent: list[Message] = []

        async def receive() -> Message:
            return waiting.pop(0)

        async def send(message: Message) -> None:
            sent.append(message)

        async def speak() -> None:
            await self._app(scope, receive, send)

        asyncio.run(speak())
        return sent


def _scope(path: str, query: str, headers: Mapping[str, str]) -> Scope:
    given = {"host": "127.0.0.1:3000", **headers}
    raw = [(key.encode(), text.encode()) for key, text in given.items()]
    return {"path": path, "query_string": query.encode(), "headers": raw, "client": ("127.0.0.1", 5), "scheme": "http"}


class Behind:
    """What came through the door."""

    def __init__(self) -> None:
        self.logins: list[str | None] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            socket = WebSocket(scope, receive, send)
            await socket.accept()
            try:
                while True:
                    await socket.send_text(await socket.receive_text())
            except WebSocketDisconnect:
                return
        request = Request(scope, receive)
        answer: Response = HTMLResponse("<html><body class='a'>Dagster</body></html>")
        if request.method == "POST":
            await request.body()
            self.logins.append(scope.get(LOGIN_SCOPE))
            answer = JSONResponse({"data": {}})
        await answer(scope, receive, send)


def tokens(tmp_path: Path, *, mode: int = 0o600) -> Path:
    file = tmp_path / "web.tokens"
    file.write_text(f"ada:{hashlib.sha256(TOKEN.encode()).hexdigest()}\n")
    file.chmod(mode)
    return file


@pytest.fixture
def behind() -> Behind:
    return Behind()


@pytest.fixture
def door(behind: Behind, tmp_path: Path) -> Browser:
    return Browser(Gateway(behind, tokens=TokenFile(tokens(tmp_path))))


def said(query: str = LAUNCH) -> bytes:
    return json.dumps({"query": query}).encode()


JSON = {"content-type": "application/json"}
COOKIE = {"cookie": f"ops_pipelines_token={TOKEN}"}


@pytest.mark.parametrize("headers", [{}, COOKIE, {"origin": "http://evil.example"}])
def test_an_image_tag_on_a_foreign_page_launches_nothing_and_is_logged(
    door: Browser, behind: Behind, headers: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    answer = door.get("/graphql", params={"query": LAUNCH}, headers=headers)

    assert answer.status_code == 405
    assert behind.logins == []
    assert "refused GET" in caplog.text


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        pytest.param(415, {"content-type": "text/plain", **LOGGED_IN}, said(), id="a form of another page"),
        pytest.param(415, {"content-type": "application/graphql", **LOGGED_IN}, LAUNCH.encode(), id="bare GraphQL"),
        pytest.param(415, {"content-type": "multipart/form-data; boundary=x", **LOGGED_IN}, b"", id="multipart"),
        pytest.param(403, {**JSON, "origin": "http://evil.example", **LOGGED_IN}, said(), id="fetch of another page"),
        pytest.param(403, {**JSON, "origin": "null", **LOGGED_IN}, said(), id="a page without an origin"),
        pytest.param(403, {**JSON, "sec-fetch-site": "same-site", **LOGGED_IN}, said(), id="a neighbouring site"),
        pytest.param(421, {**JSON, "host": "evil.example:3000", **LOGGED_IN}, said(), id="DNS rebinding"),
        pytest.param(421, {**JSON, "host": "127.0.0.1.evil.example", **LOGGED_IN}, said(), id="begins alike"),
        pytest.param(401, {**JSON, "origin": OWN}, said(), id="nobody logged in"),
        pytest.param(401, {**JSON, "authorization": "Bearer wrong"}, said(), id="a wrong token"),
        pytest.param(403, {**JSON, **COOKIE}, said(), id="a cookie without an origin"),
        pytest.param(400, {**JSON, **LOGGED_IN}, b"[" + said() + b"]", id="a batch"),
        pytest.param(400, {**JSON, **LOGGED_IN}, b'{"extensions": {"persistedQuery": {}}}', id="a stored query"),
        pytest.param(400, {**JSON, **LOGGED_IN}, b"{", id="no JSON"),
        pytest.param(401, {**JSON, "origin": OWN}, said(QUERY + LAUNCH), id="a mutation behind a query"),
        pytest.param(413, {**JSON, **LOGGED_IN}, b" " * 4_194_305, id="one byte too many"),
    ],
)
def test_what_is_not_a_logged_in_person_on_our_own_page_changes_nothing_and_is_logged(
    door: Browser,
    behind: Behind,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = door.post("/graphql", content=body, headers=headers)

    assert answer.status_code == status
    assert behind.logins == []
    assert ["refused POST" in record.getMessage() for record in caplog.records if record.name.endswith("gateway")] == [
        True
    ]


@pytest.mark.parametrize("headers", [LOGGED_IN, {**COOKIE, "origin": OWN, "sec-fetch-site": "same-origin"}])
def test_a_login_changes_things_in_its_own_name(door: Browser, behind: Behind, headers: Mapping[str, str]) -> None:
    answer = door.post("/graphql", content=said(), headers={**JSON, **headers, "x-remote-user": "eve"})

    assert answer.status_code == 200
    assert behind.logins == ["ada"]


def test_reading_asks_for_no_login_and_says_that_it_is_reading_only(door: Browser, behind: Behind) -> None:
    assert door.post("/graphql", content=said(QUERY), headers=JSON).status_code == 200
    assert 'Read-only until you <a href="/login">log in' in door.get("/").text
    assert "Read-only" not in door.get("/", headers=LOGGED_IN).text
    assert behind.logins == [None]


def test_reports_of_assets_are_changes_too(door: Browser, behind: Behind) -> None:
    answer = door.post("/report_asset_materialization/x", content=b"{}", headers={**JSON, "origin": OWN})

    assert answer.status_code == 401
    assert behind.logins == []


def test_without_tokens_nobody_changes_anything_and_the_page_says_so(behind: Behind) -> None:
    door = Browser(Gateway(behind, tokens=None))

    assert door.post("/graphql", content=said(), headers={**JSON, **LOGGED_IN}).status_code == 403
    assert "without a login nothing can be changed" in door.get("/").text
    assert behind.logins == []


def test_a_token_is_exchanged_for_a_cookie_that_no_script_and_no_other_site_gets(door: Browser) -> None:
    answer = door.get("/login", params={"token": TOKEN})

    cookie = answer.headers["set-cookie"].lower()
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


def test_guessing_is_slowed_down(door: Browser) -> None:
    answers = [door.get("/login", params={"token": f"guess {number}"}).status_code for number in range(11)]

    assert answers == [401] * 10 + [429]


def test_a_subscription_goes_on_and_a_mutation_over_the_same_connection_ends_it(
    door: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    start = json.dumps({"type": "start", "id": "1", "payload": {"query": "subscription S { x }"}})
    change = json.dumps({"type": "start", "id": "2", "payload": {"query": LAUNCH}})

    sent = door.connect({"origin": OWN}, start, change)

    assert [message["text"] for message in sent if message["type"] == "websocket.send"] == [start]
    assert "a mutation over the WebSocket" in caplog.text


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"host": "evil.example"}])
def test_a_foreign_page_gets_no_websocket(door: Browser, headers: Mapping[str, str]) -> None:
    assert door.connect(headers) == [{"type": "websocket.close", "code": 1008}]


def test_what_is_logged_stays_in_its_line(door: Browser, caplog: pytest.LogCaptureFixture) -> None:
    door.get("/a\nrefused nobody", headers={"host": "evil.example"})

    assert len(caplog.records) == 1
    assert "\n" not in caplog.records[0].getMessage()


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_token_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(PolicyError, match="expected 0600"):
        TokenFile(tokens(tmp_path, mode=mode))


def test_the_dagster_that_is_installed_is_the_one_whose_ways_in_were_read() -> None:
    refuse_unknown_dagster(installed)
    with pytest.raises(PolicyError, match="guards no other"):
        refuse_unknown_dagster("1.13.99")
