"""The door before Dagster's web interface: who may change something, and from where. Each refusal is logged.

Dagster has no login, executes mutations that came by GET, and believes any Host. This is around its application, in
its own process, so that no port leads past it. What a person may read is not here: who reaches the port may read.

Who asks is known by the name that the site's proxy gives, or by a token of the token file. Neither believes what
anybody could send: a proxy's header counts from its own address alone, a token is compared by its hash.
"""

import hashlib
import hmac
import html
import json
import logging
import os
import re
import socket
import stat
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from graphql import GraphQLError, OperationDefinitionNode, OperationType, parse
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ops_pipelines.core.policy import PolicyError
from ops_pipelines.run_lanes import LOGIN_NAME, LOGIN_SCOPE

COOKIE = "ops_pipelines_token"
SHORTEST_TOKEN_COUNT = 20
"""Characters. Nobody is locked out for what others guess, so a token must be none that is guessed."""
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{1,60}")
_TAKEN_HEADERS = frozenset({"host", "origin", "cookie", "authorization", "content-type", "content-length"})


class Refused(Exception):
    """A request that is not let through."""

    def __init__(self, *, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class TokenFile:
    """Who may log in, by a file of lines `name:sha256-of-token`, read at each login so that a removed line ends it."""

    def __init__(self, path: Path) -> None:
        """Raise PolicyError if the file cannot be used."""
        self._path = path
        self._read()

    def name_of(self, token: str) -> str | None:
        """Return whose token it is. Every line is compared, each in constant time."""
        digest = hashlib.sha256(token.encode()).hexdigest()
        found = None
        for name, expected in self._read():
            if hmac.compare_digest(digest, expected):
                found = name
        return found if len(token) >= SHORTEST_TOKEN_COUNT else None

    def _read(self) -> Sequence[tuple[str, str]]:
        try:
            with self._path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(1_000_000).decode("ascii", "replace")
        except OSError as problem:
            raise PolicyError(f"token file {self._path} cannot be read: {problem.strerror or problem}") from problem
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise PolicyError(
                f"token file {self._path} has mode {stat.S_IMODE(mode):04o}; expected 0600: `chmod 0600 {self._path}`"
            )
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        return [_token_line(line, number, self._path) for number, line in enumerate(lines, start=1)]


def _token_line(line: str, number: int, path: Path) -> tuple[str, str]:
    name, _, digest = line.partition(":")
    if not LOGIN_NAME.fullmatch(name) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise PolicyError(
            f"token file {path}, entry {number}: expected `name:` and 64 hexadecimal digits, the SHA-256 of the token: "
            "`printf %s TOKEN | sha256sum`"
        )
    return name, digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLogin:
    """The site's proxy, which logs people in and names them in a header that it sets itself."""

    header: str
    addresses: frozenset[IPv4Address | IPv6Address]

    def name_of(self, headers: Headers, *, client: str) -> str | None:
        """Return whom the proxy names, None if nobody is named; raise Refused for a header that it did not send."""
        said = headers.getlist(self.header)
        if not said:
            return None
        if _address(client) not in self.addresses:
            raise Refused(status=403, why=f"{self.header} is taken from the site's proxy only")
        if len(said) != 1 or not LOGIN_NAME.fullmatch(said[0]):
            raise Refused(status=400, why=f"{self.header} holds no name, or more than one")
        return said[0]


def read_proxy_login(said: str) -> ProxyLogin:
    """Return the proxy that `HEADER=ADDRESS[,ADDRESS]` names; raise PolicyError if others could send, too."""
    header, _, rest = said.partition("=")
    addresses = [_address(each.strip()) for each in rest.split(",")]
    if not _HEADER.fullmatch(header) or header.lower() in _TAKEN_HEADERS or None in addresses:
        raise PolicyError(
            f"proxy login {said[:100]!r}: expected HEADER=ADDRESS[,ADDRESS], such as X-Remote-User=10.0.0.5: the "
            "header in which the proxy names who is logged in, and its IP addresses"
        )
    known = frozenset(each for each in addresses if each is not None)
    for each in known:
        if each.is_loopback or each.is_unspecified or _is_of_this_host(each):
            raise PolicyError(
                f"proxy login: {each} is an address of this host, from which every user of it could name anybody; the "
                "proxy must have a host of its own, or people log in by a token file"
            )
    return ProxyLogin(header=header, addresses=known)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def _is_of_this_host(address: IPv4Address | IPv6Address) -> bool:
    """Only what is ours can be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Logins:
    """The ways in which somebody can be known; with none of them nobody is."""

    tokens: TokenFile | None = None
    proxy: ProxyLogin | None = None

    @property
    def are_none(self) -> bool:
        return self.tokens is None and self.proxy is None

    def name_of(self, headers: Headers, *, client: str) -> str | None:
        """Return who asks; None if nobody says so. Raise Refused for a name or token that is not believed."""
        name = None if self.proxy is None else self.proxy.name_of(headers, client=client)
        token = token_of(headers)
        if name is not None or not token or self.tokens is None:
            return name
        try:
            name = self.tokens.name_of(token)
        except PolicyError as problem:
            raise Refused(status=503, why=str(problem)) from problem
        if name is None:
            raise Refused(status=401, why="nobody has this token (any more); log in at /login")
        return name


def token_of(headers: Headers) -> str:
    """Return the token of the Authorization header, else of the cookie; "" without one."""
    if is_bearer(headers):
        return headers["authorization"].partition(" ")[2].strip()
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie else ""


def is_bearer(headers: Headers) -> bool:
    """Return whether the token is in a header that no page of another origin can make a browser send."""
    return headers.get("authorization", "").partition(" ")[0].lower() == "bearer"


DAGSTER_VERSION = "1.13.27"
"""The one whose ways in were read: a newer one may have more, and is looked at before it is served."""
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
_LONGEST_BODY_BYTES = 4_194_304
_MOST_TOKENS_COUNT = 20_000
"""Of a GraphQL document; the longest of Dagster's own has about 3,000."""
_READ_ONLY = (
    "Read-only: without a login nothing can be changed here. Use the command line, or set up a login: "
    "docs/SAFETY.md, The web interface."
)
_log = logging.getLogger("ops_pipelines.gateway")


class Gateway:
    """Dagster's application behind host names, origins, and a login."""

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str] = LOOPBACK_NAMES, logins: Logins) -> None:
        """Let nobody change anything if nobody can log in."""
        self._app, self._hosts, self._logins = app, hosts, logins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request or connection through, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        scope = {**scope}
        scope.pop(LOGIN_SCOPE, None)
        headers = Headers(scope=scope)
        try:
            self._refuse_foreign_host(headers)
            if scope["type"] == "websocket":
                _refuse_foreign_origin(headers, may_lack=True)
                await self._app(scope, _without_mutations(receive, scope), send)
            else:
                await self._answer(scope, headers, receive, send)
        except Refused as refusal:
            _tell(refusal, scope)
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            said = {"data": None, "errors": [{"message": f"refused: {refusal.why}"}]}
            await JSONResponse(said, status_code=refusal.status)(scope, receive, send)

    async def _answer(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path == "/login":
            response = await self._login(scope, headers, receive)
            response.headers["Referrer-Policy"] = "no-referrer"
            response.headers["Cache-Control"] = "no-store"
            response.headers["Content-Security-Policy"] = "default-src 'none'; frame-ancestors 'none'"
            await response(scope, receive, send)
            return
        if method in ("GET", "HEAD"):
            if path.rstrip("/") == "/graphql" and scope["query_string"]:
                raise Refused(status=405, why="GraphQL is taken by POST only")
            name = self._quiet_login(scope, headers)
            await self._app(scope, receive, send if name else _with_banner(send, self._banner()))
            return
        if method != "POST":
            raise Refused(status=405, why="only GET, HEAD and POST are taken")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(status=415, why="only the content type application/json is taken")
        body = await _read_body(receive)
        changes = path != "/graphql" or _is_change(body)
        _refuse_foreign_origin(headers, may_lack=is_bearer(headers) or not changes)
        if changes:
            scope[LOGIN_SCOPE] = self._login_of(scope, headers)
        await self._app(scope, _replay(body, receive), send)

    def _refuse_foreign_host(self, headers: Headers) -> None:
        said = headers.getlist("host")
        if len(said) != 1 or "@" in said[0] or _host_name(f"//{said[0]}") not in self._hosts:
            raise Refused(status=421, why="this Host is none of ours; open the address that was configured")

    def _login_of(self, scope: Scope, headers: Headers) -> str:
        if self._logins.are_none:
            raise Refused(status=403, why=_READ_ONLY)
        client = scope.get("client")
        name = self._logins.name_of(headers, client=client[0] if client else "")
        if name is None:
            raise Refused(status=401, why="log in first, at /login; reading needs no login")
        return name

    def _quiet_login(self, scope: Scope, headers: Headers) -> str | None:
        try:
            return self._login_of(scope, headers)
        except Refused:
            return None

    def _banner(self) -> str:
        if self._logins.are_none:
            return html.escape(_READ_ONLY)
        return 'Read-only until you <a href="/login">log in</a>.'

    async def _login(self, scope: Scope, headers: Headers, receive: Receive) -> Response:
        if self._logins.tokens is None:
            proxied = "The site's proxy logs you in: open its address."
            return HTMLResponse(_page(html.escape(_READ_ONLY if self._logins.are_none else proxied)))
        if scope["method"] != "POST":
            # Never in the address: who follows another's link would act in that other's name.
            return HTMLResponse(_page(_FORM))
        _refuse_foreign_origin(headers, may_lack=False)
        said = (await _read_body(receive)).decode("utf-8", "replace")
        token = parse_qs(said).get("token", [""])[0]
        if not token:
            return HTMLResponse(_page(_FORM))
        self._login_of(scope, Headers({"authorization": f"Bearer {token}"}))
        response = RedirectResponse("/", status_code=303)
        is_safe = "https" in (scope.get("scheme"), headers.get("origin", "").partition(":")[0])
        response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=is_safe, path="/")
        return response


_FORM = (
    '<form method="post" action="/login"><label>Token <input name="token" type="password" autofocus '
    'autocomplete="current-password"></label> <button>Log in</button></form>'
)
_STRIP_STYLE = "position:fixed;bottom:0;right:0;z-index:9;padding:4px 12px;background:#fd6;color:#000"
"""Over the page: Dagster lays out what is in its body as columns."""


def _page(inside: str) -> str:
    return f"<!doctype html><title>Log in</title><h1>Operations autopilot</h1>{inside}"


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _refuse_foreign_origin(headers: Headers, *, may_lack: bool) -> None:
    """A browser says where a page comes from; what is no browser shows its token in a header, which no page can."""
    origins, site = headers.getlist("origin"), headers.get("sec-fetch-site")
    if site not in (None, "same-origin"):
        raise Refused(status=403, why="another site's page may change nothing here")
    host = headers["host"]
    if any(origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()) for origin in origins):
        raise Refused(status=403, why="another origin's page may change nothing here")
    if not origins and not may_lack:
        raise Refused(status=403, why="neither an Origin nor a token in the Authorization header")


async def _read_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Refused(status=400, why="the request ended early")
        body += message.get("body", b"")
        if len(body) > _LONGEST_BODY_BYTES:
            raise Refused(status=413, why=f"more than {_LONGEST_BODY_BYTES} bytes")
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    waiting: deque[Message] = deque([{"type": "http.request", "body": body, "more_body": False}])

    async def next_message() -> Message:
        return waiting.popleft() if waiting else await receive()

    return next_message


def _is_change(body: bytes) -> bool:
    try:
        said: object = json.loads(body)
    except (ValueError, RecursionError) as problem:
        raise Refused(status=400, why="the body is no JSON") from problem
    query = said.get("query") if isinstance(said, dict) else None
    if not isinstance(query, str):
        raise Refused(status=400, why="expected one JSON object with a `query`, not a list nor a stored one's name")
    return holds_mutation(query)


def holds_mutation(query: str) -> bool:
    """Return whether any operation of the document changes something, whichever of them is named to be executed."""
    try:
        document = parse(query, no_location=True, max_tokens=_MOST_TOKENS_COUNT)
    except (GraphQLError, RecursionError) as problem:
        raise Refused(status=400, why="the query is no GraphQL") from problem
    operations = [each for each in document.definitions if isinstance(each, OperationDefinitionNode)]
    return any(each.operation is OperationType.MUTATION for each in operations)


def _without_mutations(receive: Receive, scope: Scope) -> Receive:
    """Hand on what a subscription says; a mutation ends the connection."""

    async def next_message() -> Message:
        message = await receive()
        if message["type"] != "websocket.receive":
            return message
        try:
            if _changes_by_socket(message):
                raise Refused(status=405, why="a mutation over the WebSocket; POST only")
        except Refused as refusal:
            _tell(refusal, scope)
            return {"type": "websocket.disconnect", "code": 1008}
        return message

    return next_message


def _changes_by_socket(message: Mapping[str, object]) -> bool:
    text = message.get("text")
    try:
        said: object = json.loads(text if isinstance(text, str) else "")
    except (ValueError, RecursionError) as problem:
        raise Refused(status=400, why="a message over the WebSocket that is no JSON") from problem
    if not isinstance(said, dict):
        raise Refused(status=400, why="a message over the WebSocket that is no object")
    payload = said.get("payload")
    query = payload.get("query") if isinstance(payload, dict) else None
    return isinstance(query, str) and holds_mutation(query)


def _with_banner(send: Send, banner: str) -> Send:
    """Say on each of Dagster's HTML pages that it is read-only."""
    started: list[Message] = []
    strip = f'<div role="status" id="ops-pipelines-read-only" style="{_STRIP_STYLE}">{banner}</div>'.encode()

    async def send_on(message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = Headers(raw=message["headers"]).get("content-type", "")
            if not kind.startswith("text/html") or message["status"] != 200:
                await send(message)
                return
            kept = [(key, text) for key, text in message["headers"] if key.lower() != b"content-length"]
            started.append({**message, "headers": kept})
            return
        if started:
            await send(started.pop())
        elif b"<body" not in message.get("body", b""):
            await send(message)
            return
        head, tag, rest = message.get("body", b"").partition(b"<body")
        opening, end, inside = rest.partition(b">")
        await send({**message, "body": head + tag + opening + end + (strip if tag else b"") + inside})

    return send_on


def _tell(refusal: Refused, scope: Scope) -> None:
    """Log who asked for what and why it was refused; whatever came from outside is quoted, so that it ends no line."""
    headers = Headers(scope=scope)
    client = scope.get("client")
    _log.warning(
        "refused %s %s from=%s host=%s origin=%s: %s",
        scope.get("method", "WebSocket"),
        json.dumps(scope["path"][:200]),
        client[0] if client else "?",
        json.dumps(headers.get("host", "")[:200]),
        json.dumps(headers.get("origin", "")[:200]),
        refusal.why,
    )


def refuse_unknown_dagster(found: str) -> None:
    """Raise PolicyError unless this is the Dagster whose ways in were read."""
    if found != DAGSTER_VERSION:
        raise PolicyError(
            f"dagster-webserver {found} is installed; the gateway was checked with {DAGSTER_VERSION} and guards no "
            "other. Install what requirements.lock names"
        )


def serve(
    *, workspace: Path, host: str, port: int, names: Iterable[str], logins: Logins, announce: Callable[[str], None]
) -> None:
    """Serve Dagster's web interface behind the gateway, until SIGTERM; raise PolicyError if it must not be."""
    import uvicorn
    from dagster import DagsterInstance
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import WorkspaceFileTarget
    from dagster_webserver.app import create_app_from_workspace_process_context
    from dagster_webserver.version import __version__ as found

    refuse_unknown_dagster(found)
    hosts = LOOPBACK_NAMES | {name.lower() for name in names}
    hosts |= set() if host in ("0.0.0.0", "::") else {host.lower()}  # noqa: S104 - compared only
    with DagsterInstance.get() as instance:
        instance.optimize_for_webserver(statement_timeout=15_000, pool_recycle=3_600, max_overflow=20)
        with WorkspaceProcessContext(
            instance,
            version=found,
            read_only=logins.are_none,
            workspace_load_target=WorkspaceFileTarget([str(workspace)]),
        ) as context:
            app = Gateway(create_app_from_workspace_process_context(context), hosts=hosts, logins=logins)
            shown = f"[{host}]" if ":" in host else host
            announce(f"http://{shown}:{port}" + (" (read-only: nobody can log in)" if logins.are_none else ""))
            # Without the server's own belief in X-Forwarded-For: anybody on this machine could say it.
            uvicorn.run(app, host=host, port=port, log_level="warning", proxy_headers=False)
