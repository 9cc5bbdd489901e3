"""Prometheus: what is asked, what comes back, and what is reported when nothing believable does."""

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.observation import Signal
from ops_pipelines.core.sources import SourceNonsense, SourceUnavailable
from ops_pipelines.lake.telemetry import observe_gpus, watched_metrics
from ops_pipelines.resources.config.cluster_config import TelemetryConfig, TelemetryKind
from ops_pipelines.resources.prometheus import PrometheusTelemetry
from tests.ports.telemetry_contract import TelemetryContract

NOW = datetime(2026, 11, 21, 7, 30, 7, 250_000, tzinfo=UTC)
GRID = datetime(2026, 11, 21, 7, 30, 0, tzinfo=UTC)
SECRET = "hunter2-token"


@dataclass
class Answers:
    """What the server in the test answers next, and what it was asked."""

    status: int = 200
    body: str = ""
    location: str | None = None
    delay_seconds: float = 0.0
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def give(self, *series: object) -> None:
        self.body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": list(series)}})


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def url(answers: Answers) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers.requests.append((self.path, dict(self.headers)))
            time.sleep(answers.delay_seconds)
            self.send_response(answers.status)
            if answers.location is not None:
                self.send_header("Location", answers.location)
            self.end_headers()
            self.wfile.write(answers.body.encode())

        def log_message(self, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def telemetry_of(
    url: str,
    *,
    step: timedelta = timedelta(seconds=15),
    look_back: timedelta = timedelta(seconds=120),
    timeout: timedelta = timedelta(seconds=10),
    labels: Mapping[str, str] | None = None,
    bearer_token_file: Path | None = None,
    basic_auth_user: str | None = None,
    basic_auth_password_file: Path | None = None,
    tenant: str | None = None,
) -> PrometheusTelemetry:
    return PrometheusTelemetry(
        TelemetryConfig(
            kind=TelemetryKind.PROMETHEUS,
            url=url,
            step=step,
            look_back=look_back,
            timeout=timeout,
            labels=labels or {},
            bearer_token_file=bearer_token_file,
            basic_auth_user=basic_auth_user,
            basic_auth_password_file=basic_auth_password_file,
            tenant=tenant,
        )
    )


def series(
    value: str = "41", *, seconds: float = GRID.timestamp(), metric: str = "DCGM_FI_DEV_GPU_TEMP"
) -> dict[str, object]:
    labels = {"__name__": metric, "Hostname": "gpu003", "pci_bus_id": "00000000:1B:00.0"}
    return {"metric": labels, "values": [[seconds, value]]}


def test_samples_stand_on_the_grid_time_at_or_before_the_asked_one(url: str, answers: Answers) -> None:
    answers.give(series("41.5"), series("NaN", metric="DCGM_FI_DEV_POWER_USAGE"))

    samples = telemetry_of(url, step=timedelta(seconds=15)).read_samples(NOW)

    assert [(each.metric, each.sampled_at) for each in samples] == [
        ("DCGM_FI_DEV_GPU_TEMP", GRID),
        ("DCGM_FI_DEV_POWER_USAGE", GRID),
    ]
    assert samples[0].value == 41.5
    assert samples[1].value != samples[1].value
    assert samples[0].labels == {"Hostname": "gpu003", "pci_bus_id": "00000000:1B:00.0"}


def test_question_names_every_watched_metric_once_on_one_grid_point(url: str, answers: Answers) -> None:
    answers.give()

    telemetry_of(url, labels={"cluster": 'a"b\\c'}).read_samples(NOW)

    path, headers = answers.requests[0]
    asked = parse_qs(urlsplit(path).query)
    assert urlsplit(path).path == "/api/v1/query_range"
    assert asked["start"] == asked["end"] == [str(int(GRID.timestamp()))]
    assert asked["step"] == ["60"]  # VictoriaMetrics leaves what is new out of ranges of smaller steps
    assert all(metric in asked["query"][0] for metric in watched_metrics())
    assert 'cluster="a\\"b\\\\c"' in asked["query"][0]
    assert "Authorization" not in headers


@pytest.mark.parametrize(
    ("seconds", "grid_seconds"),
    [
        pytest.param(29.999, 15, id="just before a grid point"),
        pytest.param(30.0, 30, id="on a grid point"),
        pytest.param(30.001, 30, id="just after"),
    ],
)
def test_grid_time_is_rounded_down(url: str, answers: Answers, seconds: float, grid_seconds: int) -> None:
    answers.give()

    telemetry_of(url).read_samples(datetime.fromtimestamp(seconds, tz=UTC))

    assert parse_qs(urlsplit(answers.requests[0][0]).query)["start"] == [str(grid_seconds)]


def test_bearer_token_and_tenant_are_sent_and_read_anew_each_time(tmp_path: Path, url: str, answers: Answers) -> None:
    answers.give()
    token_file = tmp_path / "token"
    token_file.write_text(f"{SECRET}\n")
    telemetry = telemetry_of(url, bearer_token_file=token_file, tenant="gpu-ops")

    telemetry.read_samples(NOW)
    token_file.write_text("rotated")
    telemetry.read_samples(NOW)

    assert [headers["Authorization"] for _, headers in answers.requests] == [f"Bearer {SECRET}", "Bearer rotated"]
    assert answers.requests[0][1]["X-Scope-OrgID"] == "gpu-ops"


def test_basic_auth_is_sent(tmp_path: Path, url: str, answers: Answers) -> None:
    answers.give()
    (tmp_path / "password").write_text(SECRET)

    telemetry_of(url, basic_auth_user="ops", basic_auth_password_file=tmp_path / "password").read_samples(NOW)

    sent = answers.requests[0][1]["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent).decode() == f"ops:{SECRET}"


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        pytest.param(401, SECRET, SourceUnavailable, "refused the credentials", id="unauthorised"),
        pytest.param(403, SECRET, SourceUnavailable, "check token, user, tenant", id="forbidden"),
        pytest.param(400, SECRET, SourceNonsense, "refused the query", id="bad query"),
        pytest.param(404, SECRET, SourceNonsense, "check the path", id="wrong path"),
        pytest.param(503, SECRET, SourceUnavailable, "HTTP 503", id="overloaded"),
        pytest.param(200, f"<html>{SECRET}</html>", SourceNonsense, "no Prometheus result", id="a login page"),
        pytest.param(200, "", SourceNonsense, "no Prometheus result", id="empty"),
        pytest.param(200, "[]", SourceNonsense, "no Prometheus result", id="no object"),
        pytest.param(200, '{"data": null}', SourceNonsense, "no Prometheus result", id="no data"),
        pytest.param(200, '{"data": {"result": 5}}', SourceNonsense, "no list of series", id="no list"),
    ],
)
def test_answer_that_cannot_be_used_is_told_without_the_secret(
    tmp_path: Path,
    url: str,
    answers: Answers,
    status: int,
    body: str,
    error: type[Exception],
    message: str,
) -> None:
    answers.status, answers.body = status, body
    (tmp_path / "token").write_text(SECRET)

    with pytest.raises(error, match=message) as caught:
        telemetry_of(url, bearer_token_file=tmp_path / "token").read_samples(NOW)

    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(5, id="no object"),
        pytest.param({"metric": {}, "values": []}, id="no name"),
        pytest.param({"metric": {"__name__": "a"}, "values": []}, id="no value"),
        pytest.param({"metric": {"__name__": "a"}, "values": [[1, "1"], [2, "2"]]}, id="two values"),
        pytest.param(series("hot"), id="no number"),
        pytest.param(series(seconds=1.0), id="off the grid"),
        pytest.param({"metric": None, "values": [[1, "1"]]}, id="no labels"),
    ],
)
def test_series_that_cannot_be_read_takes_nothing_from_the_answer(url: str, answers: Answers, bad: object) -> None:
    answers.give(series(), bad)

    with pytest.raises(SourceNonsense, match="a series that cannot be read"):
        telemetry_of(url).read_samples(NOW)


def test_redirect_is_not_followed(tmp_path: Path, url: str, answers: Answers) -> None:
    answers.status, answers.location = 302, f"{url}/elsewhere"
    (tmp_path / "token").write_text(SECRET)

    with pytest.raises(SourceUnavailable, match="TooManyRedirects"):
        telemetry_of(url, bearer_token_file=tmp_path / "token").read_samples(NOW)

    assert len(answers.requests) == 1


def test_server_that_is_too_slow_is_unavailable(url: str, answers: Answers) -> None:
    answers.delay_seconds = 0.6

    with pytest.raises(SourceUnavailable, match=r"did not answer within 0\.2 s"):
        telemetry_of(url, timeout=timedelta(seconds=0.2)).read_samples(NOW)


def test_server_that_is_not_there_is_unavailable_with_what_to_check() -> None:
    with pytest.raises(SourceUnavailable, match=r"ConnectionRefusedError.*check that it runs"):
        telemetry_of(f"http://127.0.0.1:{free_port()}").read_samples(NOW)


@pytest.mark.parametrize(
    "content",
    [pytest.param(None, id="absent"), pytest.param("", id="empty"), pytest.param("a\nb", id="two lines")],
)
def test_secret_that_cannot_be_read_is_told_with_its_file(tmp_path: Path, url: str, content: str | None) -> None:
    if content is not None:
        (tmp_path / "token").write_text(content)

    with pytest.raises(SourceUnavailable, match=r"the secret in .*token"):
        telemetry_of(url, bearer_token_file=tmp_path / "token").read_samples(NOW)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: telemetry_of("http://ops:hunter2@prometheus"), id="password in the URL"),
        pytest.param(lambda: telemetry_of("file:///etc/passwd"), id="no http"),
        pytest.param(lambda: telemetry_of("http://p", basic_auth_user="u"), id="half a basic auth"),
        pytest.param(lambda: PrometheusTelemetry(TelemetryConfig(kind=TelemetryKind.PROMETHEUS)), id="no URL"),
        pytest.param(lambda: telemetry_of("http://p", step=timedelta(seconds=1.5)), id="half a second"),
        pytest.param(lambda: telemetry_of("http://p", step=timedelta(0)), id="no step"),
        pytest.param(lambda: telemetry_of("http://p", labels={'a="b",c': "d"}), id="hostile label name"),
        pytest.param(
            lambda: telemetry_of(
                "http://p", bearer_token_file=Path("a"), basic_auth_user="u", basic_auth_password_file=Path("b")
            ),
            id="two credentials",
        ),
    ],
)
def test_adapter_that_could_not_work_is_not_built(build: Callable[[], PrometheusTelemetry]) -> None:
    with pytest.raises(ValueError, match=r"^(?!.*hunter2)"):
        build()


def test_importing_the_module_does_not_import_the_client() -> None:
    code = (
        "import sys, ops_pipelines.resources.prometheus; "
        "sys.exit(any(name in sys.modules for name in ('prometheus_api_client', 'pandas', 'requests')))"
    )

    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Exporter:
    """A DCGM-style exporter of two nodes with two GPUs each, and a real Prometheus that scrapes it every second."""

    def __init__(self, directory: Path, program: str) -> None:
        self.node_names = (NodeName("gpu001"), NodeName("gpu002"))
        self.gpus_per_node = 2
        self.fallen: set[tuple[str, int]] = set()
        self.silent: set[str] = set()
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                node = self.path.rsplit("/", 1)[-1]
                self.send_response(503 if node in exporter.silent else 200)
                self.end_headers()
                if node not in exporter.silent:
                    self.wfile.write(exporter.page(node).encode())

            def log_message(self, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        scrapes = "\n".join(
            f"  - job_name: {node}\n    metrics_path: /metrics/{node}\n    static_configs:\n"
            f"      - targets: ['127.0.0.1:{self._server.server_port}']"
            for node in self.node_names
        )
        (directory / "prometheus.yml").write_text(
            f"global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n{scrapes}\n"
        )
        port = free_port()
        self._log = (directory / "prometheus.out").open("wb")
        self._process = subprocess.Popen(
            [
                program,
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.url = f"http://127.0.0.1:{port}"
        self.telemetry = telemetry_of(self.url, step=timedelta(seconds=1), look_back=timedelta(seconds=5))
        self.first_scrape_at = self.now()
        self.wait_until(lambda: self.count_gpus() == 4)

    def page(self, node: str) -> str:
        rows = []
        for index, bus in enumerate(("1B", "2B")):
            if (node, index) in self.fallen:
                continue
            labels = f'gpu="{index}",UUID="GPU-{node}-{index}",pci_bus_id="00000000:{bus}:00.0",Hostname="{node}"'
            values = {"GPU_TEMP": 41, "POWER_USAGE": 300, "XID_ERRORS": 0, "ECC_DBE_VOL_TOTAL": 9223372036854775794}
            rows += [f"DCGM_FI_DEV_{metric}{{{labels}}} {value}" for metric, value in values.items()]
        return "\n".join(rows) + "\n"

    def now(self) -> datetime:
        return datetime.now(UTC)

    def count_gpus(self, telemetry: PrometheusTelemetry | None = None) -> int:
        try:
            samples = (telemetry or self.telemetry).read_samples(self.now())
        except SourceUnavailable:
            return 0
        return sum(sample.metric == "DCGM_FI_DEV_GPU_TEMP" for sample in samples)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        for _ in range(150):
            if is_so():
                return
            time.sleep(0.2)
        raise AssertionError("Prometheus did not show what was expected within 30 s")

    def silence(self, node: NodeName) -> None:
        self.silent.add(node)

    def let_pass(self, seconds: float) -> None:
        # The look-back of this adapter is 5 s: what the contract waits minutes for is over after that.
        time.sleep(min(seconds, 7.0))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        self._log.close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def started_exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    program = shutil.which("prometheus")
    if program is None:
        if os.environ.get("OPS_PIPELINES_REQUIRE_SERVERS") == "1":
            pytest.fail("prometheus is required here; install it (Debian: prometheus)")
        pytest.skip("prometheus is not installed")
    running = Exporter(tmp_path_factory.mktemp("prometheus"), program)
    yield running
    running.close()


@pytest.fixture
def exporter(started_exporter: Exporter) -> Exporter:
    """The one Prometheus of this module (it takes 5 s to find its targets), with every GPU back."""
    started_exporter.silent.clear()
    started_exporter.fallen.clear()
    started_exporter.wait_until(lambda: started_exporter.count_gpus() == 4)
    return started_exporter


@pytest.mark.live
class TestPrometheusTelemetry(TelemetryContract):
    @pytest.fixture
    def world(self, exporter: Exporter) -> Exporter:
        return exporter


@pytest.mark.live
def test_gpu_that_falls_off_the_bus_leaves_a_real_prometheus_before_the_look_back_is_over(exporter: Exporter) -> None:
    patient = telemetry_of(exporter.url, step=timedelta(seconds=1), look_back=timedelta(seconds=120))
    place = Place(rack="r1", nvlink_domain="n", leaf_switch="l")
    topology = Topology(places=dict.fromkeys(exporter.node_names, place), gpus_per_node=2)
    exporter.fallen.add(("gpu002", 1))

    exporter.wait_until(lambda: exporter.count_gpus(patient) == 3)

    at = exporter.now()
    telemetry = observe_gpus(patient.read_samples(at), at=at, topology=topology, stale_after=timedelta(seconds=120))
    assert [(each.signal, each.node, each.code) for each in telemetry.conditions] == [(Signal.GPU_MISSING, "gpu002", 1)]
    assert {each.reason.split(":")[0] for each in telemetry.rejected} == {"a blank value of DCGM"}
    with urllib.request.urlopen(f"{exporter.url}/-/ready", timeout=5) as ready:
        assert ready.status == 200
