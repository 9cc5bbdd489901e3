"""Who asks, at the web gateway: by the name that the site's proxy gives, or by a token of the token file.

Neither believes what anybody could send: a proxy's header counts from its own address alone, a token is compared by its
hash. What a login may do is not here.
"""

import hashlib
import hmac
import os
import re
import socket
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from starlette.datastructures import Headers

from ops_pipelines.core.policy import PolicyError
from ops_pipelines.login_tag import LOGIN_NAME

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
