"""What a check proves: by floors, by the node's own past, and never by what was not run."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.fault import Family
from ops_pipelines.core.identity import ActionKey, NodeName
from ops_pipelines.core.node_tests import (
    CheckState,
    HealthGate,
    Measurement,
    NodeCheck,
    Suite,
    TestResult,
    TestRun,
    gate_for,
    judge_check,
    suite_for,
    suite_named,
)

NOW = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)
H100, H200, H200_NVL, GH200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA GH200 480GB"
SUITE = Suite(
    name="nvlink",
    families=frozenset({Family.NVLINK}),
    tests=("nvml", "nccl_loopback"),
    required=frozenset({"nvml"}),
)


def gate(model: str, low: float | None, *, count: int | None = 8, ratio: float | None = 0.9) -> HealthGate:
    return HealthGate(
        test="nccl_loopback",
        measurement="busbw",
        unit="GB/s",
        gpu_model=model,
        low=low,
        high=None,
        typical=480.0,
        physical=787.5,
        baseline_ratio=ratio,
        source="a source",
        gpu_count=count,
    )


GATES = (gate("H100 80GB HBM3", 460.0), gate("H200", 431.0), gate("", None, count=None))
ECC = replace(
    gate("", None, count=None, ratio=None), test="nvml", measurement="ecc_uncorrectable", unit="count", high=0.0
)


def run(
    test: str, result: TestResult = TestResult.PASSED, *, said: str = "so", numbers: Sequence[Measurement] = ()
) -> TestRun:
    return TestRun(test=test, result=result, said=said, measurements=tuple(numbers))


def all_reduce(busbw: float, *, count: int = 8, unit: str = "GB/s") -> TestRun:
    return run(
        "nccl_loopback",
        numbers=(
            Measurement(name="busbw", value=busbw, unit=unit),
            Measurement(name="gpu_count", value=float(count), unit="count"),
        ),
    )


def check(*runs: TestRun, model: str = H200, number: int = 0, node: str = "gpu003") -> NodeCheck:
    return NodeCheck(
        key=ActionKey(f"{number:032x}"),
        node=NodeName(node),
        suite="nvlink",
        started_at=NOW - timedelta(minutes=1),
        finished_at=NOW,
        tests=runs,
        gpu_models=(model,) if model else (),
    )


def past(*values: float, model: str = H200, node: str = "gpu003") -> list[NodeCheck]:
    return [
        check(run("nvml"), all_reduce(value), model=model, number=number + 1, node=node)
        for number, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("model", "gpu_count", "low"),
    [
        (H100, 8, 460.0),
        (H200, 8, 431.0),
        (H200_NVL, 8, 431.0),
        (GH200, 8, None),
        ("NVIDIA H100 NVL", 8, None),
        (H200, 4, None),
        (H200, None, None),
    ],
)
def test_the_most_specific_gate_that_fits_counts(model: str, gpu_count: int | None, low: float | None) -> None:
    found = gate_for(GATES, test="nccl_loopback", measurement="busbw", models=(model,), gpu_count=gpu_count)

    assert found is not None
    assert found.low == low


def test_a_node_of_two_models_is_judged_by_what_fits_both() -> None:
    found = gate_for(GATES, test="nccl_loopback", measurement="busbw", models=(H100, H200), gpu_count=8)

    assert found is GATES[2]


@pytest.mark.parametrize(
    ("busbw", "state"), [(430.99, CheckState.NOT_WELL), (431.0, CheckState.WELL), (431.01, CheckState.WELL)]
)
def test_the_floor_itself_is_reached(busbw: float, state: CheckState) -> None:
    assert judge_check(check(run("nvml"), all_reduce(busbw)), SUITE, GATES, ()).state is state


@pytest.mark.parametrize(
    ("earlier", "busbw", "state"),
    [
        pytest.param((500.0, 500.0, 500.0), 449.9, CheckState.NOT_WELL, id="above the floor, below its own past"),
        pytest.param((500.0, 500.0, 500.0), 450.0, CheckState.WELL, id="at the share of its past"),
        pytest.param((500.0, 500.0, 500.0), 450.1, CheckState.WELL, id="above it"),
        pytest.param((500.0, 500.0), 449.9, CheckState.WELL, id="two earlier checks are too few"),
        pytest.param((500.0, 300.0, 500.0), 449.9, CheckState.NOT_WELL, id="the median, not the least"),
        pytest.param((400.0, 400.0, 400.0), 430.0, CheckState.NOT_WELL, id="a bad past excuses nothing"),
    ],
)
def test_a_node_is_judged_by_its_own_past_too(earlier: tuple[float, ...], busbw: float, state: CheckState) -> None:
    assert judge_check(check(run("nvml"), all_reduce(busbw)), SUITE, GATES, past(*earlier)).state is state


@pytest.mark.parametrize(
    "earlier",
    [
        pytest.param(past(500.0, 500.0, 500.0, model=H100), id="other GPUs"),
        pytest.param(past(500.0, 500.0, 500.0, node="gpu004"), id="another node"),
        pytest.param([replace(each, key=ActionKey(f"{0:032x}")) for each in past(500.0, 500.0, 500.0)], id="itself"),
    ],
)
def test_only_its_own_earlier_checks_on_the_same_gpus_are_its_past(earlier: list[NodeCheck]) -> None:
    assert judge_check(check(run("nvml"), all_reduce(440.0)), SUITE, GATES, earlier).state is CheckState.WELL


@pytest.mark.parametrize(
    ("runs", "state", "not_run"),
    [
        pytest.param((run("nvml"), all_reduce(480.0)), CheckState.WELL, (), id="all passed"),
        pytest.param(
            (run("nvml"), replace(run("nccl_loopback", TestResult.NOT_RUN), is_absent=True)),
            CheckState.WELL,
            ("nccl_loopback",),
            id="not installed",
        ),
        pytest.param(
            (run("nvml"), run("nccl_loopback", TestResult.NOT_RUN)), CheckState.UNKNOWN, (), id="hung or was cut short"
        ),
        pytest.param((run("nvml"),), CheckState.UNKNOWN, (), id="not reported"),
        pytest.param(
            (replace(run("nvml", TestResult.NOT_RUN), is_absent=True), all_reduce(480.0)),
            CheckState.UNKNOWN,
            (),
            id="required, not installed",
        ),
        pytest.param(
            (run("nvml", TestResult.NOT_RUN), all_reduce(480.0)), CheckState.UNKNOWN, (), id="required, not run"
        ),
        pytest.param((all_reduce(480.0),), CheckState.UNKNOWN, (), id="required, not reported"),
        pytest.param((), CheckState.UNKNOWN, (), id="nothing"),
        pytest.param(
            (run("nvml"), run("nccl_loopback", TestResult.FAILED)), CheckState.NOT_WELL, (), id="not required, failed"
        ),
        pytest.param(
            (run("nvml", TestResult.FAILED), all_reduce(480.0)), CheckState.NOT_WELL, (), id="required, failed"
        ),
        pytest.param(
            (run("nvml", TestResult.NOT_RUN), run("nccl_loopback", TestResult.FAILED)),
            CheckState.NOT_WELL,
            (),
            id="a fault outweighs the unknown",
        ),
        pytest.param(
            (run("nvml"), all_reduce(480.0), run("host", TestResult.FAILED)),
            CheckState.NOT_WELL,
            (),
            id="a test beyond the suite failed",
        ),
    ],
)
def test_what_was_not_run_never_proves_a_node_well(
    runs: tuple[TestRun, ...], state: CheckState, not_run: tuple[str, ...]
) -> None:
    verdict = judge_check(check(*runs), SUITE, GATES, ())

    assert (verdict.state, verdict.not_run) == (state, not_run)
    assert bool(verdict.faults) == (state is CheckState.NOT_WELL)


def test_a_node_that_nothing_was_run_on_under_load_is_said_to_be_untested() -> None:
    absent = replace(run("nccl_loopback", TestResult.NOT_RUN), is_absent=True)

    verdict = judge_check(check(run("nvml"), absent), SUITE, GATES, ())

    assert verdict.proofs[-1] == "untested under load: nccl_loopback cannot be run on this node"


def test_numbers_of_a_test_that_came_to_no_end_accuse_and_prove_nothing() -> None:
    slow, fast = (replace(all_reduce(busbw), result=TestResult.NOT_RUN, is_absent=True) for busbw in (100.0, 480.0))

    assert judge_check(check(run("nvml"), slow), SUITE, GATES, ()).state is CheckState.NOT_WELL
    assert "untested" in judge_check(check(run("nvml"), fast), SUITE, GATES, ()).proofs[-1]


def test_a_number_without_floor_and_past_is_told_and_not_judged() -> None:
    verdict = judge_check(check(run("nvml"), all_reduce(10.0), model=GH200), SUITE, GATES, ())

    assert verdict.state is CheckState.WELL
    assert verdict.unjudged == (
        "nccl_loopback: busbw is 10 GB/s; there is no floor, and 3 earlier checks are requested",
    )


def test_without_any_gate_a_number_is_no_ones_business() -> None:
    verdict = judge_check(check(run("nvml"), all_reduce(480.0), model=GH200), SUITE, GATES[:2], ())

    assert verdict.unjudged == ("nccl_loopback: busbw is 480 GB/s; there is no floor for NVIDIA GH200 480GB",)


def test_another_unit_than_the_catalogues_is_not_believed() -> None:
    verdict = judge_check(check(run("nvml"), all_reduce(480.0, unit="Gb/s")), SUITE, GATES, ())

    assert verdict.state is CheckState.NOT_WELL
    assert "of different versions" in verdict.faults[0]


@pytest.mark.parametrize(
    ("count", "state"), [(0.0, CheckState.WELL), (1.0, CheckState.NOT_WELL), (float("nan"), CheckState.NOT_WELL)]
)
def test_a_ceiling_holds_for_each_gpu(count: float, state: CheckState) -> None:
    nvml = run("nvml", numbers=[Measurement(name="ecc_uncorrectable", value=count, unit="count")])

    assert judge_check(check(nvml, all_reduce(480.0)), SUITE, (ECC,), ()).state is state


@given(
    results=st.lists(st.sampled_from(TestResult), min_size=2, max_size=2),
    busbw=st.floats(allow_nan=True, allow_infinity=True),
    is_absent=st.booleans(),
)
def test_a_node_is_well_only_if_every_required_test_passed_and_none_failed(
    results: list[TestResult], busbw: float, is_absent: bool
) -> None:
    nvml = run("nvml", results[0])
    loop = replace(all_reduce(busbw), result=results[1], is_absent=is_absent and results[1] is TestResult.NOT_RUN)

    verdict = judge_check(check(nvml, loop), SUITE, GATES, past(480.0, 480.0, 480.0))

    is_well = results[0] is TestResult.PASSED and (
        busbw >= 432.0 and (results[1] is TestResult.PASSED or (results[1] is TestResult.NOT_RUN and is_absent))
    )
    assert (verdict.state is CheckState.WELL) == is_well


SUITES = (
    replace(SUITE, name="general", families=frozenset(), tests=("nvml",)),
    SUITE,
    replace(SUITE, name="memory", families=frozenset({Family.MEMORY}), tests=("nvml", "dcgm_diag_r2")),
    replace(SUITE, name="gpu", families=frozenset({Family.GPU}), tests=("nvml", "dcgm_diag_r3")),
    replace(SUITE, name="all", families=frozenset({Family.STALL}), tests=("nvml", "dcgm_diag_r3", "nccl_loopback")),
    replace(SUITE, name="release", families=frozenset(), is_by_name=True, tests=("dcgm_diag_r3", "nccl_loopback")),
)


@pytest.mark.parametrize(
    ("families", "name"),
    [
        ((), "general"),
        ((Family.UNKNOWN,), "general"),
        ((Family.NVLINK,), "nvlink"),
        ((Family.NVLINK, Family.UNKNOWN), "nvlink"),
        ((Family.MEMORY, Family.GPU), "gpu"),
        ((Family.MEMORY, Family.NVLINK), "all"),
        (tuple(Family), "all"),
    ],
)
def test_the_suite_is_the_least_that_covers_what_is_suspected(families: tuple[Family, ...], name: str) -> None:
    assert suite_for(families, SUITES).name == name
    assert suite_named(name, SUITES).name == name


def test_a_suite_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="there is no suite 'magic'; expected one of general, nvlink"):
        suite_named("magic", SUITES)
