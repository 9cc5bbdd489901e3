"""Courses of faults: which repair ends them, and how they come back after a weaker one."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ops_pipelines.core.identity import PciAddress
from ops_pipelines.core.observation import JobState, NodeState, RecoveryAction
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines_lab.simulator.commands import ImpossibleFaultError
from ops_pipelines_lab.simulator.course import Course, Cure
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.simulator.small_cluster import GPU1, GPU2, SESSION, TRAINING, SmallCluster

ADDRESS = PciAddress("0000:1b:00")
"""The GPU at index 0."""
ECC, OFF_BUS = FaultKind.UNCORRECTABLE_ECC, FaultKind.GPU_FELL_OFF_BUS


def repair(cluster: SmallCluster, cure: Cure) -> None:
    """Carry out one repair of gpu001 and wait for its end."""
    match cure:
        case Cure.RESET:
            cluster.fleet.reset_gpu(GPU1, ADDRESS)
        case Cure.REBOOT:
            cluster.fleet.reboot(GPU1, reason="INC-7")
        case Cure.POWER_CYCLE:
            cluster.fleet.power_off(GPU1)
            cluster.fleet.power_on(GPU1)
        case Cure.REIMAGE:
            cluster.fleet.reimage(GPU1, reason="INC-7")
        case Cure.REPLACEMENT:
            cluster.twin.repair_by_hand(GPU1)
    cluster.clock.wait(9.0)


def xids(cluster: SmallCluster) -> list[str]:
    found = [re.search(r"Xid \(PCI:0000:1b:00\): (\d+),", text) for text in cluster.log_texts()]
    return [match[1] for match in found if match]


@pytest.mark.parametrize("needed", list(Cure))
@pytest.mark.parametrize("done", list(Cure))
def test_repair_ends_what_needs_no_stronger_one(tmp_path: Path, done: Cure, needed: Cure) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(ECC, GPU1, gpu=0, course=Course(cure=needed))

    repair(cluster, done)

    is_enough = list(Cure).index(done) >= list(Cure).index(needed)
    assert cluster.truth(GPU1).is_well == cluster.truth(GPU1).is_healthy == is_enough
    assert cluster.fleet.inspect(GPU1).gpus[0].uncorrectable_ecc_count == (0 if is_enough else 1)


def test_reset_without_effect_writes_the_same_xids_again_and_still_asks_for_a_reset(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(ECC, GPU1, gpu=0, course=Course(cure=Cure.REBOOT))

    repair(cluster, Cure.RESET)

    assert xids(cluster) == ["48", "63", "154"] * 2
    assert cluster.fleet.inspect(GPU1).gpus[0].recovery_action is RecoveryAction.RESET_GPU


@pytest.mark.parametrize(
    ("seconds", "is_back"),
    [
        pytest.param(29.9, False, id="just before"),
        pytest.param(30.0, True, id="then"),
        pytest.param(30.1, True, id="just after"),
    ],
)
def test_damage_that_a_reset_clears_comes_back_after_its_time(tmp_path: Path, seconds: float, is_back: bool) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(ECC, GPU1, gpu=0, course=Course(cure=Cure.REBOOT, returns_after_seconds=30.0))
    cluster.fleet.reset_gpu(GPU1, ADDRESS)
    cluster.clock.wait(2.0)
    cleared = cluster.truth(GPU1)

    cluster.clock.wait(seconds)

    assert (cleared.is_healthy, cleared.is_well) == (True, False)
    assert cluster.truth(GPU1).is_healthy is not is_back
    assert len(xids(cluster)) == (6 if is_back else 3)


def test_each_weak_repair_begins_the_time_anew_and_the_cure_ends_it(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(ECC, GPU1, gpu=0, course=Course(cure=Cure.REBOOT, returns_after_seconds=20.0))
    for _ in range(3):
        repair(cluster, Cure.RESET)
    repair(cluster, Cure.REBOOT)

    cluster.clock.wait(500.0)

    assert cluster.truth(GPU1).is_well
    assert len(xids(cluster)) == 3


def test_gpu_that_needs_a_power_cycle_falls_off_again_after_a_reboot(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(OFF_BUS, GPU1, gpu=0, course=Course(cure=Cure.POWER_CYCLE))

    repair(cluster, Cure.REBOOT)
    after_reboot = len(cluster.fleet.inspect(GPU1).gpus)
    repair(cluster, Cure.POWER_CYCLE)

    assert (after_reboot, len(cluster.fleet.inspect(GPU1).gpus)) == (7, 8)
    assert xids(cluster) == ["79", "154"] * 2


def test_relapse_waits_for_load_however_long_the_node_is_drained(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    course = Course(cure=Cure.REPLACEMENT, returns_after_load_seconds=10.0)
    cluster.twin.inject(ECC, GPU1, gpu=0, course=course)
    repair(cluster, Cure.RESET)
    cluster.clock.wait(10_000.0)
    while_idle = cluster.truth(GPU1).is_healthy

    job = cluster.twin.submit(TRAINING)
    cluster.clock.wait(9.9)
    before = cluster.truth(GPU1).is_healthy
    cluster.clock.wait(0.1)

    assert (while_idle, before, cluster.truth(GPU1).is_healthy) == (True, True, False)
    assert cluster.progress(job).is_hung


def test_job_that_ends_in_time_does_not_wake_a_relapse(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    course = Course(cure=Cure.REPLACEMENT, returns_after_load_seconds=10.0)
    cluster.twin.inject(ECC, GPU1, gpu=0, course=course)
    repair(cluster, Cure.RESET)

    job = cluster.twin.submit(TRAINING)
    cluster.clock.wait(5.0)
    cluster.twin.command(EntryKind.CANCEL, job=job)
    cluster.clock.wait(60.0)

    assert cluster.truth(GPU1).is_healthy


def test_load_on_other_gpus_does_not_wake_a_relapse_of_one(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, node_count=1)
    course = Course(cure=Cure.REPLACEMENT, returns_after_load_seconds=5.0)
    cluster.twin.inject(ECC, GPU1, gpu=5, course=course)
    cluster.fleet.reset_gpu(GPU1, cluster.fleet.inspect(GPU1).gpus[5].gpu)
    cluster.clock.wait(2.0)

    cluster.twin.submit(SESSION)
    cluster.clock.wait(60.0)
    beside_it = cluster.truth(GPU1).is_healthy
    cluster.twin.submit(replace(SESSION, gpus_per_node=7))
    cluster.clock.wait(5.0)

    assert (beside_it, cluster.truth(GPU1).is_healthy) == (True, False)


def test_reboot_that_never_returns_waits_for_the_power_switch(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(FaultKind.BOOT_HANGS, GPU1)
    before = cluster.truth(GPU1)

    repair(cluster, Cure.REBOOT)
    cluster.clock.wait(5_000.0)
    hanging = cluster.truth(GPU1)
    repair(cluster, Cure.POWER_CYCLE)

    assert (before.is_healthy, before.is_well) == (True, False)
    assert (hanging.is_powered, hanging.is_up, hanging.boot_count) == (True, False, 1)
    assert cluster.truth(GPU1).is_well


def test_node_that_no_power_cycle_brings_back_waits_for_hands(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1, course=Course(cure=Cure.REPLACEMENT))

    for cure in (Cure.POWER_CYCLE, Cure.REIMAGE, Cure.POWER_CYCLE):
        repair(cluster, cure)
    down = cluster.truth(GPU1)
    cluster.twin.repair_by_hand(GPU1)
    cluster.clock.wait(6.0)

    assert not down.is_up
    assert cluster.truth(GPU1).is_well


def test_node_that_goes_silent_again_after_its_power_cycle(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    course = Course(cure=Cure.REPLACEMENT, returns_after_seconds=30.0)
    cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1, course=course)
    cluster.fleet.power_off(GPU1)
    cluster.fleet.power_on(GPU1)
    cluster.clock.wait(6.0)
    back = cluster.truth(GPU1).answers

    cluster.clock.wait(30.0)

    assert (back, cluster.truth(GPU1).answers) == (True, False)
    cluster.clock.wait(3.0)
    assert not cluster.node(GPU1).is_responding


def test_replaced_gpu_has_another_uuid_and_serial_in_the_same_slot(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(OFF_BUS, GPU1, gpu=0, course=Course(cure=Cure.REPLACEMENT))
    others = {gpu.gpu: (gpu.gpu_uuid, gpu.serial) for gpu in cluster.fleet.inspect(GPU1).gpus}
    repair(cluster, Cure.REBOOT)
    chassis = cluster.fleet.inspect(GPU1).chassis_serial

    repair(cluster, Cure.REPLACEMENT)

    inspection = cluster.fleet.inspect(GPU1)
    found = {gpu.gpu: (gpu.gpu_uuid, gpu.serial) for gpu in inspection.gpus}
    new = found.pop(ADDRESS)
    assert (found, inspection.chassis_serial) == (others, chassis)
    assert new not in others.values()
    assert len({serial for _, serial in (*others.values(), new)}) == 8


def test_nobody_opens_or_reimages_a_machine_at_work(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    before = cluster.truth(GPU1)

    with pytest.raises(SourceRefused):
        cluster.twin.repair_by_hand(GPU1)
    with pytest.raises(SourceRefused):
        cluster.fleet.reimage(GPU1, reason="INC-7")

    assert cluster.truth(GPU1) == before


def test_reimage_is_a_boot_that_a_silent_idle_node_takes_too(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    before = cluster.fleet.inspect(GPU1).boot_id
    cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1)

    cluster.fleet.reimage(GPU1, reason="INC-7")
    cluster.clock.wait(8.9)
    with pytest.raises(SourceUnavailable):
        cluster.fleet.inspect(GPU1)
    cluster.clock.wait(0.1)

    assert cluster.fleet.inspect(GPU1).boot_id != before


def test_job_whose_process_cannot_be_killed_completes_until_the_power_is_cut(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    (job,) = cluster.jobs
    cluster.twin.inject(FaultKind.UNKILLABLE_PROCESS, GPU1, gpu=0)

    cluster.scheduler.hold(job)
    cluster.clock.wait(500.0)
    stuck = (cluster.job(job).state, cluster.node(GPU1).is_drained, cluster.node(GPU1).reason)
    other = cluster.node(GPU2).is_drained
    with pytest.raises(SourceRefused):
        cluster.fleet.reboot(GPU1, reason="INC-7")
    repair(cluster, Cure.POWER_CYCLE)

    assert stuck == (JobState.COMPLETING, True, "Kill task failed")
    assert not other
    assert (cluster.job(job).state, cluster.job(job).is_held) == (JobState.PENDING, True)
    assert cluster.node(GPU1).state is NodeState.DOWN


def test_drain_of_ours_keeps_its_reason_when_a_process_cannot_be_killed(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    cluster.twin.inject(FaultKind.UNKILLABLE_PROCESS, GPU1, gpu=0)
    cluster.scheduler.drain([GPU1], reason="INC-7")

    cluster.scheduler.hold(cluster.jobs[0])
    cluster.clock.wait(500.0)

    assert cluster.node(GPU1).reason == "INC-7"


@pytest.mark.parametrize(
    ("fault", "gpu", "course"),
    [
        pytest.param(FaultKind.APPLICATION_XID31, 0, Course(cure=Cure.REBOOT), id="of a program"),
        pytest.param(FaultKind.NODE_UNREACHABLE, None, Course(cure=Cure.RESET), id="reset of a node"),
        pytest.param(FaultKind.HIDDEN_DEFECT, 0, Course(cure=Cure.REBOOT), id="hidden from every test"),
    ],
)
def test_course_that_cannot_be_is_refused(tmp_path: Path, fault: FaultKind, gpu: int | None, course: Course) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)

    with pytest.raises(ImpossibleFaultError):
        cluster.twin.inject(fault, GPU1, gpu=gpu, course=course)

    assert cluster.truth(GPU1).is_well


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"returns_after_seconds": 0.0}, id="no time"),
        pytest.param({"returns_after_seconds": 5.0, "returns_after_load_seconds": 5.0}, id="two times"),
        pytest.param({"failing_check_count": 2}, id="failures of no test"),
        pytest.param({"failing_check_count": 0, "found_by": ("nvml",)}, id="no failure"),
    ],
)
def test_contradictory_course_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Course(cure=Cure.REBOOT, **fields)  # type: ignore[arg-type]  # rows of different fields
