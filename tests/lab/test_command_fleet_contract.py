"""The fleet contract on configured commands: the lab's machines, whose slurmd and processes are a real Slurm's."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.cluster import Fleet
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.rollout import InstallOrder
from ops_pipelines.resources.fleet.command_fleet import CommandFleet
from ops_pipelines_lab.drills.daemon_processes import wait_until
from ops_pipelines_lab.drills.lab_hardware import SLURM_DIRECTORY, TWIN_DIRECTORY
from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.scenario import lab_scenario
from ops_pipelines_lab.simulator.twin import Twin
from tests.lab.slurm_server import start_cluster
from tests.ports.fleet_contract import FleetContract, FleetWorld
from tests.resources.patience import run_patiently

pytestmark = pytest.mark.live

_NODE_COUNT = 2
_QUICK = {"reboot_seconds": 2.0, "power_on_seconds": 2.0, "gpu_reset_seconds": 1.0}
"""Longer than a command takes to be reported it; nothing here depends on how much longer."""
_ON_NODE = """
import os, subprocess, sys

lab, node, *words = sys.argv[1:]
reached = subprocess.run([sys.executable, "-m", "ops_pipelines_lab.drills.lab_hardware", "inspect", lab, node],
                         stdout=subprocess.DEVNULL)
if reached.returncode:
    sys.exit(reached.returncode)
state = os.path.join(lab, "checks", node)
words = ["-c", "from ops_pipelines.cli import main; main()", "node-check", "--state", state, *words]
os.execv(sys.executable, [sys.executable, *words])
"""
"""What ssh does: no answer from a node that is not reached, else the node's own command, with the node's own files."""


class LabWorld:
    """Two nodes of a lab behind `CommandFleet`."""

    def __init__(self, lab: Path, cluster: SlurmCluster) -> None:
        scenario = lab_scenario(_NODE_COUNT)
        scenario = replace(scenario, durations=replace(scenario.durations, **_QUICK))
        self._twin = Twin.create(lab / TWIN_DIRECTORY, scenario, seed=7, clock=SystemClock())
        (lab / SLURM_DIRECTORY).symlink_to(cluster.settings.directory, target_is_directory=True)
        hardware = [sys.executable, "-m", "ops_pipelines_lab.drills.lab_hardware"]
        plain = ("inspect", "reboot", "power_off", "power_on", "power_state")
        commands = {verb: [*hardware, verb, str(lab), "{node}"] for verb in plain}
        on_node = [sys.executable, "-c", _ON_NODE, str(lab), "{node}"]
        check = ["--start", "--node", "{node}", "--test", "{tests}", "--key", "{key}"]
        commands["start_check"] = [*on_node, *check]
        commands["read_check"] = [*on_node, "--result", "{key}"]
        commands["reset_gpu"] = [*hardware, "reset_gpu", str(lab), "{node}", "{gpu}"]
        self._fleet = CommandFleet(commands, clock=SystemClock(), run=run_patiently)
        self._cluster = cluster
        self.gpus_per_node = scenario.gpus_per_node

    @property
    def fleet(self) -> Fleet:
        return self._fleet

    @property
    def node_names(self) -> tuple[NodeName, ...]:
        return self._cluster.node_names

    def occupy(self, node: NodeName) -> None:
        pytest.skip("the lab's GPUs do not know Slurm's jobs; the guardrails keep a repair off a node at work")

    def silence(self, node: NodeName) -> None:
        self._twin.inject(FaultKind.NODE_UNREACHABLE, node)

    def order(self) -> InstallOrder:
        pytest.skip("nothing is installed on the lab's machines: they are this one")

    failing_order = order

    def wait_until(self, predicate: Callable[[], bool], timeout_seconds: float) -> None:
        wait_until("the machines", predicate, timeout_seconds=timeout_seconds, every_seconds=0.5)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with start_cluster(node_count=_NODE_COUNT) as started:
        yield started


class TestCommandFleet(FleetContract):
    @pytest.fixture
    def world(self, cluster: SlurmCluster, tmp_path: Path) -> FleetWorld:
        cluster.clear()
        return LabWorld(tmp_path, cluster)
