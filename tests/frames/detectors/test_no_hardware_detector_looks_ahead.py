"""Each hardware detector on wild panels: whole, and cut at each moment."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ops_pipelines.core.observation import Signal
from ops_pipelines.observe.detectors.detect import detect_hardware, hardware_detectors
from ops_pipelines.observe.panels.panel import Detector, Panel, Part
from tests.frames.detectors.causality import assert_needs_no_other_rows
from tests.frames.detectors.panels import (
    disk_parts,
    gpu_parts,
    node_parts,
    panel,
    port_parts,
    rack_parts,
    topology,
)

NODES, GPUS = 10, 4
SITE = topology(nodes=NODES, nodes_per_rack=5, gpus_per_node=GPUS)
RELEASE = {"driver": "580.95.05", "ConnectX-7": "28.43.2026"}
Matrix = NDArray[np.float32]

GAUGES: Mapping[str, Mapping[str, Sequence[float]]] = {
    "gpus": {
        "temperature_celsius": (40, 58, 62, 66, 70, 74, 79, 88),
        "power_watts": (90, 400, 640, 690, 700),
        "utilisation_ratio": (0, 0.04, 0.5, 1),
        "clock_event_reasons": (0, 0, 0x4, 0x2, 0x8, 0x20, 0x40, 0x80),
        "sm_clock_hertz": (1.98e9, 1.98e9, 1.79e9, 1.2e9),
        "power_limit_watts": (700, 700, 700, 665, 500),
        "row_remap_pending": (0, 0, 0, 1),
        "row_remap_failed": (0, 0, 0, 1),
        "remap_banks_none_count": (0, 0, 0, 2),
        "pcie_link_width": (16, 16, 16, 8),
        "pcie_link_width_limit": (16,),
        "recovery_action": (0, 0, 0, 1, 2),
    },
    "nodes": {
        "clock_offset_seconds": (0, 0.001, -0.04, 0.05, 0.06, -3),
        "clock_synchronised": (1, 1, 1, 0),
        "filesystem_available_ratio": (0.5, 0.06, 0.05, 0.04),
        "supply_health_state": (1, 1, 2, 3),
    },
    "ports": {
        "link_state": (4, 4, 4, 1),
        "physical_state": (5, 5, 5, 2),
        "rate_bits_per_second": (4e11, 4e11, 4e11, 2e11),
    },
    "disks": {
        "wear_ratio": (0.1, 0.79, 0.8, 1.1),
        "critical_warning": (0, 0, 2, 4),
        "healthy": (1, 1, 1, 0),
        "spare_ratio": (1, 0.5, 0.1, 0.05),
    },
    "racks": {"inlet_temperature_celsius": (20, 22, 24, 27, 29, 36)},
}
COUNTERS: Mapping[str, Sequence[str]] = {
    "gpus": (
        "ecc_correctable_volatile_count",
        "ecc_uncorrectable_volatile_count",
        "nvlink_crc_flit_error_count",
        "nvlink_replay_error_count",
        "nvlink_recovery_failed_count",
        "pcie_replay_count",
        "thermal_throttle_seconds",
    ),
    "nodes": ("edac_correctable_count", "edac_uncorrectable_count"),
    "ports": ("link_downed_count", "symbol_error_count", "link_error_recovery_count", "buffer_overrun_count"),
    "disks": ("media_error_count", "busy_seconds", "read_count", "write_count"),
}


def wild_panel(seed: int, *, time_count: int, step_seconds: int) -> Panel:
    """Return a panel in which everything happens: lasting states, counters that jump and restart, gaps of all kinds."""
    rng = np.random.default_rng(seed)

    def lasting(choices: Sequence[float], parts: int) -> Matrix:
        changes = rng.random((time_count, parts)) < 0.06
        changes[0] = True
        drawn = rng.choice(np.array(choices, np.float32), (time_count, parts))
        last = np.maximum.accumulate(np.where(changes, np.arange(time_count)[:, None], 0), axis=0)
        held: Matrix = np.take_along_axis(drawn, last, axis=0)
        return held

    def counting(parts: int) -> Matrix:
        # most parts are quiet most of the time; some count slowly, some fast
        pace = lasting((0, 0, 0, 0.2, 3, 40, 2_000), parts)
        total = np.cumsum(rng.poisson(pace), axis=0)
        restarts = rng.random((time_count, parts)) < 0.01
        base = np.maximum.accumulate(np.where(restarts, total, 0), axis=0)
        counted: Matrix = (total - base).astype(np.float32)
        return counted

    def layer(name: str, parts: Sequence[Part]) -> tuple[Sequence[Part], dict[str, Matrix]]:
        columns = {column: lasting(choices, len(parts)) for column, choices in GAUGES.get(name, {}).items()}
        columns |= {column: counting(len(parts)) for column in COUNTERS.get(name, ())}
        gone = lasting((0, 0, 0, 0, 0, 0, 0, 1), len(parts)) > 0
        if name == "gpus":
            gone |= np.repeat(lasting((0, 0, 0, 1), NODES) > 0, GPUS, axis=1)  # whole nodes fall silent
        for matrix in columns.values():
            matrix[gone | (rng.random(matrix.shape) < 0.03)] = np.nan
        return parts, columns

    gpus = gpu_parts(nodes=NODES, gpus=GPUS)
    gpus[-GPUS:] = [replace(part, driver="570.124.06") for part in gpus[-GPUS:]]
    ports = port_parts(nodes=NODES)
    ports[3] = replace(ports[3], firmware="28.42.1000")
    return panel(
        time_count=time_count,
        step_seconds=step_seconds,
        gpus=layer("gpus", gpus),
        nodes=layer("nodes", node_parts(nodes=NODES)),
        ports=layer("ports", ports),
        disks=layer("disks", disk_parts(nodes=NODES)),
        racks=layer("racks", rack_parts(racks=5)),
    )


DETECTORS = hardware_detectors(topology=SITE, release=RELEASE)


def named(detectors: Iterable[Detector]) -> list[str]:
    return [getattr(detect, "func", detect).__name__ for detect in detectors]


@pytest.mark.parametrize("detect", DETECTORS, ids=named(DETECTORS))
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), step_seconds=st.sampled_from((15, 60)), data=st.data())
def test_what_is_said_of_a_grid_time_comes_from_the_window_before_it(
    detect: Detector, seed: int, step_seconds: int, data: st.DataObject
) -> None:
    whole = wild_panel(seed, time_count=260, step_seconds=step_seconds)
    rows = data.draw(st.lists(st.integers(0, 259), min_size=4, max_size=8, unique=True))

    assert_needs_no_other_rows(detect, whole, rows=rows)


def test_the_wild_panels_make_every_detector_speak() -> None:
    wild = [wild_panel(seed, time_count=260, step_seconds=15) for seed in range(4)]

    said = {detection.signal for one in wild for detection in detect_hardware(one, topology=SITE, release=RELEASE)}

    assert said >= {
        Signal.ROW_REMAP, Signal.ECC_RATE, Signal.NVLINK_ERRORS, Signal.PCIE_ERRORS, Signal.PCIE_DEGRADED,
        Signal.GPU_HOT, Signal.GPU_CAPPED, Signal.LINK_DOWN, Signal.LINK_FLAPS, Signal.LINK_ERRORS, Signal.DISK_WORN,
        Signal.DISK_FULL, Signal.DISK_FAILING, Signal.HOST_MEMORY, Signal.CLOCK_SKEW, Signal.VERSION_DRIFT,
        Signal.INLET_HOT, Signal.POWER_SUPPLY, Signal.GPU_MISSING, Signal.TELEMETRY_STALE, Signal.RECOVERY_ACTION,
        Signal.ECC_UNCORRECTABLE,
    }  # fmt: skip
