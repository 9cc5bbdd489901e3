"""Gates that decide nothing are refused; two that were really published are among them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.fault import Family
from ops_pipelines.core.node_tests import TESTS, HealthGate, Suite
from ops_pipelines.remediate.guardrails.lints import _MEASURED, lint_gates, lint_suites

GATE = HealthGate(
    test="nccl_loopback",
    measurement="busbw",
    unit="GB/s",
    gpu_model="H100 80GB HBM3",
    low=460.0,
    high=None,
    typical=480.0,
    physical=787.5,
    baseline_ratio=0.92,
    source="a gate",
)
CEILING = replace(GATE, low=None, high=0.0, typical=0.0, physical=None, baseline_ratio=None)


def test_a_gate_between_far_too_low_and_too_high_is_accepted() -> None:
    assert lint_gates([GATE, replace(GATE, gpu_model="", low=None, typical=None, physical=None)]) == ()


def test_dcgms_bandwidth_of_the_h200_cannot_fail() -> None:
    # NvidiaValidationSuite.cpp @72fa3fe: in MB/s; the comment beside it shows 3110 GB/s x 0.75.
    gate = replace(
        GATE, test="dcgm_diag_r3", measurement="memory_bandwidth", unit="MB/s", gpu_model="H200",
        low=2333.0, typical=3_110_000.0, physical=4_800_000.0,
    )  # fmt: skip

    (fault,) = lint_gates([gate])

    assert "cannot fail" in fault
    assert "times 1000 it would be 75% of it: is it in another unit?" in fault


def test_a_gate_on_what_no_test_measures_judges_nothing() -> None:
    (fault,) = lint_gates([replace(GATE, measurement="busbandwidth")])

    assert "nccl_loopback measures no 'busbandwidth', but busbw, gpu_count" in fault


def test_every_test_says_what_it_measures() -> None:
    assert set(_MEASURED) == set(TESTS)


def test_the_sample_of_aws_for_p5_cannot_pass() -> None:
    (fault,) = lint_gates([replace(GATE, low=800.0)])

    assert "cannot pass: its floor 800 is above the physical 787.5 GB/s" in fault


@pytest.mark.parametrize(
    ("low", "fault"),
    [
        pytest.param(95.99, "cannot fail", id="just below a fifth of what is typical"),
        pytest.param(96.0, None, id="a fifth"),
        pytest.param(96.01, None, id="just above"),
        pytest.param(503.99, None, id="just below 5 % above"),
        pytest.param(504.0, None, id="5 % above what is typical"),
        pytest.param(504.01, "cannot pass", id="just above"),
        pytest.param(0.0, "cannot fail", id="zero"),
        pytest.param(-1.0, "cannot fail", id="negative"),
        pytest.param(787.51, "above the physical", id="beyond the link"),
        pytest.param(float("nan"), "no finite number", id="not a number"),
        pytest.param(float("inf"), "no finite number", id="infinite"),
    ],
)
def test_a_floor_is_within_reach_and_can_be_missed(low: float, fault: str | None) -> None:
    faults = lint_gates([replace(GATE, low=low)])

    assert (faults == ()) if fault is None else (len(faults) == 1 and fault in faults[0])


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        pytest.param({"low": None, "baseline_ratio": None}, "judges nothing", id="nothing"),
        pytest.param({"typical": None, "physical": None}, "cannot be judged", id="a floor without a measure"),
        pytest.param({"typical": 800.0}, "typical 800 is above physical 787.5", id="typical in another unit"),
        pytest.param({"high": 400.0}, "above its ceiling", id="floor above ceiling"),
        pytest.param({"gpu_count": 0}, "gpu_count is 0", id="no GPU"),
        pytest.param({"baseline_ratio": 0.19}, "cannot fail", id="ratio just too low"),
        pytest.param({"baseline_ratio": 0.99}, "cannot pass", id="ratio just too high"),
        pytest.param({"baseline_ratio": 92.0}, "cannot pass", id="ratio in percent"),
    ],
)
def test_a_gate_that_decides_nothing_is_refused(changes: dict[str, float | None], fault: str) -> None:
    faults = lint_gates([replace(GATE, **changes)])  # type: ignore[arg-type]  # the rows are of one shape

    assert any(fault in each for each in faults)


@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.98])
def test_a_share_of_the_past_within_reach_is_accepted(ratio: float) -> None:
    assert lint_gates([replace(GATE, baseline_ratio=ratio)]) == ()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        pytest.param({}, None, id="no errors, and none are typical"),
        pytest.param({"high": 5.0, "typical": 1.0}, None, id="five times what is typical"),
        pytest.param({"high": 5.1, "typical": 1.0}, "cannot fail", id="more"),
        pytest.param({"high": 0.9, "typical": 1.0}, "cannot pass", id="below what is typical"),
        pytest.param({"typical": None}, "cannot be judged", id="nothing to compare with"),
        pytest.param({"physical": 0.0}, "cannot fail", id="nothing can pass it"),
        pytest.param({"baseline_ratio": 0.9}, "a ceiling has none", id="a share of a ceiling"),
    ],
)
def test_a_ceiling_is_within_reach_and_can_be_passed(changes: dict[str, float | None], fault: str | None) -> None:
    faults = lint_gates([replace(CEILING, **changes)])  # type: ignore[arg-type]  # the rows are of one shape

    assert (faults == ()) if fault is None else any(fault in each for each in faults)


def test_one_measurement_has_one_unit_and_one_gate() -> None:
    other = replace(GATE, gpu_model="H200", unit="Gb/s")

    assert lint_gates([GATE, other]) == ("nccl_loopback busbw: it is given in GB/s and Gb/s; expected one unit",)
    assert lint_gates([GATE, GATE]) == ("nccl_loopback busbw of H100 80GB HBM3: it is there twice",)
    assert lint_gates([GATE, replace(GATE, gpu_count=8)]) == ()


@given(
    typical=st.floats(min_value=1e-3, max_value=1e9),
    share=st.floats(min_value=0.21, max_value=1.04),
    factor=st.sampled_from([1e3, 1e6, 1e9]),
)
def test_a_good_floor_in_a_unit_a_thousandfold_off_is_always_refused(
    typical: float, share: float, factor: float
) -> None:
    gate = replace(GATE, typical=typical, physical=None, low=share * typical)

    assert lint_gates([gate]) == ()
    assert lint_gates([replace(gate, low=share * typical * factor)]) != ()
    assert lint_gates([replace(gate, low=share * typical / factor)]) != ()


SUITE = Suite(name="general", families=frozenset(), tests=("nvml", "host"), required=frozenset({"nvml"}))


@pytest.mark.parametrize(
    ("suites", "fault"),
    [
        pytest.param([SUITE], None, id="one for everything"),
        pytest.param([], "0 suites name no family", id="none"),
        pytest.param([SUITE, replace(SUITE, name="other")], "2 suites name no family", id="two for everything"),
        pytest.param([SUITE, replace(SUITE, families=frozenset({Family.GPU}))], "is there twice", id="a name twice"),
        pytest.param([replace(SUITE, required=frozenset())], "requires nothing", id="nothing required"),
        pytest.param([replace(SUITE, required=frozenset({"nccl_loopback"}))], "does not run", id="required, not run"),
        pytest.param([replace(SUITE, tests=("nvml", "nvml"))], "runs nvml twice", id="a test twice"),
        pytest.param([replace(SUITE, tests=("nvml", "magic"))], "no such test", id="an unknown test"),
        pytest.param(
            [SUITE, replace(SUITE, name="links", families=frozenset({Family.NVLINK}), tests=("nvml", "nccl_loopback"))],
            "no suite covers all others",
            id="nothing for several families",
        ),
        pytest.param([SUITE, replace(SUITE, name="release", is_by_name=True)], None, id="one by name beside it"),
        pytest.param([replace(SUITE, is_by_name=True)], "0 suites name no family", id="by name alone"),
        pytest.param(
            [SUITE, replace(SUITE, name="release", is_by_name=True, families=frozenset({Family.GPU}))],
            "names families of faults",
            id="by name and for a fault",
        ),
        pytest.param(
            [
                SUITE,
                replace(SUITE, name="links", families=frozenset({Family.NVLINK}), tests=("nvml", "nccl_loopback")),
                replace(SUITE, name="release", is_by_name=True, tests=("nvml", "host", "nccl_loopback")),
            ],
            "no suite covers all others",
            id="several families are not left to one by name",
        ),
    ],
)
def test_suites_leave_no_fault_without_tests(suites: list[Suite], fault: str | None) -> None:
    faults = lint_suites(suites)

    assert (faults == ()) if fault is None else any(fault in each for each in faults)
