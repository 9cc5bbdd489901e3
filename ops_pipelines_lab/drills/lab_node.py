"""The software of the lab's nodes, as a program: what is installed, what runs, and what a boot makes of it.

A real program for real installations: `ops-pipelines node-install` runs it as a release says, and the lab's
RebootProgram is called at each boot. One kernel does not come up, and the node starts the one before.
`python -m ops_pipelines_lab.drills.lab_node versions LAB gpu003`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ops_pipelines.core.identity import NodeName, parse_node_name

NODES_DIRECTORY = "nodes"
FIRST_KERNEL, GOOD_KERNEL = "6.8.0-1039-nvidia", "6.8.0-1040-nvidia"
BAD_KERNEL = "6.8.0-1041-nvidia"
"""Lies on the disk after its installation; no node ever runs it."""
_EXIT_NO_ANSWER = 255


def main(argv: Sequence[str] | None = None) -> int:
    """Do one thing on one node; return 0, or 255 for a node without software of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("install", "versions", "booted"))
    parser.add_argument("lab", type=Path)
    parser.add_argument("node", type=parse_node_name)
    parser.add_argument("version", nargs="?", default="")
    options = parser.parse_args(argv)
    disk = NodeDisk(options.lab, options.node)
    if not disk.is_there:
        # Acts that are not about versions reboot nodes too: then there is nothing to do.
        return 0 if options.verb == "booted" else _EXIT_NO_ANSWER
    if options.verb == "install":
        disk.install(options.version)
        print(f"installed {options.version}")
    elif options.verb == "versions":
        print(json.dumps({"node": options.node, "kernel": disk.running}))
    else:
        disk.boot()
        _reboot_gpus(options.lab, options.node)
    return 0


class NodeDisk:
    """The two versions of one node: the one that the next boot starts, and the one that runs."""

    def __init__(self, lab: Path, node: NodeName) -> None:
        self._directory = lab / NODES_DIRECTORY / node

    @property
    def is_there(self) -> bool:
        return self._directory.exists()

    @property
    def running(self) -> str:
        return (self._directory / "running").read_text()

    @property
    def installed(self) -> str:
        return (self._directory / "installed").read_text()

    @property
    def boots(self) -> tuple[str, ...]:
        """Return what ran after each boot, in order."""
        try:
            return tuple((self._directory / "boots").read_text().split())
        except FileNotFoundError:
            return ()

    def create(self, version: str) -> None:
        """Make the disk of a node that runs `version`."""
        self._directory.mkdir(parents=True)
        for name in ("installed", "running"):
            self._put(name, version)

    def install(self, version: str) -> None:
        self._put("installed", version)

    def boot(self) -> None:
        """Start what is installed; what does not come up leaves the node with what it ran before."""
        if self.installed != BAD_KERNEL:
            self._put("running", self.installed)
        with (self._directory / "boots").open("a") as file:
            file.write(f"{self.running}\n")

    def _put(self, name: str, version: str) -> None:
        new = self._directory / f"{name}.new"
        new.write_text(version)
        new.replace(self._directory / name)


def _reboot_gpus(lab: Path, node: NodeName) -> None:
    """Let the simulated GPUs of the node boot with it: their series are gone for seconds, and their boot id is new."""
    from ops_pipelines.clock import SystemClock
    from ops_pipelines_lab.drills.lab_hardware import TWIN_DIRECTORY
    from ops_pipelines_lab.simulator.adapters import SimulatedFleet
    from ops_pipelines_lab.simulator.twin import Twin

    SimulatedFleet(Twin.attach(lab / TWIN_DIRECTORY, SystemClock())).reboot(node, reason="rebooted by Slurm")


if __name__ == "__main__":
    sys.exit(main())
