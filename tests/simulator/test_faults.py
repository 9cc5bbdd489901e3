"""What each fault shows, what it hurts, and what cures it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ops_pipelines.core.observation import JobState, NodeState, RecoveryAction
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines_lab.simulator.adapters import simulated_ports
from ops_pipelines_lab.simulator.commands import ImpossibleFaultError
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS, demo_scenario
from ops_pipelines_lab.simulator.twin import Twin
from tests.simulator.fake_clock import FakeClock
from tests.simulator.small_cluster import GPU1, GPU2, GPU3, GPU4, SESSION, TRAINING, SmallCluster

ADDRESS = "0000:61:00"
"""The GPU at index 3."""


def test_gpu_off_the_bus_logs_xid_79_and_154_and_leaves_the_metrics(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)

    cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=3)

    first, second = cluster.log_texts()
    assert f"{GPU1} kernel: " in first
    assert first.endswith(
        f"NVRM: Xid (PCI:{ADDRESS}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    )
    assert second.endswith(
        f"Xid (PCI:{ADDRESS}): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    )
    assert len(cluster.metric("DCGM_FI_DEV_GPU_TEMP", GPU1)) == 7
    assert f"0000{ADDRESS}.0" not in cluster.metric("DCGM_FI_DEV_GPU_TEMP", GPU1)
    assert ADDRESS not in {gpu.gpu for gpu in cluster.fleet.inspect(GPU1).gpus}
    assert cluster.node(GPU1).state is NodeState.ALLOCATED


def test_gpu_off_the_bus_comes_back_with_a_reboot(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=3)

    cluster.fleet.reboot(GPU1, reason="INC-7")
    cluster.clock.wait(5.0)

    assert len(cluster.fleet.inspect(GPU1).gpus) == 8
    assert cluster.truth(GPU1).is_healthy
    assert set(cluster.metric("DCGM_FI_DEV_XID_ERRORS", GPU1).values()) == {0.0}


def test_uncorrectable_ecc_shows_in_log_metrics_and_on_the_node(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)

    cluster.twin.inject(FaultKind.UNCORRECTABLE_ECC, GPU1, gpu=3)

    codes = [re.search(r"Xid \(PCI:0000:61:00\): (\d+),", text) for text in cluster.log_texts()]
    assert [match and match[1] for match in codes] == ["48", "63", "154"]
    key = f"0000{ADDRESS}.0"
    shown = {
        name: cluster.metric(f"DCGM_FI_DEV_{name}", GPU1)[key]
        for name in ("ECC_DBE_VOL_TOTAL", "ROW_REMAP_PENDING", "GPU_RECOVERY_ACTION", "XID_ERRORS")
    }
    assert shown == {"ECC_DBE_VOL_TOTAL": 1, "ROW_REMAP_PENDING": 1, "GPU_RECOVERY_ACTION": 1, "XID_ERRORS": 154}
    (bad,) = [gpu for gpu in cluster.fleet.inspect(GPU1).gpus if gpu.gpu == ADDRESS]
    assert (bad.recovery_action, bad.uncorrectable_ecc_count) == (RecoveryAction.RESET_GPU, 1)


def test_reset_cures_ecc_replaces_the_row_and_keeps_the_last_xid_shown(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(FaultKind.UNCORRECTABLE_ECC, GPU1, gpu=3)
    bad = next(gpu.gpu for gpu in cluster.fleet.inspect(GPU1).gpus if gpu.uncorrectable_ecc_count)

    cluster.fleet.reset_gpu(GPU1, bad)
    gpus_during = cluster.fleet.inspect(GPU1).gpus
    cluster.clock.wait(2.0)

    assert len(gpus_during) == 7
    assert cluster.truth(GPU1).is_healthy
    assert cluster.metric("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", GPU1)[f"0000{bad}.0"] == 1
    assert cluster.metric("DCGM_FI_DEV_XID_ERRORS", GPU1)[f"0000{bad}.0"] == 154


def test_reboot_cures_ecc_too(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(FaultKind.UNCORRECTABLE_ECC, GPU1, gpu=3)

    cluster.fleet.reboot(GPU1, reason="INC-7")
    cluster.clock.wait(5.0)

    assert cluster.truth(GPU1).is_healthy


def test_application_fault_names_the_process_fails_the_job_and_leaves_the_node_healthy(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)

    cluster.twin.inject(FaultKind.APPLICATION_XID31, GPU1, gpu=3)

    (text,) = cluster.log_texts()
    assert re.search(r"NVRM: Xid \(PCI:0000:61:00\): 31, pid=\d+, name=python3, .*MMU Fault: ENGINE GRAPHICS", text)
    assert cluster.job(cluster.jobs[0]).state is JobState.FAILED
    assert cluster.progress(cluster.jobs[0]).writers == frozenset()
    assert cluster.truth(GPU1).is_healthy
    assert cluster.node(GPU1).state is NodeState.IDLE


def test_failed_job_goes_on_completing_while_a_node_does_not_say_that_its_processes_are_gone(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    job = cluster.jobs[0]
    silent, other = sorted(cluster.job(job).nodes)[:2]
    cluster.twin.inject(FaultKind.NODE_UNREACHABLE, silent)
    cluster.twin.inject(FaultKind.APPLICATION_XID31, other, gpu=3)

    states = [cluster.job(job).state]
    cluster.twin.command(EntryKind.POWER_OFF, nodes=(silent,))
    cluster.twin.command(EntryKind.DECLARE_DOWN, nodes=(silent,), reason="no power")
    states.append(cluster.job(job).state)

    assert states == [JobState.COMPLETING, JobState.FAILED]


def test_unreachable_node_is_silent_everywhere_but_its_processes_go_on(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)

    cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1)
    cluster.clock.wait(3.0)

    assert cluster.metric("DCGM_FI_DEV_GPU_TEMP", GPU1) == {}
    assert cluster.log_texts() == []
    assert not cluster.node(GPU1).is_responding
    assert cluster.node(GPU1).state is NodeState.ALLOCATED
    assert cluster.truth(GPU1).attempts == cluster.progress(cluster.jobs[0]).writers != frozenset()
    assert cluster.progress(cluster.jobs[0]).is_hung


def test_scheduler_believes_a_dead_node_until_its_next_ping(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.clock.wait(4.5)

    cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1)
    cluster.clock.wait(1.25)
    believed = cluster.node(GPU1).is_responding
    cluster.clock.wait(0.25)

    assert believed
    assert not cluster.node(GPU1).is_responding


def test_power_cycle_cures_an_unreachable_node(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1)

    cluster.fleet.power_off(GPU1)
    cluster.fleet.power_on(GPU1)
    cluster.clock.wait(6.0)

    assert cluster.truth(GPU1).is_healthy
    assert cluster.node(GPU1).is_responding


def test_network_partition_hides_nodes_loses_no_work_and_ends_by_itself(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)

    cluster.twin.inject(FaultKind.NETWORK_PARTITION, GPU1, GPU2, GPU3, seconds=20.0)
    cluster.clock.wait(5.0)
    during = cluster.scheduler.read_nodes()
    hidden = {sample.labels["Hostname"] for sample in cluster.telemetry.read_samples(cluster.clock.now())}
    cluster.clock.wait(17.0)

    assert {node.node for node in during if not node.is_responding} == {GPU1, GPU2, GPU3}
    assert hidden == {GPU4}
    assert all(node.is_responding for node in cluster.scheduler.read_nodes())
    assert cluster.progress(cluster.jobs[0]).step_count == 44
    assert cluster.job(cluster.jobs[0]).restart_count == 0


def test_lines_written_during_a_partition_arrive_after_it_with_their_own_time(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(FaultKind.NETWORK_PARTITION, GPU1, seconds=20.0)
    cluster.clock.wait(5.0)
    written_at = cluster.clock.now()

    cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=0)
    during = cluster.log_texts()
    cluster.clock.wait(15.0)

    assert during == []
    assert len(cluster.log_texts()) == 2
    assert cluster.logs.read_new(None, max_lines=1).lines[0].written_at == written_at


@pytest.mark.parametrize(
    ("fault", "nodes", "gpu", "seconds"),
    [
        pytest.param(FaultKind.GPU_FELL_OFF_BUS, ("gpu099",), 0, None, id="unknown node"),
        pytest.param(FaultKind.GPU_FELL_OFF_BUS, (GPU1,), 8, None, id="unknown GPU"),
        pytest.param(FaultKind.GPU_FELL_OFF_BUS, (GPU1,), None, None, id="GPU not reported"),
        pytest.param(FaultKind.GPU_FELL_OFF_BUS, (GPU1, GPU2), 0, None, id="two nodes"),
        pytest.param(FaultKind.APPLICATION_XID31, (GPU4,), 0, None, id="no process to fault"),
        pytest.param(FaultKind.NETWORK_PARTITION, (GPU1,), None, None, id="partition without an end"),
        pytest.param(FaultKind.NETWORK_PARTITION, (), None, 5.0, id="partition of nothing"),
        pytest.param(FaultKind.NODE_UNREACHABLE, (GPU3,), None, None, id="powered off"),
        pytest.param(FaultKind.GPU_FELL_OFF_BUS, (GPU2,), 5, None, id="fallen already"),
    ],
)
def test_impossible_fault_raises_and_leaves_no_trace(
    tmp_path: Path, fault: FaultKind, nodes: tuple[str, ...], gpu: int | None, seconds: float | None
) -> None:
    cluster = SmallCluster(tmp_path, SESSION)
    cluster.fleet.power_off(GPU3)
    cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU2, gpu=5)
    # The session is on gpu004: take it away, so that nothing uses a GPU there.
    cluster.fleet.power_off(GPU4)
    cluster.fleet.power_on(GPU4)
    cluster.clock.wait(6.0)
    before = cluster.snapshot()

    with pytest.raises(ImpossibleFaultError):
        cluster.twin.inject(fault, *nodes, gpu=gpu, seconds=seconds)

    assert cluster.snapshot() == before


def test_nothing_happens_to_a_node_that_is_booting(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.fleet.reboot(GPU1, reason="INC-7")

    with pytest.raises(SourceUnavailable):
        cluster.fleet.reboot(GPU1, reason="INC-7")
    with pytest.raises(ImpossibleFaultError):
        cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=0)


def test_evidence_never_says_that_it_was_made_up(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    for number, fault in enumerate((FaultKind.GPU_FELL_OFF_BUS, FaultKind.UNCORRECTABLE_ECC)):
        cluster.twin.inject(fault, GPU3, gpu=number)
    cluster.twin.inject(FaultKind.APPLICATION_XID31, GPU1, gpu=0)
    cluster.fleet.reboot(GPU3, reason="INC-7")
    cluster.clock.wait(6.0)

    assert not [text for text in cluster.log_texts() if re.search("inject|simul|fault kind|twin|pretend", text, re.I)]


def test_kernel_line_counts_seconds_from_its_own_boot(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.fleet.reboot(GPU1, reason="INC-7")
    cluster.clock.wait(5.0 + 12.25)

    cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=0)

    line = cluster.log_texts()[-2]
    assert "[   12.250000] NVRM: Xid" in line


def test_unannounced_reboot_sets_the_node_down_as_slurm_does(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.fleet.power_off(GPU1)
    cluster.fleet.power_on(GPU1)

    cluster.clock.wait(6.0)

    node = cluster.node(GPU1)
    assert (node.state, node.reason) == (NodeState.DOWN, "Node unexpectedly rebooted")
    cluster.scheduler.resume(GPU1)
    assert cluster.node(GPU1).state is NodeState.IDLE


def test_healthy_nodes_write_lines_that_mean_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    scenario = replace(demo_scenario(), initial_jobs=(), arrivals=())
    logs = simulated_ports(Twin.create(tmp_path, scenario, seed=7, clock=clock)).logs

    clock.wait(3600.0)

    lines = logs.read_new(None, max_lines=1000).lines
    assert 120 < len(lines) < 280, "about 3 an hour and node"
    assert not [line.text for line in lines if "Xid" in line.text]
    assert [line.written_at for line in lines] == sorted(line.written_at for line in lines if line.written_at)


def test_drain_survives_an_announced_reboot(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.scheduler.drain([GPU1], reason="INC-7")
    before = cluster.node(GPU1)

    cluster.fleet.reboot(GPU1, reason="INC-7")
    cluster.clock.wait(3.0)
    during = cluster.node(GPU1)
    cluster.clock.wait(2.0)

    after = cluster.node(GPU1)
    assert not during.is_responding
    assert (after.state, after.is_drained, after.is_responding) == (NodeState.IDLE, True, True)
    assert (after.reason, after.reason_set_at) == (before.reason, before.reason_set_at)
    assert after.booted_at == cluster.fleet.inspect(GPU1).booted_at != before.booted_at


def test_resuming_a_down_node_that_does_not_answer_leaves_it_down(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.fleet.power_off(GPU1)
    cluster.clock.wait(3.0)
    cluster.scheduler.declare_down(GPU1, reason="INC-7")

    cluster.scheduler.resume(GPU1)

    assert (cluster.node(GPU1).state, cluster.node(GPU1).reason) == (NodeState.DOWN, "INC-7")


def test_power_cut_during_a_boot_ends_that_boot(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.fleet.reboot(GPU1, reason="INC-7")
    cluster.clock.wait(2.0)

    cluster.fleet.power_off(GPU1)
    cluster.clock.wait(1.0)
    cluster.fleet.power_on(GPU1)
    cluster.clock.wait(5.75)
    still_booting = cluster.truth(GPU1)
    cluster.clock.wait(0.25)

    assert not still_booting.is_up
    assert (cluster.truth(GPU1).is_up, cluster.truth(GPU1).boot_count) == (True, 2)


def test_gpu_in_reset_does_not_come_back_before_its_node_does(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    gpu = cluster.fleet.inspect(GPU1).gpus[0].gpu
    cluster.fleet.reset_gpu(GPU1, gpu)

    cluster.fleet.reboot(GPU1, reason="INC-7")
    cluster.clock.wait(5.0)

    assert cluster.truth(GPU1).is_healthy


def test_reset_that_a_reboot_overtook_heals_nothing_that_happened_since(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, durations=replace(SHORT_DURATIONS, gpu_reset_seconds=8.0))
    gpu = cluster.fleet.inspect(GPU1).gpus[0].gpu
    cluster.fleet.reset_gpu(GPU1, gpu)
    cluster.fleet.reboot(GPU1, reason="INC-7")
    cluster.clock.wait(6.0)
    cluster.twin.inject(FaultKind.UNCORRECTABLE_ECC, GPU1, gpu=1)
    cluster.fleet.reset_gpu(GPU1, gpu)

    cluster.clock.wait(2.0)

    assert gpu not in {each.gpu for each in cluster.fleet.inspect(GPU1).gpus}
    assert not cluster.truth(GPU1).is_healthy


def test_power_cycle_behind_a_partition_is_noticed_when_the_network_is_back(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    before = cluster.node(GPU1)
    cluster.twin.inject(FaultKind.NETWORK_PARTITION, GPU1, seconds=10.0)
    cluster.fleet.power_off(GPU1)
    cluster.fleet.power_on(GPU1)
    cluster.clock.wait(7.0)
    during = cluster.node(GPU1)
    cluster.clock.wait(5.0)

    after = cluster.node(GPU1)
    assert (during.is_responding, during.booted_at) == (False, before.booted_at)
    assert (after.state, after.reason) == (NodeState.DOWN, "Node unexpectedly rebooted")
    assert after.booted_at == cluster.fleet.inspect(GPU1).booted_at
