"""Direct scrape: many targets, some of them broken in every way, and none that stops the others."""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.sources import BodyKind, Page, SourceUnavailable
from ops_pipelines.lake.metrics.exposition import decode_exposition
from ops_pipelines.resources.config.cluster_config import ExporterTargets
from ops_pipelines.resources.exporters import ExporterConfig, ScrapedExporters

AT = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
NODES = tuple(NodeName(f"gpu{number:03d}") for number in range(1, 6))


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: int = 200
    body: bytes = b"up 1\n"
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "text/plain; version=0.0.4"})
    cut_to: int | None = None
    is_silent: bool = False


@dataclass
class Exporters:
    """One server that answers for every node: /metrics/NODE."""

    url: str = ""
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    connections: set[tuple[str, int]] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def exporters() -> Iterator[Exporters]:
    exporters = Exporters()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            node = self.path.rsplit("/", 1)[-1]
            exporters.asked.append(node)
            exporters.headers.append(dict(self.headers))
            exporters.connections.add(self.client_address)
            answer = exporters.answers.get(node, Answer(body=f'up{{node="{node}"}} 1\n'.encode()))
            if answer.is_silent:
                exporters.over.wait(30)
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body[: answer.cut_to])
            self.close_connection = self.close_connection or answer.cut_to is not None

        def log_message(self, *args: object) -> None:
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True  # connections are kept open, so their threads wait for a next request

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    exporters.url = f"http://127.0.0.1:{server.server_port}"
    yield exporters
    exporters.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


def source_of(
    exporters: Exporters,
    *,
    nodes: tuple[NodeName, ...] = NODES,
    timeout: timedelta = timedelta(seconds=10),
    max_page_bytes: int = 10_000,
    worker_count: int = 2,
    bearer_token_file: Path | None = None,
) -> ScrapedExporters:
    return ScrapedExporters(
        ExporterConfig(
            targets=(ExporterTargets(url=f"{exporters.url}/metrics/{{node}}", nodes=nodes),),
            timeout=timeout,
            max_page_bytes=max_page_bytes,
            worker_count=worker_count,
            bearer_token_file=bearer_token_file,
        )
    )


def scrape(source: ScrapedExporters) -> list[Page]:
    return list(source.read_range((), start=AT, end=AT, step_seconds=15))


def test_every_target_becomes_one_page_in_order(exporters: Exporters) -> None:
    pages = scrape(source_of(exporters))

    assert [page.node for page in pages] == list(NODES)
    assert {(page.kind, page.start, page.end, page.notes, page.query) for page in pages} == {
        (BodyKind.EXPOSITION, AT, AT, (), None)
    }
    assert [page.body for page in pages] == [f'up{{node="{node}"}} 1\n'.encode() for node in NODES]
    assert {page.source for page in pages} == {f"exporter {exporters.url.removeprefix('http://')}"}


def test_target_without_a_node_is_one_page_without_a_node(exporters: Exporters) -> None:
    config = ExporterConfig(targets=(ExporterTargets(url=f"{exporters.url}/racks"),))

    (page,) = scrape(ScrapedExporters(config))

    assert page.node is None
    assert exporters.asked == ["racks"]


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        pytest.param(Answer(status=500), "answered HTTP 500", id="500"),
        pytest.param(Answer(status=404), "answered HTTP 404", id="404"),
        pytest.param(Answer(status=302, headers={"Location": "http://127.0.0.1:9/"}), "HTTP 302", id="a redirect"),
        pytest.param(Answer(headers={"Content-Type": "text/html"}), "answered 'text/html'", id="a web page"),
        pytest.param(Answer(body=b"<html>"), "no text format", id="a web page as text"),
        pytest.param(Answer(body=b"\0\1\2"), "no text format", id="binary"),
        pytest.param(Answer(body=b"u" * 10_001), "more than 10000 bytes", id="too large"),
        pytest.param(Answer(body=b"up 1\n" * 20, cut_to=50), "no whole answer", id="cut"),
        pytest.param(Answer(is_silent=True), "no whole answer within 0.5 s", id="silent"),
    ],
)
def test_target_that_fails_is_an_empty_page_with_a_note_and_the_others_stay(
    exporters: Exporters, answer: Answer, note: str
) -> None:
    exporters.answers["gpu002"] = answer

    pages = scrape(source_of(exporters, timeout=timedelta(seconds=0.5)))

    assert [bool(page.body) for page in pages] == [True, False, True, True, True]
    assert [len(page.notes) for page in pages] == [0, 1, 0, 0, 0]
    assert note in pages[1].notes[0]
    assert decode_exposition(pages[1].body, default_time=AT).sample_count == 0


def test_page_of_exactly_the_largest_size_is_taken(exporters: Exporters) -> None:
    exporters.answers["gpu001"] = Answer(body=b"up 1\n" * 2_000)

    assert len(scrape(source_of(exporters, nodes=NODES[:1]))[0].body) == 10_000


def test_no_answer_from_any_target_is_a_source_that_is_down(exporters: Exporters) -> None:
    exporters.answers = {node: Answer(status=503) for node in NODES}
    pages: list[Page] = []

    with pytest.raises(SourceUnavailable, match=r"none of 5 exporters answered .*HTTP 503"):
        pages.extend(source_of(exporters).read_range((), start=AT, end=AT, step_seconds=15))


def test_connections_are_kept_from_cycle_to_cycle(exporters: Exporters) -> None:
    source = source_of(exporters, nodes=NODES[:1])

    for _ in range(5):
        scrape(source)

    assert len(exporters.connections) == 1


def test_token_is_sent_and_read_anew(exporters: Exporters, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    source = source_of(exporters, nodes=NODES[:1], bearer_token_file=tmp_path / "token")
    scrape(source)
    (tmp_path / "token").write_text("second")

    scrape(source)

    assert [headers["Authorization"] for headers in exporters.headers] == ["Bearer first", "Bearer second"]


def test_pages_are_fetched_ahead_by_no_more_than_the_workers(exporters: Exporters) -> None:
    pages = source_of(exporters, worker_count=2).read_range((), start=AT, end=AT, step_seconds=15)

    next(pages)
    pages.close()  # type: ignore[attr-defined]  # a generator

    assert len(exporters.asked) <= 2


def test_the_past_cannot_be_asked_for(exporters: Exporters) -> None:
    source = source_of(exporters)

    assert (source.source, source.has_history) == ("exporters", False)
    with pytest.raises(ValueError, match="only now"):
        source.read_range((), start=AT, end=AT + timedelta(seconds=15), step_seconds=15)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ((), "at least one"),
        ((ExporterTargets(url="http://n:9400/metrics", nodes=NODES),), "the same for every node"),
        ((ExporterTargets(url="http://{node}:9400/metrics"),), "no nodes are given"),
        ((ExporterTargets(url="file:///etc/passwd"),), "must be http"),
        ((ExporterTargets(url="http://ops:hunter2@n/metrics"),), r"^(?!.*ops:hunter2@n/metrics)"),
        ((ExporterTargets(url="http://n/a"), ExporterTargets(url="http://n/a")), "named twice"),
    ],
)
def test_source_that_could_not_work_is_not_built(targets: tuple[ExporterTargets, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScrapedExporters(ExporterConfig(targets=targets))
