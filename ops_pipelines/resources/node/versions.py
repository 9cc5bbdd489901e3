"""Which versions run on the node that this process is on, of every component that it can tell. Changes nothing.

What runs, never what is installed: of a daemon a version counts only while a process of that very file runs; a file
replaced beneath its process tells nothing. All are asked at once, each within its limit; who is late, absent or makes
no sense is left out. Of firmware the BMC may tell more (`fleet.redfish`).
"""

import json
import os
import platform
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import Component
from ops_pipelines.resources.commands import RunTool, ToolEnd, run_tool, tool_environment
from ops_pipelines.resources.fleet.documents import parse_version
from ops_pipelines.resources.node.nvml import read_nvml
from ops_pipelines.resources.node.tool_tests import NvmlReading

DEFAULT_LIMIT_SECONDS = 3.0
"""The fleet waits for 4.5 s, the way to the node included."""
_TOLD = re.compile(r"(?<![0-9.])[0-9]+(?:\.[0-9]+)+(?:[-+~][A-Za-z0-9.+~-]+)?")
_DAEMONS: Mapping[Component, tuple[tuple[str, ...], ...]] = {
    Component.FABRIC_MANAGER: (("nv-fabricmanager", "--version"),),
    Component.IMEX: (("nvidia-imex", "--version"),),
    Component.DCGM: (("nv-hostengine", "--version"),),
    Component.SLURM: (("slurmd", "-V"),),
    Component.KUBERNETES: (("kubelet", "--version"),),
    Component.CONTAINER_RUNTIME: (("containerd", "--version"), ("crio", "--version"), ("dockerd", "--version")),
}
"""Daemon -> what tells its version, best first; of containers, the one that the node runs."""
_DAEMONLESS = (("enroot", "version"),)
"""Container runtimes that run nothing of their own: what is installed is what the next job gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a node tells of itself; the defaults are this machine."""

    run: RunTool = run_tool
    proc: Path = field(default_factory=lambda: Path("/proc"))
    sys: Path = field(default_factory=lambda: Path("/sys"))
    root: Path = field(default_factory=lambda: Path("/"))
    search_path: str = field(default_factory=lambda: tool_environment(os.environ)["PATH"])
    kernel: str = field(default_factory=platform.release)


def read_versions(
    node: NodeName, machine: Machine | None = None, *, limit_seconds: float = DEFAULT_LIMIT_SECONDS
) -> Mapping[Component, str]:
    """Return what runs, within `limit_seconds`; what cannot be told by then is missing."""
    machine = machine if machine is not None else Machine()
    until = time.monotonic() + limit_seconds
    asked = [_ask(reader, node, machine, limit_seconds=limit_seconds * 0.8) for reader in _READERS]
    told: dict[Component, str] = {}
    for answer in asked:
        try:
            told |= answer.result(timeout=max(0.0, until - time.monotonic()))
        except (TimeoutError, OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return {component: version for component, version in told.items() if _is_version(version)}


Reader = Callable[[NodeName, Machine, float], Mapping[Component, str]]


def _ask(reader: Reader, node: NodeName, machine: Machine, *, limit_seconds: float) -> Future[Mapping[Component, str]]:
    """Ask in a thread that is left behind where it is late: a call into a sick driver may hang for good."""
    answer: Future[Mapping[Component, str]] = Future()

    def read() -> None:
        try:
            answer.set_result(reader(node, machine, limit_seconds))
        except BaseException as problem:
            answer.set_exception(problem)

    Thread(target=read, daemon=True).start()
    return answer


def _read_gpus(node: NodeName, machine: Machine, limit_seconds: float) -> Mapping[Component, str]:
    reading: NvmlReading = read_nvml(node, machine.run, limit_seconds=limit_seconds)
    told = {Component.DRIVER: reading.driver_version, Component.GPU_VBIOS: "+".join(reading.vbios_versions)}
    return {component: version for component, version in told.items() if version}


def _read_files(node: NodeName, machine: Machine, limit_seconds: float) -> Mapping[Component, str]:
    """Return what the kernel tells of itself, of its modules and of the board."""
    told = {
        Component.KERNEL: machine.kernel,
        Component.NIC_DRIVER: _text(machine.sys / "module/mlx5_core/version"),
        Component.BIOS: _text(machine.sys / "class/dmi/id/bios_version"),
        Component.NIC_FIRMWARE: _nic_firmware(machine.sys),
    }
    return {component: version for component, version in told.items() if version}


def _read_cuda(node: NodeName, machine: Machine, limit_seconds: float) -> Mapping[Component, str]:
    told = json.loads((machine.root / "usr/local/cuda/version.json").read_text(encoding="utf-8"))
    return {Component.CUDA: str(told["cuda"]["version"])}


def _read_daemon(component: Component) -> Reader:
    def read(node: NodeName, machine: Machine, limit_seconds: float) -> Mapping[Component, str]:
        for name, *words in _DAEMONS[component]:
            program = shutil.which(name, path=machine.search_path)
            if program is not None and _is_running(program, machine.proc):
                version = _version_told(machine, (program, *words), limit_seconds)
                if version:
                    return {component: version}
        for name, *words in _DAEMONLESS if component is Component.CONTAINER_RUNTIME else ():
            version = _version_told(machine, (name, *words), limit_seconds)
            if version:
                return {component: version}
        return {}

    return read


def _version_told(machine: Machine, argv: tuple[str, ...], limit_seconds: float) -> str:
    answer = machine.run(argv, limit_seconds=limit_seconds)
    if answer.end is not ToolEnd.ENDED or answer.returncode != 0:
        return ""
    found = _TOLD.search(answer.stdout) or _TOLD.search(answer.stderr)
    return found[0] if found is not None else ""


def _is_running(program: str, proc: Path) -> bool:
    """Return whether a process of this file runs, and none of a file that it replaced. Others' need root."""
    path = Path(program).resolve()
    is_found = False
    for process in proc.glob("[0-9]*"):
        link = process / "exe"
        try:
            target = str(link.readlink())
            if target == f"{path} (deleted)":
                return False
            is_found = is_found or (target == str(path) and link.samefile(path))
        except OSError:
            continue
    return is_found


def _nic_firmware(sys: Path) -> str:
    """Return the firmware of the network cards of which the node has most: others (storage) have another by design."""
    found: dict[str, list[str]] = {}
    for card in sorted((sys / "class/infiniband").glob("*")):
        version = _text(card / "fw_ver")
        if version:
            found.setdefault(_text(card / "board_id"), []).append(version)
    if not found:
        return ""
    board = max(sorted(found), key=lambda each: len(found[each]))
    return "+".join(sorted(Counter(found[board])))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _is_version(text: str) -> bool:
    try:
        parse_version(text)
    except ValueError:
        return False
    return True


_READERS: tuple[Reader, ...] = (_read_gpus, _read_files, _read_cuda, *map(_read_daemon, _DAEMONS))
