"""What the program keeps is for its own user alone, whatever umask its processes were started with."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.wiring import TWIN_DIRECTORY
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.twin import Twin

ROOT = Path(__file__).parents[2]
_RUN = """
import dagster as dg
from ops_pipelines.run_share import LEASE_TAG
from ops_pipelines.definitions import ClusterPorts, defs
from ops_pipelines.sensors.fault import fault_sensor
from ops_pipelines.sensors.runs import hold_lease
from ops_pipelines.wiring import open_cluster
from pathlib import Path
import os

with dg.DagsterInstance.get() as instance:
    file = Path(os.environ["OPS_PIPELINES_CLUSTER"]).resolve()
    with dg.build_sensor_context(instance=instance, resources={"cluster": ClusterPorts()}) as context:
        fault_sensor(context)
    tags = {LEASE_TAG: hold_lease(open_cluster(file))}
    assert defs().resolve_job_def("remediate").execute_in_process(instance=instance, tags=tags).success
"""
"""A tick that finds the fault, and the run that answers it."""
_COMMAND = "from ops_pipelines.cli import main; main()"
POLICY = """\
mode: auto
durations: {look_every_seconds: 1, run_patience_seconds: 5}
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    shipped = (ROOT / "cluster.yaml").read_text()
    (tmp_path / "cluster.yaml").write_text(
        re.sub(r"^state_directory: .*$", "state_directory: kept/state", shipped, flags=re.MULTILINE)
    )
    (tmp_path / "policy.yaml").write_text(POLICY)
    for name in ("teams.yaml", "capacity.yaml", "projects.yaml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "dagster").mkdir()
    return tmp_path


def call(site: Path, *words: str) -> None:
    environment = {
        **os.environ,
        "OPS_PIPELINES_CLUSTER": str(site / "cluster.yaml"),
        "DAGSTER_HOME": str(site / "dagster"),
        "HOME": str(site),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, *words], env=environment, umask=0, cwd=site, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 3), done.stderr  # 3: nothing beats here


def test_files_are_of_mode_0600_and_directories_0700_whatever_the_umask(site: Path) -> None:
    call(site, "-c", _COMMAND, "status")
    state = site / "kept" / "state"
    twin = Twin.attach(state / TWIN_DIRECTORY, SystemClock())
    twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)

    call(site, "-c", _RUN)
    call(site, "-m", "ops_pipelines.live", "--cycles", "1")
    call(site, "-c", _COMMAND, "pause", "--reason", "a test")

    found = {path.relative_to(site): stat.S_IMODE(path.lstat().st_mode) for path in [state, *state.rglob("*")]}
    assert {"ledger.sqlite", "lake", "evidence", "reports", "PAUSE"} <= {path.name for path in state.iterdir()}
    assert {str(path): oct(mode) for path, mode in found.items() if mode & 0o077} == {}
