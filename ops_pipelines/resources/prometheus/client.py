"""The one client that sends PromQL: prometheus-api-client's, which also hands out long answers as they come.

Importing it takes a second, with pandas behind it: `connection` does it when the first way is opened.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

from prometheus_api_client import PrometheusConnect
from requests import Response


class StreamingPrometheus(PrometheusConnect):  # type: ignore[misc]  # it has no types
    """The client, and its `query_range` as bytes, for answers better decoded into columns than into objects."""

    @contextmanager
    def stream_query_range(
        self, query: str, *, start: int, end: int, step: int, params: Mapping[str, str]
    ) -> Iterator[Response]:
        """Hold an answer open, whatever its status; times are seconds since 1970. Raises as requests does."""
        with self._session.get(
            f"{self.url}/api/v1/query_range",
            params={"query": query, "start": str(start), "end": str(end), "step": str(step), **params},
            timeout=self._timeout,
            stream=True,
        ) as response:
            yield cast("Response", response)
