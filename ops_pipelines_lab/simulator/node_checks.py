"""What a simulated node reports of itself: its NVML, the same for the fleet's `inspect` and for its own check; and that
check, tests that run for a while, what cuts them short, and what each finds.

What a test finds follows from the hardware at the end of the run: verdict, words and numbers, pure but for seeded
noise. Whether numbers are good enough is judged by their reader, whether a check can be started by `commands`.
"""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.identity import ActionKey
from ops_pipelines.core.node_tests import GPU_COUNT, TESTS, Measurement, NodeCheck, Serial, TestResult, TestRun
from ops_pipelines.core.observation import GpuInspection, NodeInspection
from ops_pipelines.core.release import Component
from ops_pipelines_lab.simulator.faults import Defect, Defects
from ops_pipelines_lab.simulator.hardware import Hardware, Node
from ops_pipelines_lab.simulator.journal import CheckOrder
from ops_pipelines_lab.simulator.scenario import Scenario


def inspect(hardware: Hardware, node: Node, *, now: datetime) -> NodeInspection:
    """Return what a node that answers reports of its boot and of the GPUs that its driver lists."""
    visible = [gpu for gpu in node.gpus if gpu.is_visible]
    failures = []
    if len(visible) < len(node.gpus):
        failures.append(f"nvidia-smi lists {len(visible)} of {len(node.gpus)} GPUs")
    failures.extend(f"GPU {gpu.address} has a row remap pending" for gpu in visible if gpu.is_row_remap_pending)
    return NodeInspection(
        node=node.name,
        inspected_at=now,
        boot_id=node.boot_id,
        booted_at=node.booted_at,
        gpus=tuple(
            GpuInspection(
                gpu=gpu.address,
                gpu_uuid=gpu.uuid,
                recovery_action=gpu.recovery_action,
                uncorrectable_ecc_count=gpu.uncorrectable_ecc_count,
                is_row_remap_pending=gpu.is_row_remap_pending,
                model=hardware.gpu_model,
                serial=hardware.serial_of(node, gpu),
            )
            for gpu in visible
        ),
        failures=tuple(failures),
        chassis_serial=hardware.serial_of(node, None),
    )


def versions_told(node: Node) -> dict[Component, str]:
    """Return which versions run, of what answers now: without its driver nobody asks a GPU for anything."""
    by_driver = (Component.DRIVER, Component.FABRIC_MANAGER, Component.GPU_VBIOS)
    return {
        component: version
        for component, version in node.versions.items()
        if not (node.is_driver_loading and component in by_driver)
    }


def serials_of(hardware: Hardware, inspection: NodeInspection, node: Node) -> tuple[Serial, ...]:
    """Return what is printed on the chassis and on the GPUs that the driver lists."""
    chassis = Serial(part="chassis", serial=hardware.serial_of(node, None), model="HGX H100 8-GPU")
    return (chassis, *(Serial(part=f"gpu {gpu.gpu}", serial=gpu.serial, model=gpu.model) for gpu in inspection.gpus))


NEEDS_IDLE_GPUS = frozenset(
    {"dcgm_diag_r1", "dcgm_diag_r2", "dcgm_diag_r3", "dcgm_memtest", "nccl_loopback", "nic_pairwise"}
)
"""Tests that take the GPUs or the ports for themselves; the others only read."""
_SEES_DAMAGE = frozenset({"nvml", "dcgm_diag_r1", "dcgm_diag_r2", "dcgm_diag_r3", "dcgm_memtest"})
"""Tests that fail on what the driver shows: a GPU that is gone, a counted error, a wish to be reset."""
_ONLY_MEASURES = frozenset({"nccl_loopback", "nic_pairwise"})
"""Tests that come to their end on a bad node too: the numbers say how well."""
_USUAL = {
    "nccl_loopback": (("busbw", "GB/s", 479.7),),
    "nic_pairwise": (("rate_ratio", "ratio", 0.98),),
    "dcgm_diag_r2": (("gpu_to_host", "GB/s", 51.2), ("host_to_gpu", "GB/s", 53.6)),
    "dcgm_diag_r3": (("gpu_to_host", "GB/s", 51.2), ("host_to_gpu", "GB/s", 53.6)),
}
"""Names, units and usual values of an HGX H100 node. Sources: catalogue/health_gates.csv; of the way between GPU and
host an assumption a little below the 55.4 GB/s that one GPU alone reaches."""
_BIAS_RATIO = 0.012
"""How far nodes lie from the usual value; noise between two runs of one node is a quarter of it."""
_SPOILT_RATIO = 0.7
"""What a defect leaves of a measured value."""
_PCIE_LANES, _NVLINKS = 16, 18


def find(
    node: Node,
    test: str,
    *,
    seen: Collection[Defect],
    absent: Collection[str],
    is_busy: bool,
    lowered_ratio: float = 0.0,
    seed: str,
    key: str,
) -> TestRun:
    """Return what a test finds now. `seen`: the defects that it can see; `is_busy`: whether jobs use the GPUs;
    `lowered_ratio`: by how much what the node runs lowers its numbers."""
    if test in absent or test not in TESTS:
        return TestRun(test=test, result=TestResult.NOT_RUN, said=f"{test} is not installed", is_absent=True)
    if is_busy and test in NEEDS_IDLE_GPUS:
        return not_run(test, "GPU in use")
    complaints = [f"GPU {each.gpu.address}: failed" if each.gpu else "failed" for each in seen]
    if test in _SEES_DAMAGE:
        complaints += [f"GPU {gpu.address} is not well" for gpu in node.gpus if not gpu.is_healthy]
    is_failed = bool(complaints) and test not in _ONLY_MEASURES
    left_ratio = (_SPOILT_RATIO if complaints else 1.0) * (1 - lowered_ratio)
    return TestRun(
        test=test,
        result=TestResult.FAILED if is_failed else TestResult.PASSED,
        said="; ".join(complaints) if is_failed else "",
        measurements=_measurements(node, test, left_ratio=left_ratio, seed=seed, key=key),
    )


def not_run(test: str, why: str) -> TestRun:
    """Return that a test which is there came to no end, and why."""
    return TestRun(test=test, result=TestResult.NOT_RUN, said=why)


def _measurements(node: Node, test: str, *, left_ratio: float, seed: str, key: str) -> tuple[Measurement, ...]:
    if test == "nvml":
        return tuple(
            Measurement(name=name, value=float(value), unit=unit, gpu=gpu.address)
            for gpu in node.gpus
            if gpu.is_visible
            for name, unit, value in (
                ("ecc_uncorrectable", "count", gpu.uncorrectable_ecc_count),
                ("pcie_width", "lanes", _PCIE_LANES),
                ("nvlinks_active", "links", _NVLINKS),
            )
        )
    found = []
    for name, unit, usual in _USUAL.get(test, ()):
        bias = random.Random(f"{seed}:bias:{node.name}:{test}:{name}").uniform(-_BIAS_RATIO, _BIAS_RATIO)
        noise = random.Random(f"{seed}:noise:{key}:{test}:{name}").uniform(-_BIAS_RATIO, _BIAS_RATIO) / 4
        value = usual * (1 + bias + noise) * left_ratio
        found.append(Measurement(name=name, value=round(value, 4), unit=unit))
    if test == "nccl_loopback":
        gpu_count = sum(gpu.is_visible for gpu in node.gpus)
        found.append(Measurement(name=GPU_COUNT, value=float(gpu_count), unit="count"))
    return tuple(found)


@dataclass(slots=True, kw_only=True, eq=False)
class _Run:
    order: CheckOrder
    started_at: datetime
    image_number: int
    found_busy: bool
    is_over: bool = False
    found: NodeCheck | None = None


class NodeChecks:
    """All checks that were ever started, by node and key: their results lie on the nodes."""

    def __init__(
        self,
        scenario: Scenario,
        hardware: Hardware,
        defects: Defects,
        *,
        seed: int,
        lowers: Callable[[Node, str], float],
        later: Callable[[datetime, Callable[[datetime], None]], None],
    ) -> None:
        self._scenario = scenario
        self._hardware = hardware
        self._defects = defects
        self._seed = seed
        self._lowers = lowers
        """By which share what a node runs lowers the numbers of a test."""
        self._later = later
        self._runs: dict[tuple[str, str], _Run] = {}

    def start(self, node: Node, order: CheckOrder, at: datetime) -> None:
        """Begin the tests; under a key that was used before on this installation of the node nothing begins."""
        earlier = self._runs.get((node.name, order.key))
        if earlier is not None and earlier.image_number == node.image_number:
            return
        run = _Run(order=order, started_at=at, image_number=node.image_number, found_busy=bool(node.processes))
        self._runs[node.name, order.key] = run
        if run.found_busy:
            # The tests that need idle GPUs give up at once, and the others take no time worth telling.
            self._finish(node, run, at)
            return

        def finish(then: datetime) -> None:
            if not run.is_over:
                self._finish(node, run, then)

        self._later(at + timedelta(seconds=self._scenario.durations.check_seconds), finish)

    def cut_short(self, node: Node, at: datetime) -> None:
        """End what runs on a node that goes down: its tests did not come to an end."""
        for run in self._running_on(node):
            run.is_over = True
            tests = tuple(not_run(test, "cut short: the node went down") for test in run.order.tests)
            run.found = NodeCheck(
                key=ActionKey(run.order.key),
                node=node.name,
                suite=run.order.suite,
                started_at=run.started_at,
                finished_at=at,
                tests=tests,
            )

    def read(self, node: Node, key: ActionKey) -> NodeCheck | None:
        """Return what lies on the node under the key; None while it runs, or if nothing was started since the image."""
        run = self._runs.get((node.name, key))
        return None if run is None or run.image_number != node.image_number else run.found

    def running_on(self, node: Node) -> tuple[ActionKey, ...]:
        """Return the keys of the checks that run on the node now."""
        return tuple(ActionKey(run.order.key) for run in self._running_on(node))

    def _running_on(self, node: Node) -> tuple[_Run, ...]:
        return tuple(run for (name, _), run in self._runs.items() if name == node.name and not run.is_over)

    def _finish(self, node: Node, run: _Run, at: datetime) -> None:
        run.is_over = True
        is_busy = run.found_busy or bool(node.processes)
        inspection = inspect(self._hardware, node, now=at)
        tests = run.order.tests
        seen = {
            test: [each for each in self._defects.of(node.name) if test in each.course.found_by]
            for test in tests
            if not is_busy and test not in self._scenario.absent_tests
        }
        seconds = 0.0 if run.found_busy else (at - run.started_at).total_seconds() / len(tests)
        found = [
            find(
                node,
                test,
                seen=seen.get(test, []),
                absent=self._scenario.absent_tests,
                is_busy=is_busy,
                lowered_ratio=self._lowers(node, test),
                seed=str(self._seed),
                key=run.order.key,
            )
            for test in tests
        ]
        run.found = NodeCheck(
            key=ActionKey(run.order.key),
            node=node.name,
            suite=run.order.suite,
            started_at=run.started_at,
            finished_at=at,
            tests=tuple(replace(each, seconds=seconds) for each in found),
            gpu_models=tuple(gpu.model for gpu in inspection.gpus),
            serials=serials_of(self._hardware, inspection, node),
            inspection=inspection,
        )
        for defect in {id(each): each for visible in seen.values() for each in visible}.values():
            self._defects.fail_check(defect)
