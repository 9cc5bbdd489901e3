"""The node's own check on the twin: when its result is there, what it says, and what cuts it short."""

from dataclasses import replace
from pathlib import Path
from statistics import pstdev

import pytest

from ops_pipelines.core.identity import ActionKey, NodeName
from ops_pipelines.core.node_tests import GPU_COUNT, CheckState, NodeCheck, Suite, TestResult, TestRun, judge_check
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines_lab.simulator.course import Course, Cure
from ops_pipelines_lab.simulator.faults import USUAL_COURSES
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS, Scenario, cluster_nodes
from ops_pipelines_lab.simulator.twin import Twin
from tests.simulator.small_cluster import GPU1, GPU2, GPU3, TRAINING, SmallCluster

TESTS = ("nvml", "dcgm_memtest", "nccl_loopback")
ALL_IN_USE = {"nvml": TestResult.PASSED, "dcgm_memtest": TestResult.NOT_RUN, "nccl_loopback": TestResult.NOT_RUN}


def key_of(number: int) -> ActionKey:
    return ActionKey(f"{number:032x}")


def start(cluster: SmallCluster, number: int = 1, *, node: NodeName = GPU1) -> ActionKey:
    cluster.fleet.start_check(node, suite="memory", tests=TESTS, key=key_of(number))
    return key_of(number)


def check(cluster: SmallCluster, number: int = 1, *, node: NodeName = GPU1) -> NodeCheck:
    """Have a node checked and return the result."""
    key = start(cluster, number, node=node)
    cluster.clock.wait(4.0)
    found = cluster.fleet.read_check(node, key=key)
    assert found is not None
    return found


def results(found: NodeCheck) -> dict[str, TestResult]:
    return {run.test: run.result for run in found.tests}


def run_of(found: NodeCheck, test: str) -> TestRun:
    return next(run for run in found.tests if run.test == test)


def busbw(found: NodeCheck) -> float:
    return next(each.value for each in run_of(found, "nccl_loopback").measurements if each.name != GPU_COUNT)


def test_result_is_there_when_the_suite_is_over_and_not_before(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    before = cluster.fleet.read_check(GPU1, key=key_of(1))
    began_at = cluster.clock.now()

    key = start(cluster)
    cluster.clock.wait(3.9)
    during, running = cluster.fleet.read_check(GPU1, key=key), cluster.truth(GPU1).running_checks
    cluster.clock.wait(0.1)

    found = cluster.fleet.read_check(GPU1, key=key)
    assert (before, during, running) == (None, None, (key,))
    assert found is not None
    assert (found.key, found.node, found.suite, found.started_at) == (key, GPU1, "memory", began_at)
    assert found.finished_at == cluster.clock.now()
    assert results(found) == dict.fromkeys(TESTS, TestResult.PASSED)
    assert found.gpu_models == (cluster.twin.scenario.gpu_model,) * 8
    assert len({each.serial for each in found.serials}) == 9
    assert found.inspection == cluster.fleet.inspect(GPU1)
    assert cluster.truth(GPU1).running_checks == ()


def test_starting_under_the_same_key_starts_nothing_new(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    first = check(cluster)

    start(cluster)

    assert cluster.fleet.read_check(GPU1, key=key_of(1)) == first
    assert cluster.truth(GPU1).running_checks == ()


def test_result_lies_on_its_node_alone(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    check(cluster)

    assert cluster.fleet.read_check(GPU2, key=key_of(1)) is None


def test_check_beside_work_says_that_the_gpus_are_in_use(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)

    found = check(cluster)

    assert results(found) == ALL_IN_USE
    assert run_of(found, "dcgm_memtest").said == "GPU in use"


def test_work_that_comes_in_between_spoils_the_tests(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    key = start(cluster)
    cluster.clock.wait(2.0)
    cluster.twin.submit(TRAINING)
    cluster.clock.wait(2.0)

    found = cluster.fleet.read_check(GPU1, key=key)

    assert found is not None
    assert results(found) == ALL_IN_USE


@pytest.mark.parametrize("verb", ["reboot", "power"])
def test_boot_cuts_a_running_check_short(tmp_path: Path, verb: str) -> None:
    cluster = SmallCluster(tmp_path)
    key = start(cluster)
    cluster.clock.wait(1.0)

    if verb == "reboot":
        cluster.fleet.reboot(GPU1, reason="INC-7")
    else:
        cluster.fleet.power_off(GPU1)
        cluster.fleet.power_on(GPU1)
    with pytest.raises(SourceUnavailable):
        cluster.fleet.read_check(GPU1, key=key)
    cluster.clock.wait(6.0)

    found = cluster.fleet.read_check(GPU1, key=key)
    assert found is not None
    assert results(found) == dict.fromkeys(TESTS, TestResult.NOT_RUN)
    assert "cut short" in found.tests[0].said


def test_finished_result_outlives_a_reboot_and_no_reimage(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    found = check(cluster)

    cluster.fleet.reboot(GPU1, reason="INC-7")
    cluster.clock.wait(5.0)
    after_reboot = cluster.fleet.read_check(GPU1, key=found.key)
    cluster.fleet.reimage(GPU1, reason="INC-7")
    cluster.clock.wait(9.0)

    assert after_reboot == found
    assert cluster.fleet.read_check(GPU1, key=found.key) is None


def test_damage_that_the_driver_shows_fails_the_tests_that_look_at_it(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(FaultKind.UNCORRECTABLE_ECC, GPU1, gpu=3)

    found = check(cluster)

    assert results(found) == {
        "nvml": TestResult.FAILED, "dcgm_memtest": TestResult.FAILED, "nccl_loopback": TestResult.PASSED
    }  # fmt: skip
    assert "0000:61:00" in run_of(found, "nvml").said


def test_hidden_defect_shows_in_its_test_alone_and_is_cured_by_replacement(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    usual = busbw(check(cluster, 1))
    cluster.twin.inject(FaultKind.HIDDEN_DEFECT, GPU1)

    slow = check(cluster, 2)
    is_seen_by_nvml = not cluster.truth(GPU1).is_healthy
    cluster.twin.repair_by_hand(GPU1)
    cluster.clock.wait(6.0)
    again = busbw(check(cluster, 3))

    assert results(slow)["nvml"] is TestResult.PASSED
    assert not is_seen_by_nvml
    assert busbw(slow) < 0.75 * usual < again


def test_hidden_defect_of_a_test_without_numbers_fails_it(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    course = Course(cure=Cure.REPLACEMENT, found_by=("dcgm_memtest",))
    cluster.twin.inject(FaultKind.HIDDEN_DEFECT, GPU1, gpu=2, course=course)

    assert results(check(cluster))["dcgm_memtest"] is TestResult.FAILED


@pytest.mark.parametrize("count", [1, 2])
def test_check_fails_as_often_as_said_and_then_passes(tmp_path: Path, count: int) -> None:
    cluster = SmallCluster(tmp_path)
    course = Course(cure=Cure.REPLACEMENT, found_by=("dcgm_memtest",), failing_check_count=count)
    cluster.twin.inject(FaultKind.HIDDEN_DEFECT, GPU1, gpu=2, course=course)

    found = [results(check(cluster, number))["dcgm_memtest"] for number in range(count + 2)]

    assert found == [TestResult.FAILED] * count + [TestResult.PASSED] * 2
    assert cluster.truth(GPU1).is_well


def test_check_that_could_not_look_counts_as_no_failure(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, replace(TRAINING, work_seconds=10.0))
    course = Course(cure=Cure.REPLACEMENT, found_by=("dcgm_memtest",), failing_check_count=1)
    cluster.twin.inject(FaultKind.HIDDEN_DEFECT, GPU1, gpu=2, course=course)

    check(cluster, 1)
    cluster.clock.wait(10.0)

    assert results(check(cluster, 2))["dcgm_memtest"] is TestResult.FAILED


def test_relapsing_damage_that_sleeps_passes_every_test(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    course = Course(cure=Cure.REPLACEMENT, returns_after_load_seconds=5.0)
    cluster.twin.inject(FaultKind.UNCORRECTABLE_ECC, GPU1, gpu=0, course=course)
    cluster.fleet.reset_gpu(GPU1, cluster.fleet.inspect(GPU1).gpus[0].gpu)
    cluster.clock.wait(2.0)

    found = check(cluster)

    assert results(found) == dict.fromkeys(TESTS, TestResult.PASSED)
    assert not cluster.truth(GPU1).is_well


def test_measurements_differ_more_between_nodes_than_between_runs(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)

    of_one = [busbw(check(cluster, number)) for number in range(8)]
    of_all = [busbw(check(cluster, 100, node=node)) for node in (GPU1, GPU2, GPU3, NodeName("gpu004"))]

    assert 0 < pstdev(of_one) < pstdev(of_all)
    assert all(0.97 * 480.0 < value < 1.03 * 480.0 for value in (*of_one, *of_all))


def test_absent_tool_and_unknown_test_are_not_run(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path / "unused")
    scenario = Scenario(nodes=cluster_nodes(1), durations=SHORT_DURATIONS, absent_tests=("dcgm_memtest",))
    cluster.use(Twin.create(tmp_path / "twin", scenario, seed=7, clock=cluster.clock))
    cluster.fleet.start_check(GPU1, suite="memory", tests=("dcgm_memtest", "flux", "nvml"), key=key_of(1))
    cluster.clock.wait(4.0)

    found = cluster.fleet.read_check(GPU1, key=key_of(1))

    assert found is not None
    assert list(results(found).values()) == [TestResult.NOT_RUN, TestResult.NOT_RUN, TestResult.PASSED]


def test_site_without_images_refuses_to_install_a_node_anew(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path / "unused")
    scenario = Scenario(nodes=cluster_nodes(1), durations=SHORT_DURATIONS, is_reimaging_offered=False)
    cluster.use(Twin.create(tmp_path / "twin", scenario, seed=7, clock=cluster.clock))

    with pytest.raises(SourceRefused):
        cluster.fleet.reimage(GPU1, reason="INC-7")

    assert cluster.truth(GPU1).boot_count == 1


def test_silent_node_takes_no_check_and_tells_of_none(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1)

    with pytest.raises(SourceUnavailable):
        start(cluster)
    with pytest.raises(SourceUnavailable):
        cluster.fleet.read_check(GPU1, key=key_of(1))
    with pytest.raises(SourceRefused):
        cluster.fleet.read_check(NodeName("gpu099"), key=key_of(1))
    with pytest.raises(ValueError):
        cluster.fleet.start_check(GPU2, suite="memory", tests=(), key=key_of(1))


CATALOGUE = read_catalogue()


@pytest.mark.parametrize("suite", CATALOGUE.suites, ids=lambda suite: suite.name)
def test_catalogue_finds_a_healthy_node_well_by_every_suite_and_a_defect_by_those_that_can_see_it(
    tmp_path: Path, suite: Suite
) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(FaultKind.HIDDEN_DEFECT, GPU2)
    verdicts = []

    for node in (GPU1, GPU2):
        cluster.fleet.start_check(node, suite=suite.name, tests=suite.tests, key=key_of(1))
        cluster.clock.wait(4.0)
        found = cluster.fleet.read_check(node, key=key_of(1))
        assert found is not None
        verdicts.append(judge_check(found, suite, CATALOGUE.gates, baseline=()).state)

    is_seen = set(suite.tests) & set(USUAL_COURSES[FaultKind.HIDDEN_DEFECT].found_by)
    assert verdicts == [CheckState.WELL, CheckState.NOT_WELL if is_seen else CheckState.WELL]
