"""Prometheus and what speaks its language (Thanos, Mimir, VictoriaMetrics): the telemetry port, ranges of time for the
lake, and the PromQL with which both ask.

Asks and hands on; what is believed is `lake.telemetry`'s and `lake.metrics.range_answer`'s, how the API is reached
`http_access`'s. Ranges are read in slices that server and memory bear; the bodies stay bytes. A slice that fails is
asked for again, with pauses that grow; one that is too large or too slow is halved; what was yielded is never asked for
twice.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

from ops_pipelines.clock import Clock, SystemClock
from ops_pipelines.core.sources import BodyKind, Page, Query, Sample, SourceError, SourceNonsense, SourceUnavailable
from ops_pipelines.lake.quantities import Quantity, read_quantities
from ops_pipelines.lake.telemetry import watched_metrics
from ops_pipelines.resources.config.cluster_config import TelemetryConfig
from ops_pipelines.resources.http_access import HttpAccess, cause_of

if TYPE_CHECKING:
    from requests import Response, Session

_PATH = "/api/v1/query_range"
_HEADERS = {"Accept-Encoding": "identity"}
"""gzip doubles the latency on a LAN (measured, 512 series)."""
_MAX_QUERY_LENGTH = 6_000
"""Characters of a query in the URL: 8 KiB is what common proxies take of a request line."""
_CHUNK_BYTES = 1 << 18
_ERROR_BYTES = 65_536
_WORDS_OF_A_LIMIT = (b"too many", b"exceed", b"limit", b"maximum resolution", b"cannot select more")
_LABEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)"""
    r"|(?P<range>\[[^\]]*\])|(?P<number>\d[\w.]*)|(?P<word>[A-Za-z_:][\w:]*)|(?P<open>\{)|(?P<close>\})|(?P<other>.)",
    re.DOTALL | re.ASCII,
)
_LISTS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
"""Words that a list of labels may follow."""
_WORDS = _LISTS | frozenset({"and", "or", "unless", "offset", "bool", "atan2", "start", "end", "inf", "nan"})


def _access_to(config: TelemetryConfig) -> HttpAccess:
    """Return the way to a store. Raises ValueError if `config` could not work."""
    if config.step < timedelta(seconds=1) or config.step.microseconds:
        raise ValueError(f"step is {config.step}; it must be whole seconds, and at least one")
    return HttpAccess(config, url=config.url or "", system="Prometheus", tenant=config.tenant)


def _refusal(access: HttpAccess, status: int | str) -> SourceUnavailable | SourceNonsense:
    return access.refusal(status, path=_PATH, refused="the query; check that it is a Prometheus API")


# -- the newest samples --


class PrometheusTelemetry:
    """Reads the watched GPU metrics on a grid of whole steps.

    Every read is a `query_range` whose start and end are the grid time at or before the time asked for; the
    samples carry that time. A series is in the answer if it has a value within `look_back` and was not ended since
    (Prometheus marks a series as ended when its target is gone or no longer shows it), so that a GPU that fell off
    the bus leaves at once, and one whose agent died leaves after `look_back`.
    """

    def __init__(self, config: TelemetryConfig) -> None:
        """Raise ValueError if `config` could not work: no URL, a secret in it, or two credentials."""
        self._access = _access_to(config)
        self._url = self._access.url
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
        # It takes a second to import, with pandas behind it, and who asks no store needs none of it.
        from prometheus_api_client import PrometheusConnect
        from prometheus_api_client.exceptions import PrometheusApiClientException
        from requests import RequestException
        from urllib3.util.retry import Retry

        seconds = self._access.timeout_seconds
        with self._access.open(_HEADERS) as session:
            session.max_redirects = 0
            client = PrometheusConnect(url=self._url, retry=Retry(total=0), session=session, timeout=seconds)
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
                        params={"timeout": f"{seconds:g}s", "partial_response": "false"},
                    ),
                )
            except PrometheusApiClientException as exc:
                match = re.match(r"HTTP Status Code (\d{3})", str(exc))
                raise _refusal(self._access, match[1] if match else "?") from None
            except (KeyError, TypeError, ValueError) as exc:
                # requests' own decoding error is a ValueError too; its text may hold the answer, so it is left out.
                if isinstance(exc, RequestException) and "JSON" not in type(exc).__name__:
                    raise SourceUnavailable(f"{self._url} cannot be asked ({type(exc).__name__})") from None
                raise SourceNonsense(f"{self._url} answered, but no Prometheus result; check the URL") from None
            except (RequestException, OSError) as exc:
                raise self._access.silence(exc) from None

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


# -- how often a store scrapes --


_TARGETS_PATH = "/api/v1/targets"
_INTERVAL = re.compile(r"(?:(\d+)m)?(?:(\d+)s)?")


def read_scrape_seconds(config: TelemetryConfig, *, jobs: Collection[str]) -> int | None:
    """Return the longest interval in which targets of these jobs are scraped; None where the store does not say.

    Prometheus and VictoriaMetrics say it; Thanos and Mimir, which scrape nothing, do not. Raises SourceUnavailable.
    """
    access = _access_to(config)
    from requests import RequestException

    with access.open(_HEADERS) as session:
        try:
            answer = session.get(
                f"{access.url}{_TARGETS_PATH}",
                params={"state": "active"},
                timeout=access.timeout_seconds,
                allow_redirects=False,
            )
            listed = answer.json()["data"]["activeTargets"] if answer.status_code == 200 else []
            intervals = [str(each.get("scrapeInterval"))[:12] for each in listed if each["labels"].get("job") in jobs]
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        except (RequestException, OSError) as exc:
            raise access.silence(exc) from None
    seconds = [
        int(found[1] or 0) * 60 + int(found[2] or 0) for each in intervals if (found := _INTERVAL.fullmatch(each))
    ]
    return max((each for each in seconds if each), default=None)


# -- ranges of time --


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
        self._access = _access_to(config)
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

        with self._access.open(_HEADERS) as session:
            for query in queries:
                at = start
                while at <= end:
                    left = (end - at) // step + 1
                    wanted = min(left, self._points.get(query.promql, self._limits.first_points))
                    body, count = self._read_slice(session, query, at=at, count=wanted, step=step)
                    try:
                        notes = read_notes(body)
                    except UnreadableAnswer as exc:
                        raise SourceNonsense(f"{self._access.url} answered no Prometheus result: {exc}") from None
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
        self, session: "Session", query: Query, *, at: datetime, count: int, step: timedelta
    ) -> tuple[bytes, int]:
        """Return the answer for at most `count` grid times from `at`, and for how many it is."""
        count = min(count, self._limits.max_points)
        failures = 0
        while True:
            try:
                return self._fetch(session, query, at=at, count=count, step=step), count
            except _TooMuch as exc:
                if count == 1:
                    raise SourceNonsense(
                        f"{self._access.url}: {exc} for one grid time; narrow the labels of this cluster, "
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

    def _fetch(self, session: "Session", query: Query, *, at: datetime, count: int, step: timedelta) -> bytes:
        from requests import ConnectionError as NoConnection
        from requests import RequestException, Timeout
        from requests.exceptions import ChunkedEncodingError, ContentDecodingError, SSLError

        began = self._clock.now()
        try:
            with session.get(
                f"{self._access.url}{_PATH}",
                params={
                    "query": query.promql,
                    "start": str(int(at.timestamp())),
                    "end": str(int((at + (count - 1) * step).timestamp())),
                    "step": str(seconds_between(step, count=count)),
                    "timeout": f"{self._access.timeout_seconds:g}s",
                    # Thanos would leave out silent stores without a word, VictoriaMetrics answer from its cache what
                    # was filled in since; Prometheus ignores both.
                    "partial_response": "false",
                    "nocache": "1",
                },
                timeout=self._access.timeout_seconds,
                allow_redirects=False,
                stream=True,
            ) as response:
                if response.status_code != 200:
                    raise self._trouble(response)
                return self._read_body(response, began=began)
        except SSLError as exc:
            raise self._access.silence(exc) from None
        except Timeout as exc:
            raise _Again(self._access.silence(exc), is_slow=True) from None
        except (NoConnection, ChunkedEncodingError, ContentDecodingError) as exc:
            raise _Again(self._access.silence(exc), is_slow="Timeout" in cause_of(exc)) from None
        except (RequestException, OSError) as exc:  # a missing certificate: it would be the same again
            raise self._access.silence(exc) from None

    def _read_body(self, response: "Response", *, began: datetime) -> bytes:
        chunks: list[bytes] = []
        size = 0
        for chunk in response.iter_content(_CHUNK_BYTES):
            chunks.append(chunk)
            size += len(chunk)
            if size > self._limits.max_bytes:
                raise _TooMuch(f"more than {self._limits.max_bytes} bytes")
            if (self._clock.now() - began).total_seconds() > self._limits.max_body_seconds:
                raise _Again(self._access.silence(TimeoutError()), is_slow=True)
        body = b"".join(chunks)
        if not body.lstrip()[:1] == b"{":
            raise SourceNonsense(f"{self._access.url} answered, but no Prometheus result; check the URL")
        if not body[-64:].rstrip().endswith(b"}"):
            raise _Again(SourceNonsense(f"{self._access.url} broke off its answer after {size} bytes"))
        return body

    def _trouble(self, response: "Response") -> Exception:
        """Return what an answer that is not 200 calls for. Its body is looked at, and quoted nowhere."""
        status = response.status_code
        said = next(response.iter_content(_ERROR_BYTES), b"").lower()
        refusal = _refusal(self._access, status)
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

    All names are asked for with the same look-back (`newest_values`), live and for history: with the server's own of 5
    minutes a dead exporter would continue for as long, and an hour filled in later would differ from one watched.
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


# -- PromQL --


def matchers(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return `name="value"` for each label. Raises ValueError on what is no label name."""
    found: list[str] = []
    for name, value in labels.items():
        if not _LABEL_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a label name")
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        found.append(f'{name}="{escaped}"')
    return tuple(found)


def newest_values(
    names: Sequence[str], *, labels: Mapping[str, str], look_back_seconds: int, among: Sequence[str] = ()
) -> str:
    """Return the query for the newest values of the series `names`, at each grid time, no older than the look-back.

    It both narrows the look-back and honours the marks of ended series: `last_over_time` alone would answer for a
    series that was ended; the bare selector alone looks 5 minutes back. (`and` does not compare names: of a target that
    continues, one series that ends is still answered for, for as long as the look-back.) `among` are further matchers.
    """
    selector = "{" + ",".join([f'__name__=~"{"|".join(names)}"', *among, *matchers(labels)]) + "}"
    return f"last_over_time({selector}[{look_back_seconds}s]) and {selector}"


def narrow(promql: str, labels: Mapping[str, str]) -> str:
    """Return a query of the catalogue with the cluster's labels in each of its selectors."""
    added = ",".join(matchers(labels))
    if not added:
        return promql
    parts = [(match.lastgroup, match[0]) for match in _TOKEN.finditer(promql)]
    written: list[str] = []
    depth = 0
    is_in_list = False
    for index, (kind, part) in enumerate(parts):
        following = next((text for _, text in parts[index + 1 :] if not text.isspace()), "")
        before = next((text for _, text in reversed(parts[:index]) if not text.isspace()), "")
        if kind == "open":
            depth += 1
            written.append(f"{{{added}" + ("" if following == "}" else ","))
            continue
        written.append(part)
        if kind == "close":
            depth -= 1
        elif part == "(" and before.lower() in _LISTS:
            is_in_list = True
        elif part == ")":
            is_in_list = False
        # A word before a bracket is a function; one before `by` aggregates; one before a brace is narrowed there.
        is_word = kind == "word" and depth == 0 and not is_in_list and part.lower() not in _WORDS
        if is_word and following.lower() not in ("(", "{", "by", "without"):
            written.append(f"{{{added}}}")
    return "".join(written)
