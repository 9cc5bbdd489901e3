"""Waits for storage and for the network: of jobs that look busy, and of nodes that get nothing."""

from dataclasses import replace

import numpy as np
import pytest

from ops_pipelines.core.observation import NO_NODE, Signal
from ops_pipelines.observe.detectors.hang import detect_hangs
from ops_pipelines.observe.detectors.node import LOCAL_ABOVE_BYTES_PER_SECOND, STALLED_SECONDS, detect_storage_stalls
from ops_pipelines.observe.detectors.stalls import (
    NETWORK,
    NOTHING_SECONDS,
    STORAGE,
    WAITS_ABOVE_TICKS_PER_SECOND,
    WINDOW_SECONDS,
    detect_stalled_jobs,
)
from ops_pipelines.observe.panels.panel import Detection, Layer, Panel
from tests.frames.detectors.panels import STEP_SECONDS, disk_parts, port_parts
from tests.frames.detectors.training import Training

ONSET = 40
WINDOW_ROWS = WINDOW_SECONDS // STEP_SECONDS
SOON_ROWS = NOTHING_SECONDS // STEP_SECONDS
END = ONSET + WINDOW_ROWS + 20


def stuck(rows: slice, *, of: int = END, full: float = 0.8) -> Training:
    """Return a job that waits for storage that gives nothing."""
    job = Training(rows=of).waits(rows)
    job.values["io_stalled"][rows] = full
    job.values["read"][rows] = 0
    job.values["written"][rows] = 0
    return job


def with_counter(panel: Panel, layer: str, column: str, per_second: float) -> Panel:
    parts = {"disks": disk_parts, "ports": port_parts}[layer](nodes=4)
    grown = np.cumsum(np.full((len(panel.times), len(parts)), per_second * STEP_SECONDS), axis=0)
    return replace(panel, **{layer: Layer(parts=tuple(parts), values={column: grown}, step_seconds=STEP_SECONDS)})  # type: ignore[arg-type]  # one layer


def stalled(panel: Panel) -> list[Detection]:
    return list(detect_stalled_jobs(panel))


def test_a_job_that_gets_nothing_from_storage_is_stalled_at_once_and_does_not_hang() -> None:
    panel = stuck(slice(ONSET, 80), of=80).build()

    (found,) = stalled(panel)

    assert (found.signal, found.node, found.job, found.code) == (Signal.JOB_STALLED, NO_NODE, "17", STORAGE)
    assert found.first_seen_at == panel.time(ONSET + SOON_ROWS - 1)
    assert list(detect_hangs(panel)) == []


@pytest.mark.parametrize(("rows", "is_stalled"), [(SOON_ROWS - 1, False), (SOON_ROWS, True)])
def test_a_short_wait_is_none(rows: int, is_stalled: bool) -> None:
    assert bool(stalled(stuck(slice(ONSET, ONSET + rows), of=80).build())) is is_stalled


def test_a_checkpoint_waits_for_storage_and_moves_bytes() -> None:
    pause = slice(ONSET, ONSET + 40)  # ten minutes
    job = stuck(pause, of=120)
    job.values["written"][pause] = 5e8

    assert stalled(job.build()) == []


def test_a_job_that_crawls_for_a_quarter_of_an_hour_is_stalled_although_bytes_move() -> None:
    job = stuck(slice(ONSET, END))
    job.values["read"][ONSET:] = 2e7

    (found,) = stalled(job.build())

    assert found.code == STORAGE


def test_congestion_without_pressure_is_the_network() -> None:
    job = Training(rows=END).waits(slice(ONSET, END))
    panel = with_counter(job.build(), "ports", "transmit_wait_count", 3 * WAITS_ABOVE_TICKS_PER_SECOND)

    (found,) = stalled(panel)

    assert found.code == NETWORK


def test_a_busy_job_on_a_congested_network_is_not_stalled() -> None:
    panel = with_counter(Training(rows=END).build(), "ports", "transmit_wait_count", 3 * WAITS_ABOVE_TICKS_PER_SECOND)

    assert stalled(panel) == []


@pytest.mark.parametrize("missing", ["tensor_active_ratio", "io_stalled"])
def test_what_is_not_measured_stalls_nobody(missing: str) -> None:
    job = stuck(slice(ONSET, END))
    job.values[missing][:] = np.nan

    assert stalled(job.build()) == []


def test_each_node_that_gets_nothing_is_told() -> None:
    panel = stuck(slice(ONSET, 80), of=80).build()

    found = list(detect_storage_stalls(panel))

    assert [each.node for each in found] == ["n000", "n001", "n002", "n003"]
    assert {each.signal for each in found} == {Signal.STORAGE_STALL}
    assert found[0].first_seen_at == panel.time(ONSET + STALLED_SECONDS // STEP_SECONDS - 1)


@pytest.mark.parametrize(("ratio", "is_stalled"), [(0.5, False), (1.5, True)])
def test_a_node_that_waits_for_its_own_disks_does_not_wait_for_shared_storage(ratio: float, is_stalled: bool) -> None:
    panel = stuck(slice(ONSET, 80), of=80).build()

    busy = with_counter(panel, "disks", "read_bytes", LOCAL_ABOVE_BYTES_PER_SECOND / ratio)

    assert bool(list(detect_storage_stalls(busy))) is is_stalled


def test_a_node_that_never_uses_shared_storage_does_not_wait_for_it() -> None:
    job = stuck(slice(ONSET, 80), of=80)
    job.values["read"][:] = 0
    job.values["written"][:] = 0

    assert list(detect_storage_stalls(job.build())) == []


def test_pressure_while_bytes_move_is_work() -> None:
    job = stuck(slice(ONSET, 80), of=80)
    job.values["read"][ONSET:] = 4e8

    assert list(detect_storage_stalls(job.build())) == []
