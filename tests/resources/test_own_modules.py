"""Our own processes take our modules from where we are installed, never from where somebody happens to be."""

import sys
from pathlib import Path

import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.resources.live_process import LiveProcess
from ops_pipelines.resources.node.nvml import read_nvml
from ops_pipelines_lab.drills.daemon_processes import wait_until
from tests.resources.node_bench import Tools


def test_nvml_is_read_by_our_own_module() -> None:
    tools = Tools({})

    read_nvml(NodeName("gpu003"), tools, limit_seconds=1.0)

    assert tools.ran[0][:3] == (sys.executable, "-P", "-m")


def test_the_live_cycle_is_our_own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ops_pipelines").mkdir()
    (tmp_path / "ops_pipelines" / "__init__.py").write_text("open('theirs', 'w')")
    monkeypatch.chdir(tmp_path)

    process = LiveProcess(tmp_path / "no-such-cluster.yaml")
    process.tend()
    # It ends by itself, as there is no such cluster: by then it has read its module, whosever it was.
    wait_until("its end", lambda: process.tend().note.startswith("started again"), timeout_seconds=60.0,
               every_seconds=0.05)  # fmt: skip
    process.stop()

    assert not (tmp_path / "theirs").exists()
