"""What one test of the node's own check finds on a pretended node: its verdict, its words and its numbers.

Pure but for seeded noise. When a check runs is `node_checks`' business; whether numbers are good enough is judged by
whoever reads them.
"""

import random
from collections.abc import Collection

from ops_pipelines.core.node_tests import GPU_COUNT, TESTS, Measurement, TestResult, TestRun
from ops_pipelines_lab.simulator.defects import Defect
from ops_pipelines_lab.simulator.hardware import Node

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
