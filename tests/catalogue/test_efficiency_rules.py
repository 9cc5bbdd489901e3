"""catalogue/efficiency_rules.csv: every rule can decide, at its threshold and not beside it, and has a source."""

import math
from collections.abc import Mapping

import numpy as np

from ops_pipelines.efficiency.verdict_rules import (
    FEATURES,
    STRAGGLER_FEATURES,
    VERDICTS,
    Rule,
    first_that_holds,
    read_rules,
)

RULES = read_rules()
JOB_RULES = [rule for rule in RULES if not rule.is_about_peers]
BUSY = {"samples_per_gpu": 60.0, "idle_gpu_ratio": 0.0, "dip_ratio": 0.0, "busy_ratio": 0.95, "job_gpu_count": 8.0}
LOW = {**BUSY, "tensor_active_ratio": 0.1, "dram_active_ratio": 0.1, "power_ratio": 0.4, "sm_active_ratio": 0.6}
WITNESSES: Mapping[str, Mapping[str, float]] = {
    "too_few_samples": {"samples_per_gpu": 3.0},
    "straggler_slow_clock": {
        "clock_deviation_ratio": -0.3, "clock_robust_z": -30, "peer_count": 7, "other_outlier_ratio": 0,
    },
    "straggler_stuck": {
        "activity_deviation_ratio": -0.9, "activity_robust_z": -90, "peer_activity_ratio": 0.98,
        "peer_tensor_ratio": 0.0, "peer_count": 7, "other_outlier_ratio": 0,
    },
    "straggler_lags": {
        "activity_deviation_ratio": -0.4, "activity_robust_z": -40, "traffic_bytes_per_second": 1e11, "peer_count": 7,
        "other_outlier_ratio": 0,
    },
    "straggler_holds_up": {
        "activity_deviation_ratio": 0.5, "activity_robust_z": 50, "peer_activity_ratio": 0.41,
        "traffic_bytes_per_second": 1e11, "peer_count": 7, "other_outlier_ratio": 0,
    },
    "idle_memory_held": {**BUSY, "busy_ratio": 0.0, "memory_used_ratio": 0.6},
    "idle_nothing_runs": {**BUSY, "busy_ratio": 0.0, "memory_used_ratio": 0.0},
    "idle_by_power": {"power_ratio": 0.1},
    "half_idle": {**BUSY, "idle_gpu_ratio": 0.75},
    "spinning_collective": {**LOW, "tensor_active_ratio": 0.0, "dram_active_ratio": 0.01, "power_ratio": 0.35},
    "work_comes_in_bursts": {**BUSY, "dip_ratio": 0.4, "busy_ratio": 0.6, "tensor_active_ratio": 0.4},
    "tensor_pipes": {**BUSY, "tensor_active_ratio": 0.45, "dram_active_ratio": 0.35},
    "memory_traffic": {**BUSY, "tensor_active_ratio": 0.2, "dram_active_ratio": 0.7},
    "fabric_full": {**LOW, "fabric_used_ratio": 0.8},
    "nvlink_full": {**LOW, "nvlink_bytes_per_second": 2e11},
    "pcie_full": {**LOW, "pcie_bytes_per_second": 4e10},
    "copies_from_the_host": {
        **LOW, "job_gpu_count": 1.0, "pcie_bytes_per_second": 2e10, "sm_active_ratio": 0.1,
    },
    "starved": {**LOW, "busy_ratio": 0.3, "sm_active_ratio": 0.2},
    "warps_without_work": LOW,
    "sms_at_work": {**LOW, "power_ratio": 0.7, "tensor_active_ratio": 0.2},
    "sms_effective": {**BUSY, "sm_active_ratio": 0.9, "tensor_active_ratio": 0.2},
    "few_sms_at_work": {**LOW, "sm_active_ratio": 0.15},
    "pipes_between": {**BUSY, "sm_active_ratio": 0.6, "tensor_active_ratio": 0.2, "power_ratio": 0.4},
    "coarse_memory_copy": {**BUSY, "memory_copy_ratio": 0.8, "power_ratio": 0.5},
    "coarse_high_power": {**BUSY, "power_ratio": 0.9},
    "coarse_spinning": {**BUSY, "power_ratio": 0.4, "fabric_used_ratio": 0.3},
    "coarse_quiet_kernels": {**BUSY, "power_ratio": 0.4, "job_gpu_count": 1.0},
}  # fmt: skip
"""For each rule readings that it, and no earlier one, decides."""


def arrays(known: Mapping[str, float]) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    return {name: np.array([known.get(name, math.nan)]) for name in (*FEATURES, *STRAGGLER_FEATURES)}


def boundaries() -> list[tuple[str, str, float, bool]]:
    """Return (rule, feature, value, whether the rule may hold there): each threshold and both neighbours."""
    rows = []
    for rule in RULES:
        for condition in rule.conditions:
            at = condition.threshold
            if at is None:
                continue
            below, above = math.nextafter(at, -math.inf), math.nextafter(at, math.inf)
            is_upper, is_inclusive = condition.comparison.startswith("<"), condition.comparison.endswith("=")
            rows += [
                (rule.rule, condition.feature, below, is_upper),
                (rule.rule, condition.feature, at, is_inclusive),
                (rule.rule, condition.feature, above, not is_upper),
            ]
    return rows


def rule_of(name: str) -> Rule:
    return next(rule for rule in RULES if rule.rule == name)


def test_every_rule_has_a_witness() -> None:
    assert WITNESSES.keys() == {rule.rule for rule in RULES}


def test_every_rule_decides_somewhere() -> None:
    found = {rule.rule: int(first_that_holds(JOB_RULES, arrays(WITNESSES[rule.rule]))[0]) for rule in JOB_RULES}

    assert {name: JOB_RULES[place].rule for name, place in found.items()} == {name: name for name in found}


def test_a_rule_holds_on_its_side_of_a_threshold_only() -> None:
    asked = boundaries()
    held = [bool(rule_of(name).holds(arrays({**WITNESSES[name], f: value}))[0]) for name, f, value, _ in asked]

    assert len(asked) > 100
    assert [each for each, found in zip(asked, held, strict=True) if found is not each[3]] == []


def test_what_is_not_known_decides_nothing() -> None:
    asked = [(rule, each.feature) for rule in RULES for each in rule.conditions if each.threshold is not None]

    held = [(rule.rule, f) for rule, f in asked if rule.holds(arrays({**WITNESSES[rule.rule], f: math.nan}))[0]]

    assert held == []


def test_every_verdict_has_a_rule() -> None:
    assert {rule.verdict for rule in RULES} == set(VERDICTS)


def test_utilisation_alone_never_means_work() -> None:
    asked = {
        rule.rule: {condition.feature for condition in rule.conditions if condition.comparison != "missing"}
        for rule in RULES
        if rule.verdict not in ("idle", "input_stalled", "unknown")
    }

    assert {rule for rule, features in asked.items() if not features - {"busy_ratio", "job_gpu_count"}} == set()


def test_orders_and_names_are_unique_and_sources_are_given() -> None:
    assert len({rule.order for rule in RULES}) == len({rule.rule for rule in RULES}) == len(RULES)
    assert all(len(rule.source) > 20 and rule.says for rule in RULES)
