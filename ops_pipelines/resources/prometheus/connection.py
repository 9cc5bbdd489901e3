"""The way to a Prometheus-compatible API: address, credentials, certificates, and what a refusal means.

prometheus-api-client is the client; here stands how it is set up. What is asked is `prometheus` (the newest samples)
and `range_pages` (stretches of time). Secrets are read from files each time the way is opened (they are rotated),
sent in headers only, and stand in no message.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ops_pipelines.core.sources import SourceNonsense, SourceUnavailable
from ops_pipelines.resources.config.cluster_config import TelemetryConfig

if TYPE_CHECKING:
    from ops_pipelines.resources.prometheus.client import StreamingPrometheus


class PrometheusConnection:
    """Opens sessions to one API."""

    def __init__(self, config: TelemetryConfig) -> None:
        """Raise ValueError if `config` could not work: no URL, a secret in it, or two credentials."""
        url = config.url or ""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError("the Prometheus URL must be http(s)://host[:port][/path], without user or password")
        if config.bearer_token_file is not None and config.basic_auth_user is not None:
            raise ValueError("give a bearer token or basic auth, not both")
        if (config.basic_auth_user is None) is not (config.basic_auth_password_file is None):
            raise ValueError("a user and the file of its password go together")
        if config.step < timedelta(seconds=1) or config.step.microseconds:
            raise ValueError(f"step is {config.step}; it must be whole seconds, and at least one")
        self._config = config
        self.url = url.rstrip("/")
        self.timeout_seconds = config.timeout.total_seconds()

    @contextmanager
    def open(self) -> Iterator["StreamingPrometheus"]:
        """Hold a client open. Raises SourceUnavailable if a secret cannot be read."""
        # It takes a second to import, with pandas behind it, and who asks no store needs none of it.
        from requests import Session
        from urllib3.util.retry import Retry

        from ops_pipelines.resources.prometheus.client import StreamingPrometheus

        with Session() as session:
            # A redirect could carry headers to another host; proxies and .netrc of the environment could add secrets.
            session.max_redirects = 0
            session.trust_env = False
            if self._config.ca_file is not None:
                session.verify = str(self._config.ca_file)
            session.headers.update(self._headers())
            session.auth = self._auth()
            yield StreamingPrometheus(url=self.url, retry=Retry(total=0), session=session, timeout=self.timeout_seconds)

    def refusal(self, status: str) -> SourceUnavailable | SourceNonsense:
        """Return the error for an answer that is not 200. The body is left out: a proxy may echo what was sent."""
        if status in ("401", "403"):
            return SourceUnavailable(f"{self.url} refused the credentials (HTTP {status}); check token, user, tenant")
        if status in ("400", "422"):
            return SourceNonsense(f"{self.url} refused the query (HTTP {status}); check that it is a Prometheus API")
        if status == "404":
            return SourceNonsense(f"{self.url} has no /api/v1/query_range (HTTP 404); check the path of the URL")
        return SourceUnavailable(f"{self.url} answered HTTP {status}; check its own log")

    def silence(self, exc: BaseException) -> SourceUnavailable:
        """Return the error for a request that got no answer."""
        return SourceUnavailable(
            f"{self.url} did not answer within {self.timeout_seconds:g} s ({cause_of(exc)}); "
            "check that it runs, its address and its certificate"
        )

    def _headers(self) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity"}  # gzip doubles the latency on a LAN (measured, 512 series)
        if self._config.bearer_token_file is not None:
            headers["Authorization"] = f"Bearer {read_secret(self._config.bearer_token_file)}"
        if self._config.tenant is not None:
            headers["X-Scope-OrgID"] = self._config.tenant
        return headers

    def _auth(self) -> tuple[str, str] | None:
        user, password_file = self._config.basic_auth_user, self._config.basic_auth_password_file
        return None if user is None or password_file is None else (user, read_secret(password_file))


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
