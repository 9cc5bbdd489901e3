"""The exporter over real HTTP, and the kernel log in a real file."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines_lab.simulator.exporter import Exporter, KernelLogFile
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.scenario import lab_scenario
from ops_pipelines_lab.simulator.twin import Twin
from tests.simulator.small_cluster import GPU1, GPU2, SmallCluster

TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP{"


class Served:
    def __init__(self, cluster: SmallCluster, exporter: Exporter) -> None:
        self.cluster = cluster
        self._exporter = exporter

    def get(self, path: str) -> tuple[int, str]:
        return get(self._exporter.port, path)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    cluster = SmallCluster(tmp_path)
    exporter = Exporter(cluster.twin, port=0)
    exporter.start()
    yield Served(cluster, exporter)
    exporter.stop()


def get(port: int, path: str) -> tuple[int, str]:
    """Return status and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_one_node_is_one_exporter(served: Served) -> None:
    status, text = served.get("/metrics/gpu001")

    assert status == 200
    assert text.count(TEMPERATURE) == 8
    assert text.count('Hostname="gpu001"') == text.count("Hostname=")


def test_all_nodes_come_in_one_answer_that_equals_the_port(served: Served) -> None:
    _, text = served.get("/metrics")

    samples = served.cluster.telemetry.read_samples(served.cluster.clock.now())
    watched = {sample.metric for sample in samples}
    assert text.count(TEMPERATURE) == 32
    assert len([line for line in text.splitlines() if line.partition("{")[0] in watched]) == len(samples)


def test_node_level_series_leave_the_node_to_the_scraper_and_gpus_name_it(served: Served) -> None:
    _, text = served.get("/metrics/gpu001")

    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert any(line.startswith("node_load1 ") for line in lines)
    assert any(line.startswith('node_infiniband_state_id{device="mlx5_7",port="1"} 4') for line in lines)
    assert all('Hostname="gpu001"' in line for line in lines if line.startswith("DCGM_"))
    assert not any("instance=" in line for line in lines)


def test_what_is_outside_the_nodes_has_exporters_of_its_own(served: Served) -> None:
    texts = [served.get(path) for path in ("/facility", "/scheduler")]

    assert [status for status, _ in texts] == [200, 200]
    text = "".join(body for _, body in texts)
    assert {name for name in ("rack_power_watts{", "facility_pue_ratio{", "slurm_jobs_running ") if name in text} == {
        "rack_power_watts{",
        "facility_pue_ratio{",
        "slurm_jobs_running ",
    }
    assert "\nup{" not in text


def test_unreachable_node_answers_no_scrape_and_is_not_among_all(served: Served) -> None:
    served.cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1)
    served.cluster.fleet.power_off(GPU2)

    assert served.get("/metrics/gpu001") == (503, "")
    assert served.get("/metrics/gpu002")[0] == 503
    assert served.get("/metrics")[1].count(TEMPERATURE) == 16


@pytest.mark.parametrize("path", ["/metrics/gpu999", "/", "/metrics/gpu001/more", "/other"])
def test_unknown_path_is_not_found(served: Served, path: str) -> None:
    assert served.get(path)[0] == 404


# -- the kernel log file --


def test_every_line_is_written_once_over_restarts(tmp_path: Path) -> None:
    cluster, path = SmallCluster(tmp_path / "twin"), tmp_path / "kernel.log"
    counts = []
    for number in range(3):
        cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=number)
        counts.append(KernelLogFile(cluster.twin, path).write_new())
        counts.append(KernelLogFile(cluster.twin, path).write_new())

    assert counts == [2, 0, 2, 0, 2, 0]
    assert path.read_text().splitlines() == cluster.log_texts()


@pytest.mark.parametrize("kept_bytes", [0, 1, 40, 150, 151, 400])
def test_file_torn_anywhere_is_completed(tmp_path: Path, kept_bytes: int) -> None:
    cluster, path = SmallCluster(tmp_path / "twin"), tmp_path / "kernel.log"
    cluster.twin.inject(FaultKind.UNCORRECTABLE_ECC, GPU1, gpu=0)
    KernelLogFile(cluster.twin, path).write_new()
    whole = path.read_bytes()
    os.truncate(path, kept_bytes)

    KernelLogFile(cluster.twin, path).write_new()

    assert path.read_bytes() == whole


def test_two_writers_write_no_line_twice(tmp_path: Path) -> None:
    cluster, path = SmallCluster(tmp_path / "twin"), tmp_path / "kernel.log"
    first, second = (
        KernelLogFile(twin, path) for twin in (cluster.twin, Twin.attach(tmp_path / "twin", cluster.clock))
    )

    for number in range(8):
        cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=number)
        (first, second)[number % 2].write_new()
        second.write_new()

    assert path.read_text().splitlines() == cluster.log_texts()


def test_exporter_process_serves_and_logs_until_it_is_terminated(tmp_path: Path) -> None:
    twin = Twin.create(tmp_path / "twin", lab_scenario(4), seed=7, clock=SystemClock())
    log, port = tmp_path / "kernel.log", free_port()
    command = [sys.executable, "-m", "ops_pipelines_lab.simulator.exporter"]
    command += ["--state", str(tmp_path / "twin"), "--port", str(port), "--kernel-log", str(log)]

    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as process:
        await_true(lambda: log.exists())
        status, text = get(port, "/metrics/gpu003")
        twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu003", gpu=0)
        await_true(lambda: log.read_text().count("\n") == 2)
        process.send_signal(signal.SIGTERM)

        assert process.wait(20) == 0
    assert (status, text.count(TEMPERATURE)) == (200, 8)
    assert "gpu003 kernel: [" in log.read_text()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_true(predicate: Callable[[], bool], timeout_seconds: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not predicate():
        assert time.monotonic() < deadline, f"not so after {timeout_seconds} s"
        time.sleep(0.05)
