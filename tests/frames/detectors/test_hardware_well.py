"""What only looks like a fault of hardware: nothing may be stated of any of it."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from ops_pipelines.lake.schema import TABLES
from ops_pipelines.observe.detectors.detect import detect_hardware
from ops_pipelines.observe.panels.panel import Detection, Layer
from tests.frames.detectors.panels import (
    Given,
    disk_parts,
    gpu_parts,
    node_parts,
    panel,
    port_parts,
    rack_parts,
    rows_of,
    topology,
)

NODES, TIMES, EVENT = 16, 480, 200
SITE = topology(nodes=NODES)
Matrix = NDArray[np.float32]
Columns = dict[str, Matrix]
LAYERS = ("gpus", "nodes", "ports", "disks", "racks")
PARTS = {
    "gpus": gpu_parts(nodes=NODES),
    "nodes": node_parts(nodes=NODES),
    "ports": port_parts(nodes=NODES),
    "disks": disk_parts(nodes=NODES),
    "racks": rack_parts(racks=2),
}
WELL: Mapping[str, Mapping[str, float]] = {
    "gpus": {
        "temperature_celsius": 62, "power_watts": 650, "utilisation_ratio": 1, "sm_clock_hertz": 1.9e9,
        "clock_event_reasons": 0x4, "power_limit_watts": 700, "application_clock_hertz": 1.98e9,
        "row_remap_pending": 0, "row_remap_failed": 0, "row_remap_correctable_count": 1,
        "row_remap_uncorrectable_count": 1, "pcie_link_width": 16, "pcie_link_width_limit": 16,
        "pcie_link_generation": 5, "pcie_link_generation_limit": 5, "recovery_action": 0,
        "ecc_uncorrectable_volatile_count": 0,
    },
    "nodes": {
        "clock_offset_seconds": 0.0003, "clock_synchronised": 1, "filesystem_available_ratio": 0.4,
        "supply_health_state": 1,
    },
    "ports": {"link_state": 4, "physical_state": 5, "rate_bits_per_second": 4e11},
    "disks": {"wear_ratio": 0.3, "critical_warning": 0, "healthy": 1, "spare_ratio": 1},
    "racks": {"inlet_temperature_celsius": 23},
}  # fmt: skip
COUNTERS: Mapping[str, Mapping[str, float]] = {
    "gpus": {
        "ecc_correctable_volatile_count": 40, "nvlink_crc_flit_error_count": 900, "nvlink_crc_data_error_count": 3,
        "nvlink_replay_error_count": 12, "nvlink_recovery_error_count": 2, "nvlink_recovery_failed_count": 0,
        "pcie_replay_count": 500, "thermal_throttle_seconds": 80, "power_brake_seconds": 4,
    },
    "nodes": {"edac_correctable_count": 17, "edac_uncorrectable_count": 1},
    "ports": {
        "link_downed_count": 6, "symbol_error_count": 4_000, "link_error_recovery_count": 9,
        "buffer_overrun_count": 2, "local_integrity_error_count": 1, "receive_error_count": 77,
    },
    "disks": {"media_error_count": 5, "busy_seconds": 100, "read_count": 1e6, "write_count": 1e6},
}  # fmt: skip
"""What is on the counters since long ago."""
Day = dict[str, Columns]
Change = Callable[[Day], None]


def well() -> Day:
    """Return a day on which nothing happens, with the noise of sensors."""
    noise = np.random.default_rng(1)
    day: Day = {}
    for name, parts in PARTS.items():
        shape = (TIMES, len(parts))
        levels = {**WELL[name], **COUNTERS.get(name, {})}
        day[name] = {column: np.full(shape, level, np.float32) for column, level in levels.items()}
    for name, column, spread in (
        ("gpus", "temperature_celsius", 1.5),
        ("gpus", "power_watts", 15),
        ("gpus", "sm_clock_hertz", 1e7),
        ("racks", "inlet_temperature_celsius", 0.3),
    ):
        day[name][column] += noise.normal(0, spread, day[name][column].shape).astype(np.float32)
    return day


def detect(day: Day) -> list[Detection]:
    given: dict[str, Given] = {name: (PARTS[name], columns) for name, columns in day.items()}
    whole = panel(
        time_count=TIMES,
        gpus=given["gpus"], nodes=given["nodes"], ports=given["ports"], disks=given["disks"], racks=given["racks"],
    )  # fmt: skip
    return detect_hardware(whole, topology=SITE, release={"driver": "580.95.05"})


def nothing_happens(day: Day) -> None:
    pass


def exporters_restart(day: Day) -> None:
    for matrix in day["gpus"].values():
        matrix[EVENT : EVENT + 4, 8:16] = np.nan
    for column in COUNTERS["gpus"]:
        day["gpus"][column][EVENT + 4 :, 8:16] = 0
    for matrix in (*day["nodes"].values(), *day["ports"].values()):
        matrix[EVENT : EVENT + 3] = np.nan


def counters_restart(day: Day) -> None:
    for name, columns in COUNTERS.items():
        for column in columns:
            day[name][column][EVENT:, :5] = 0


def counters_read_zero_once(day: Day) -> None:
    for name, columns in COUNTERS.items():
        for column in columns:
            day[name][column][EVENT, :5] = 0


def single_samples_are_lost(day: Day) -> None:
    rng = np.random.default_rng(2)
    for name, columns in day.items():
        lost = np.zeros((TIMES, len(PARTS[name])), dtype=bool)
        lost[::7] = rng.random((len(lost[::7]), lost.shape[1])) < 0.2
        for matrix in columns.values():
            matrix[lost] = np.nan


def quantities_have_gaps_of_their_own(day: Day) -> None:
    rng = np.random.default_rng(3)
    for columns in day.values():
        for matrix in columns.values():
            matrix[rng.random(matrix.shape) < 0.05] = np.nan


def a_clock_jumps(day: Day) -> None:
    day["nodes"]["clock_offset_seconds"][EVENT : EVENT + 3, 4] = 2.5
    day["nodes"]["clock_offset_seconds"][EVENT:, 5] = 0.049


def the_day_warms_up(day: Day) -> None:
    wave = 4 * np.sin(np.linspace(0, 2 * np.pi, TIMES, dtype=np.float32))[:, None]
    day["racks"]["inlet_temperature_celsius"] += wave
    day["gpus"]["temperature_celsius"] += wave
    day["gpus"]["temperature_celsius"][:, 64:] += 4  # the second rack is in a warmer place


def jobs_come_and_go(day: Day) -> None:
    """Each node works and rests at its own times; temperature follows power within a minute or so."""
    work = (np.sin(np.arange(TIMES)[:, None] / 25 + np.arange(NODES)[None, :]) > 0).astype(np.float32)
    watts = np.repeat(90 + 600 * work, 8, axis=1)
    celsius = np.full_like(watts, 33)
    for row in range(1, TIMES):
        celsius[row] = celsius[row - 1] + (30 + 0.045 * watts[row] - celsius[row - 1]) * (1 - np.exp(-15 / 60))
    day["gpus"]["power_watts"] += watts - 650
    day["gpus"]["temperature_celsius"] += celsius - 62
    day["gpus"]["utilisation_ratio"][:] = np.repeat(work, 8, axis=1)
    day["gpus"]["sm_clock_hertz"][:] = np.where(np.repeat(work, 8, axis=1) > 0, 1.9e9, 3.45e8)
    day["gpus"]["clock_event_reasons"][:] = np.where(np.repeat(work, 8, axis=1) > 0, 0x4, 0x1)
    day["gpus"]["pcie_link_generation"][:] = np.where(np.repeat(work, 8, axis=1) > 0, 5, 1)


def a_job_uses_half_of_a_node(day: Day) -> None:
    day["gpus"]["power_watts"][:, 8:12] = 90
    day["gpus"]["temperature_celsius"][:, 8:12] = 34
    day["gpus"]["utilisation_ratio"][:, 8:12] = 0
    day["gpus"]["sm_clock_hertz"][:, 8:12] = 3.45e8


def a_few_errors_are_corrected(day: Day) -> None:
    for row in (EVENT, EVENT + 3, EVENT + 90):
        day["gpus"]["ecc_correctable_volatile_count"][row:, 3] += 6
        day["nodes"]["edac_correctable_count"][row:, 2] += 3
        day["gpus"]["pcie_replay_count"][row:, 9] += 20
        day["gpus"]["nvlink_replay_error_count"][row:, 9] += 3
    day["gpus"]["nvlink_crc_flit_error_count"][EVENT:, 17] += 40
    day["ports"]["symbol_error_count"][EVENT:, 5] += 80
    day["ports"]["link_error_recovery_count"][EVENT:, 5] += 2
    day["ports"]["link_downed_count"][EVENT:, 6] += 1
    day["disks"]["media_error_count"][EVENT:, 1] += 1


def a_node_is_drained(day: Day) -> None:
    day["gpus"]["power_watts"][EVENT:, 8:16] = 90
    day["gpus"]["utilisation_ratio"][EVENT:, 8:16] = 0
    seconds = 15 * np.arange(TIMES - EVENT, dtype=np.float32)
    day["gpus"]["temperature_celsius"][EVENT:, 8:16] = (33 + 29 * np.exp(-seconds / 60))[:, None]


@pytest.mark.parametrize(
    "change",
    [
        nothing_happens,
        exporters_restart,
        counters_restart,
        counters_read_zero_once,
        single_samples_are_lost,
        quantities_have_gaps_of_their_own,
        a_clock_jumps,
        the_day_warms_up,
        jobs_come_and_go,
        a_job_uses_half_of_a_node,
        a_few_errors_are_corrected,
        a_node_is_drained,
    ],
)
def test_nothing_is_said_when(change: Change) -> None:
    day = well()
    change(day)

    assert [one.text for one in detect(day)] == []


def test_nothing_is_said_of_quantities_that_nobody_measures() -> None:
    tables = {
        "gpus": "gpu_telemetry", "nodes": "node_telemetry", "ports": "fabric_telemetry", "disks": "storage_telemetry",
        "racks": "facility_telemetry",
    }  # fmt: skip
    day = {
        name: {
            column.name: np.full((TIMES, len(PARTS[name])), np.nan, np.float32)
            for column in TABLES[table].columns
            if column.quantity is not None
        }
        for name, table in tables.items()
    }

    assert detect(day) == []


@pytest.mark.parametrize("time_count", [0, 1, 2])
@pytest.mark.parametrize("node_count", [0, 1])
def test_nothing_is_said_of_next_to_nothing(time_count: int, node_count: int) -> None:
    def layer(name: str) -> Given:
        parts = [part for part in PARTS[name] if part.node == "n000"][:node_count]
        return parts, {**WELL[name], **COUNTERS.get(name, {})}

    given = panel(
        time_count=time_count,
        gpus=layer("gpus"), nodes=layer("nodes"), ports=layer("ports"), disks=layer("disks"), racks=layer("racks"),
    )  # fmt: skip

    assert detect_hardware(given, topology=SITE, release={}) == []


def test_nothing_is_said_of_parts_without_any_column() -> None:
    given = panel(
        time_count=3, gpus=(PARTS["gpus"], {}), nodes=(PARTS["nodes"], {}), ports=(PARTS["ports"], {}),
        disks=(PARTS["disks"], {}), racks=(PARTS["racks"], {}),
    )  # fmt: skip

    assert detect_hardware(given, topology=SITE, release={}) == []
    assert detect_hardware(panel(time_count=0), topology=SITE, release={}) == []
    assert rows_of(given, 0, 0).gpus == Layer(parts=tuple(PARTS["gpus"]), values={}, step_seconds=15)
