"""Runs tests on the node that this process is on, one after another, each to its limit. Changes nothing there.

What one test does stands in `nvml`, `dcgm`, `links` and `host`; what the results mean is
`core.node_tests`; starting a check from afar and finding its result is `check_runs`.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import ActionKey, NodeName
from ops_pipelines.core.node_tests import LOAD_TESTS, NodeCheck, TestResult, TestRun
from ops_pipelines.resources.node_tests.dcgm import dcgm_level, dcgm_memtest
from ops_pipelines.resources.node_tests.host import host, read_uptime, software
from ops_pipelines.resources.node_tests.links import nccl_loopback, nic_pairwise
from ops_pipelines.resources.node_tests.nvml import nvidia_smi, nvml_test, read_nvml
from ops_pipelines.resources.node_tests.results import Bench, NodeTest, NvmlReading, not_run
from ops_pipelines.resources.node_tests.tool_runs import RunPair, RunTool, run_pair, run_tool

NODE_TESTS: Mapping[str, tuple[NodeTest, float]] = {
    "nvml": (nvml_test, 60.0),
    "nvidia_smi": (nvidia_smi, 60.0),
    "dcgm_diag_r1": (dcgm_level(1), 300.0),
    "dcgm_diag_r2": (dcgm_level(2), 1200.0),
    "dcgm_diag_r3": (dcgm_level(3), 3600.0),
    "dcgm_memtest": (dcgm_memtest, 3600.0),
    "nccl_loopback": (nccl_loopback, 600.0),
    "nic_pairwise": (nic_pairwise, 600.0),
    "software": (software, 30.0),
    "host": (host, 30.0),
}
"""Every test, and its limit in seconds. AWS saw level 2 take up to 10.5 minutes on eight GPUs, NVIDIA names 15 for
level 3 and 10 for the memory test: the limits are two to four times that."""
DEFAULT_LIMIT_SECONDS = 10_500.0
"""Of a whole check: below the three hours after which its result is not waited for (`Durations.check_limit`)."""


class CheckExit(IntEnum):
    """The exit code of a check, for scripts."""

    PASSED = 0
    FAILED = 1
    NOT_PROVEN = 3
    """Nothing failed, and a required test was not run, or one whose tool is on the node came to no end."""
    CRASHED = 70
    """The check itself broke (EX_SOFTWARE of sysexits.h): says nothing of the node."""
    BUSY = 75
    """Another check runs (EX_TEMPFAIL): ask again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What tests are run with; the defaults are this machine."""

    run: RunTool = run_tool
    run_pair: RunPair = run_pair
    proc: Path = field(default_factory=lambda: Path("/proc"))
    sys: Path = field(default_factory=lambda: Path("/sys"))


def run_check(
    node: NodeName,
    tests: Sequence[str],
    *,
    key: ActionKey,
    suite: str,
    clock: Clock,
    limit_seconds: float = DEFAULT_LIMIT_SECONDS,
    workshop: Workshop | None = None,
    keep: Callable[[NodeCheck], None] | None = None,
) -> NodeCheck:
    """Run `tests` in order and return what came of each, in at most `limit_seconds`.

    `keep` is given the check after each test, as it is so far. NVML is read in any case: the others need it.
    """
    workshop = workshop if workshop is not None else Workshop()
    begun, started_at = time.monotonic(), clock.now()
    uptime = read_uptime(workshop.proc)
    reading = read_nvml(node, workshop.run, limit_seconds=min(NODE_TESTS["nvml"][1], limit_seconds))
    nvml_seconds = time.monotonic() - begun
    bench = Bench(
        run=workshop.run,
        run_pair=workshop.run_pair,
        clock=clock,
        nvml=reading,
        uptime_seconds=uptime,
        proc=workshop.proc,
        sys=workshop.sys,
    )
    check = NodeCheck(
        key=key,
        node=node,
        suite=suite,
        started_at=started_at,
        finished_at=started_at,
        tests=(),
        gpu_models=reading.gpu_models,
        serials=reading.serials,
        inspection=reading.inspection,
    )
    for test in tests:
        left = limit_seconds - (time.monotonic() - begun)
        run = _run_one(test, bench, left_seconds=left, nvml_seconds=nvml_seconds)
        check = replace(check, tests=(*check.tests, run), finished_at=max(clock.now(), started_at))
        if keep is not None:
            keep(check)
    return _inspect_again(check, reading, workshop, tests)


def _run_one(test: str, bench: Bench, *, left_seconds: float, nvml_seconds: float) -> TestRun:
    run_test, limit = NODE_TESTS[test]
    if test == "nvml":
        return replace(run_test(bench, limit), seconds=round(nvml_seconds, 3))
    if left_seconds <= 0.0:
        return not_run(test, "no time was left for it")
    if test in LOAD_TESTS and bench.nvml.compute_process_count:
        return not_run(test, f"{bench.nvml.compute_process_count} processes compute on the GPUs: a job runs here")
    begun = time.monotonic()
    try:
        run = run_test(bench, min(limit, left_seconds))
    except OSError as problem:
        run = not_run(test, f"it could not be run: {problem}")
    return replace(run, seconds=round(time.monotonic() - begun, 3))


def _inspect_again(check: NodeCheck, reading: NvmlReading, workshop: Workshop, tests: Sequence[str]) -> NodeCheck:
    """Return the check with what NVML says after tests that put load on the GPUs: that may have broken them."""
    if reading.inspection is None or not LOAD_TESTS & set(tests):
        return check
    after = read_nvml(check.node, workshop.run, limit_seconds=NODE_TESTS["nvml"][1])
    if after.run.result is TestResult.PASSED:
        return replace(check, inspection=after.inspection)
    said = f"after the tests: {after.run.said}"
    runs = tuple(
        replace(run, result=after.run.result, said=said, measurements=after.run.measurements)
        if run.test == "nvml" and run.result is TestResult.PASSED
        else run
        for run in check.tests
    )
    return replace(check, inspection=after.inspection, tests=runs)


def exit_code_of(check: NodeCheck, required: Collection[str]) -> CheckExit:
    """Return how the check ended, as an exit code."""
    results = {run.test: run.result for run in check.tests}
    if TestResult.FAILED in results.values():
        return CheckExit.FAILED
    is_hindered = any(run.result is TestResult.NOT_RUN and not run.is_absent for run in check.tests)
    if is_hindered or any(results.get(test) is not TestResult.PASSED for test in required):
        return CheckExit.NOT_PROVEN
    return CheckExit.PASSED
