"""Checks of the node that this process is on: its tests run one after another, each to its limit, now or in a run that
outlives who started it. Changes nothing there but its own files.

What one test does is in `nvml`, `tool_tests` and `host`; what the results mean is `core.node_tests`.

A run under a key is a process of its own, this module with the arguments `DIRECTORY KEY`; its files are
`commands`'. KEY.part holds the check after its last finished test, KEY.json the check once it is over. A run whose
process is gone without KEY.json was cut short: what it had finished is kept, the rest was not run.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import IntEnum
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import ActionKey, NodeName, parse_node_name
from ops_pipelines.core.node_tests import (
    LOAD_TESTS,
    NodeCheck,
    TestResult,
    TestRun,
    parse_check_key,
    parse_suite_name,
    parse_test_name,
)
from ops_pipelines.resources.commands import RunDirectory, RunPair, RunTool, run_pair, run_tool
from ops_pipelines.resources.node.host import host, read_uptime, software
from ops_pipelines.resources.node.nvml import nvidia_smi, nvml_test, read_nvml
from ops_pipelines.resources.node.tool_tests import (
    Bench,
    NodeTest,
    NvmlReading,
    dcgm_level,
    dcgm_memtest,
    nccl_loopback,
    nic_pairwise,
    not_run,
)

# -- one check --


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


# -- one run for each key --


CUT_SHORT = "the check was cut short"
_MODULE = "ops_pipelines.resources.node.checks"


class AnotherCheckRuns(RuntimeError):
    """Another check runs on this node: two at once would measure each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be run, as the lock says it."""

    key: ActionKey
    node: NodeName
    suite: str
    tests: tuple[str, ...]
    limit_seconds: float
    started_at: datetime
    boot_id: str = ""
    """The boot in which it began; empty: not reported."""


class CheckRuns:
    """The runs of this node."""

    def __init__(self, directory: Path, *, clock: Clock, proc: Path = Path("/proc")) -> None:
        self._files = RunDirectory(directory, clock=clock, proc=proc)
        self._clock = clock

    def start(self, key: ActionKey, *, node: NodeName, suite: str, tests: Sequence[str], limit_seconds: float) -> bool:
        """Start a run in a session of its own and return at once; return False if the key has one already.

        Raises AnotherCheckRuns, and OSError if the directory cannot be used.
        """
        order = self._order(key, node=node, suite=suite, tests=tests, limit_seconds=limit_seconds)
        with self._files.starting():
            if self._files.is_known(order.key):
                return False
            self._refuse_another()
            self._files.launch(order.key, _told(order), module=_MODULE)
        return True

    @contextlib.contextmanager
    def alone(
        self, key: ActionKey, *, node: NodeName, suite: str, tests: Sequence[str], limit_seconds: float
    ) -> Iterator[None]:
        """Let no other check begin on this node while this process runs one within the block.

        Raises AnotherCheckRuns, also for a key that has a run already, and OSError if the directory cannot be used.
        """
        order = self._order(key, node=node, suite=suite, tests=tests, limit_seconds=limit_seconds)
        with self._files.starting():
            if self._files.lock(key).exists():
                raise AnotherCheckRuns(f"a check was started under {key} before; ask for its --result")
            self._refuse_another()
            self._files.write_lock(order.key, _told(order), pid=os.getpid())
        try:
            yield
        finally:
            self._files.lock(key).unlink(missing_ok=True)

    def take_over(self, key: ActionKey) -> Order:
        """Return what was to be run, and make this process the one that runs it."""
        order = self.order(key)
        self._files.write_lock(order.key, _told(order), pid=os.getpid())
        return order

    def read(self, key: ActionKey) -> NodeCheck | None:
        """Return what the run under `key` found; None while it runs.

        Raises KeyError if none was started under it, and ValueError if its files make no sense.
        """
        from ops_pipelines.resources.fleet.documents import check_from_json

        parse_check_key(key)
        try:
            self._files.trust()
            order = self.order(key)
        except FileNotFoundError as problem:
            raise KeyError(key) from problem
        is_alive = self._files.is_alive(self._files.lock(key))
        with contextlib.suppress(FileNotFoundError):  # looked for after the process, so that an end is not missed
            return check_from_json(self._files.result(key).read_text(encoding="utf-8"), node=order.node, key=key)
        if is_alive:
            return None
        return self._cut_short(order)

    def order(self, key: ActionKey) -> Order:
        """Return what was to be run; raise FileNotFoundError if nothing was, ValueError if the lock makes no sense."""
        text = self._files.lock(key).read_text(encoding="utf-8")
        try:
            told = json.loads(text)
            return Order(
                key=parse_check_key(told["key"]),
                node=parse_node_name(told["node"]),
                suite=told["suite"] and parse_suite_name(told["suite"]),
                tests=tuple(parse_test_name(test) for test in told["tests"]),
                limit_seconds=float(told["limit_seconds"]),
                started_at=datetime.fromisoformat(told["started_at"]),
                boot_id=str(told["boot_id"]),
            )
        except (KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise ValueError(f"{key}.lock is not what a check writes ({problem!r}); remove it") from problem

    def keep(self, check: NodeCheck) -> None:
        """Keep a check that is not over."""
        self._write(self._files.part(check.key), check)

    def finish(self, check: NodeCheck) -> None:
        """Keep a check that is over."""
        self._write(self._files.result(check.key), check)
        self._files.part(check.key).unlink(missing_ok=True)

    def _cut_short(self, order: Order) -> NodeCheck:
        from ops_pipelines.resources.fleet.documents import check_from_json

        done: NodeCheck | None = None
        with contextlib.suppress(FileNotFoundError):
            text = self._files.part(order.key).read_text(encoding="utf-8")
            done = check_from_json(text, node=order.node, key=order.key)
        if done is None:
            done = NodeCheck(
                key=order.key,
                node=order.node,
                suite=order.suite,
                started_at=order.started_at,
                finished_at=order.started_at,
                tests=(),
            )
        known = {run.test for run in done.tests}
        rest = [
            TestRun(test=test, result=TestResult.NOT_RUN, said=CUT_SHORT) for test in order.tests if test not in known
        ]
        if rest and rest[0].test in LOAD_TESTS and order.boot_id not in ("", self._files.boot_id()):
            # The one that ran: who requested a reboot meanwhile knows better, and nobody else brings a node down.
            said = f"the node went down and booted while {rest[0].test} ran"
            rest[0] = replace(rest[0], result=TestResult.FAILED, said=said)
        return replace(done, tests=(*done.tests, *rest))

    def _order(
        self, key: ActionKey, *, node: NodeName, suite: str, tests: Sequence[str], limit_seconds: float
    ) -> Order:
        return Order(
            key=parse_check_key(key),
            node=node,
            suite=suite,
            tests=tuple(tests),
            limit_seconds=limit_seconds,
            started_at=self._clock.now(),
            boot_id=self._files.boot_id(),
        )

    def _refuse_another(self) -> None:
        for key, _ in self._files.running():
            raise AnotherCheckRuns(f"the check {key} still runs on this node; wait for it")

    def _write(self, path: Path, check: NodeCheck) -> None:
        from ops_pipelines.resources.fleet.documents import check_to_json

        self._files.replace(path, check_to_json(check))


def _told(order: Order) -> dict[str, object]:
    return {
        "key": order.key,
        "node": order.node,
        "suite": order.suite,
        "tests": list(order.tests),
        "limit_seconds": order.limit_seconds,
        "started_at": order.started_at.isoformat(),
        "boot_id": order.boot_id,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check that was started under a key: `DIRECTORY KEY`."""
    from ops_pipelines.clock import SystemClock

    directory, key = sys.argv[1:] if arguments is None else arguments
    clock = SystemClock()
    runs = CheckRuns(Path(directory), clock=clock)
    order = runs.take_over(parse_check_key(key))
    check = run_check(
        order.node,
        order.tests,
        key=order.key,
        suite=order.suite,
        clock=clock,
        limit_seconds=order.limit_seconds,
        keep=runs.keep,
    )
    runs.finish(check)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
