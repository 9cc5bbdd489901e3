"""Tests of a node by diagnostic tools: DCGM, nccl-tests over NVLink, perftest between the node's own NICs; and what
every test on a node is given, and the words in which it answers.

Not here: NVML (`nvml`, in a process of its own), the machine around the GPUs (`host`), which tests are run and in which
order (`checks`), what a result proves (`core.node_tests`).

Rules that hold for all tests: a tool that is absent, cannot be started or is killed at its limit is NOT_RUN, never
passed; one that is not on the node is `absent`, distinguished from all else. A tool that a signal ended, or that says
pass and ends with another code than 0, has FAILED; a tool that ends with an error before it tested anything (no
library, no daemon, no permission) is NOT_RUN, and not absent.

DCGM 3 names the diagnostic `DCGM GPU Diagnostic` and each GPU `gpu_ids` or `gpu_id`; DCGM 4 names it `DCGM Diagnostic`,
each part by entity, and adds a `test_summary`. Both may print lines around the object. A status that is not known here
proves nothing.
"""

import json
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.core.node_tests import GPU_COUNT, Measurement, Serial, TestResult, TestRun
from ops_pipelines.core.observation import NodeInspection
from ops_pipelines.resources.commands import RunPair, RunTool, ToolAnswer, ToolEnd

# -- what every test is given, and how it answers --


_LONGEST_SAID = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReading:
    """What NVML reported, as the tests after it need it."""

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
    """Persistence mode of each GPU that reports it."""
    compute_process_count: int = 0
    """Processes that use the GPUs for computing, as NVML sees them before the tests."""

    @property
    def gpu_count(self) -> int:
        return len(self.inspection.gpus) if self.inspection is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a test may use: the node's own files, tools, and what NVML reported first."""

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
    """Return the end of what a tool reported, on one line."""
    text = answer.stderr.strip() or answer.stdout.strip()
    return " / ".join(line.strip() for line in text.splitlines()[-3:])[-300:] or "it printed nothing"


def _run(test: str, result: TestResult, said: str, measurements: Sequence[Measurement]) -> TestRun:
    shown = said if len(said) <= _LONGEST_SAID else f"{said[:_LONGEST_SAID]} ..."
    return TestRun(test=test, result=result, said=shown, measurements=tuple(measurements))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# -- DCGM --


_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_SOFTWARE = "deployment"
"""The category that looks at software alone: at every level above the first it proves nothing of the hardware."""
_PASS, _FAIL, _SKIP = frozenset({"pass"}), frozenset({"fail", "warn"}), frozenset({"skip", "skipped", "not run"})
"""dcgmi itself shows a warning as a failure."""
_WANTED: Mapping[int, tuple[str, ...]] = {2: ("memory",), 3: ("stress", "diagnostic")}
"""What must have passed for a level to have been run: names of both versions of DCGM hold these words."""
_BANDWIDTH = re.compile(r"(GPU to Host|Host to GPU) bandwidth:\s*([0-9]+(?:\.[0-9]+)?) GB/s")
_MEASURED = {"GPU to Host": "gpu_to_host", "Host to GPU": "host_to_gpu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmAnswer:
    """What a diagnostic found: its tests by what came of them."""

    passed: tuple[str, ...]
    failed: tuple[str, ...]
    skipped: tuple[str, ...]
    unclear: tuple[str, ...]
    """Tests whose status is not known here."""
    partial: tuple[str, ...]
    """Tests that passed on some GPUs and were skipped on others."""
    hardware_passed: tuple[str, ...]
    """Those of `passed` that look at more than software."""
    warnings: tuple[str, ...]
    lowest_gb_per_second: Mapping[str, float]
    """By direction, of the GPU that has the least."""


class NotDcgm(ValueError):
    """The output holds no diagnostic that could be read."""


def dcgm_level(level: int) -> NodeTest:
    """Return the test of one level of the diagnostic."""
    name = f"dcgm_diag_r{level}"
    return lambda bench, limit: _diagnose(name, str(level), bench, limit, wanted=_WANTED.get(level, ()))


def dcgm_memtest(bench: Bench, limit_seconds: float) -> TestRun:
    """Run DCGM's memory test over the whole memory of every GPU."""
    return _diagnose("dcgm_memtest", "memtest", bench, limit_seconds, wanted=("memtest",))


def _diagnose(test: str, what: str, bench: Bench, limit_seconds: float, *, wanted: Sequence[str]) -> TestRun:
    answer = bench.run(("dcgmi", "diag", "-r", what, "-j"), limit_seconds=limit_seconds)
    without = unanswered(test, "dcgmi diag", answer, limit_seconds=limit_seconds)
    if without is not None:
        return without
    try:
        found = read_dcgm(answer.stdout)
    except NotDcgm as problem:
        return not_run(test, f"dcgmi diag ended with {answer.returncode} and printed no results: {problem}; "
                             f"{last_words(answer)}")  # fmt: skip
    numbers = tuple(
        Measurement(name=name, value=value, unit="GB/s") for name, value in sorted(found.lowest_gb_per_second.items())
    )
    why = f": {'; '.join(found.warnings)}" if found.warnings else ""
    if found.failed:
        return failed(test, f"DCGM fails {', '.join(found.failed)}{why}", numbers)
    if answer.returncode != 0:
        return failed(test, f"DCGM names no failure and ended with {answer.returncode}{why}", numbers)
    if found.partial:
        return not_run(test, f"DCGM skipped part of the GPUs in {', '.join(found.partial)}{why}", numbers)
    if found.unclear:
        return not_run(test, f"DCGM reports {', '.join(found.unclear)} in words that are not known here{why}", numbers)
    proven = found.passed if what == "1" else found.hardware_passed
    if proven and wanted and not any(word in name.lower() for word in wanted for name in proven):
        return not_run(test, f"DCGM did not run {' or '.join(wanted)}{why}", numbers)
    if not proven:
        return not_run(
            test, f"DCGM skipped everything that looks at the GPUs: {', '.join(found.skipped)}{why}", numbers
        )
    skipped = f"; skipped {', '.join(found.skipped)}" if found.skipped else ""
    return passed(test, f"{', '.join(found.passed)}{skipped}", numbers)


def read_dcgm(text: str) -> DcgmAnswer:
    """Return what a diagnostic found; raise NotDcgm if `text` holds none, or an error in its place."""
    begin, end = text.find("{"), text.rfind("}")
    if begin < 0 or end < begin:
        raise NotDcgm("there is no JSON in its output")
    try:
        document = json.loads(text[begin : end + 1])
    except (ValueError, RecursionError) as problem:
        raise NotDcgm(f"its JSON cannot be read ({problem})") from problem
    root = next((document[name] for name in _ROOTS if isinstance(document.get(name), dict)), None)
    if root is None:
        raise NotDcgm(f"its JSON has none of {', '.join(_ROOTS)}")
    error = root.get("runtime_error")
    if error:
        raise NotDcgm(f"DCGM says: {error}")
    statuses: defaultdict[str, set[str]] = defaultdict(set)
    software: set[str] = set()
    warnings: list[str] = []
    lowest: dict[str, float] = {}
    for category, name, result in _results(root):
        statuses[name].add(str(result.get("status", "")).lower())
        if category == _SOFTWARE:
            software.add(name)
        warnings += _texts(result.get("warnings"))
        for said in _texts(result.get("info")):
            for direction, value in _BANDWIDTH.findall(said):
                key = _MEASURED[direction]
                lowest[key] = min(lowest.get(key, float(value)), float(value))
    if not statuses:
        raise NotDcgm("it lists no tests")
    passed_tests = tuple(name for name, told in statuses.items() if told and told <= _PASS)
    return DcgmAnswer(
        passed=passed_tests,
        failed=tuple(name for name, told in statuses.items() if told & _FAIL),
        skipped=tuple(name for name, told in statuses.items() if told <= _SKIP),
        unclear=tuple(name for name, told in statuses.items() if not told & _FAIL and told - _PASS - _SKIP),
        partial=tuple(
            name for name, told in statuses.items() if told & _PASS and told & _SKIP and told <= _PASS | _SKIP
        ),
        hardware_passed=tuple(name for name in passed_tests if name not in software),
        warnings=tuple(dict.fromkeys(warnings)),
        lowest_gb_per_second=lowest,
    )


def _results(root: Mapping[str, object]) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    """Yield category, test and each result. Null entries are holes that DCGM 3 leaves."""
    for category in _objects(root.get("test_categories")):
        for test in _objects(category.get("tests")):
            name = str(test.get("name", "a test without a name"))
            told = [*_objects(test.get("results")), *_objects([test.get("test_summary")])]
            for result in told:
                yield str(category.get("category", "")).lower(), name, result


def _objects(value: object) -> list[Mapping[str, object]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    """Return warnings or infos as texts: DCGM has written them as one text, as a list, and as objects."""
    if isinstance(value, str):
        return [value]
    texts = []
    for each in value if isinstance(value, list) else []:
        told = each.get("warning", each.get("warnings")) if isinstance(each, dict) else each
        if isinstance(told, str) and told.strip():
            texts.append(" ".join(told.split()))
    return texts


# -- NVLink and the node's own NICs --


_NCCL, _NIC = "nccl_loopback", "nic_pairwise"
_PAYLOAD = "8G"
"""# Assumption: large enough that the links decide; H100 reach 479.7 GB/s with it (Voltage Park)."""
_AVERAGE = re.compile(r"^# Avg bus bandwidth\s*:\s*([0-9]+(?:\.[0-9]+)?)", re.MULTILINE)
_BOUNDS = re.compile(r"^# Out of bounds values\s*:\s*([0-9]+)", re.MULTILINE)
_BEGUN = "# nThread"
"""nccl-tests prints its settings before it touches a GPU."""


def nccl_loopback(bench: Bench, limit_seconds: float) -> TestRun:
    """Sum 8 GB over all GPUs of the node, and check the sums."""
    count = bench.nvml.gpu_count
    if count < 2:
        judge = absent if count == 1 else not_run
        return judge(_NCCL, f"NVML reports {count} GPU(s); an all-reduce needs two")
    argv = ("all_reduce_perf", "-b", _PAYLOAD, "-e", _PAYLOAD, "-g", str(count))
    answer = bench.run(argv, limit_seconds=limit_seconds)
    without = unanswered(_NCCL, argv[0], answer, limit_seconds=limit_seconds)
    if without is not None:
        return without
    used = Measurement(name=GPU_COUNT, value=float(count), unit="count")
    bounds = _BOUNDS.search(answer.stdout)
    if bounds is not None and int(bounds[1]) > 0:
        return failed(_NCCL, f"{bounds[1]} sums are wrong: out of bounds", (used,))
    if answer.returncode != 0:
        if is_not_startable(answer) or _BEGUN not in answer.stdout:
            return not_run(_NCCL, f"{argv[0]} ended with {answer.returncode} before it began: {last_words(answer)}")
        return failed(_NCCL, f"{argv[0]} ended with {answer.returncode}: {last_words(answer)}", (used,))
    average = _AVERAGE.search(answer.stdout)
    if average is None or bounds is None:
        return not_run(_NCCL, f"{argv[0]} printed no bus bandwidth, or did not check its sums: {last_words(answer)}")
    busbw = Measurement(name="busbw", value=float(average[1]), unit="GB/s")
    return passed(_NCCL, f"{count} GPUs, {_PAYLOAD}: {average[1]} GB/s, every sum right", (busbw, used))


class PortState(Enum):
    """Whether a port can carry anything."""

    ACTIVE = "active"
    NOT_ACTIVE = "not_active"
    """Without a cable, a link or a subnet manager; or it does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """One RDMA device, by its first port."""

    device: str
    gbit_per_second: float
    """What the link was trained to; 0: it does not tell."""
    state: PortState = PortState.ACTIVE
    kind: str = ""
    """Type of the adapter, as the driver names it (`MT4129`); empty: not reported, and then taken for one kind."""


_SLOWEST_GBIT = 100.0
"""# Assumption: NICs of less carry management and storage, not the traffic of jobs."""
_FIRST_PORT = 18515
_WRITE = ("--report_gbits", "-F", "-s", "1048576", "-n", "20000", "-q", "4")
"""20 GB in pieces of 1 MiB: half a second at 400 Gb/s."""
_ROW = re.compile(r"^\s*[0-9]+\s+[0-9]+\s+[0-9.]+\s+([0-9]+(?:\.[0-9]+)?)\s", re.MULTILINE)
"""#bytes #iterations BW peak BW average ..."""
_DATA_FAULT = re.compile(r"Completion with error|syndrom|Failed status", re.IGNORECASE)


def nic_pairwise(bench: Bench, limit_seconds: float) -> TestRun:
    """Write from one of the node's NICs to the next of the same rate, through their switch.

    Judged is the share of the port's rate, so that one floor fits all NICs; a port that was trained to less than its
    neighbours of the same kind has failed. A port that is not active is named, never passed over. How many were tested
    is reported, so that one which is gone shows against the node's past.
    """
    nics = tuple(read_nics(bench.sys))
    fast = tuple(nic for nic in nics if nic.state is PortState.ACTIVE and nic.gbit_per_second >= _SLOWEST_GBIT)
    count = Measurement(name="nic_count", value=float(len(fast)), unit="count")
    slowed = [
        f"{nic.device} is at {nic.gbit_per_second:g} Gb/s, its neighbours at {best:g}"
        for nic in nics
        if nic.state is PortState.ACTIVE and nic.gbit_per_second < (best := _best_of_kind(nic.kind, fast))
    ]
    if slowed:
        return failed(_NIC, "; ".join(slowed), (count,))
    dead = [nic.device for nic in nics if nic.state is PortState.NOT_ACTIVE]
    if dead:
        return not_run(_NIC, f"not active: {', '.join(dead)}; mend them, or switch off ports without a use", (count,))
    pairs = tuple(pair_up(fast))
    if not pairs:
        said = f"two RDMA ports of one rate of {_SLOWEST_GBIT:.0f} Gb/s and more are needed in /sys/class/infiniband"
        return absent(_NIC, f"{said}, and {len(fast)} are active", (count,))
    return _measure(bench, pairs, fast, count, limit_seconds=limit_seconds)


def _best_of_kind(kind: str, fast: Sequence[Nic]) -> float:
    return max((nic.gbit_per_second for nic in fast if nic.kind == kind), default=0.0)


def _measure(
    bench: Bench, pairs: Sequence[tuple[Nic, Nic]], fast: Sequence[Nic], count: Measurement, *, limit_seconds: float
) -> TestRun:
    ratios: list[float] = []
    told: list[str] = []
    for number, (first, second) in enumerate(pairs):
        port = ("-p", str(_FIRST_PORT + number))
        answer = bench.run_pair(
            ("ib_write_bw", "-d", first.device, *port, *_WRITE),
            ("ib_write_bw", "-d", second.device, *port, *_WRITE, "127.0.0.1"),
            limit_seconds=limit_seconds / len(pairs),
        )
        without = unanswered(_NIC, "ib_write_bw", answer, limit_seconds=limit_seconds / len(pairs))
        if without is not None:
            return without
        between = f"{first.device} and {second.device}"
        if answer.returncode != 0:
            said = f"between {between}: {last_words(answer)}"
            return failed(_NIC, said) if _DATA_FAULT.search(answer.stdout + answer.stderr) else not_run(_NIC, said)
        row = _ROW.search(answer.stdout)
        if row is None:
            return not_run(_NIC, f"ib_write_bw printed no bandwidth between {between}: {last_words(answer)}")
        ratios.append(float(row[1]) / first.gbit_per_second)
        told.append(f"{between} {row[1]} of {first.gbit_per_second:.0f} Gb/s")
    measured = {nic.device for pair in pairs for nic in pair}
    told += [
        f"{nic.device} has no other of its rate, and was not measured" for nic in fast if nic.device not in measured
    ]
    return passed(_NIC, "; ".join(told), (Measurement(name="rate_ratio", value=min(ratios), unit="ratio"), count))


def read_nics(sys: Path) -> Iterator[Nic]:
    """Yield the RDMA devices by name, as their first port is; leave out virtual functions and ports switched off."""
    for device in sorted((sys / "class/infiniband").glob("*")):
        if (device / "device/physfn").exists():
            continue
        port = device / "ports/1"
        rate = re.match(r"([0-9]+(?:\.[0-9]+)?) Gb/sec", _read(port / "rate"))
        is_active = "ACTIVE" in _read(port / "state") and rate is not None
        if not is_active and "Disabled" in _read(port / "phys_state"):
            continue
        yield Nic(
            device=device.name,
            gbit_per_second=float(rate[1]) if rate is not None else 0.0,
            state=PortState.ACTIVE if is_active else PortState.NOT_ACTIVE,
            kind=_read(device / "hca_type").strip(),
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def pair_up(nics: Sequence[Nic]) -> Iterator[tuple[Nic, Nic]]:
    """Yield pairs of equal rate; one that is left over is paired with the first of its rate, and never with itself."""
    for rate in sorted({nic.gbit_per_second for nic in nics}):
        alike = [nic for nic in nics if nic.gbit_per_second == rate]
        for at in range(0, len(alike) if len(alike) > 1 else 0, 2):
            yield alike[at], alike[at + 1] if at + 1 < len(alike) else alike[0]
