"""The metrics contract on real stores, and on exporters that are scraped directly."""

import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.sources import MetricSource, Query
from ops_pipelines.resources.config.cluster_config import ExporterTargets, TelemetryConfig, TelemetryKind
from ops_pipelines.resources.exporters import ExporterConfig, ScrapedExporters
from ops_pipelines.resources.prometheus import PrometheusMetrics, RangeLimits, all_queries
from tests.lab.metrics_servers import Row, start_prometheus, start_victoria_metrics
from tests.ports.metrics_contract import MetricsContract, MetricsWorld

BEGINS = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)


def rows() -> list[Row]:
    """Return twenty minutes of two GPUs on the grid."""
    return [
        (f'{name}{{UUID="GPU-{gpu}",Hostname="gpu001"}}', base + index / 4, BEGINS.timestamp() + 15.0 * index)
        for name, base in (("DCGM_FI_DEV_GPU_TEMP", 40), ("DCGM_FI_DEV_POWER_USAGE", 300))
        for gpu in range(2)
        for index in range(80)
    ]


class StoreWorld:
    """A store that holds twenty minutes; ten of them are past."""

    def __init__(self, url: str) -> None:
        config = TelemetryConfig(kind=TelemetryKind.PROMETHEUS, url=url)
        self.metrics: MetricSource = PrometheusMetrics(config, limits=RangeLimits(first_points=2, max_points=2))
        self.queries: Sequence[Query] = all_queries({}, look_back_seconds=60)
        self.history_begins_at = BEGINS
        self._now = BEGINS + timedelta(minutes=10, seconds=3)

    def now(self) -> datetime:
        return self._now

    def let_pass(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


@pytest.fixture(scope="module")
def prometheus_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_prometheus(tmp_path_factory.mktemp("prometheus"), rows()) as url:
        yield url


@pytest.mark.live
class TestPrometheusMetrics(MetricsContract):
    @pytest.fixture
    def world(self, prometheus_url: str) -> MetricsWorld:
        return StoreWorld(prometheus_url)


@pytest.fixture(scope="module")
def victoria_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_victoria_metrics(tmp_path_factory.mktemp("victoria"), rows()) as url:
        yield url


@pytest.mark.live
class TestVictoriaMetrics(MetricsContract):
    @pytest.fixture
    def world(self, victoria_url: str) -> MetricsWorld:
        return StoreWorld(victoria_url)


class ExporterWorld:
    """Exporters of two nodes."""

    def __init__(self, url: str) -> None:
        targets = ExporterTargets(url=f"{url}/{{node}}", nodes=(NodeName("gpu001"), NodeName("gpu002")))
        self.metrics: MetricSource = ScrapedExporters(ExporterConfig(targets=(targets,)))
        self.queries: Sequence[Query] = ()
        self.history_begins_at = BEGINS

    def now(self) -> datetime:
        return BEGINS + timedelta(seconds=47)

    def let_pass(self, seconds: float) -> None:
        pytest.fail("exporters have no past to compare with")


class TestScrapedExporters(MetricsContract):
    @pytest.fixture
    def world(self) -> Iterator[MetricsWorld]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = f'up{{Hostname="{self.path[1:]}"}} 1\n'.encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield ExporterWorld(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()
        server.server_close()
