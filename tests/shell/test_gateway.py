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

from ops_pipelines.core.policy import PolicyError
from ops_pipelines.gateway import Gateway, Logins, ProxyLogin, TokenFile, read_proxy_login, refuse_unknown_dagster
from ops_pipelines.run_lanes import LOGIN_SCOPE

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

    def __init__(self, app: ASGIApp, *, address: str = "127.0.0.1") -> None:
        self._app, self._address = app, address

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
        return self._run({**self._scope("/graphql", "", headers), "type": "websocket", "subprotocols": []}, waiting)

    def _ask(self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> Answer:
        scope = {**self._scope(path, query, headers), "type": "http", "method": method}
        sent = self._run(scope, [{"type": "http.request", "body": body, "more_body": False}])
        begun = Headers(raw=sent[0]["headers"])
        text = b"".join(message.get("body", b"") for message in sent[1:]).decode()
        return Answer(status_code=sent[0]["status"], headers=begun, text=text)

    def _scope(self, path: str, query: str, headers: Mapping[str, str]) -> Scope:
        given = {"host": "127.0.0.1:3000", **headers}
        raw = [(key.encode(), each.encode()) for key, text in given.items() for each in text.split("\n")]
        client = (self._address, 5)
        return {"path": path, "query_string": query.encode(), "headers": raw, "client": client, "scheme": "http"}

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
    return Browser(Gateway(behind, logins=Logins(tokens=TokenFile(tokens(tmp_path)))))


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
        pytest.param(403, {**JSON, **COOKIE, "authorization": "Basic eDp5"}, said(), id="a cookie beside a password"),
        pytest.param(421, {**JSON, "host": "x@127.0.0.1:3000", **LOGGED_IN}, said(), id="a Host with a user"),
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
    door = Browser(Gateway(behind, logins=Logins()))

    assert door.post("/graphql", content=said(), headers={**JSON, **LOGGED_IN}).status_code == 403
    assert "without a login nothing can be changed" in door.get("/").text
    assert behind.logins == []


def log_in(door: Browser, token: str) -> Response:
    return door.post("/login", content=urlencode({"token": token}).encode(), headers={"origin": OWN})


def test_a_token_is_exchanged_for_a_cookie_that_no_script_and_no_other_site_gets(door: Browser) -> None:
    answer = log_in(door, TOKEN)

    cookie = answer.headers["set-cookie"].lower()
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


def test_wrong_tokens_keep_nobody_out(door: Browser) -> None:
    """An old cookie in a forgotten tab asks with each picture of a page, and so may any stranger."""
    for number in range(30):
        assert log_in(door, f"guess {number}").status_code == 401
        assert door.get("/", headers={"cookie": "ops_pipelines_token=an-old-one"}).status_code == 200

    assert log_in(door, TOKEN).status_code == 303


def test_nobody_is_logged_in_by_a_link(door: Browser) -> None:
    """A colleague's link would have its reader approve in the colleague's name."""
    answer = door.get("/login", params={"token": TOKEN})

    assert "set-cookie" not in answer.headers
    assert 'name="token"' in answer.text
    foreign = door.post("/login", content=f"token={TOKEN}".encode(), headers={"origin": "http://evil.example"})
    assert foreign.status_code == 403


@pytest.mark.parametrize(("length", "name"), [(19, None), (20, "ada"), (21, "ada")])
def test_a_token_that_could_be_guessed_is_none(tmp_path: Path, length: int, name: str | None) -> None:
    file = tokens(tmp_path)
    file.write_text(f"ada:{hashlib.sha256(b'x' * length).hexdigest()}\n")

    assert TokenFile(file).name_of("x" * length) == name


def test_token_file_that_went_away_lets_nobody_in_and_says_why(door: Browser, behind: Behind, tmp_path: Path) -> None:
    (tmp_path / "web.tokens").unlink()

    answer = door.post("/graphql", content=said(), headers={**JSON, **LOGGED_IN})

    assert answer.status_code == 503
    assert "cannot be read" in answer.text
    assert behind.logins == []


PROXY = read_proxy_login("X-Remote-User=192.0.2.5,2001:db8::5")
SITE = frozenset({"ops.example"})
BY_PROXY = {**JSON, "host": "ops.example", "origin": "https://ops.example", "x-remote-user": "ada"}


@pytest.mark.parametrize(
    ("address", "headers", "status", "logins"),
    [
        pytest.param("192.0.2.5", {}, 200, ["ada"], id="the proxy"),
        pytest.param("2001:db8::5", {}, 200, ["ada"], id="the proxy over IPv6"),
        pytest.param("::ffff:192.0.2.5", {}, 200, ["ada"], id="the proxy as a mapped address"),
        pytest.param("192.0.2.4", {}, 403, [], id="the address before"),
        pytest.param("192.0.2.6", {}, 403, [], id="the address after"),
        pytest.param("127.0.0.1", {}, 403, [], id="this host"),
        pytest.param("", {}, 403, [], id="no address"),
        pytest.param("192.0.2.6", {"x-forwarded-for": "192.0.2.5"}, 403, [], id="who says that it is the proxy"),
        pytest.param("192.0.2.5", {"x-remote-user": "eve\nada"}, 400, [], id="two names"),
        pytest.param("192.0.2.5", {"x-remote-user": ""}, 400, [], id="no name"),
        pytest.param("192.0.2.5", {"x-remote-user": "ada, eve"}, 400, [], id="a name that is none"),
        pytest.param("192.0.2.5", {"x-remote-user": "ada:1"}, 400, [], id="a name that would break the seal"),
        pytest.param("192.0.2.5", {"origin": "https://evil.example"}, 403, [], id="a foreign page through the proxy"),
        pytest.param("192.0.2.5", {"host": "evil.example"}, 421, [], id="a foreign Host through the proxy"),
        pytest.param("192.0.2.5", {"x-other-user": "ada", "x-remote-user": "bob"}, 200, ["bob"], id="the named header"),
    ],
)
def test_the_name_that_the_sites_proxy_gives_counts_from_its_address_alone(
    behind: Behind, address: str, headers: Mapping[str, str], status: int, logins: list[str]
) -> None:
    door = Browser(Gateway(behind, hosts=SITE, logins=Logins(proxy=PROXY)), address=address)

    answer = door.post("/graphql", content=said(), headers={**BY_PROXY, **headers})

    assert answer.status_code == status
    assert behind.logins == logins


def test_without_the_proxys_header_or_origin_nobody_is_known(behind: Behind) -> None:
    door = Browser(Gateway(behind, hosts=SITE, logins=Logins(proxy=PROXY)), address="192.0.2.5")

    lacking = [{key: text for key, text in BY_PROXY.items() if key != each} for each in ("x-remote-user", "origin")]
    answers = [door.post("/graphql", content=said(), headers=headers).status_code for headers in lacking]

    assert answers == [401, 403]
    assert "Read-only" in door.get("/", headers={"host": "ops.example"}).text
    assert "Read-only" not in door.get("/", headers=BY_PROXY).text
    assert behind.logins == []


@pytest.mark.parametrize(
    "stated",
    [
        *("X-Remote-User", "X-Remote-User=", "=192.0.2.5", "X-Remote-User=proxy.example", "X-Remote-User=192.0.2.0/24"),
        *("Origin=192.0.2.5", "authorization=192.0.2.5", "X Remote=192.0.2.5", "X-Remote-User=192.0.2.5,"),
        *("X-Remote-User=127.0.0.1", "X-Remote-User=127.8.0.1", "X-Remote-User=::1", "X-Remote-User=0.0.0.0"),
        "X-Remote-User=192.0.2.5,::ffff:127.0.0.1",
    ],
)
def test_a_proxy_that_is_not_one_header_and_foreign_addresses_is_refused(stated: str) -> None:
    with pytest.raises(PolicyError, match="proxy login"):
        read_proxy_login(stated)


def test_a_proxy_beside_tokens_leaves_the_tokens(behind: Behind, tmp_path: Path) -> None:
    proxy = ProxyLogin(header="X-Remote-User", addresses=PROXY.addresses)
    door = Browser(Gateway(behind, logins=Logins(tokens=TokenFile(tokens(tmp_path)), proxy=proxy)))

    door.post("/graphql", content=said(), headers={**JSON, **LOGGED_IN})

    assert behind.logins == ["ada"]


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
