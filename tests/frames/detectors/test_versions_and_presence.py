"""Versions that drift, series that end, and what the driver asks for."""

from dataclasses import replace

import numpy as np
import pytest

from ops_pipelines.core.observation import Signal
from ops_pipelines.observe.detectors.detect import detect_hardware
from ops_pipelines.observe.panels.panel import Detection, Panel, Part
from tests.frames.detectors.panels import gpu_parts, node_parts, panel, port_parts, topology

NODES, TIMES, FAULT = 8, 120, 60
SITE = topology(nodes=NODES)
GPU_COUNT = 8 * NODES


def detect(given: Panel) -> list[Detection]:
    return detect_hardware(given, topology=SITE, release={})


def drivers(*, old_nodes: int, nodes: int = 20) -> list[Part]:
    parts = gpu_parts(nodes=nodes, gpus=2)
    return [replace(part, driver="570.1") if place < 2 * old_nodes else part for place, part in enumerate(parts)]


@pytest.mark.parametrize(("old_nodes", "is_said"), [(0, False), (1, True), (2, True), (3, False)])
def test_a_driver_that_few_nodes_have_is_drift_and_one_that_more_have_is_a_rollout(
    old_nodes: int, is_said: bool
) -> None:
    given = panel(time_count=20, gpus=(drivers(old_nodes=old_nodes), {"power_watts": 100}))

    found = detect_hardware(given, topology=topology(nodes=20, gpus_per_node=2), release={})

    assert [one.node for one in found] == ([f"n{node:03d}" for node in range(old_nodes)] if is_said else [])
    assert all(one.signal is Signal.VERSION_DRIFT and "570.1" in one.text and "580.95.05" in one.text for one in found)


def test_the_declared_release_is_right_whatever_most_nodes_have() -> None:
    given = panel(time_count=20, gpus=(drivers(old_nodes=1), {"power_watts": 100}))

    found = detect_hardware(given, topology=topology(nodes=20, gpus_per_node=2), release={"driver": "570.1"})

    assert len(found) == 19
    assert "n000" not in {one.node for one in found}


def test_firmware_of_a_port_is_compared_with_its_model() -> None:
    parts = port_parts(nodes=NODES)
    parts[3] = replace(parts[3], firmware="28.42.1000")
    given = panel(time_count=20, ports=(parts, {"link_state": 4}))

    (found,) = detect(given)

    assert (found.signal, found.node) == (Signal.VERSION_DRIFT, "n001")
    assert str(found.component) == "link mlx5_1/1 of n001"
    assert detect_hardware(given, topology=SITE, release={"ConnectX-7": "28.42.1000"})[0].node == "n000"


def powered(gone: dict[int, slice], *, parts: list[Part] | None = None) -> Panel:
    """Return GPUs whose series end for some rows, by column."""
    power = np.full((TIMES, GPU_COUNT), 600, np.float32)
    for column, rows in gone.items():
        power[rows, column] = np.nan
    return panel(time_count=TIMES, gpus=(parts or gpu_parts(nodes=NODES), {"power_watts": power}))


@pytest.mark.parametrize(("rows", "is_said"), [(2, False), (3, True), (4, True)])
def test_a_gpu_that_vanishes_for_three_samples_while_its_neighbours_report_is_missing(rows: int, is_said: bool) -> None:
    given = powered({11: slice(FAULT, FAULT + rows)})

    found = detect(given)

    assert [(one.signal, one.node, one.gpu, one.code) for one in found] == (
        [(Signal.GPU_MISSING, "n001", "0000:13:00", 1)] if is_said else []
    )
    if found:
        assert (found[0].began_at, found[0].first_seen_at) == (given.time(FAULT), given.time(FAULT + 2))


def test_an_exporter_that_restarts_loses_no_gpu() -> None:
    # all gone for four samples, and back one after another
    gone = {column: slice(FAULT, FAULT + 4 + column % 3) for column in range(8, 16)}

    assert detect(powered(gone)) == []


@pytest.mark.parametrize(("rows", "is_said"), [(7, False), (8, True), (9, True)])
def test_a_node_whose_gpu_metrics_stop_for_two_minutes_is_stale(rows: int, is_said: bool) -> None:
    given = powered(dict.fromkeys(range(8, 16), slice(FAULT, FAULT + rows)))

    found = detect(given)

    assert [(one.signal, one.node, one.gpu) for one in found] == (
        [(Signal.TELEMETRY_STALE, "n001", None)] if is_said else []
    )
    if found:
        assert found[0].began_at == given.time(FAULT)


def test_a_store_that_is_silent_about_everyone_says_nothing_of_a_node() -> None:
    assert detect(powered(dict.fromkeys(range(GPU_COUNT), slice(FAULT, TIMES)))) == []


def test_a_single_node_is_stale_if_the_rest_of_it_still_reports() -> None:
    power = np.full((TIMES, 8), 600, np.float32)
    power[FAULT:] = np.nan
    given = panel(
        time_count=TIMES,
        gpus=(gpu_parts(nodes=1), {"power_watts": power}),
        nodes=(node_parts(nodes=1), {"load_1m": 3}),
    )

    (found,) = detect(given)

    assert (found.signal, found.node) == (Signal.TELEMETRY_STALE, "n000")
    assert "others of it still come in" in found.text


def test_a_gpu_that_was_exchanged_is_not_missing() -> None:
    parts = gpu_parts(nodes=NODES)
    spare = replace(parts[11], uuid=None)
    power = np.full((TIMES, GPU_COUNT + 1), 600, np.float32)
    power[FAULT:, 11] = np.nan
    power[:FAULT, GPU_COUNT] = np.nan

    assert detect(panel(time_count=TIMES, gpus=([*parts, spare], {"power_watts": power}))) == []


def test_nobody_is_missing_on_a_node_that_reports_as_many_gpus_as_declared() -> None:
    given = powered({11: slice(FAULT, TIMES)})
    smaller = replace(SITE, gpus_per_node=7)

    assert detect_hardware(given, topology=smaller, release={}) == []


@pytest.mark.parametrize(
    ("column", "signal"),
    [("recovery_action", Signal.RECOVERY_ACTION), ("ecc_uncorrectable_volatile_count", Signal.ECC_UNCORRECTABLE)],
)
def test_what_the_driver_says_is_told_at_once_and_each_number_anew(column: str, signal: Signal) -> None:
    numbers = np.zeros((TIMES, GPU_COUNT), np.float32)
    numbers[FAULT:, 11], numbers[FAULT + 20 :, 11] = 1, 2
    given = panel(time_count=TIMES, gpus=(gpu_parts(nodes=NODES), {column: numbers}))

    found = detect(given)

    assert [(one.signal, one.gpu, one.code, one.first_seen_at) for one in found] == [
        (signal, "0000:13:00", 1, given.time(FAULT)),
        (signal, "0000:13:00", 2, given.time(FAULT + 20)),
    ]
