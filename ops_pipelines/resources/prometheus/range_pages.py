"""Stretches of time from a Prometheus-compatible API, in slices that server and memory bear; the bodies stay bytes.

Decoding is `lake.metrics.range_answer`. A slice that fails is asked for again, with pauses that grow; one that is too
large or too slow is halved; what was yielded is never asked for twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import quote

from ops_pipelines.clock import Clock, SystemClock
from ops_pipelines.core.sources import BodyKind, Page, Query, SourceError, SourceNonsense
from ops_pipelines.lake.quantities import Quantity, read_quantities
from ops_pipelines.resources.config.cluster_config import TelemetryConfig
from ops_pipelines.resources.prometheus.connection import PrometheusConnection, cause_of
from ops_pipelines.resources.prometheus.promql import narrow, newest_values

if TYPE_CHECKING:
    from requests import Response

    from ops_pipelines.resources.prometheus.client import StreamingPrometheus

_MAX_QUERY_LENGTH = 6_000
"""Characters of a query in the URL: 8 KiB is what common proxies take of a request line."""
_CHUNK_BYTES = 1 << 18
_ERROR_BYTES = 65_536
_WORDS_OF_A_LIMIT = (b"too many", b"exceed", b"limit", b"maximum resolution", b"cannot select more")


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeLimits:
    """How much is asked for at once, and how often again."""

    max_points: int = 11_000
    """Grid times of one answer: Prometheus refuses more."""
    first_points: int = 60
    """Grid times of the first slice of a query that was never asked; later ones follow from what it weighed."""
    wanted_bytes: int = 32 << 20
    max_bytes: int = 512 << 20
    """A larger answer is dropped while it comes, and its slice halved."""
    max_body_seconds: float = 300.0
    """How long one answer may take to arrive in all."""
    attempts: int = 5
    first_pause_seconds: float = 0.5
    max_pause_seconds: float = 30.0


class _Again(Exception):
    """This request failed in a way that may pass."""

    def __init__(self, error: SourceError, *, is_slow: bool = False, pause_seconds: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_slow = is_slow
        self.pause_seconds = pause_seconds
        """What the server asks for; 0 if it asks for nothing."""


class _TooMuch(Exception):
    """The answer, or the work that it takes, is too large for one request."""


class PrometheusMetrics:
    """Reads ranges; see `core.sources.MetricSource`. One reading holds one session."""

    def __init__(
        self,
        config: TelemetryConfig,
        *,
        clock: Clock | None = None,
        limits: RangeLimits | None = None,
        random: Random | None = None,
    ) -> None:
        """Raise ValueError if `config` could not work. `random` spreads the pauses of many readers."""
        self._connection = PrometheusConnection(config)
        self._clock = clock or SystemClock()
        self._limits = limits or RangeLimits()
        self._random = random or Random()
        self._points: dict[str, int] = {}
        """Query -> grid times that fitted, so that the next reading begins with them."""

    @property
    def source(self) -> str:
        return "prometheus"

    @property
    def has_history(self) -> bool:
        return True

    def read_range(
        self, queries: Sequence[Query], *, start: datetime, end: datetime, step_seconds: int
    ) -> Iterator[Page]:
        """Yield the answers query by query, each query's slices in order of time; see `core.sources`.

        Raises ValueError for times off the grid; a range that ends before it starts holds nothing.
        """
        for time in (start, end):
            if time.microsecond or int(time.timestamp()) % step_seconds:
                raise ValueError(f"{time.isoformat()} is no whole multiple of {step_seconds} s")
        return self._read(queries, start=start, end=end, step=timedelta(seconds=step_seconds))

    def _read(self, queries: Sequence[Query], *, start: datetime, end: datetime, step: timedelta) -> Iterator[Page]:
        from ops_pipelines.lake.metrics.range_answer import UnreadableAnswer, read_notes

        with self._connection.open() as client:
            for query in queries:
                at = start
                while at <= end:
                    left = (end - at) // step + 1
                    wanted = min(left, self._points.get(query.promql, self._limits.first_points))
                    body, count = self._read_slice(client, query, at=at, count=wanted, step=step)
                    try:
                        notes = read_notes(body)
                    except UnreadableAnswer as exc:
                        raise SourceNonsense(f"{self._connection.url} answered no Prometheus result: {exc}") from None
                    self._learn(query, count=count, size=len(body))
                    last = at + (count - 1) * step
                    yield Page(
                        kind=BodyKind.RANGE_ANSWER,
                        body=body,
                        source=self.source,
                        start=at,
                        end=last,
                        query=query,
                        notes=notes,
                    )
                    del body  # the caller is done with it, and the next may be as large
                    at = last + step

    def _learn(self, query: Query, *, count: int, size: int) -> None:
        fitting = self._limits.wanted_bytes * count // max(size, 1)
        growing = 4 * max(count, self._limits.first_points)
        self._points[query.promql] = max(1, min(fitting, growing, self._limits.max_points))

    def _read_slice(
        self, client: "StreamingPrometheus", query: Query, *, at: datetime, count: int, step: timedelta
    ) -> tuple[bytes, int]:
        """Return the answer for at most `count` grid times from `at`, and for how many it is."""
        count = min(count, self._limits.max_points)
        failures = 0
        while True:
            try:
                return self._fetch(client, query, at=at, count=count, step=step), count
            except _TooMuch as exc:
                if count == 1:
                    raise SourceNonsense(
                        f"{self._connection.url}: {exc} for one grid time; narrow the labels of this cluster, "
                        "or raise the limit"
                    ) from None
                count //= 2
            except _Again as exc:
                failures += 1
                if failures >= self._limits.attempts:
                    raise exc.error from None
                growing = min(self._limits.first_pause_seconds * 2 ** (failures - 1), self._limits.max_pause_seconds)
                spread = growing * (0.5 + self._random.random() / 2)
                self._clock.wait(max(spread, min(exc.pause_seconds, self._limits.max_pause_seconds)))
                if exc.is_slow:
                    count = max(1, count // 2)

    def _fetch(
        self, client: "StreamingPrometheus", query: Query, *, at: datetime, count: int, step: timedelta
    ) -> bytes:
        from requests import ConnectionError as NoConnection
        from requests import RequestException, Timeout
        from requests.exceptions import ChunkedEncodingError, ContentDecodingError, SSLError

        began = self._clock.now()
        try:
            with client.stream_query_range(
                query.promql,
                start=int(at.timestamp()),
                end=int((at + (count - 1) * step).timestamp()),
                step=seconds_between(step, count=count),
                params={
                    "timeout": f"{self._connection.timeout_seconds:g}s",
                    # Thanos would leave out silent stores without a word, VictoriaMetrics answer from its cache what
                    # was filled in since; Prometheus ignores both.
                    "partial_response": "false",
                    "nocache": "1",
                },
            ) as response:
                if response.status_code != 200:
                    raise self._trouble(response)
                return self._read_body(response, began=began)
        except SSLError as exc:
            raise self._connection.silence(exc) from None
        except Timeout as exc:
            raise _Again(self._connection.silence(exc), is_slow=True) from None
        except (NoConnection, ChunkedEncodingError, ContentDecodingError) as exc:
            raise _Again(self._connection.silence(exc), is_slow="Timeout" in cause_of(exc)) from None
        except (RequestException, OSError) as exc:  # a redirect, a missing certificate: it would be the same again
            raise self._connection.silence(exc) from None

    def _read_body(self, response: "Response", *, began: datetime) -> bytes:
        chunks: list[bytes] = []
        size = 0
        for chunk in response.iter_content(_CHUNK_BYTES):
            chunks.append(chunk)
            size += len(chunk)
            if size > self._limits.max_bytes:
                raise _TooMuch(f"more than {self._limits.max_bytes} bytes")
            if (self._clock.now() - began).total_seconds() > self._limits.max_body_seconds:
                raise _Again(self._connection.silence(TimeoutError()), is_slow=True)
        body = b"".join(chunks)
        if not body.lstrip()[:1] == b"{":
            raise SourceNonsense(f"{self._connection.url} answered, but no Prometheus result; check the URL")
        if not body[-64:].rstrip().endswith(b"}"):
            raise _Again(SourceNonsense(f"{self._connection.url} broke off its answer after {size} bytes"))
        return body

    def _trouble(self, response: "Response") -> Exception:
        """Return what an answer that is not 200 calls for. Its body is looked at, and quoted nowhere."""
        status = response.status_code
        said = next(response.iter_content(_ERROR_BYTES), b"").lower()
        refusal = self._connection.refusal(str(status))
        if status == 413 or (status in (400, 422) and any(word in said for word in _WORDS_OF_A_LIMIT)):
            return _TooMuch(f"the server refuses so much work (HTTP {status})")
        if status in (408, 429) or status >= 500:
            asked = response.headers.get("Retry-After", "")
            return _Again(
                refusal,
                is_slow=status in (408, 504) or b"timeout" in said or b"timed out" in said,
                pause_seconds=float(asked) if asked.isdigit() else 0.0,
            )
        return refusal


def seconds_between(step: timedelta, *, count: int) -> int:
    """Return the step to ask for. For one grid time it means nothing, and is a minute at least.

    VictoriaMetrics takes the last 30 s of a range with steps below a minute for incomplete, and leaves them out of an
    answer that is no longer than that: the live cycle would see nothing.
    """
    seconds = int(step.total_seconds())
    return seconds if count > 1 else max(seconds, 60)


def all_queries(labels: Mapping[str, str], *, look_back_seconds: int) -> tuple[Query, ...]:
    """Return what a store is asked for so that every table is filled; `labels` select the cluster in a shared store.

    One query per table for all series that the catalogue knows by name (more than one where it would not fit into a
    URL, or where series count only with certain labels), and one per quantity that needs a query of its own. A name
    that two tables know is asked for once: rows are placed by name.

    All names are asked for with the same look-back (`promql.newest_values`), live and for history: with the server's
    own of 5 minutes a dead exporter would go on for as long, and an hour filled in later would differ from one watched.
    """
    quantities = read_quantities()
    conditions: dict[str, list[Mapping[str, str]]] = {}
    table_of: dict[str, str] = {}
    for quantity in quantities:
        for series in quantity.series:
            conditions.setdefault(series.name, []).append(series.labels)
            table_of.setdefault(series.name, quantity.table)
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, label_sets in conditions.items():
        groups.setdefault((table_of[name], _common(label_sets)), []).append(name)
    found: list[Query] = []
    for (table, among), names in groups.items():
        for part in _fitting(names, labels=labels, look_back_seconds=look_back_seconds, among=among):
            found.append(Query(promql=part, table=table))
    return (*found, *(_own(quantity, labels) for quantity in quantities if quantity.promql))


def _own(quantity: Quantity, labels: Mapping[str, str]) -> Query:
    return Query(promql=narrow(quantity.promql, labels), table=quantity.table, column=quantity.column)


def _common(label_sets: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return matchers for the labels that every use of a series demands: of CPU times, only the modes that are kept."""
    shared = set.intersection(*(set(labels) for labels in label_sets))
    found: list[str] = []
    for name in sorted(shared):
        values = sorted({labels[name] for labels in label_sets})
        if all(value.isalnum() for value in values):
            found.append(f'{name}=~"{"|".join(values)}"')
    return tuple(found)


def _fitting(
    names: Sequence[str], *, labels: Mapping[str, str], look_back_seconds: int, among: Sequence[str]
) -> Iterator[str]:
    """Yield one query for all names, or several that are each short enough."""
    query = newest_values(names, labels=labels, look_back_seconds=look_back_seconds, among=among)
    if len(quote(query)) <= _MAX_QUERY_LENGTH or len(names) == 1:
        yield query
        return
    middle = len(names) // 2
    for part in (names[:middle], names[middle:]):
        yield from _fitting(part, labels=labels, look_back_seconds=look_back_seconds, among=among)
