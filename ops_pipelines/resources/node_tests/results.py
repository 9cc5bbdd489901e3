"""What every test on a node is given, and the words in which it answers. The tests stand beside.

Rules that hold for all of them: a tool that is absent, cannot be started or is killed at its limit is NOT_RUN, never
passed; one that is not on the node is `absent`, told apart from all else. A tool that a signal ended, or that says pass
and ends with another code than 0, has FAILED; a tool that ends with an error before it tested anything (no library, no
daemon, no permission) is NOT_RUN, and not absent.
"""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.core.node_tests import Measurement, Serial, TestResult, TestRun
from ops_pipelines.core.observation import NodeInspection
from ops_pipelines.resources.node_tests.tool_runs import RunPair, RunTool, ToolAnswer, ToolEnd

_LONGEST_SAID = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReading:
    """What NVML told, as the tests after it need it."""

    run: TestRun
    inspection: NodeInspection | None
    driver_version: str = ""
    """Of the kernel module; empty if NVML does not tell."""
    library_version: str = ""
    gpu_models: tuple[str, ...] = ()
    vbios_versions: tuple[str, ...] = ()
    """Each once, of the GPUs that tell it."""
    serials: tuple[Serial, ...] = ()
    is_persistent: tuple[bool, ...] = ()
    """Persistence mode of each GPU that tells it."""
    compute_process_count: int = 0
    """Processes that use the GPUs for computing, as NVML sees them before the tests."""

    @property
    def gpu_count(self) -> int:
        return len(self.inspection.gpus) if self.inspection is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a test may use: the node's own files, tools, and what NVML told first."""

    run: RunTool
    run_pair: RunPair
    clock: Clock
    nvml: NvmlReading
    uptime_seconds: float
    """When the check began, on the kernel log's clock."""
    proc: Path = field(default_factory=lambda: Path("/proc"))
    sys: Path = field(default_factory=lambda: Path("/sys"))


NodeTest = Callable[[Bench, float], TestRun]
"""A test: what it may use and its limit in seconds -> what came of it."""


def passed(test: str, said: str, measurements: Sequence[Measurement] = ()) -> TestRun:
    return _run(test, TestResult.PASSED, said, measurements)


def failed(test: str, said: str, measurements: Sequence[Measurement] = ()) -> TestRun:
    return _run(test, TestResult.FAILED, said, measurements)


def not_run(test: str, said: str, measurements: Sequence[Measurement] = ()) -> TestRun:
    """Return that a test was hindered, or came to no end."""
    return _run(test, TestResult.NOT_RUN, said, measurements)


def absent(test: str, said: str, measurements: Sequence[Measurement] = ()) -> TestRun:
    """Return that the tool, or the part that it would look at, is not on this node."""
    return replace(not_run(test, said, measurements), is_absent=True)


def unanswered(test: str, tool: str, answer: ToolAnswer, *, limit_seconds: float) -> TestRun | None:
    """Return what a run without an answer means; None if the tool ended by itself, or with an exit code."""
    if answer.end is ToolEnd.ABSENT:
        return absent(test, f"{tool} is not installed")
    if answer.end is ToolEnd.DID_NOT_END:
        return not_run(test, f"{tool} did not end within {limit_seconds:.0f} s and was killed")
    if answer.end is ToolEnd.SAID_TOO_MUCH:
        return not_run(test, f"{tool} printed without an end and was killed")
    if answer.returncode < 0:
        return failed(test, f"{tool} was ended by {_signal(-answer.returncode)}: {last_words(answer)}")
    return None


def is_not_startable(answer: ToolAnswer) -> bool:
    """Return whether the program could not even begin: not executable, or a library of it is missing."""
    return answer.returncode in (126, 127) or "error while loading shared libraries" in answer.stderr


def last_words(answer: ToolAnswer) -> str:
    """Return the end of what a tool said, on one line."""
    text = answer.stderr.strip() or answer.stdout.strip()
    return " / ".join(line.strip() for line in text.splitlines()[-3:])[-300:] or "it said nothing"


def _run(test: str, result: TestResult, said: str, measurements: Sequence[Measurement]) -> TestRun:
    shown = said if len(said) <= _LONGEST_SAID else f"{said[:_LONGEST_SAID]} ..."
    return TestRun(test=test, result=result, said=shown, measurements=tuple(measurements))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
