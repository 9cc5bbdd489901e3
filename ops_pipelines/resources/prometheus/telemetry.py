"""The telemetry port on Prometheus and what speaks its language: Thanos, Mimir, VictoriaMetrics.

Asks and hands on; what is believed is `lake.telemetry`'s business, how the API is reached `connection`'s.
"""

import re
from datetime import UTC, datetime
from typing import cast

from ops_pipelines.core.sources import Sample, SourceNonsense, SourceUnavailable
from ops_pipelines.lake.telemetry import watched_metrics
from ops_pipelines.resources.config.cluster_config import TelemetryConfig
from ops_pipelines.resources.prometheus.connection import PrometheusConnection
from ops_pipelines.resources.prometheus.promql import newest_values


class PrometheusTelemetry:
    """Reads the watched GPU metrics on a grid of whole steps.

    Every read is a `query_range` whose start and end are the grid time at or before the time asked for; the
    samples carry that time. A series is in the answer if it has a value within `look_back` and was not ended since
    (Prometheus marks a series as ended when its target is gone or no longer shows it), so that a GPU that fell off
    the bus leaves at once, and one whose agent died leaves after `look_back`.
    """

    def __init__(self, config: TelemetryConfig) -> None:
        """Raise ValueError if `config` could not work: no URL, a secret in it, or two credentials."""
        self._connection = PrometheusConnection(config)
        self._url = self._connection.url
        self._step_seconds = int(config.step.total_seconds())
        self._query = newest_values(
            tuple(watched_metrics()), labels=config.labels, look_back_seconds=int(config.look_back.total_seconds())
        )

    def read_samples(self, at: datetime) -> tuple[Sample, ...]:
        """Return the watched series at the grid time at or before `at`; see `core.sources.Telemetry`."""
        grid_seconds = int(at.timestamp()) // self._step_seconds * self._step_seconds
        grid_time = datetime.fromtimestamp(grid_seconds, tz=UTC)
        answer = self._ask(grid_time)
        if not isinstance(answer, list):
            raise SourceNonsense(f"{self._url} answered no list of series; check that it is a Prometheus API")
        samples = (self._sample_of(series, grid_time, grid_seconds=grid_seconds) for series in answer)
        return tuple(sorted(samples, key=lambda sample: (sample.metric, sorted(sample.labels.items()))))

    def _ask(self, grid_time: datetime) -> object:
        from prometheus_api_client.exceptions import PrometheusApiClientException
        from requests import RequestException

        timeout = f"{self._connection.timeout_seconds:g}s"
        with self._connection.open() as client:
            try:
                return cast(
                    "object",
                    client.custom_query_range(
                        self._query,
                        start_time=grid_time,
                        end_time=grid_time,
                        # One time has no steps, and VictoriaMetrics keeps what is new out of ranges of small ones.
                        step=str(max(self._step_seconds, 60)),
                        # Thanos would otherwise leave out silent stores without a word; Prometheus ignores the key.
                        params={"timeout": timeout, "partial_response": "false"},
                    ),
                )
            except PrometheusApiClientException as exc:
                match = re.match(r"HTTP Status Code (\d{3})", str(exc))
                raise self._connection.refusal(match[1] if match else "?") from None
            except (KeyError, TypeError, ValueError) as exc:
                # requests' own decoding error is a ValueError too; its text may hold the answer, so it is left out.
                if isinstance(exc, RequestException) and "JSON" not in type(exc).__name__:
                    raise SourceUnavailable(f"{self._url} cannot be asked ({type(exc).__name__})") from None
                raise SourceNonsense(f"{self._url} answered, but no Prometheus result; check the URL") from None
            except (RequestException, OSError) as exc:
                raise self._connection.silence(exc) from None

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
