"""The telemetry port on Prometheus and what speaks its language: Thanos, Mimir, VictoriaMetrics.

Asks and hands on; what is believed is `frames.telemetry`'s business. Secrets are read from files at each query (they
are rotated), sent in headers only, and stand in no message.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from ops_pipelines.frames.telemetry import METRICS
from ops_pipelines.ports.source_error import SourceNonsense, SourceUnavailable
from ops_pipelines.ports.telemetry import Sample
from ops_pipelines.resources.cluster_config import TelemetryConfig

_LABEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class PrometheusTelemetry:
    """Reads the watched GPU metrics on a grid of whole steps.

    Every read is a `query_range` whose start and end are the grid time at or before the time asked for; the
    samples carry that time. A series is in the answer if it has a value within `look_back` and was not ended since
    (Prometheus marks a series as ended when its target is gone or no longer shows it), so that a GPU that fell off
    the bus leaves at once, and one whose agent died leaves after `look_back`.
    """

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
        self._url = url.rstrip("/")
        self._step_seconds = int(config.step.total_seconds())
        self._timeout_seconds = config.timeout.total_seconds()
        self._query = _query(config.labels, look_back_seconds=int(config.look_back.total_seconds()))

    def read_samples(self, at: datetime) -> tuple[Sample, ...]:
        """Return the watched series at the grid time at or before `at`; see `ports.telemetry.Telemetry`."""
        grid_seconds = int(at.timestamp()) // self._step_seconds * self._step_seconds
        grid_time = datetime.fromtimestamp(grid_seconds, tz=UTC)
        answer = self._ask(grid_time)
        if not isinstance(answer, list):
            raise SourceNonsense(f"{self._url} answered no list of series; check that it is a Prometheus API")
        samples = (self._sample_of(series, grid_time, grid_seconds=grid_seconds) for series in answer)
        return tuple(sorted(samples, key=lambda sample: (sample.metric, sorted(sample.labels.items()))))

    def _ask(self, grid_time: datetime) -> object:
        # Both take a second to import, with pandas behind the client, and nothing else in the package needs them.
        from prometheus_api_client import PrometheusConnect
        from prometheus_api_client.exceptions import PrometheusApiClientException
        from requests import RequestException, Session
        from urllib3.util.retry import Retry

        headers = self._headers()
        auth = self._auth()
        with Session() as session:
            # A redirect could carry headers to another host; proxies and .netrc of the environment could add secrets.
            session.max_redirects = 0
            session.trust_env = False
            if self._config.ca_file is not None:
                session.verify = str(self._config.ca_file)
            client = PrometheusConnect(
                url=self._url,
                headers=headers,
                auth=auth,
                retry=Retry(total=0),
                session=session,
                timeout=self._timeout_seconds,
            )
            try:
                return cast(
                    "object",
                    client.custom_query_range(
                        self._query,
                        start_time=grid_time,
                        end_time=grid_time,
                        step=str(self._step_seconds),
                        # Thanos would otherwise leave out silent stores without a word; Prometheus ignores the key.
                        params={"timeout": f"{self._timeout_seconds:g}s", "partial_response": "false"},
                    ),
                )
            except PrometheusApiClientException as exc:
                raise self._refusal(str(exc)) from None
            except (KeyError, TypeError, ValueError) as exc:
                # requests' own decoding error is a ValueError too; its text may hold the answer, so it is left out.
                if isinstance(exc, RequestException) and "JSON" not in type(exc).__name__:
                    raise SourceUnavailable(f"{self._url} cannot be asked ({type(exc).__name__})") from None
                raise SourceNonsense(f"{self._url} answered, but no Prometheus result; check the URL") from None
            except (RequestException, OSError) as exc:
                raise SourceUnavailable(
                    f"{self._url} did not answer within {self._timeout_seconds:g} s ({_cause(exc)}); "
                    "check that it runs, its address and its certificate"
                ) from None

    def _headers(self) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity"}  # gzip doubles the latency on a LAN (measured, 512 series)
        if self._config.bearer_token_file is not None:
            headers["Authorization"] = f"Bearer {_read_secret(self._config.bearer_token_file)}"
        if self._config.tenant is not None:
            headers["X-Scope-OrgID"] = self._config.tenant
        return headers

    def _auth(self) -> tuple[str, str] | None:
        user, password_file = self._config.basic_auth_user, self._config.basic_auth_password_file
        return None if user is None or password_file is None else (user, _read_secret(password_file))

    def _refusal(self, message: str) -> SourceUnavailable | SourceNonsense:
        """Return the error for an answer that is not 200. The body is left out: a proxy may echo what was sent."""
        match = re.match(r"HTTP Status Code (\d{3})", message)
        status = match[1] if match else "?"
        if status in ("401", "403"):
            return SourceUnavailable(f"{self._url} refused the credentials (HTTP {status}); check token, user, tenant")
        if status in ("400", "422"):
            return SourceNonsense(f"{self._url} refused the query (HTTP {status}); check that it is a Prometheus API")
        if status == "404":
            return SourceNonsense(f"{self._url} has no /api/v1/query_range (HTTP 404); check the path of the URL")
        return SourceUnavailable(f"{self._url} answered HTTP {status}; check its own log")

    def _sample_of(self, series: object, grid_time: datetime, *, grid_seconds: int) -> Sample:
        try:
            if not isinstance(series, dict):
                raise TypeError("a series is no object")
            labels = {str(name): str(value) for name, value in series["metric"].items()}
            metric = labels.pop("__name__")
            ((seconds, value),) = series["values"]
            if float(seconds) != grid_seconds:
                raise ValueError("a value off the grid")
            return Sample(metric=metric, labels=labels, value=float(value), sampled_at=grid_time)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise SourceNonsense(
                f"{self._url} answered a series that cannot be read ({type(exc).__name__}: {str(exc)[:100]})"
            ) from exc


def _query(labels: Mapping[str, str], *, look_back_seconds: int) -> str:
    """Return the PromQL that both narrows the look-back and honours the marks of ended series.

    `last_over_time` alone would answer for a series that was ended; the bare selector alone looks 5 minutes back.
    """
    matchers = [f'__name__=~"{"|".join(METRICS)}"']
    for name, value in labels.items():
        if not _LABEL_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a label name")
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        matchers.append(f'{name}="{escaped}"')
    selector = "{" + ",".join(matchers) + "}"
    return f"last_over_time({selector}[{look_back_seconds}s]) and {selector}"


def _read_secret(path: Path) -> str:
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SourceUnavailable(f"the secret in {path} cannot be read ({type(exc).__name__}); check the file") from None
    if not secret or not secret.isprintable():
        raise SourceUnavailable(f"the secret in {path} is empty or not one line of text; check the file")
    return secret


def _cause(exc: BaseException) -> str:
    """Return what lies at the bottom of a chain of connection errors, as a class name: texts may quote the request."""
    seen: BaseException = exc
    while (below := seen.__cause__ or seen.__context__) is not None:
        seen = below
    return type(seen).__name__
