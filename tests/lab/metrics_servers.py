"""Real servers of metrics for tests marked `live`, filled with samples of any past time.

Each skips where its program is not installed, unless OPS_PIPELINES_REQUIRE_SERVERS=1 says it must be there.
"""

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ops_pipelines_lab.drills.stack import free_port

Row = tuple[str, float, float]
"""A series as in the text format, its value, and its time in seconds."""


@contextmanager
def start_prometheus(directory: Path, rows: Sequence[Row]) -> Iterator[str]:
    """Run Prometheus on `rows`, turned into blocks beforehand; yield its URL. Series must be in one piece."""
    program, tool = _find("prometheus"), _find("promtool")
    (directory / "rows.om").write_text("\n".join([*(f"{s} {v!r} {t:.3f}" for s, v, t in rows), "# EOF"]) + "\n")
    subprocess.run(
        [tool, "tsdb", "create-blocks-from", "openmetrics", "--quiet", directory / "rows.om", directory / "tsdb"],
        check=True,
        capture_output=True,
    )
    (directory / "prometheus.yml").write_text("scrape_configs: []\n")
    port = free_port()
    command = [
        program,
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with _running(command, directory / "prometheus.out", ready=f"http://127.0.0.1:{port}/-/ready"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def start_victoria_metrics(directory: Path, rows: Sequence[Row]) -> Iterator[str]:
    """Run VictoriaMetrics and import `rows`; yield its URL."""
    program = _find("victoria-metrics")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        program,
        f"-storageDataPath={directory / 'victoria'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-retentionPeriod=100y",
    ]
    with _running(command, directory / "victoria.out", ready=f"{url}/health"):
        body = "".join(f"{s} {v!r} {t * 1000:.0f}\n" for s, v, t in rows).encode()
        urllib.request.urlopen(f"{url}/api/v1/import/prometheus", data=body, timeout=30).close()
        urllib.request.urlopen(f"{url}/internal/force_flush", timeout=30).close()
        yield url


def _find(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        if os.environ.get("OPS_PIPELINES_REQUIRE_SERVERS") == "1":
            pytest.fail(f"{program} is not installed, and servers are required")
        pytest.skip(f"{program} is not installed")
    return path


@contextmanager
def _running(command: Sequence[str], log: Path, *, ready: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            for _ in range(300):
                if process.poll() is not None:
                    pytest.fail(f"{command[0]} ended: {log.read_text()[-2000:]}")
                try:
                    urllib.request.urlopen(ready, timeout=1).close()
                    break
                except (urllib.error.URLError, OSError):
                    time.sleep(0.1)
            else:
                pytest.fail(f"{command[0]} did not become ready: {log.read_text()[-2000:]}")
            yield
        finally:
            process.terminate()
            process.wait(timeout=30)


@contextmanager
def start_alertmanager(directory: Path, config: str) -> Iterator[str]:
    """Run Alertmanager with this configuration, alone and on loopback; yield its URL."""
    program = _find("prometheus-alertmanager")
    (directory / "alertmanager.yml").write_text(config)
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        program,
        f"--config.file={directory / 'alertmanager.yml'}",
        f"--storage.path={directory / 'alertmanager'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--cluster.listen-address=",  # else it listens on every address of the machine
    ]
    with _running(command, directory / "alertmanager.out", ready=f"{url}/-/ready"):
        yield url
