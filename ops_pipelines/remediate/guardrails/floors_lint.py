"""Refuses gates that decide nothing: floors that nothing can miss or nothing can reach, units that differ.

Two that were really published: DCGM's `minimum_bandwidth` of the H200 is 2333 MB/s, a thousandth of what it reads,
and a sample of AWS asks 800 GB/s of an all-reduce that reaches 480. What a gate means is `health_gates`.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ops_pipelines.core.node_tests import GPU_COUNT, TESTS, HealthGate, Suite, covers

CANNOT_FAIL_BELOW_RATIO = 0.2
"""# Assumption: a part that brings less than a fifth of what is usual is not slow but broken, and is seen to be so."""
CANNOT_PASS_ABOVE_RATIO = 1.05
"""# Assumption: healthy parts differ by a few percent; a floor 5 % above what is typical holds most of them back."""
MIN_BASELINE_RATIO, MAX_BASELINE_RATIO = 0.2, 0.98
"""# Assumption: two runs on one healthy node differ by up to 2 %; closer, and half of all runs would be faults."""
_MEASURED: Mapping[str, frozenset[str]] = {
    "nvml": frozenset({
        "ecc_uncorrectable", "ecc_corrected", "rows_remapped", "pcie_width", "pcie_generation",
        "nvlinks_active", "nvlinks_inactive", "temperature",
    }),
    "nvidia_smi": frozenset(),
    "dcgm_diag_r1": frozenset({"host_to_gpu", "gpu_to_host"}),
    "dcgm_diag_r2": frozenset({"host_to_gpu", "gpu_to_host"}),
    "dcgm_diag_r3": frozenset({"host_to_gpu", "gpu_to_host"}),
    "dcgm_memtest": frozenset(),
    "nccl_loopback": frozenset({"busbw", GPU_COUNT}),
    "nic_pairwise": frozenset({"rate_ratio", "nic_count"}),
    "software": frozenset({"free_ratio"}),
    "host": frozenset({"host_memory_corrected"}),
}  # fmt: skip
"""Test -> what `node-check` measures in it."""
_UNIT_SLIPS = (1e3, 1e6, 1e9, 8.0, 8e3, 2.0**10, 2.0**20, 2.0**30)
"""What separates units that are taken for each other: kilo, mega, giga, bits and bytes, powers of 1024."""


def lint_suites(suites: Sequence[Suite]) -> tuple[str, ...]:
    """Return what is wrong with the table of suites, one sentence each; empty: nothing."""
    faults = [f"suite {name} stands there twice" for name in _twice(suite.name for suite in suites)]
    faults += [
        f"family {family} belongs to more than one suite"
        for family in _twice(family.value for suite in suites for family in suite.families)
    ]
    for_faults = [suite for suite in suites if not suite.is_by_name]
    default_count = sum(not suite.families for suite in for_faults)
    if default_count != 1:
        faults.append(f"{default_count} suites name no family; expected exactly one, for all that fits no other")
    if not any(covers(suite, for_faults) for suite in for_faults):
        faults.append("no suite covers all others: a fault of several families could not be tested")
    for suite in suites:
        if suite.is_by_name and suite.families:
            faults.append(f"suite {suite.name} is asked for by its name, and names families of faults; leave one out")
        faults += [f"suite {suite.name} runs {test!r}, and there is no such test" for test in suite.tests
                   if test not in TESTS]  # fmt: skip
        if not suite.required:
            faults.append(f"suite {suite.name} requires nothing: a node that was not looked at would be proven well")
        faults += [f"suite {suite.name} requires {test}, which it does not run" for test in
                   sorted(suite.required - set(suite.tests))]  # fmt: skip
        faults += [f"suite {suite.name} runs {test} twice" for test in _twice(suite.tests)]
    return tuple(faults)


def lint_gates(gates: Sequence[HealthGate]) -> tuple[str, ...]:
    """Return what is wrong with the gates, one sentence each; empty: nothing.

    Refused are gates that cannot fail or cannot pass, that judge nothing, units that differ within one measurement,
    and duplicates. A floor needs `typical` or `physical`: without either nobody can tell whether it is in range.
    """
    faults: list[str] = []
    units: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for gate in gates:
        faults += [f"{_name(gate)}: {fault}" for fault in _faults_of(gate)]
        units[gate.test, gate.measurement].add(gate.unit)
    for (test, measurement), told in sorted(units.items()):
        if len(told) > 1:
            faults.append(f"{test} {measurement}: it is given in {' and '.join(sorted(told))}; expected one unit")
    faults += [f"{name}: it stands there twice" for name in _twice(_name(gate) for gate in gates)]
    return tuple(faults)


def _faults_of(gate: HealthGate) -> list[str]:
    numbers = {
        "low": gate.low,
        "high": gate.high,
        "typical": gate.typical,
        "physical": gate.physical,
        "baseline_ratio": gate.baseline_ratio,
    }
    odd = [name for name, number in numbers.items() if number is not None and not math.isfinite(number)]
    if odd:
        return [f"{name} is no finite number" for name in odd]
    if gate.low is None and gate.high is None and gate.baseline_ratio is None:
        return ["it judges nothing: give a floor, a ceiling or baseline_ratio"]
    faults = []
    if gate.gpu_count is not None and gate.gpu_count < 1:
        faults.append(f"gpu_count is {gate.gpu_count}; expected 1 or more, or nothing")
    if gate.typical is not None and gate.physical is not None and gate.typical > gate.physical:
        faults.append(f"typical {gate.typical:g} is above physical {gate.physical:g}: are both in {gate.unit}?")
    if gate.low is not None:
        faults += _faults_of_floor(gate, gate.low)
    if gate.high is not None:
        faults += _faults_of_ceiling(gate, gate.high)
    if gate.baseline_ratio is not None:
        faults += _faults_of_ratio(gate, gate.baseline_ratio)
    measured = _MEASURED.get(gate.test, frozenset())
    if not faults and gate.measurement not in measured:
        words = ", ".join(sorted(measured)) or "nothing"
        faults.append(f"it judges nothing: {gate.test} measures no {gate.measurement[:80]!r}, but {words}")
    return faults


def _faults_of_floor(gate: HealthGate, low: float) -> list[str]:
    usual = gate.typical if gate.typical is not None else gate.physical
    if usual is None or usual <= 0.0:
        return [f"its floor {low:g} cannot be judged: give what is typical or what is physical, above 0"]
    if low < CANNOT_FAIL_BELOW_RATIO * usual:
        return [f"it cannot fail: its floor {low:g} {gate.unit} is {low / usual:.2%} of {usual:g}{_slip(low, usual)}"]
    if gate.physical is not None and low > gate.physical:
        return [f"it cannot pass: its floor {low:g} is above the physical {gate.physical:g} {gate.unit}"]
    if gate.typical is not None and low > CANNOT_PASS_ABOVE_RATIO * gate.typical:
        return [
            f"it cannot pass: its floor {low:g} is above the typical {gate.typical:g} {gate.unit} by more than "
            f"{CANNOT_PASS_ABOVE_RATIO - 1:.0%}{_slip(low, gate.typical)}"
        ]
    if gate.high is not None and low > gate.high:
        return [f"it cannot pass: its floor {low:g} is above its ceiling {gate.high:g}"]
    return []


def _faults_of_ceiling(gate: HealthGate, high: float) -> list[str]:
    if gate.physical is not None and high >= gate.physical:
        return [f"it cannot fail: nothing passes its ceiling {high:g}, as {gate.physical:g} {gate.unit} is physical"]
    if gate.typical is None:
        return [f"its ceiling {high:g} cannot be judged: give what is typical"]
    if high < gate.typical:
        return [f"it cannot pass: what is typical, {gate.typical:g} {gate.unit}, is above its ceiling {high:g}"]
    if 0.0 < gate.typical < CANNOT_FAIL_BELOW_RATIO * high:
        return [f"it cannot fail: its ceiling {high:g} is {high / gate.typical:.0f} times the typical {gate.typical:g}"]
    return []


def _faults_of_ratio(gate: HealthGate, ratio: float) -> list[str]:
    if gate.low is None and gate.high is not None:
        return ["baseline_ratio is a share to be reached; a ceiling has none"]
    if ratio < MIN_BASELINE_RATIO:
        return [f"it cannot fail: baseline_ratio {ratio:g} is below {MIN_BASELINE_RATIO:g}"]
    if ratio > MAX_BASELINE_RATIO:
        return [f"it cannot pass: baseline_ratio {ratio:g} is above {MAX_BASELINE_RATIO:g}"]
    return []


def _slip(found: float, usual: float) -> str:
    """Return a hint if the number would be in range in another unit."""
    for factor in _UNIT_SLIPS:
        for scaled, words in ((found * factor, "times"), (found / factor, "divided by")):
            if 0.5 * usual <= scaled <= CANNOT_PASS_ABOVE_RATIO * usual:
                return f"; {words} {factor:g} it would be {scaled / usual:.0%} of it: is it in another unit?"
    return ""


def _name(gate: HealthGate) -> str:
    of = f" of {gate.gpu_model}" if gate.gpu_model else ""
    count = f" on {gate.gpu_count} GPUs" if gate.gpu_count is not None else ""
    return f"{gate.test} {gate.measurement}{of}{count}"


def _twice(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)
