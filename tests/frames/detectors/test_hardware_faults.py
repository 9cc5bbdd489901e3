"""Each fault of hardware is reported, of the right part, when it is certain, with the number that decided; and its
limit's neighbours are not."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.observation import Signal
from ops_pipelines.observe.detectors.detect import detect_hardware
from ops_pipelines.observe.panels.panel import Detection, Panel, Part
from tests.frames.detectors.panels import (
    START_SECONDS,
    STEP_SECONDS,
    changed,
    disk_parts,
    gpu_parts,
    node_parts,
    panel,
    port_parts,
    rack_parts,
    topology,
)

NODES, TIMES = 8, 200
FAULT = 100
"""The row at which the fault begins."""
SICK = slice(FAULT, None)
SITE = topology(nodes=NODES)
Matrix = NDArray[np.float32]


def detect(given: Panel) -> list[Detection]:
    return detect_hardware(given, topology=SITE, release={})


def at(row: int) -> datetime:
    return datetime.fromisoformat("1970-01-01T00:00:00+00:00") + timedelta(seconds=START_SECONDS + STEP_SECONDS * row)


def gpus(columns: Mapping[str, ArrayLike], *, parts: Sequence[Part] | None = None) -> Panel:
    return panel(time_count=TIMES, gpus=(parts or gpu_parts(nodes=NODES), {"utilisation_ratio": 1.0, **columns}))


def steady(value: float, *, parts: int) -> Matrix:
    return np.full((TIMES, parts), value, np.float32)


def counter(growth: Mapping[int, float], *, column: int, parts: int, total: float = 7) -> Matrix:
    """Return counters at rest; one grows by so much at these rows."""
    grown = np.zeros((TIMES, parts), np.float32)
    for row, count in growth.items():
        grown[row, column] = count
    return total + np.cumsum(grown, axis=0, dtype=np.float32)


GPU_COUNT = 8 * NODES
GPU = 11
"""GPU 3 of the second node."""


@pytest.mark.parametrize(
    ("column", "value", "code"),
    [
        ("row_remap_pending", 1, 1),
        ("row_remap_failed", 1, 2),
        ("memory_unrepairable", 1, 2),
        ("remap_banks_none_count", 2, 3),
        ("row_remap_uncorrectable_count", 512, 3),
        ("retired_pages_uncorrectable_count", 63, 3),
    ],
)
def test_a_row_remap_is_said_at_its_first_sample(column: str, value: float, code: int) -> None:
    given = gpus({column: changed(steady(0, parts=GPU_COUNT), rows=SICK, columns=[GPU], to=value)})

    (found,) = detect(given)

    assert (found.signal, found.code, found.value) == (Signal.ROW_REMAP, code, value)
    assert (found.node, found.gpu, found.gpu_uuid) == ("n001", "0000:13:00", "GPU-0001-3")
    assert (found.began_at, found.first_seen_at, found.last_seen_at) == (at(FAULT), at(FAULT), at(TIMES - 1))
    assert found.text.startswith("GPU 0000:13:00 of n001 ")


@pytest.mark.parametrize(
    ("column", "value"), [("row_remap_uncorrectable_count", 511), ("retired_pages_uncorrectable_count", 62)]
)
def test_a_reserve_that_is_nearly_used_up_is_not_exhausted(column: str, value: float) -> None:
    assert detect(gpus({column: value})) == []


def test_a_gap_does_not_end_a_row_remap() -> None:
    pending = changed(steady(0, parts=GPU_COUNT), rows=SICK, columns=[GPU], to=1)
    pending = changed(pending, rows=slice(120, 124), columns=[GPU], to=np.nan)

    (found,) = detect(gpus({"row_remap_pending": pending}))

    assert found.last_seen_at == at(TIMES - 1)


@pytest.mark.parametrize(("each", "is_said"), [(2, False), (2.5, True), (3, True)])
def test_corrected_errors_are_told_at_ten_a_minute_over_ten_minutes(each: float, is_said: bool) -> None:
    grows = dict.fromkeys(range(FAULT, FAULT + 40), each)

    found = detect(gpus({"ecc_correctable_volatile_count": counter(grows, column=GPU, parts=GPU_COUNT)}))

    assert [detection.signal for detection in found] == ([Signal.ECC_RATE] if is_said else [])
    if found:
        assert found[0].gpu == "0000:13:00"
        assert found[0].began_at == at(FAULT)


@pytest.mark.parametrize(("count", "is_said"), [(1_499, False), (1_500, True), (1_501, True)])
def test_nvlink_crc_errors_at_a_hundred_a_second_are_told_at_the_second_sample(count: float, is_said: bool) -> None:
    grows = dict.fromkeys(range(FAULT, TIMES), count)

    found = detect(gpus({"nvlink_crc_flit_error_count": counter(grows, column=GPU, parts=GPU_COUNT)}))

    assert [(one.signal, one.gpu, one.began_at, one.first_seen_at) for one in found] == (
        [(Signal.NVLINK_ERRORS, "0000:13:00", at(FAULT), at(FAULT + 1))] if is_said else []
    )
    if found:
        assert f"counts {count / 15:.0f} NVLink" in found[0].text


def test_one_burst_of_nvlink_crc_errors_is_no_rate() -> None:
    grows = {FAULT: 40_000.0}

    assert detect(gpus({"nvlink_crc_flit_error_count": counter(grows, column=GPU, parts=GPU_COUNT)})) == []


@pytest.mark.parametrize("column", ["nvlink_recovery_failed_count", "nvlink_recovery_error_count"])
def test_an_nvlink_recovery_is_told_at_its_first_sample(column: str) -> None:
    (found,) = detect(gpus({column: counter({FAULT: 1}, column=GPU, parts=GPU_COUNT)}))

    assert (found.signal, found.first_seen_at, found.value) == (Signal.NVLINK_ERRORS, at(FAULT), 1)
    assert found.last_seen_at == at(FAULT + 39)


@pytest.mark.parametrize(("each", "is_said"), [(9, False), (10, True), (11, True)])
def test_thirty_nvlink_replays_within_ten_minutes_are_told(each: float, is_said: bool) -> None:
    grows = {FAULT: each, FAULT + 10: each, FAULT + 20: each}

    found = detect(gpus({"nvlink_replay_error_count": counter(grows, column=GPU, parts=GPU_COUNT)}))

    assert [detection.first_seen_at for detection in found] == ([at(FAULT + 20)] if is_said else [])


@pytest.mark.parametrize(("each", "is_said"), [(1, False), (2, True), (3, True)])
def test_pcie_replays_that_grow_steadily_are_told(each: float, is_said: bool) -> None:
    grows = dict.fromkeys(range(FAULT, TIMES), each)

    found = detect(gpus({"pcie_replay_count": counter(grows, column=GPU, parts=GPU_COUNT)}))

    assert [(one.signal, one.gpu) for one in found] == ([(Signal.PCIE_ERRORS, "0000:13:00")] if is_said else [])


def test_a_burst_of_pcie_replays_at_the_start_of_a_job_is_no_trend() -> None:
    grows = {FAULT: 300.0, FAULT + 1: 80.0, FAULT + 2: 5.0}

    assert detect(gpus({"pcie_replay_count": counter(grows, column=GPU, parts=GPU_COUNT)})) == []


def test_a_narrow_pcie_link_is_told_at_the_second_sample() -> None:
    width = changed(steady(16, parts=GPU_COUNT), rows=SICK, columns=[GPU], to=8)

    (found,) = detect(gpus({"pcie_link_width": width, "pcie_link_width_limit": 16}))

    assert (found.signal, found.gpu, found.value) == (Signal.PCIE_DEGRADED, "0000:13:00", 8)
    assert (found.began_at, found.first_seen_at) == (at(FAULT), at(FAULT + 1))
    assert "width 8 of 16" in found.text


def test_without_a_stated_limit_a_link_is_compared_with_those_of_its_model() -> None:
    width = changed(steady(16, parts=GPU_COUNT), rows=SICK, columns=[GPU], to=8)

    (found,) = detect(gpus({"pcie_link_width": width}))

    assert found.gpu == "0000:13:00"


def test_links_that_sleep_while_their_gpus_idle_are_well() -> None:
    columns = {"utilisation_ratio": 0.0, "pcie_link_generation": 1, "pcie_link_generation_limit": 5}
    columns |= {"pcie_link_width": 8, "pcie_link_width_limit": 16}

    assert detect(gpus(columns)) == []


def test_an_idle_gpu_whose_idle_peers_have_wider_links_is_told() -> None:
    width = changed(steady(16, parts=GPU_COUNT), rows=SICK, columns=[GPU], to=8)

    (found,) = detect(gpus({"utilisation_ratio": 0.0, "pcie_link_width": width, "pcie_link_width_limit": 16}))

    assert found.gpu == "0000:13:00"


def _temperatures(excess: float, columns: slice | Sequence[int]) -> Matrix:
    warm = steady(62, parts=GPU_COUNT)
    return changed(warm, rows=SICK, columns=columns, to=62 + excess)


@pytest.mark.parametrize(("excess", "is_said"), [(14, False), (15, True), (16, True)])
def test_one_gpu_far_hotter_than_the_others_of_its_node_is_told(excess: float, is_said: bool) -> None:
    found = detect(gpus({"temperature_celsius": _temperatures(excess, [GPU]), "power_watts": 650}))

    assert [(one.signal, one.node, one.gpu) for one in found] == (
        [(Signal.GPU_HOT, "n001", "0000:13:00")] if is_said else []
    )
    if found:
        assert found[0].value == excess
        assert found[0].began_at == at(FAULT)
        assert found[0].first_seen_at <= at(FAULT + 8)
        assert f"{62 + excess:.0f} degrees, {excess:.0f} above" in found[0].text


@pytest.mark.parametrize(("excess", "is_said"), [(9, False), (10, True), (11, True)])
def test_a_node_hotter_than_its_rack_is_told_as_a_whole(excess: float, is_said: bool) -> None:
    found = detect(gpus({"temperature_celsius": _temperatures(excess, slice(8, 16)), "power_watts": 650}))

    assert [(one.signal, one.node, one.gpu, one.value) for one in found] == (
        [(Signal.GPU_HOT, "n001", None, excess)] if is_said else []
    )


def test_a_node_that_throttles_and_is_somewhat_hotter_is_told_after_two_samples() -> None:
    power = changed(steady(650, parts=GPU_COUNT), rows=SICK, columns=slice(8, 16), to=420)
    reasons = changed(steady(0, parts=GPU_COUNT), rows=SICK, columns=slice(8, 16), to=0x40)
    columns = {"power_watts": power, "clock_event_reasons": reasons}

    (found,) = detect(gpus({"temperature_celsius": _temperatures(6, slice(8, 16)), **columns}))

    assert (found.signal, found.node, found.gpu, found.first_seen_at) == (Signal.GPU_HOT, "n001", None, at(FAULT + 1))


def test_a_node_that_works_while_its_rack_rests_is_well() -> None:
    power = changed(steady(90, parts=GPU_COUNT), rows=SICK, columns=slice(8, 16), to=690)

    assert detect(gpus({"temperature_celsius": _temperatures(34, slice(8, 16)), "power_watts": power})) == []


def _warming(seconds: float) -> Matrix:
    """Return how far a heat sink has followed a load that began at the fault's row, 0 to 1: (times, 1)."""
    since = STEP_SECONDS * np.maximum(np.arange(TIMES) - FAULT, 0)
    return (1 - np.exp(-since / seconds)).astype(np.float32)[:, None]


@pytest.mark.parametrize("seconds", [30, 90])
def test_work_that_moves_from_one_node_to_another_makes_neither_hot(seconds: float) -> None:
    warm, power = steady(33, parts=GPU_COUNT), steady(90, parts=GPU_COUNT)
    for columns, share in ((slice(0, 32), 1 - _warming(seconds)), (slice(32, 64), _warming(seconds))):
        warm[:, columns] += 30 * share
    power[:FAULT, :32] = 690
    power[FAULT:, 32:] = 690

    assert detect(gpus({"temperature_celsius": warm, "power_watts": power})) == []


def test_a_node_that_has_worked_for_long_is_not_hot_beside_a_rack_that_has_just_begun() -> None:
    warm, power = steady(33, parts=GPU_COUNT), steady(90, parts=GPU_COUNT)
    warm += 30 * _warming(180)
    warm[:, 8:16] = 63
    power[FAULT:] = 690
    power[:, 8:16] = 690

    assert detect(gpus({"temperature_celsius": warm, "power_watts": power})) == []


def test_a_rack_that_heats_up_is_the_racks_trouble_and_no_nodes() -> None:
    site = topology(nodes=40)
    hot = np.full((TIMES, 320), 62, np.float32)
    hot[SICK, 64:128] = 76
    columns: dict[str, ArrayLike] = {"temperature_celsius": hot, "power_watts": 650}
    air = np.full((TIMES, 5), 22, np.float32)
    air[SICK, 1] = 29
    given = panel(
        time_count=TIMES,
        gpus=(gpu_parts(nodes=40), columns),
        racks=(rack_parts(racks=5), {"inlet_temperature_celsius": air}),
    )
    without_air = panel(time_count=TIMES, gpus=(gpu_parts(nodes=40), columns))

    (found,) = detect_hardware(given, topology=site, release={})
    (by_nodes,) = detect_hardware(without_air, topology=site, release={})

    for one in (found, by_nodes):
        assert (one.signal, one.node) == (Signal.INLET_HOT, "")
        assert one.component == Component(kind=ComponentKind.RACK, name="r01")
        assert at(FAULT) <= one.first_seen_at <= at(FAULT + 8)
    assert "29 degrees" in found.text
    assert by_nodes.value == 14


@pytest.mark.parametrize(("celsius", "is_said"), [(34.9, False), (35.0, False), (35.1, True)])
def test_air_above_the_allowable_range_is_told_of_every_rack(celsius: float, is_said: bool) -> None:
    racks = (rack_parts(racks=2), {"inlet_temperature_celsius": celsius})

    found = detect(panel(time_count=TIMES, racks=racks))

    assert len(found) == (2 if is_said else 0)


def test_a_power_brake_on_a_whole_node_is_told_once_of_the_node() -> None:
    reasons = changed(steady(0x4, parts=GPU_COUNT), rows=SICK, columns=slice(8, 16), to=0x84)

    (found,) = detect(gpus({"clock_event_reasons": reasons}))

    assert (found.signal, found.node, found.gpu) == (Signal.GPU_CAPPED, "n001", None)
    assert (found.began_at, found.first_seen_at) == (at(FAULT), at(FAULT + 1))


@pytest.mark.parametrize(("watts", "is_said"), [(670, False), (665, False), (660, True)])
def test_a_lower_power_limit_than_the_model_has_is_told(watts: float, is_said: bool) -> None:
    limits = changed(steady(700, parts=GPU_COUNT), rows=SICK, columns=[GPU], to=watts)

    found = detect(gpus({"power_limit_enforced_watts": limits}))

    assert [(one.signal, one.gpu, one.value) for one in found] == (
        [(Signal.GPU_CAPPED, "0000:13:00", watts)] if is_said else []
    )


def test_a_lower_limit_of_a_whole_rack_is_somebodys_will() -> None:
    limits = np.full((TIMES, 192), 700, np.float32)
    limits[:, :64] = 600
    given = panel(time_count=TIMES, gpus=(gpu_parts(nodes=24), {"power_limit_enforced_watts": limits}))

    assert detect_hardware(given, topology=topology(nodes=24), release={}) == []


@pytest.mark.parametrize(
    ("megahertz", "reasons", "is_said"),
    [(1_500, 0x4, True), (1_500, 0x0, False), (1_500, 0x20, False), (1_790, 0x4, False)],
)
def test_a_gpu_with_a_lower_clock_is_capped_only_if_its_sensors_say_why(
    megahertz: float, reasons: int, is_said: bool
) -> None:
    clocks = changed(steady(1.98e9, parts=GPU_COUNT), rows=SICK, columns=[GPU], to=megahertz * 1e6)
    why = changed(steady(0, parts=GPU_COUNT), rows=SICK, columns=[GPU], to=reasons)

    found = detect(gpus({"sm_clock_hertz": clocks, "clock_event_reasons": why}))

    assert [one.signal for one in found] == ([Signal.GPU_CAPPED] if is_said else [])


PORT_COUNT = 2 * NODES
PORT = 3
LINK = Component(kind=ComponentKind.LINK, name="mlx5_1/1", node=node_parts(nodes=2)[1].node)


def ports(columns: Mapping[str, ArrayLike]) -> Panel:
    return panel(time_count=TIMES, ports=(port_parts(nodes=NODES), {"link_state": 4, "physical_state": 5, **columns}))


def test_a_port_that_goes_down_is_told_at_the_second_sample() -> None:
    (found,) = detect(ports({"link_state": changed(steady(4, parts=PORT_COUNT), rows=SICK, columns=[PORT], to=1)}))

    assert (found.signal, found.node, found.component) == (Signal.LINK_DOWN, "n001", LINK)
    assert (found.began_at, found.first_seen_at, found.last_seen_at) == (at(FAULT), at(FAULT + 1), at(TIMES - 1))
    assert "logical state 1" in found.text


def test_a_port_that_is_down_for_hours_stays_told_while_its_namesakes_are_up() -> None:
    state = np.full((1_000, PORT_COUNT), 4, np.float32)
    state[FAULT:, PORT] = 1
    given = panel(time_count=1_000, ports=(port_parts(nodes=NODES), {"link_state": state}))

    (found,) = detect(given)

    assert found.last_seen_at == at(999)


def test_a_socket_that_is_empty_on_every_node_is_not_down() -> None:
    state = changed(steady(4, parts=PORT_COUNT), rows=slice(None), columns=slice(1, None, 2), to=1)

    assert detect(ports({"link_state": state})) == []


def test_a_port_that_is_gone_while_its_node_reports_is_down() -> None:
    gone = changed(steady(4, parts=PORT_COUNT), rows=SICK, columns=[PORT], to=np.nan)
    physical = changed(steady(5, parts=PORT_COUNT), rows=SICK, columns=[PORT], to=np.nan)

    (found,) = detect(ports({"link_state": gone, "physical_state": physical}))

    assert (found.signal, found.component, found.first_seen_at) == (Signal.LINK_DOWN, LINK, at(FAULT + 2))


@pytest.mark.parametrize(
    ("rows", "is_said"), [((FAULT,), False), ((FAULT, FAULT + 39), True), ((FAULT, FAULT + 40), False)]
)
def test_two_losses_of_a_link_within_ten_minutes_are_a_flap(rows: Sequence[int], is_said: bool) -> None:
    found = detect(ports({"link_downed_count": counter(dict.fromkeys(rows, 1), column=PORT, parts=PORT_COUNT)}))

    assert [(one.signal, one.component, one.began_at) for one in found] == (
        [(Signal.LINK_FLAPS, LINK, at(FAULT))] if is_said else []
    )


def test_flaps_show_in_the_state_where_nobody_counts_them() -> None:
    state = steady(4, parts=PORT_COUNT)
    state[[FAULT, FAULT + 8, FAULT + 16], PORT] = 1

    found = detect(ports({"link_state": state}))

    assert [(one.signal, one.first_seen_at) for one in found] == [(Signal.LINK_FLAPS, at(FAULT + 8))]


@pytest.mark.parametrize(("column", "each", "is_said"), [
    ("symbol_error_count", 150, False),
    ("symbol_error_count", 151, True),
    ("receive_error_count", 151, True),
])  # fmt: skip
def test_errors_of_a_link_above_ten_a_second_are_told_at_the_second_sample(
    column: str, each: float, is_said: bool
) -> None:
    grows = {FAULT: each, FAULT + 1: each}

    found = detect(ports({column: counter(grows, column=PORT, parts=PORT_COUNT)}))

    assert [(one.signal, one.component, one.first_seen_at) for one in found] == (
        [(Signal.LINK_ERRORS, LINK, at(FAULT + 1))] if is_said else []
    )


@pytest.mark.parametrize(("each", "is_said"), [(12, False), (12.25, True)])
def test_more_than_120_symbol_errors_an_hour_are_told(each: float, is_said: bool) -> None:
    grows = dict.fromkeys(range(FAULT, FAULT + 50, 10), each)  # 60, or 61.25, within half an hour

    found = detect(ports({"symbol_error_count": counter(grows, column=PORT, parts=PORT_COUNT)}))

    assert [one.signal for one in found] == ([Signal.LINK_ERRORS] if is_said else [])


@pytest.mark.parametrize(("count", "is_said"), [(5, False), (6, True)])
def test_more_than_five_recoveries_a_minute_are_told(count: float, is_said: bool) -> None:
    found = detect(ports({"link_error_recovery_count": counter({FAULT: count}, column=PORT, parts=PORT_COUNT)}))

    assert [one.signal for one in found] == ([Signal.LINK_ERRORS] if is_said else [])


@pytest.mark.parametrize("column", ["local_integrity_error_count", "buffer_overrun_count", "checksum_error_count"])
def test_an_error_of_which_each_one_counts_is_told_at_once(column: str) -> None:
    (found,) = detect(ports({column: counter({FAULT: 1}, column=PORT, parts=PORT_COUNT)}))

    assert (found.signal, found.component, found.first_seen_at) == (Signal.LINK_ERRORS, LINK, at(FAULT))


def test_a_link_at_half_the_rate_of_its_namesakes_is_told() -> None:
    rates = changed(steady(4e11, parts=PORT_COUNT), rows=SICK, columns=[PORT], to=2e11)

    (found,) = detect(ports({"rate_bits_per_second": rates}))

    assert (found.signal, found.component) == (Signal.LINK_ERRORS, LINK)
    assert "200 Gbit/s" in found.text
    assert "400" in found.text


DISK = Component(kind=ComponentKind.DISK, name="nvme0n1", node=node_parts(nodes=2)[1].node)


@pytest.mark.parametrize(
    ("column", "sick", "signal"),
    [
        ("wear_ratio", 0.8, Signal.DISK_WORN),
        ("critical_warning", 1, Signal.DISK_FAILING),
        ("critical_warning", 6, Signal.DISK_FAILING),
        ("healthy", 0, Signal.DISK_FAILING),
        ("spare_ratio", 0.09, Signal.DISK_FAILING),
    ],
)
def test_what_a_drive_says_of_itself_is_told_at_once(column: str, sick: float, signal: Signal) -> None:
    well = {"wear_ratio": 0.79, "critical_warning": 2.0, "healthy": 1.0, "spare_ratio": 0.1}
    columns = {name: steady(value, parts=NODES) for name, value in well.items()}
    columns[column][FAULT:, 1] = sick

    (found,) = detect(panel(time_count=TIMES, disks=(disk_parts(nodes=NODES), columns)))

    assert (found.signal, found.component, found.first_seen_at) == (signal, DISK, at(FAULT))
    assert found.value == pytest.approx(sick)


@pytest.mark.parametrize(("count", "is_said"), [(1, False), (2, True), (3, True)])
def test_media_errors_that_grow_are_told(count: float, is_said: bool) -> None:
    errors = counter({FAULT: 1, FAULT + 99: count - 1}, column=1, parts=NODES)

    found = detect(panel(time_count=TIMES, disks=(disk_parts(nodes=NODES), {"media_error_count": errors})))

    assert [(one.signal, one.component) for one in found] == ([(Signal.DISK_FAILING, DISK)] if is_said else [])


def test_a_disk_that_is_busy_and_does_nothing_is_told_after_five_minutes() -> None:
    busy = np.cumsum(np.full((TIMES, NODES), 15, np.float32), axis=0)
    reads = np.cumsum(np.full((TIMES, NODES), 9_000, np.float32), axis=0)
    reads[FAULT:, 1] = reads[FAULT - 1, 1]
    columns: dict[str, ArrayLike] = {"busy_seconds": busy, "read_count": reads, "write_count": 0}

    (found,) = detect(panel(time_count=TIMES, disks=(disk_parts(nodes=NODES), columns)))

    assert (found.signal, found.component, found.first_seen_at) == (Signal.DISK_FAILING, DISK, at(FAULT + 19))


def nodes(columns: Mapping[str, ArrayLike]) -> Panel:
    return panel(time_count=TIMES, nodes=(node_parts(nodes=NODES), columns))


@pytest.mark.parametrize(
    ("column", "well", "sick", "signal", "rows"),
    [
        ("filesystem_available_ratio", 0.05, 0.049, Signal.DISK_FULL, 2),
        ("clock_offset_seconds", 0.05, 0.051, Signal.CLOCK_SKEW, 4),
        ("clock_offset_seconds", -0.05, -0.051, Signal.CLOCK_SKEW, 4),
        ("supply_health_state", 1, 2, Signal.POWER_SUPPLY, 2),
        ("bmc_power_state", 1, 2, Signal.POWER_SUPPLY, 2),
    ],
)
def test_a_state_of_the_node_is_told_when_it_has_lasted(
    column: str, well: float, sick: float, signal: Signal, rows: int
) -> None:
    lasting = changed(steady(well, parts=NODES), rows=SICK, columns=[1], to=sick)
    passing = changed(steady(well, parts=NODES), rows=slice(FAULT, FAULT + rows - 1), columns=[1], to=sick)

    (found,) = detect(nodes({column: lasting}))

    assert (found.signal, found.node, found.gpu, found.component) == (signal, "n001", None, None)
    assert (found.began_at, found.first_seen_at) == (at(FAULT), at(FAULT + rows - 1))
    assert found.value == pytest.approx(sick)
    assert detect(nodes({column: passing})) == []


def test_a_clock_without_a_reference_is_told_where_most_have_one() -> None:
    lost = changed(steady(1, parts=NODES), rows=slice(10, None), columns=[1], to=0)

    (found,) = detect(nodes({"clock_synchronised": lost}))

    assert (found.signal, found.node, found.first_seen_at) == (Signal.CLOCK_SKEW, "n001", at(129))
    assert detect(nodes({"clock_synchronised": 0})) == []


def test_an_uncorrected_error_of_host_memory_is_told_at_once() -> None:
    (found,) = detect(nodes({"edac_uncorrectable_count": counter({FAULT: 1}, column=1, parts=NODES)}))

    assert (found.signal, found.node, found.first_seen_at, found.value) == (Signal.HOST_MEMORY, "n001", at(FAULT), 1)


@pytest.mark.parametrize(("each", "is_said"), [(2.25, False), (2.5, True)])
def test_corrected_errors_of_host_memory_without_end_are_told(each: float, is_said: bool) -> None:
    grows = dict.fromkeys(range(FAULT, FAULT + 40), each)

    found = detect(nodes({"edac_correctable_count": counter(grows, column=1, parts=NODES)}))

    assert [one.signal for one in found] == ([Signal.HOST_MEMORY] if is_said else [])


def test_a_growth_that_happened_during_a_gap_is_seen_after_it() -> None:
    errors = counter({FAULT: 1}, column=1, parts=NODES)
    errors[FAULT - 2 : FAULT + 2, 1] = np.nan

    (found,) = detect(nodes({"edac_uncorrectable_count": errors}))

    assert found.first_seen_at == at(FAULT + 2)


def test_a_node_whose_ports_are_all_gone_is_silent_and_no_link_of_it_down() -> None:
    gone = changed(steady(4, parts=PORT_COUNT), rows=SICK, columns=[2, 3], to=np.nan)
    given = panel(
        time_count=TIMES,
        ports=(port_parts(nodes=NODES), {"link_state": gone}),
        nodes=(node_parts(nodes=NODES), {"node_power_watts": 900}),  # its BMC lives on
    )

    assert detect(given) == []
