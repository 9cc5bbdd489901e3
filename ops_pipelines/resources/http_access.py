"""The way to a system that is asked over HTTP: address, credentials, certificates, and what a refusal means.

Prometheus, Loki and Alertmanager are reached so; what they are asked belongs to their own modules. Secrets are read
from files each time a session is opened (they are rotated), are sent in headers only, and appear in no message.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from ops_pipelines.core.sources import SourceNonsense, SourceUnavailable

if TYPE_CHECKING:
    from requests import Session


class HttpSettings(Protocol):
    """What the settings of each such system have in cluster.yaml."""

    @property
    def bearer_token_file(self) -> Path | None: ...
    @property
    def basic_auth_user(self) -> str | None: ...
    @property
    def basic_auth_password_file(self) -> Path | None: ...
    @property
    def ca_file(self) -> Path | None: ...
    @property
    def timeout(self) -> timedelta: ...


class HttpAccess:
    """Opens sessions to one system."""

    def __init__(self, settings: HttpSettings, *, url: str, system: str, tenant: str | None = None) -> None:
        """Raise ValueError if `settings` could not work: no URL, a secret in it, or two credentials."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError(f"the {system} URL must be http(s)://host[:port][/path], without user or password")
        if settings.bearer_token_file is not None and settings.basic_auth_user is not None:
            raise ValueError("give a bearer token or basic auth, not both")
        if (settings.basic_auth_user is None) is not (settings.basic_auth_password_file is None):
            raise ValueError("a user and the file of its password go together")
        self._settings = settings
        self._system = system
        self._tenant = tenant
        self.url = url.rstrip("/")
        self.timeout_seconds = settings.timeout.total_seconds()

    @contextmanager
    def open(self, headers: Mapping[str, str]) -> Iterator["Session"]:
        """Hold a session open; who asks follows no redirect, which could carry headers to another host.

        Raises SourceUnavailable if a secret cannot be read.
        """
        from requests import Session  # half a second, for processes that ask no such system

        settings = self._settings
        with Session() as session:
            session.trust_env = False  # Proxies and .netrc of the environment could add secrets.
            if settings.ca_file is not None:
                session.verify = str(settings.ca_file)
            session.headers.update(headers)
            if settings.bearer_token_file is not None:
                session.headers["Authorization"] = f"Bearer {read_secret(settings.bearer_token_file)}"
            if settings.basic_auth_user is not None and settings.basic_auth_password_file is not None:
                session.auth = (settings.basic_auth_user, read_secret(settings.basic_auth_password_file))
            if self._tenant is not None:
                session.headers["X-Scope-OrgID"] = self._tenant
            yield session

    def refusal(self, status: int | str, *, path: str, refused: str) -> SourceUnavailable | SourceNonsense:
        """Return the error for an answer that is not 200. The body is left out: a proxy may echo what was sent.

        `path` is what was asked; `refused` says what a 400 means there, and what to check.
        """
        what = f"HTTP {status}"
        match str(status):
            case "401" | "403":
                return SourceUnavailable(f"{self.url} refused the credentials ({what}); check token, user, tenant")
            case "400" | "422":
                subject, _, remedy = refused.partition("; ")
                return SourceNonsense(f"{self.url} refused {subject} ({what}); {remedy}")
            case "404":
                return SourceNonsense(f"{self.url} has no {path} ({what}); check the path of the URL")
        return SourceUnavailable(f"{self.url} answered {what}; check its own log")

    def silence(self, exc: BaseException) -> SourceUnavailable:
        """Return the error for a request that got no answer."""
        return SourceUnavailable(
            f"{self.url} did not answer within {self.timeout_seconds:g} s ({cause_of(exc)}); "
            "check that it runs, its address and its certificate"
        )


def read_secret(path: Path) -> str:
    """Return the one line of a file. Raises SourceUnavailable with the file's name."""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SourceUnavailable(f"the secret in {path} cannot be read ({type(exc).__name__}); check the file") from None
    if not secret or not secret.isprintable():
        raise SourceUnavailable(f"the secret in {path} is empty or not one line of text; check the file")
    return secret


def cause_of(exc: BaseException) -> str:
    """Return what lies at the bottom of a chain of connection errors, as a class name: texts may quote the request."""
    seen: BaseException = exc
    while (below := seen.__cause__ or seen.__context__) is not None:
        seen = below
    return type(seen).__name__
