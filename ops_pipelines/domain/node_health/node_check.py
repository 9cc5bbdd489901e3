"""What tests on a node found: each test passed, failed or was not run, with what it measured.

An absent tool is reported as not run, never as passed. Whether measurements are good enough is judged by
`health_gates`; which tests fit a fault is data there as well. Running them belongs to the node (`ops-pipelines
node-check`), starting them to the `fleet` port.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ops_pipelines.domain.identity import ActionKey, NodeName, PciAddress
from ops_pipelines.domain.observation import NodeInspection

TESTS: Mapping[str, str] = {
    "nvml": "what the driver says of each GPU: errors, remapped rows, recovery action, links, heat",
    "nvidia_smi": "the tool answers, and tells the GPUs and the driver that NVML tells",
    "dcgm_diag_r1": "DCGM diagnostic level 1: software and permissions, seconds",
    "dcgm_diag_r2": "DCGM diagnostic level 2: adds GPU memory and PCIe, minutes",
    "dcgm_diag_r3": "DCGM diagnostic level 3: adds stress and power, a quarter of an hour",
    "dcgm_memtest": "DCGM's memory test: patterns through the whole GPU memory, ten minutes and more",
    "nccl_loopback": "nccl-tests all_reduce over all GPUs of the node: NVLink and NVSwitch",
    "nic_pairwise": "perftest ib_write_bw between the node's own NICs, two at a time, through their switch",
    "software": "versions that must match, kernel modules, disks, mounts, time",
    "host": "host memory errors, failed units, Xids during the tests",
}
"""Every test that `node-check` knows, and what it looks at."""

GPU_COUNT = "gpu_count"
"""The measurement by which a test says how many GPUs it used: some floors hold for one number only."""
LOAD_TESTS = frozenset({"dcgm_diag_r2", "dcgm_diag_r3", "dcgm_memtest", "nccl_loopback", "nic_pairwise"})
"""Tests that put the hardware under load: beside a job they measure the job, and a node that goes down in one of them
has a fault."""
BY_HAND = "by_hand"
"""What `node-check` calls tests that were named one by one: a suite of this name stands in no catalogue."""

_KEY = re.compile(r"[0-9a-f]{32}")
_SUITE = re.compile(r"[a-z][a-z0-9_]{0,63}")


class TestResult(Enum):
    """What came of one test."""

    __test__ = False

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not_run"
    """The tool is absent, may not be run, or did not come to an end: never taken for passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One number that a test measured."""

    name: str
    value: float
    unit: str
    gpu: PciAddress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """One test and what came of it."""

    __test__ = False

    test: str
    """As in catalogue/health_gates.csv: `nvml`, `dcgm_diag_r1`, `dcgm_memtest`, `nccl_loopback`, `nic_pairwise`, ..."""
    result: TestResult
    said: str
    """Why it failed or was not run, or what it passed, in words. Untrusted: never reaches a shell or markup."""
    seconds: float = 0.0
    measurements: tuple[Measurement, ...] = ()
    is_absent: bool = False
    """Of one that was NOT_RUN: the tool, or the part it would look at, is not on this node. Otherwise it was hindered,
    hung or was cut short, which may be the fault itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serial:
    """What is printed on a part, for the vendor."""

    part: str
    """`chassis`, `board`, `gpu 0000:1b:00`, `nic mlx5_0`, ..."""
    serial: str
    model: str = ""
    firmware: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """One run of a suite on one node."""

    key: ActionKey
    """The action that asked for it: the witness that this run, and no earlier one, is meant."""
    node: NodeName
    suite: str
    started_at: datetime
    finished_at: datetime
    tests: tuple[TestRun, ...]
    gpu_models: tuple[str, ...] = ()
    serials: tuple[Serial, ...] = ()
    inspection: NodeInspection | None = None
    """What NVML says after the tests; None where there is no NVML."""


def parse_check_key(text: str) -> ActionKey:
    """Return `text` as the key of an action; raise ValueError on all else (it names a file, on another machine)."""
    if not _KEY.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is not a key; expected 32 digits 0-9a-f, as actions have them")
    return ActionKey(text)


def parse_test_name(text: str) -> str:
    """Return `text` as the name of a test; raise ValueError if there is none of that name."""
    if text not in TESTS:
        raise ValueError(f"{text[:80]!r} is no test; expected one of {', '.join(TESTS)}")
    return text


def parse_suite_name(text: str) -> str:
    """Return `text` as the name of a suite; raise ValueError on all else."""
    if not _SUITE.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is not the name of a suite; expected at most 64 of a-z, 0-9 and `_`")
    return text
