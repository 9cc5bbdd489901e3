"""Tests on a node: what each found, and the floors that a node must reach to be returned.

An absent tool is reported as not run, never as passed. Whether measurements are good enough is judged by
`health_gates`; which tests fit a fault is data there as well. Running them belongs to the node (`ops-pipelines
node-check`), starting them to the `fleet` port.

Floors are data (catalogue/health_gates.csv), each with its source; a floor that nothing can miss or nothing can reach
is refused (`remediate.guardrails.lints`). Besides the floor a node is judged against its own past: what it
reached when it was well.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from statistics import median

from ops_pipelines.core.fault import Family
from ops_pipelines.core.identity import ActionKey, NodeName, PciAddress
from ops_pipelines.core.observation import NodeInspection

# -- what tests on a node found --


TESTS: Mapping[str, str] = {
    "nvml": "what the driver says of each GPU: errors, remapped rows, recovery action, links, heat",
    "nvidia_smi": "the tool answers, and reports the GPUs and the driver that NVML reports",
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
"""What `node-check` calls tests that were named one by one: a suite of this name is in no catalogue."""

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


# -- how good is good enough --


MIN_BASELINE_COUNT = 3
"""# Assumption: of fewer earlier checks the median is whatever one of them was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthGate:
    """One floor (or ceiling) for one measurement of one test."""

    test: str
    measurement: str
    unit: str
    gpu_model: str
    """Words of the model's name, such as `H100 80GB HBM3`; empty: any. Of several that fit, the longest counts."""
    low: float | None
    """It must reach this; None: no floor."""
    high: float | None
    """It must not pass this; None: no ceiling."""
    typical: float | None
    """What a healthy one reaches; None: not known."""
    physical: float | None
    """What none can pass: the rate of the link or the bus, in `unit`; None: not known."""
    baseline_ratio: float | None
    """Of the node's own past: it must reach this share; None: not judged so."""
    source: str
    gpu_count: int | None = None
    """It holds for tests that used so many GPUs; None: for any number."""

    def fits(self, models: Collection[str]) -> bool:
        """Return whether every one of `models` has the words of `gpu_model`, in order and whole.

        `H200` fits `NVIDIA H200` and `NVIDIA H200 NVL`, and not `NVIDIA GH200 480GB`. Without models only a gate for
        any model fits.
        """
        wanted = _words(self.gpu_model)
        return not wanted or (bool(models) and all(_holds(_words(model), wanted) for model in models))


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The tests that fit a kind of fault."""

    name: str
    families: frozenset[Family]
    """Empty: it is taken where no other fits."""
    tests: tuple[str, ...]
    """In this order."""
    required: frozenset[str]
    """Without these having passed the node is not proven well; of the others, those whose tool is on the node."""
    is_by_name: bool = False
    """Asked for by its name alone, as releases do: never chosen for a fault."""


def gate_for(
    gates: Iterable[HealthGate], *, test: str, measurement: str, models: Collection[str], gpu_count: int | None
) -> HealthGate | None:
    """Return the gate that judges a measurement: of those that fit the one that says most of when it holds."""
    fitting = [
        gate
        for gate in gates
        if (gate.test, gate.measurement) == (test, measurement)
        and gate.gpu_count in (None, gpu_count)
        and gate.fits(models)
    ]
    return max(fitting, key=lambda gate: (len(_words(gate.gpu_model)), gate.gpu_count is not None), default=None)


def suite_named(name: str, suites: Sequence[Suite]) -> Suite:
    """Return the suite of that name; raise ValueError if there is none."""
    for suite in suites:
        if suite.name == name:
            return suite
    raise ValueError(f"there is no suite {name[:80]!r}; expected one of {', '.join(each.name for each in suites)}")


def suite_for(families: Collection[Family], suites: Sequence[Suite]) -> Suite:
    """Return the tests that fit faults of these families: one suite, or the least that covers all that fit.

    The suite without families is taken where no other fits. `suites` must have passed `gate_lint.lint_suites`.
    """
    for_faults = [suite for suite in suites if not suite.is_by_name]
    fitting = [suite for suite in for_faults if suite.families & frozenset(families)]
    if not fitting:
        return next(suite for suite in for_faults if not suite.families)
    return min((suite for suite in for_faults if covers(suite, fitting)), key=lambda suite: len(suite.tests))


def covers(suite: Suite, others: Iterable[Suite]) -> bool:
    """Return whether a suite runs every test of the others, or a level above it, and requires what they require."""
    return all(
        other.required <= suite.required
        and all(_INCLUDED_IN.get(test, frozenset({test})) & set(suite.tests) for test in other.tests)
        for other in others
    )


_INCLUDED_IN: Mapping[str, frozenset[str]] = {
    "dcgm_diag_r1": frozenset({"dcgm_diag_r1", "dcgm_diag_r2", "dcgm_diag_r3"}),
    "dcgm_diag_r2": frozenset({"dcgm_diag_r2", "dcgm_diag_r3"}),
}
"""A level of DCGM's diagnostic runs what the levels below it run."""


class CheckState(Enum):
    """What tests prove of a node."""

    WELL = "well"
    NOT_WELL = "not_well"
    UNKNOWN = "unknown"
    """Nothing failed, and what must have passed was not run, or measured nothing: never taken for well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckVerdict:
    """What one check proves, and how."""

    state: CheckState
    faults: tuple[str, ...]
    """What failed or stayed below its limit, one sentence each; empty unless NOT_WELL."""
    unknowns: tuple[str, ...]
    """Why tests prove nothing, one sentence each: a required one without its tool, any that came to no end."""
    proofs: tuple[str, ...]
    """What passed, and by which numbers; and in so many words if nothing was put under load."""
    not_run: tuple[str, ...]
    """Tests of the suite that are not required and not on the node: they neither prove nor accuse."""
    unjudged: tuple[str, ...]
    """Numbers that a test is judged by elsewhere, and for which this node has neither a floor nor a past."""


def judge_check(
    check: NodeCheck, suite: Suite, gates: Sequence[HealthGate], baseline: Sequence[NodeCheck]
) -> CheckVerdict:
    """Return what a check proves, by the floors and by the node's own past.

    `baseline`: earlier checks that were found well, of the same node. A check of another node or other GPU models is
    passed over; with fewer than three the floor alone judges. A failed test is a fault, required or not. One that
    came to no end, or is not reported, leaves the node unproven, required or not: a node that breaks under a test looks
    like that. Its numbers may accuse, and prove nothing.
    """
    past = [
        each
        for each in baseline
        if each.node == check.node and each.gpu_models == check.gpu_models and each.key != check.key
    ]
    runs = {run.test: run for run in check.tests}
    faults: list[str] = []
    unknowns: list[str] = []
    proofs: list[str] = []
    not_run: list[str] = []
    unjudged: list[str] = []
    for test in dict.fromkeys((*suite.tests, *sorted(suite.required), *runs)):
        run = runs.get(test)
        if run is not None and run.result is TestResult.FAILED:
            faults.append(f"{test} failed: {run.said}")
            continue
        if run is None:
            unknowns.append(f"{test} was asked for, and the node does not tell of it")
            continue
        if run.result is TestResult.NOT_RUN:
            faults += _judge_numbers(run, check, gates, past).faults
            if test in suite.required:
                unknowns.append(f"{test} must pass and was not run: {run.said}")
            elif run.is_absent:
                not_run.append(test)
            else:
                unknowns.append(f"{test} came to no end: {run.said}")
            continue
        numbers = _judge_numbers(run, check, gates, past)
        faults += numbers.faults
        unjudged += numbers.unjudged
        if not numbers.faults:
            proofs.append(f"{test} passed" + (f": {'; '.join(numbers.proofs)}" if numbers.proofs else ""))
    loads = [test for test in suite.tests if test in LOAD_TESTS]
    if loads and set(loads) <= set(not_run):
        proofs.append(f"untested under load: {', '.join(loads)} cannot be run on this node")
    state = CheckState.NOT_WELL if faults else CheckState.UNKNOWN if unknowns else CheckState.WELL
    return CheckVerdict(
        state=state,
        faults=tuple(faults),
        unknowns=tuple(unknowns),
        proofs=tuple(proofs),
        not_run=tuple(not_run),
        unjudged=tuple(unjudged),
    )


def is_settling(check: NodeCheck, suite: Suite) -> bool:
    """Return whether a test passed that can show a fault of the suite's kind: one under load, where it has any.

    That the driver answers and counts its GPUs says nothing of a link, a disk or a part that is slow.
    """
    passed = {run.test for run in check.tests if run.result is TestResult.PASSED}
    loads = LOAD_TESTS & set(suite.tests)
    return bool(passed & loads) if loads else bool(passed & set(suite.tests) - _ANSWERS_ONLY)


_ANSWERS_ONLY = frozenset({"nvml", "nvidia_smi"})


@dataclass(slots=True)
class _Numbers:
    faults: list[str]
    proofs: list[str]
    unjudged: list[str]


def _judge_numbers(run: TestRun, check: NodeCheck, gates: Sequence[HealthGate], past: Sequence[NodeCheck]) -> _Numbers:
    told = _Numbers(faults=[], proofs=[], unjudged=[])
    judged = {gate.measurement for gate in gates if gate.test == run.test}
    used = count_gpus_used(run)
    for found in run.measurements:
        gate = gate_for(gates, test=run.test, measurement=found.name, models=check.gpu_models, gpu_count=used)
        where = f" of GPU {found.gpu}" if found.gpu else ""
        what = f"{run.test}: {found.name}{where} is {found.value:g} {found.unit}"
        if gate is None:
            if found.name in judged:
                told.unjudged.append(f"{what}; there is no floor for {', '.join(check.gpu_models) or 'this node'}")
            continue
        if gate.unit != found.unit:
            told.faults.append(f"{what}, and its limit is in {gate.unit}: node and catalogue are of different versions")
            continue
        before = _usual(found, run.test, used, past)
        share = gate.baseline_ratio if before is not None else None
        if gate.low is not None and not found.value >= gate.low:
            told.faults.append(f"{what}; it must reach {gate.low:g} ({gate.source})")
        elif gate.high is not None and not found.value <= gate.high:
            told.faults.append(f"{what}; it must not pass {gate.high:g} ({gate.source})")
        elif before is not None and share is not None and not found.value >= share * before:
            told.faults.append(f"{what}; it used to reach {before:g}, and must reach {share:.0%} of that")
        elif gate.low is None and gate.high is None and share is None:
            told.unjudged.append(f"{what}; there is no floor, and {MIN_BASELINE_COUNT} earlier checks are requested")
        else:
            told.proofs.append(f"{found.name}{where} {found.value:g} {found.unit}")
    return told


def _usual(found: Measurement, test: str, used: int | None, past: Sequence[NodeCheck]) -> float | None:
    """Return the median of what the node reached before; None if it was measured fewer than three times."""
    values = [
        each.value
        for check in past
        for run in check.tests
        if run.test == test and run.result is TestResult.PASSED and count_gpus_used(run) == used
        for each in run.measurements
        if (each.name, each.unit, each.gpu) == (found.name, found.unit, found.gpu)
    ]
    return median(values) if len(values) >= MIN_BASELINE_COUNT else None


def count_gpus_used(run: TestRun) -> int | None:
    """Return how many GPUs a test says that it used; None if it does not say."""
    return next((int(each.value) for each in run.measurements if each.name == GPU_COUNT), None)


def _words(model: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[\s-]+", model.lower()) if word)


def _holds(words: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    return any(words[at : at + len(wanted)] == wanted for at in range(len(words) - len(wanted) + 1))
