"""Which versions run on a node: of a daemon only while a process of that very file runs, and never a guess."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Event

import pytest
from typer.testing import CliRunner

from ops_pipelines import cli
from ops_pipelines.core.release import Component
from ops_pipelines.resources.commands import ToolAnswer
from ops_pipelines.resources.node.installs import Machine, read_versions
from ops_pipelines.resources.nvml import to_json
from tests.resources.node_bench import HANGS, NODE, Tools, nvml_reading, says

DAEMONS = {
    Component.FABRIC_MANAGER: ("nv-fabricmanager", "Fabric Manager version is : 580.126.20\n", "580.126.20"),
    Component.IMEX: ("nvidia-imex", "IMEX version is: 580.126.20\n", "580.126.20"),
    Component.DCGM: ("nv-hostengine", "Version : 4.4.1\nBuild ID : 26\nBuild Date : 2026-08-04\n", "4.4.1"),
    Component.SLURM: ("slurmd", "slurm 24.11.5\n", "24.11.5"),
    Component.KUBERNETES: ("kubelet", "Kubernetes v1.31.2\n", "1.31.2"),
    Component.CONTAINER_RUNTIME: ("containerd", "containerd containerd.io v1.7.20 8fc6bcff51\n", "1.7.20"),
}


def nvml_says(driver: str = "580.126.20", firmware: tuple[str, ...] = ("96.00.A5.00.01",) * 2) -> ToolAnswer:
    reading = nvml_reading(len(firmware))
    assert reading.inspection is not None
    gpus = [
        {"pci_address": gpu.gpu, "firmware": each}
        for gpu, each in zip(reading.inspection.gpus, firmware, strict=True)
    ]  # fmt: skip
    return says(json.dumps({
        "inspection": json.loads(to_json(reading.inspection)),
        "driver_version": driver,
        "library_version": f"13.{driver}",
        "gpus": gpus,
    }))  # fmt: skip


class Node:
    """A node whose files are a directory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("bin", "proc", "sys", "root"):
            (place / name).mkdir()
        self.answers: dict[str, ToolAnswer] = {sys.executable: says(returncode=1)}
        self._pid = 100

    def program(self, name: str, said: str) -> Path:
        path = self.place / "bin" / name
        path.write_text("#!/bin/true\n")
        path.chmod(0o755)
        self.answers[str(path)] = self.answers[name] = says(said)
        return path

    def process(self, target: str) -> None:
        self._pid += 1
        (self.place / "proc" / str(self._pid)).mkdir()
        (self.place / "proc" / str(self._pid) / "exe").symlink_to(target)

    def file(self, path: str, text: str) -> None:
        (self.place / path).parent.mkdir(parents=True, exist_ok=True)
        (self.place / path).write_text(text)

    def read(self, limit_seconds: float = 10.0) -> Mapping[Component, str]:
        machine = Machine(
            run=Tools(self.answers),
            proc=self.place / "proc",
            sys=self.place / "sys",
            root=self.place / "root",
            search_path=str(self.place / "bin"),
            kernel="6.8.0-1013-nvidia",
        )
        return read_versions(NODE, machine, limit_seconds=limit_seconds)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path.resolve())


def test_a_node_with_nothing_tells_its_kernel_and_nothing_else(node: Node) -> None:
    assert node.read() == {Component.KERNEL: "6.8.0-1013-nvidia"}


@pytest.mark.parametrize("component", DAEMONS)
def test_a_daemon_that_runs_tells_its_version(node: Node, component: Component) -> None:
    name, said, version = DAEMONS[component]
    node.process(str(node.program(name, said)))

    assert node.read()[component] == version


@pytest.mark.parametrize(
    "exes",
    [
        pytest.param((), id="installed and not running"),
        pytest.param(("{program} (deleted)",), id="replaced beneath its process"),
        pytest.param(("{program}", "{program} (deleted)"), id="one old process left"),
        pytest.param(("/elsewhere/slurmd",), id="another file of that name"),
    ],
)
def test_a_daemon_tells_nothing_unless_that_very_file_runs(node: Node, exes: tuple[str, ...]) -> None:
    program = node.program("slurmd", "slurm 24.11.5\n")
    for exe in exes:
        node.process(exe.format(program=program))

    assert Component.SLURM not in node.read()


@pytest.mark.parametrize(
    "answer", [says(""), says("no version here"), says("slurm 24.11.5", returncode=1), HANGS], ids=str
)
def test_a_tool_that_tells_no_version_is_left_out(node: Node, answer: ToolAnswer) -> None:
    program = node.program("slurmd", "")
    node.process(str(program))
    node.answers[str(program)] = answer

    assert Component.SLURM not in node.read()


def test_without_a_daemon_for_containers_what_starts_them_counts(node: Node) -> None:
    node.program("enroot", "3.5.0\n")

    assert node.read()[Component.CONTAINER_RUNTIME] == "3.5.0"


def test_the_driver_and_the_vbios_are_nvmls(node: Node) -> None:
    node.answers[sys.executable] = nvml_says()

    versions = node.read()

    assert (versions[Component.DRIVER], versions[Component.GPU_VBIOS]) == ("580.126.20", "96.00.A5.00.01")


def test_gpus_of_two_minds_have_no_version_that_anybody_wants(node: Node) -> None:
    node.answers[sys.executable] = nvml_says(firmware=("96.00.A5.00.01", "96.00.89.00.01"))

    assert node.read()[Component.GPU_VBIOS] == "96.00.89.00.01+96.00.A5.00.01"


def test_a_driver_that_makes_no_sense_is_left_out(node: Node) -> None:
    node.answers[sys.executable] = nvml_says(driver="580; reboot", firmware=("",))

    assert node.read() == {Component.KERNEL: "6.8.0-1013-nvidia"}


def test_files_tell_what_the_kernel_the_board_and_the_cards_run(node: Node) -> None:
    node.file("sys/module/mlx5_core/version", "24.10-1.1.4\n")
    node.file("sys/class/dmi/id/bios_version", "1.06.07\n")
    node.file("root/usr/local/cuda/version.json", json.dumps({"cuda": {"name": "CUDA SDK", "version": "12.8.1"}}))
    for number in range(3):
        node.file(f"sys/class/infiniband/mlx5_{number}/fw_ver", "28.43.2026\n" if number else "32.43.1014\n")
        node.file(f"sys/class/infiniband/mlx5_{number}/board_id", "MT_0000000838\n" if number else "MT_0000000884\n")

    versions = node.read()

    assert versions[Component.NIC_DRIVER] == "24.10-1.1.4"
    assert versions[Component.BIOS] == "1.06.07"
    assert versions[Component.CUDA] == "12.8.1"
    assert versions[Component.NIC_FIRMWARE] == "28.43.2026"


@pytest.mark.parametrize("text", ["", "{}", "[]", "no json", '{"cuda": {"version": {}}}', '{"cuda": "12"}'])
def test_a_file_that_makes_no_sense_takes_nothing_from_the_rest(node: Node, text: str) -> None:
    node.file("root/usr/local/cuda/version.json", text)

    assert node.read() == {Component.KERNEL: "6.8.0-1013-nvidia"}


def test_who_is_late_is_left_out_and_nobody_waits_for_them(node: Node) -> None:
    is_over = Event()

    class Hangs(Tools):
        def __call__(self, argv, *, limit_seconds):  # type: ignore[no-untyped-def]
            if argv[0] == sys.executable:
                is_over.wait(30.0)
            return super().__call__(argv, limit_seconds=limit_seconds)

    machine = Machine(
        run=Hangs(node.answers), proc=node.place / "proc", sys=node.place / "sys", root=node.place, kernel="6.8.0"
    )

    versions = read_versions(NODE, machine, limit_seconds=0.3)

    is_over.set()
    assert versions == {Component.KERNEL: "6.8.0"}


def test_the_command_prints_what_a_fleet_reads() -> None:
    answer = CliRunner().invoke(cli.app, ["node-versions", "--node", NODE])

    assert answer.exit_code == 0
    assert {"node", "kernel"} <= json.loads(answer.stdout).keys()


def test_a_name_that_is_none_is_wrong_usage() -> None:
    assert CliRunner().invoke(cli.app, ["node-versions", "--node", "gpu;x"]).exit_code == 2
