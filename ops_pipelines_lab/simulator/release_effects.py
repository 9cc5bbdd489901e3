"""What bad versions do to the nodes that run them, as the scenario tells it: at the installation, the boot, under load.

A fold of seed and scenario like everything else here: the same node always has the same luck with a version. How a
version comes to run is `installs`' business.
"""

import random
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from ops_pipelines.core.identity import JobAttempt, NodeName
from ops_pipelines.core.release import Component
from ops_pipelines_lab.simulator.faults import Faults
from ops_pipelines_lab.simulator.hardware import Hardware, Node
from ops_pipelines_lab.simulator.journal import InstallPart
from ops_pipelines_lab.simulator.scenario import Scenario
from ops_pipelines_lab.simulator.versions import ReleaseFault, ReleaseTrouble


class ReleaseEffects:
    """What each version does to each node."""

    def __init__(
        self,
        scenario: Scenario,
        hardware: Hardware,
        faults: Faults,
        *,
        seed: int,
        later: Callable[[datetime, Callable[[datetime], None]], None],
    ) -> None:
        self._told = scenario.release_faults
        self._hardware = hardware
        self._faults = faults
        self._seed = seed
        self._later = later
        self._arranged: set[tuple[NodeName, int, ReleaseFault]] = set()
        """What was arranged already for one boot of a node."""

    # -- installing and restarting --

    def fails_to_install(self, node: Node, part: InstallPart) -> bool:
        return self._has(ReleaseTrouble.INSTALL_FAILS, node, part.component, part.version)

    def comes_up_old(self, node: Node, component: Component, version: str) -> bool:
        return self._has(ReleaseTrouble.COMES_UP_OLD, node, component, version)

    def stops_boot(self, node: Node) -> bool:
        """Return whether a node that runs these versions does not come up."""
        return any(True for _ in self._running(node, ReleaseTrouble.NEVER_BOOTS))

    def loaded(self, node: Node, at: datetime) -> None:
        """Let show what shows as soon as versions are loaded: after a boot, or a new start of the driver."""
        for fault in self._running(node, ReleaseTrouble.LOSES_GPU):
            gpu = node.gpus[self._draw(fault, node, "gpu").randrange(len(node.gpus))]
            if gpu.is_on_bus:
                self._hardware.drop_gpu_off_bus(node, gpu, at)

    # -- under load --

    def work_begins(self, node: Node, _attempt: JobAttempt, at: datetime) -> None:
        """Arrange what happens under load, once for each boot."""
        for fault in self._running(node, ReleaseTrouble.HANGS):
            if self._is_first(node, fault):
                self._arrange(node, fault, at + timedelta(seconds=fault.after_seconds), self._hang)
        for fault in self._running(node, ReleaseTrouble.XID_PRONE):
            if self._is_first(node, fault):
                self._arrange_xid(node, fault, number=1, after=at)

    def slowdown_of(self, nodes: Iterable[Node]) -> float:
        """Return by which share steps take longer on these nodes together: all wait for the slowest."""
        ratios = [each.slowdown_ratio for node in nodes for each in self._running(node, ReleaseTrouble.SLOWER)]
        return max(ratios, default=0.0)

    def lowers(self, node: Node, test: str) -> float:
        """Return by which share the numbers of a test are lower on a node."""
        found = [each for each in self._running(node, ReleaseTrouble.SLOWER) if test in each.found_by]
        return max((each.slowdown_ratio for each in found), default=0.0)

    def _arrange(
        self, node: Node, fault: ReleaseFault, at: datetime, show: Callable[[Node, ReleaseFault, datetime], None]
    ) -> None:
        boot_count = node.boot_count

        def happen(then: datetime) -> None:
            # Another boot, or another version, has ended what was arranged.
            if node.is_up and node.boot_count == boot_count and _runs(node, fault):
                show(node, fault, then)

        self._later(at, happen)

    def _arrange_xid(self, node: Node, fault: ReleaseFault, *, number: int, after: datetime) -> None:
        draw = self._draw(fault, node, f"{node.boot_count}:{number}")
        gap = timedelta(seconds=draw.expovariate(1 / fault.after_seconds))
        index = draw.randrange(len(node.gpus))

        def show(node: Node, fault: ReleaseFault, at: datetime) -> None:
            if node.gpus[index].is_visible and node.user_of(node.gpus[index]) is not None:
                self._faults.stop_gpu_processor(node, node.gpus[index], at)
            self._arrange_xid(node, fault, number=number + 1, after=at)

        self._arrange(node, fault, after + gap, show)

    def _hang(self, node: Node, _fault: ReleaseFault, at: datetime) -> None:
        if not node.is_wedged:
            self._faults.wedge(node, at)

    def _is_first(self, node: Node, fault: ReleaseFault) -> bool:
        what = (node.name, node.boot_count, fault)
        is_first = what not in self._arranged
        self._arranged.add(what)
        return is_first

    # -- whom a fault is about --

    def _has(self, trouble: ReleaseTrouble, node: Node, component: Component, version: str) -> bool:
        return any(
            (each.trouble, each.component, each.version) == (trouble, component, version) and self._is_about(each, node)
            for each in self._told
        )

    def _running(self, node: Node, trouble: ReleaseTrouble) -> Iterable[ReleaseFault]:
        return (
            each for each in self._told if each.trouble is trouble and _runs(node, each) and self._is_about(each, node)
        )

    def _is_about(self, fault: ReleaseFault, node: Node) -> bool:
        if fault.nodes is not None and node.name not in fault.nodes:
            return False
        return fault.node_ratio == 1.0 or self._draw(fault, node, "luck").random() < fault.node_ratio

    def _draw(self, fault: ReleaseFault, node: Node, what: str) -> random.Random:
        told = f"{fault.component.value}:{fault.version}:{fault.trouble.value}"
        return random.Random(f"{self._seed}:release:{told}:{node.name}:{what}")


def _runs(node: Node, fault: ReleaseFault) -> bool:
    return node.versions.get(fault.component) == fault.version
