"""A row of GPU memory that waits for its reset: the mildest fault that a reset is for."""

import re
from pathlib import Path

from ops_pipelines.core.observation import JobState, RecoveryAction
from ops_pipelines_lab.simulator.course import Course, Cure
from ops_pipelines_lab.simulator.journal import FaultKind
from tests.simulator.small_cluster import GPU1, TRAINING, SmallCluster

ADDRESS = "0000:61:00"
"""The GPU at index 3."""
WAITS = FaultKind.ROW_REMAP_WAITS


def test_bad_row_shows_in_log_metrics_and_on_the_node(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)

    cluster.twin.inject(WAITS, GPU1, gpu=3)

    first, second = cluster.log_texts()
    assert re.search(r"Xid \(PCI:0000:61:00\): 63, .* marked for remapping, reset gpu to activate\.$", first)
    assert second.endswith("154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)")
    key = f"0000{ADDRESS}.0"
    shown = {
        name: cluster.metric(f"DCGM_FI_DEV_{name}", GPU1)[key]
        for name in ("ECC_DBE_VOL_TOTAL", "ROW_REMAP_PENDING", "GPU_RECOVERY_ACTION", "XID_ERRORS")
    }
    assert shown == {"ECC_DBE_VOL_TOTAL": 0, "ROW_REMAP_PENDING": 1, "GPU_RECOVERY_ACTION": 4, "XID_ERRORS": 154}
    (bad,) = [gpu for gpu in cluster.fleet.inspect(GPU1).gpus if gpu.gpu == ADDRESS]
    assert (bad.recovery_action, bad.uncorrectable_ecc_count) == (RecoveryAction.DRAIN_AND_RESET, 0)
    assert cluster.truth(GPU1).faults == (f"GPU {ADDRESS} has a row of memory to be replaced at its next reset",)


def test_job_on_it_goes_on_and_saves(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)

    cluster.twin.inject(WAITS, GPU1, gpu=3)
    cluster.clock.wait(21.0)

    progress = cluster.progress(cluster.jobs[0])
    assert (progress.state, progress.is_hung, progress.checkpointed_step_count) == (JobState.RUNNING, False, 40)


def test_reset_replaces_the_row(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(WAITS, GPU1, gpu=3)
    bad = next(gpu.gpu for gpu in cluster.fleet.inspect(GPU1).gpus if gpu.is_row_remap_pending)

    cluster.fleet.reset_gpu(GPU1, bad)
    cluster.clock.wait(2.0)

    assert cluster.truth(GPU1).is_well
    assert cluster.metric("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", GPU1)[f"0000{ADDRESS}.0"] == 1


def test_row_that_no_reset_replaces_waits_again_after_it(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.twin.inject(WAITS, GPU1, gpu=3, course=Course(cure=Cure.REPLACEMENT))
    bad = next(gpu.gpu for gpu in cluster.fleet.inspect(GPU1).gpus if gpu.is_row_remap_pending)

    cluster.fleet.reset_gpu(GPU1, bad)
    cluster.clock.wait(2.0)

    assert cluster.fleet.inspect(GPU1).gpus[3].recovery_action is RecoveryAction.DRAIN_AND_RESET
    assert not cluster.truth(GPU1).is_well
