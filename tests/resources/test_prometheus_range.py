"""Ranges from a store: how an interval is cut, what is tried again, and what is reported when nothing believable
comes."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from ops_pipelines.core.sources import (
    BodyKind,
    MetricSource,
    Page,
    Query,
    SourceError,
    SourceNonsense,
    SourceUnavailable,
)
from ops_pipelines.lake.metrics.range_answer import decode_range_answer
from ops_pipelines.lake.quantities import read_quantities
from ops_pipelines.resources.config.cluster_config import TelemetryConfig, TelemetryKind
from ops_pipelines.resources.prometheus import PrometheusMetrics, RangeLimits, all_queries, narrow, newest_values
from tests.lab.metrics_servers import Row, start_prometheus, start_victoria_metrics

START = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
QUERY = Query(promql="up", table="gpu_telemetry")
SECRET = "hunter2-token"


@dataclass
class PatientClock:
    """Lets time pass at once, and remembers how long it was asked to wait."""

    at: datetime = START
    waits: list[float] = field(default_factory=list)

    def now(self) -> datetime:
        return self.at

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.at += timedelta(seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer out of the ordinary."""

    status: int = 200
    body: bytes | None = None
    """None: the right one."""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_to: int | None = None
    """Bytes that are sent of the promised length, before the connection is closed."""
    is_length_told: bool = True
    is_silent: bool = False
    """Nothing is sent until the test is over."""


@dataclass
class Store:
    """A range API over HTTP: one series whose value is its time; it answers what `next_answers` say first."""

    url: str = ""
    next_answers: list[Answer] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    padding: int = 0
    """Bytes that each point weighs more."""
    over: threading.Event = field(default_factory=threading.Event)

    def right_body(self, asked: Mapping[str, str]) -> bytes:
        times = range(int(asked["start"]), int(asked["end"]) + 1, int(asked["step"]))
        values = [[time, f"{time}.{'0' * self.padding}"] for time in times]
        result = [{"metric": {"__name__": "up"}, "values": values}]
        return json.dumps(
            {"status": "success", "data": {"resultType": "matrix", "result": result}}, separators=(",", ":")
        ).encode()

    def slices(self) -> list[tuple[int, int]]:
        """Return what was asked for: first grid point (0 is START) and number of points."""
        found = []
        for each in self.asked:
            first, last = (int(each[key]) - int(START.timestamp()) for key in ("start", "end"))
            found.append((first // 15, (last - first) // 15 + 1))
        return found


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
            store.asked.append(asked)
            store.headers.append(dict(self.headers))
            answer = store.next_answers.pop(0) if store.next_answers else Answer()
            if answer.is_silent:
                store.over.wait(30)
                return
            body = store.right_body(asked) if answer.body is None else answer.body
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.is_length_told:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: answer.cut_to])

        def log_message(self, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    store.url = f"http://127.0.0.1:{server.server_port}"
    yield store
    store.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def clock() -> PatientClock:
    return PatientClock()


def source_of(
    store: Store,
    clock: PatientClock,
    *,
    limits: RangeLimits | None = None,
    timeout: timedelta = timedelta(seconds=10),
    bearer_token_file: Path | None = None,
    tenant: str | None = None,
) -> PrometheusMetrics:
    config = TelemetryConfig(
        kind=TelemetryKind.PROMETHEUS,
        url=store.url,
        timeout=timeout,
        bearer_token_file=bearer_token_file,
        tenant=tenant,
    )
    return PrometheusMetrics(config, clock=clock, limits=limits, random=Random(1))


def read(source: MetricSource, *queries: Query, points: int = 8) -> Iterator[Page]:
    end = START + (points - 1) * STEP
    return source.read_range(queries or (QUERY,), start=START, end=end, step_seconds=15)


def values(pages: list[Page]) -> list[float]:
    return [value for page in pages for value in decode_range_answer(page.body).values.tolist()]


def wanted(points: int = 8) -> list[float]:
    return [START.timestamp() + 15 * index for index in range(points)]


def test_range_is_cut_into_slices_that_join(store: Store, clock: PatientClock) -> None:
    pages = list(read(source_of(store, clock, limits=RangeLimits(first_points=3, max_points=3))))

    assert store.slices() == [(0, 3), (3, 3), (6, 2)]
    assert values(pages) == wanted()
    assert [(page.start, page.end) for page in pages] == [
        (START, START + 2 * STEP),
        (START + 3 * STEP, START + 5 * STEP),
        (START + 6 * STEP, START + 7 * STEP),
    ]
    assert {(page.kind, page.source, page.query, page.node, page.notes) for page in pages} == {
        (BodyKind.RANGE_ANSWER, "prometheus", QUERY, None, ())
    }


def test_question_is_made_for_every_store_of_the_family(store: Store, clock: PatientClock, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET)

    list(read(source_of(store, clock, bearer_token_file=tmp_path / "token", tenant="gpu-ops"), points=1))

    (asked,), (headers,) = store.asked, store.headers
    assert asked == {
        "query": "up",
        "start": str(int(START.timestamp())),
        "end": str(int(START.timestamp())),
        "step": "60",  # VictoriaMetrics leaves what is new out of ranges of smaller steps
        "timeout": "10s",
        "partial_response": "false",
        "nocache": "1",
    }
    assert (headers["Authorization"], headers["X-Scope-OrgID"]) == (f"Bearer {SECRET}", "gpu-ops")
    assert headers["Accept-Encoding"] == "identity"


def test_no_slice_has_more_points_than_the_server_gives(store: Store, clock: PatientClock) -> None:
    pages = list(read(source_of(store, clock, limits=RangeLimits(first_points=100_000)), points=11_001))

    assert store.slices() == [(0, 11_000), (11_000, 1)]
    assert values(pages) == wanted(11_001)


@pytest.mark.parametrize(
    ("padding", "slices"),
    [
        pytest.param(0, [(0, 2), (2, 8), (10, 32), (42, 38)], id="small: slices grow fourfold at most"),
        pytest.param(
            970, [(0, 2), *((first, 3) for first in range(2, 80, 3))], id="1 kB a point: four fit, less the frame"
        ),
        pytest.param(10_000, [(0, 2), *((first, 1) for first in range(2, 80))], id="10 kB a point: one by one"),
    ],
)
def test_slices_grow_and_shrink_to_the_wanted_size(
    store: Store, clock: PatientClock, padding: int, slices: list[tuple[int, int]]
) -> None:
    store.padding = padding

    list(read(source_of(store, clock, limits=RangeLimits(first_points=2, wanted_bytes=4_000)), points=80))

    assert store.slices() == slices


def test_next_reading_begins_with_the_slice_that_fitted(store: Store, clock: PatientClock) -> None:
    source = source_of(store, clock, limits=RangeLimits(first_points=2))
    list(read(source, points=10))
    store.asked.clear()

    list(read(source, points=10))

    assert store.slices() == [(0, 10)]


def test_every_query_is_read_over_the_whole_range(store: Store, clock: PatientClock) -> None:
    other = Query(promql="down", table="node_telemetry", column="load_1m")

    pages = list(read(source_of(store, clock, limits=RangeLimits(first_points=4, max_points=4)), QUERY, other))

    assert [page.query for page in pages] == [QUERY, QUERY, other, other]
    assert [each["query"] for each in store.asked] == ["up", "up", "down", "down"]


def test_no_queries_ask_nothing(store: Store, clock: PatientClock) -> None:
    source = source_of(store, clock)

    assert list(source.read_range((), start=START, end=START, step_seconds=15)) == []
    assert store.asked == []


def test_range_that_ends_before_it_starts_asks_nothing(store: Store, clock: PatientClock) -> None:
    assert list(source_of(store, clock).read_range((QUERY,), start=START, end=START - STEP, step_seconds=15)) == []
    assert store.asked == []


def test_next_slice_is_asked_for_when_the_caller_wants_it(store: Store, clock: PatientClock) -> None:
    pages = read(source_of(store, clock, limits=RangeLimits(first_points=4, max_points=4)))

    next(pages)

    assert store.slices() == [(0, 4)]


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(Answer(status=500, body=b"{}"), id="500"),
        pytest.param(Answer(status=502, body=b"<html>"), id="502"),
        pytest.param(Answer(status=503, body=b"{}"), id="503"),
        pytest.param(Answer(status=429, body=b""), id="too many requests"),
        pytest.param(Answer(cut_to=40), id="cut, the length is reported"),
        pytest.param(Answer(cut_to=40, is_length_told=False), id="cut, the length is not reported"),
    ],
)
def test_what_may_pass_is_asked_again_and_nothing_comes_twice(
    store: Store, clock: PatientClock, trouble: Answer
) -> None:
    store.next_answers = [Answer(), trouble, trouble]

    pages = list(read(source_of(store, clock, limits=RangeLimits(first_points=4, max_points=4))))

    assert store.slices() == [(0, 4), (4, 4), (4, 4), (4, 4)]
    assert values(pages) == wanted()
    assert len(clock.waits) == 2


def test_pauses_grow_and_are_spread_and_bounded(store: Store, clock: PatientClock) -> None:
    store.next_answers = [Answer(status=503, body=b"")] * 9

    list(read(source_of(store, clock, limits=RangeLimits(attempts=10, first_pause_seconds=1, max_pause_seconds=8))))

    bounds = [1, 2, 4, 8, 8, 8, 8, 8, 8]
    assert all(most / 2 <= wait <= most for wait, most in zip(clock.waits, bounds, strict=True))
    assert len(set(clock.waits)) == 9


@pytest.mark.parametrize(("asked", "least"), [("7", 7.0), ("99999", 30.0), ("soon", 0.25)])
def test_pause_that_the_server_asks_for_is_kept_within_bounds(
    store: Store, clock: PatientClock, asked: str, least: float
) -> None:
    store.next_answers = [Answer(status=429, body=b"", headers={"Retry-After": asked})]

    list(read(source_of(store, clock)))

    (wait,) = clock.waits
    assert least <= wait <= max(least, 0.5)


def test_server_that_stays_broken_is_unavailable_and_what_came_before_is_whole(
    store: Store, clock: PatientClock
) -> None:
    store.next_answers = [Answer(), *[Answer(status=500, body=SECRET.encode())] * 3]
    got: list[Page] = []

    with pytest.raises(SourceUnavailable, match="HTTP 500") as caught:
        got.extend(read(source_of(store, clock, limits=RangeLimits(first_points=4, max_points=4, attempts=3))))

    assert SECRET not in str(caught.value)
    assert len(store.asked) == 4
    assert len(clock.waits) == 2


def test_server_that_hangs_is_asked_for_half_and_then_given_up(store: Store, clock: PatientClock) -> None:
    store.next_answers = [Answer(is_silent=True)] * 3
    limits = RangeLimits(first_points=8, attempts=3)

    with pytest.raises(SourceUnavailable, match=r"did not answer within 0\.2 s"):
        list(read(source_of(store, clock, limits=limits, timeout=timedelta(seconds=0.2))))

    assert store.slices() == [(0, 8), (0, 4), (0, 2)]


def test_query_that_is_too_slow_for_the_server_is_halved(store: Store, clock: PatientClock) -> None:
    slow = Answer(status=503, body=b'{"status":"error","errorType":"timeout","error":"query timed out"}')
    store.next_answers = [slow]

    pages = list(read(source_of(store, clock, limits=RangeLimits(first_points=8))))

    assert store.slices()[:2] == [(0, 8), (0, 4)]
    assert values(pages) == wanted()


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(
            Answer(status=400, body=b'{"error":"exceeded maximum resolution of 11,000 points per timeseries"}'),
            id="too many points",
        ),
        pytest.param(
            Answer(status=422, body=b'{"error":"query processing would load too many samples"}'), id="samples"
        ),
        pytest.param(Answer(status=413, body=b""), id="413"),
        pytest.param(Answer(body=b"{" + b" " * 5_000 + b"}"), id="a body above the bound"),
    ],
)
def test_slice_that_is_too_large_is_halved_at_once(store: Store, clock: PatientClock, trouble: Answer) -> None:
    store.next_answers = [trouble]

    pages = list(read(source_of(store, clock, limits=RangeLimits(first_points=8, max_bytes=4_000))))

    assert store.slices()[:2] == [(0, 8), (0, 4)]
    assert values(pages) == wanted()
    assert clock.waits == []


def test_one_grid_time_that_is_too_large_is_told_with_what_to_do(store: Store, clock: PatientClock) -> None:
    store.padding = 5_000

    with pytest.raises(SourceNonsense, match=r"more than 4000 bytes for one grid time; narrow the labels"):
        list(read(source_of(store, clock, limits=RangeLimits(max_bytes=4_000))))

    assert store.slices() == [(0, 8), (0, 4), (0, 2), (0, 1)]


def test_body_that_never_ends_is_given_up(store: Store, clock: PatientClock) -> None:
    class HurriedClock(PatientClock):
        def now(self) -> datetime:
            self.at += timedelta(seconds=200)
            return self.at

    with pytest.raises(SourceUnavailable, match="did not answer"):
        list(read(source_of(store, HurriedClock(), limits=RangeLimits(attempts=2, max_body_seconds=100))))


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        pytest.param(Answer(status=401, body=b""), SourceUnavailable, "refused the credentials", id="unauthorised"),
        pytest.param(Answer(status=403, body=b""), SourceUnavailable, "check token, user, tenant", id="forbidden"),
        pytest.param(Answer(status=400, body=b"parse error"), SourceNonsense, "refused the query", id="bad query"),
        pytest.param(
            Answer(status=422, body=b"many-to-many"), SourceNonsense, "refused the query", id="cannot be done"
        ),
        pytest.param(Answer(status=404, body=b""), SourceNonsense, "check the path", id="wrong path"),
        pytest.param(Answer(body=b"<html>hunter2-token"), SourceNonsense, "no Prometheus result", id="a login page"),
        pytest.param(Answer(body=b""), SourceNonsense, "no Prometheus result", id="empty"),
        pytest.param(Answer(body=b"[]"), SourceNonsense, "no Prometheus result", id="a list"),
        pytest.param(Answer(body=b'{"up": true}'), SourceNonsense, "no Prometheus result", id="another API"),
        pytest.param(
            Answer(body=b'{"status":"error","errorType":"execution","error":"x"}'),
            SourceNonsense,
            "execution: x",
            id="an error with 200",
        ),
        pytest.param(
            Answer(status=302, body=b"", headers={"Location": "http://127.0.0.1:9/"}),
            SourceUnavailable,
            "answered HTTP 302",
            id="a redirect",
        ),
    ],
)
def test_what_will_not_pass_is_told_at_once_without_the_secret(
    store: Store, clock: PatientClock, answer: Answer, error: type[SourceError], message: str, tmp_path: Path
) -> None:
    store.next_answers = [answer]
    (tmp_path / "token").write_text(SECRET)

    with pytest.raises(error, match=message) as caught:
        list(read(source_of(store, clock, bearer_token_file=tmp_path / "token")))

    assert (len(store.asked), clock.waits) == (1, [])
    assert SECRET not in str(caught.value)


def test_server_that_is_not_there_is_unavailable_after_its_attempts(clock: PatientClock) -> None:
    from ops_pipelines_lab.drills.stack import free_port

    store = Store(url=f"http://127.0.0.1:{free_port()}")

    with pytest.raises(SourceUnavailable, match=r"ConnectionRefusedError.*check that it runs"):
        list(read(source_of(store, clock, limits=RangeLimits(attempts=3))))

    assert len(clock.waits) == 2


def test_warnings_and_partial_answers_are_carried_as_notes(store: Store, clock: PatientClock) -> None:
    body = store.right_body({"start": "0", "end": "0", "step": "15"})
    store.next_answers = [
        Answer(body=body[:-1] + b',"warnings":["store eu-1 is down"]}'),
        Answer(body=body.replace(b'"data"', b'"isPartial":true,"data"')),
    ]

    pages = list(read(source_of(store, clock, limits=RangeLimits(first_points=4, max_points=4))))

    assert pages[0].notes == ("store eu-1 is down",)
    assert "partial" in pages[1].notes[0]


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        (START + timedelta(seconds=1), START + STEP, "no whole multiple of 15 s"),
        (START, START + timedelta(seconds=14), "no whole multiple of 15 s"),
        (START, START + timedelta(microseconds=1), "no whole multiple of 15 s"),
    ],
)
def test_times_off_the_grid_are_a_mistake_of_the_caller(
    store: Store, clock: PatientClock, start: datetime, end: datetime, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        source_of(store, clock).read_range((QUERY,), start=start, end=end, step_seconds=15)


def test_source_that_could_not_work_is_not_built() -> None:
    with pytest.raises(ValueError, match="URL must be"):
        PrometheusMetrics(TelemetryConfig(kind=TelemetryKind.PROMETHEUS))


def test_every_series_and_every_query_of_the_catalogue_is_asked_for() -> None:
    queries = all_queries({"cluster": "a"}, look_back_seconds=120)

    by_name = [query.promql for query in queries if query.column is None]
    for quantity in read_quantities():
        for series in quantity.series:
            assert sum(series.name in _names(promql) for promql in by_name) == 1
        assert (not quantity.promql) is not any(
            (query.table, query.column) == (quantity.table, quantity.column) for query in queries
        )
    assert all('cluster="a"' in query.promql for query in queries)
    assert all(len(quote(query.promql)) <= 6_000 for query in queries)
    assert len({query.promql for query in queries}) == len(queries)


def _names(promql: str) -> list[str]:
    return promql.split('__name__=~"', 1)[1].split('"', 1)[0].split("|")


def test_only_the_kept_modes_of_a_cpu_are_asked_for() -> None:
    (promql,) = (
        query.promql
        for query in all_queries({}, look_back_seconds=120)
        if query.column is None and "node_cpu_seconds_total" in query.promql
    )

    modes = {
        series.labels["mode"]
        for quantity in read_quantities()
        for series in quantity.series
        if series.name == "node_cpu_seconds_total"
    }
    assert f'mode=~"{"|".join(sorted(modes))}"' in promql


def test_newest_values_narrow_the_look_back_and_honour_ended_series() -> None:
    promql = newest_values(("a", "b"), labels={"cluster": 'x"y\\z\n'}, look_back_seconds=60)

    selector = '{__name__=~"a|b",cluster="x\\"y\\\\z\\n"}'
    assert promql == f"last_over_time({selector}[60s]) and {selector}"


def test_hostile_label_name_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a label name"):
        all_queries({'a="b",c': "d"}, look_back_seconds=120)


@pytest.mark.parametrize(
    ("promql", "narrowed"),
    [
        ("up", 'up{c="1"}'),
        ("up{}", 'up{c="1"}'),
        ('up{a="}"}', 'up{c="1",a="}"}'),
        ('{__name__="up"}', '{c="1",__name__="up"}'),
        ("rate(up[5m])", 'rate(up{c="1"}[5m])'),
        ('rate(up{a="b"}[5m:1m] offset 5m)', 'rate(up{c="1",a="b"}[5m:1m] offset 5m)'),
        ("sum by (a, b) (up)", 'sum by (a, b) (up{c="1"})'),
        ("sum(up) by (a)", 'sum(up{c="1"}) by (a)'),
        ("a / on (x) group_left (y) b", 'a{c="1"} / on (x) group_left (y) b{c="1"}'),
        ("a and b unless c:d:e or 1e5", 'a{c="1"} and b{c="1"} unless c:d:e{c="1"} or 1e5'),
        ('label_replace(up, "x", "up", "y", "(.*)")', 'label_replace(up{c="1"}, "x", "up", "y", "(.*)")'),
        ("histogram_quantile(0.5, up)", 'histogram_quantile(0.5, up{c="1"})'),
        ("up > bool 0", 'up{c="1"} > bool 0'),
    ],
)
def test_labels_of_the_cluster_stand_in_every_selector(promql: str, narrowed: str) -> None:
    assert narrow(promql, {"c": "1"}) == narrowed
    assert narrow(promql, {}) == promql


HOUR = [START + timedelta(seconds=15 * index) for index in range(240)]
TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"


def hour_of_rows() -> list[Row]:
    """Return an hour of three GPUs, sampled 4 s after each grid time; the last ends after half an hour."""
    rows: list[Row] = []
    for gpu, count in (("0", 240), ("1", 240), ("2", 120)):
        name = f'{TEMPERATURE}{{UUID="GPU-{gpu}",Hostname="gpu001",cluster="a"}}'
        rows += [(name, 40.0 + index / 8, at.timestamp() + 4) for index, at in enumerate(HOUR[:count])]
    rows += [(f'{TEMPERATURE}{{UUID="GPU-9",Hostname="gpu009",cluster="b"}}', 90.0, HOUR[0].timestamp())]
    return rows


@pytest.mark.live
@pytest.mark.parametrize(
    ("start_store", "last"),
    [
        # The last sample of GPU-2 is 4 s after point 119; the look-back of 60 s keeps it to point 123.
        pytest.param(start_prometheus, 123, id="Prometheus"),
        # A bare selector of VictoriaMetrics looks back for as long as the series' own interval only.
        pytest.param(start_victoria_metrics, 120, id="VictoriaMetrics"),
    ],
)
def test_real_stores_give_the_same_values_however_the_hour_is_cut(
    tmp_path: Path, start_store: Callable[[Path, Sequence[Row]], AbstractContextManager[str]], last: int
) -> None:
    queries = [
        query
        for query in all_queries({"cluster": "a"}, look_back_seconds=60)
        if query.column is None and TEMPERATURE in _names(query.promql)
    ]

    def points(url: str, limits: RangeLimits) -> tuple[dict[tuple[str, int], float], int]:
        config = TelemetryConfig(kind=TelemetryKind.PROMETHEUS, url=url)
        found: dict[tuple[str, int], float] = {}
        pages = 0
        source = PrometheusMetrics(config, limits=limits)
        for page in source.read_range(queries, start=HOUR[0], end=HOUR[-1], step_seconds=15):
            pages += 1
            block = decode_range_answer(page.body)
            at = 0
            for labels, count in zip(block.labels, block.counts.tolist(), strict=True):
                for index in range(at, at + count):
                    key = labels["UUID"], int(block.times[index])
                    assert key not in found
                    found[key] = float(block.values[index])
                at += count
        return found, pages

    with start_store(tmp_path, hour_of_rows()) as url:
        whole, page_count = points(url, RangeLimits(first_points=240))
        cut, cut_page_count = points(url, RangeLimits(first_points=7, max_points=7))

    assert whole == cut
    assert (page_count, cut_page_count) == (1, 35)
    for gpu in ("GPU-0", "GPU-1"):
        assert [whole.get((gpu, int(at.timestamp() * 1000))) for at in HOUR] == [
            None,
            *(40.0 + index / 8 for index in range(239)),
        ]
    ended = [at for at in HOUR if ("GPU-2", int(at.timestamp() * 1000)) in whole]
    assert (ended[0], ended[-1]) == (HOUR[1], HOUR[last])
    assert not any(gpu == "GPU-9" for gpu, _ in whole)
