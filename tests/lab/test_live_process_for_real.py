"""The live cycle as a process of its own, on a simulated cluster: it writes the lake, and ends with its leash."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.wiring import TWIN_DIRECTORY
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS, Scenario, cluster_nodes
from ops_pipelines_lab.simulator.twin import Twin

REPOSITORY = Path(__file__).parents[2]
PATIENCE_SECONDS = 60.0
PARENT = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def cluster_file(tmp_path: Path) -> Path:
    """Return a simulated cluster of two nodes with a cycle of a second."""
    text = (REPOSITORY / "cluster.yaml").read_text()
    file = tmp_path / "cluster.yaml"
    text = text.replace("state_directory: .ops_pipelines", "state_directory: .")
    file.write_text(text.replace("step_seconds: 15", "step_seconds: 1"))
    (tmp_path / "policy.yaml").write_text("mode: observe\n")
    scenario = Scenario(nodes=cluster_nodes(2), durations=SHORT_DURATIONS)
    Twin.create(tmp_path / TWIN_DIRECTORY, scenario, seed=7, clock=SystemClock(), past=timedelta(minutes=1))
    return file


def command(cluster_file: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "ops_pipelines.live", "--cluster", str(cluster_file), *options]


@pytest.fixture
def live(cluster_file: Path, request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[bytes]"]:
    options = getattr(request, "param", ())
    pipe = subprocess.PIPE
    with subprocess.Popen(command(cluster_file, *options), stdin=pipe, stdout=pipe, stderr=pipe) as child:
        yield child
        child.kill()


def wait_until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_SECONDS / 0.1)):
        if holds():
            return
        pause.wait(0.1)
    raise AssertionError("it never became so")


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return True
    return state == "Z"


def cycles_of(cluster_file: Path) -> list[Path]:
    return sorted(cluster_file.parent.glob("lake/gpu_telemetry/*/*/cycle=*.parquet"))


def test_a_cycle_appears_in_the_lake_and_closing_the_pipe_ends_the_process(
    cluster_file: Path, live: "subprocess.Popen[bytes]"
) -> None:
    assert live.stdin is not None
    assert live.stdout is not None
    first = live.stdout.readline().decode()

    live.stdin.close()

    assert "0 rejected" in first
    assert cycles_of(cluster_file)
    assert live.wait(PATIENCE_SECONDS) == 0
    assert live.stderr is not None
    assert live.stderr.read().decode().strip().endswith("live cycle ends: the code server is gone")


@pytest.mark.parametrize("live", [("--untended-seconds", "0.5")], indirect=True)
def test_a_process_that_nobody_tends_ends_by_itself(live: "subprocess.Popen[bytes]") -> None:
    assert live.wait(PATIENCE_SECONDS) == 0
    assert live.stderr is not None
    assert "nobody tended it" in live.stderr.read().decode()


def test_the_process_ends_when_its_parent_is_killed(cluster_file: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *command(cluster_file)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    try:
        wait_until(lambda: bool(cycles_of(cluster_file)))
        assert not is_gone(pid)

        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()

        wait_until(lambda: is_gone(pid))
    finally:
        if not is_gone(pid):
            os.kill(pid, signal.SIGKILL)


def test_so_many_cycles_as_were_asked_for_need_no_leash(cluster_file: Path) -> None:
    done = subprocess.run(
        command(cluster_file, "--cycles", "2"), stdin=subprocess.DEVNULL, capture_output=True, check=True
    )

    said = done.stdout.decode().splitlines()
    assert len(said) == 2
    assert said[0].split(":", 3)[:3] != said[1].split(":", 3)[:3]
    assert len(cycles_of(cluster_file)) == 2
