"""GPUs that a job holds and never uses; a service that waits for traffic is not idle."""

import numpy as np
import pytest

from ops_pipelines.core.observation import NO_NODE, Signal
from ops_pipelines.observe.detectors.stalls import IDLE_SECONDS, detect_idle_gpus
from ops_pipelines.observe.panels.panel import Detection, Panel
from tests.frames.detectors.panels import STEP_SECONDS
from tests.frames.detectors.training import GIB, Training

IDLE_ROWS = IDLE_SECONDS // STEP_SECONDS


def resting(rows: int = IDLE_ROWS + 20) -> Training:
    job = Training(rows=rows, nodes=2)
    for name in ("utilisation_ratio", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio"):
        job.values[name][:] = 0
    job.values["memory_used_bytes"][:] = 0.5 * GIB
    return job


def idle(panel: Panel) -> list[Detection]:
    return list(detect_idle_gpus(panel))


def test_gpus_that_are_never_used_are_told_with_their_number() -> None:
    panel = resting().build()

    (found,) = idle(panel)

    assert (found.signal, found.node, found.job, found.value) == (Signal.GPUS_IDLE, NO_NODE, "17", 16)
    assert found.began_at == panel.time(0)
    assert found.first_seen_at == panel.time(IDLE_ROWS - 1)


@pytest.mark.parametrize(("rows", "is_idle"), [(IDLE_ROWS - 1, False), (IDLE_ROWS, True), (IDLE_ROWS + 1, True)])
def test_half_an_hour_is_waited_for(rows: int, is_idle: bool) -> None:
    assert bool(idle(resting(rows).build())) is is_idle


def test_a_service_with_its_model_in_memory_waits_for_traffic() -> None:
    job = resting()
    job.values["memory_used_bytes"][:, 0] = 60 * GIB

    assert idle(job.build()) == []


def test_one_gpu_in_use_is_use() -> None:
    job = resting()
    job.values["utilisation_ratio"][::10, 5] = 0.3

    assert idle(job.build()) == []


@pytest.mark.parametrize(
    "missing", [("memory_used_bytes",), ("utilisation_ratio", "sm_active_ratio", "tensor_active_ratio")]
)
def test_what_is_not_measured_is_not_idle(missing: tuple[str, ...]) -> None:
    job = resting()
    for name in missing:
        job.values[name][:] = np.nan

    assert idle(job.build()) == []


def test_nodes_that_nobody_holds_are_nobodys_waste() -> None:
    job = resting()
    job.held_rows = (0, 0)

    assert idle(job.build()) == []


def test_a_training_is_not_idle() -> None:
    assert idle(Training(rows=IDLE_ROWS + 20, nodes=1).build()) == []
