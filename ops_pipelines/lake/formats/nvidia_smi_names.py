"""What nvidia-smi calls each of our columns: in XML, in `-q` text and in `--query-gpu` CSV, over all driver versions.

Here: names and units as data, and one GPU's report under these names turned into cells. Not here: the layout of any of
the outputs. XML and text share one form of a name: the path in lower case with underscores, as `pci/bus_id`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ops_pipelines.lake.formats.reading import Unbelievable, is_absent, is_broken, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Where one column stands. The first name with a value counts."""

    column: str
    names: tuple[str, ...]
    unit: str = ""
    """Of a value that states none: CSV with `nounits`."""


def _names(column: str, names: str, unit: str = "") -> Names:
    return Names(column=column, names=tuple(names.split()), unit=unit)


_MEASURED = (
    _names("utilisation_ratio", "utilization/gpu_util utilization/gpu utilization.gpu", "%"),
    _names("memory_copy_ratio", "utilization/memory_util utilization/memory utilization.memory", "%"),
    _names("encoder_ratio", "utilization/encoder_util utilization/encoder utilization.encoder", "%"),
    _names("decoder_ratio", "utilization/decoder_util utilization/decoder utilization.decoder", "%"),
    _names("memory_used_bytes", "fb_memory_usage/used memory_usage/used memory.used", "mib"),
    _names("memory_free_bytes", "fb_memory_usage/free memory_usage/free memory.free", "mib"),
    _names("memory_reserved_bytes", "fb_memory_usage/reserved memory.reserved", "mib"),
    _names("memory_total_bytes", "fb_memory_usage/total memory_usage/total memory.total", "mib"),
    _names("temperature_celsius", "temperature/gpu_temp temperature/gpu_current_temp temperature/gpu temperature.gpu"),
    _names("memory_temperature_celsius", "temperature/memory_temp temperature/memory_current_temp temperature.memory"),
    _names(
        "temperature_margin_celsius",
        "temperature/gpu_temp_tlimit temperature/gpu_t.limit_temp temperature.gpu.tlimit",
    ),
    _names(
        "power_watts",
        "gpu_power_readings/power_draw power_readings/power_draw gpu_power_readings/average_power_draw "
        "power_readings/average_power_draw gpu_power_readings/instant_power_draw "
        "gpu_power_readings/instantaneous_power_draw power.draw power.draw.average power.draw.instant",
    ),
    _names(
        "power_limit_watts",
        "power_readings/power_limit gpu_power_readings/power_limit gpu_power_readings/requested_power_limit "
        "power_readings/requested_power_limit gpu_power_readings/current_power_limit "
        "power_readings/enforced_power_limit power.limit enforced.power.limit",
    ),
    _names("sm_clock_hertz", "clocks/sm_clock clocks/sm clocks.current.sm clocks.sm", "mhz"),
    _names(
        "memory_clock_hertz", "clocks/mem_clock clocks/memory clocks.current.memory clocks.mem clocks.memory", "mhz"
    ),
    _names(
        "power_throttle_seconds",
        "clocks_event_reasons_counters/clocks_event_reasons_counters_sw_power_cap "
        "clocks_event_reasons_counters/sw_power_capping clocks_event_reasons_counters.sw_power_cap",
        "us",
    ),
    _names(
        "thermal_throttle_seconds",
        "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_therm_slowdown "
        "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_thermal_slowdown "
        "clocks_event_reasons_counters/hw_thermal_slowdown clocks_event_reasons_counters.hw_thermal_slowdown",
        "us",
    ),
    _names(
        "row_remap_correctable_count",
        "remapped_rows/remapped_row_corr remapped_rows/correctable_error remapped_rows.correctable",
    ),
    _names(
        "row_remap_uncorrectable_count",
        "remapped_rows/remapped_row_unc remapped_rows/uncorrectable_error remapped_rows.uncorrectable",
    ),
    _names("row_remap_pending", "remapped_rows/remapped_row_pending remapped_rows/pending remapped_rows.pending"),
    _names(
        "row_remap_failed",
        "remapped_rows/remapped_row_failure remapped_rows/remapping_failure_occurred remapped_rows.failure",
    ),
    _names(
        "retired_pages_correctable_count",
        "retired_pages/multiple_single_bit_retirement/retired_count retired_pages/single_bit_ecc "
        "retired_pages.single_bit_ecc.count retired_pages.sbe",
    ),
    _names(
        "retired_pages_uncorrectable_count",
        "retired_pages/double_bit_retirement/retired_count retired_pages/double_bit_ecc "
        "retired_pages.double_bit.count retired_pages.dbe",
    ),
    _names(
        "retired_pages_pending",
        "retired_pages/pending_retirement retired_pages/pending_page_blacklist retired_pages/pending_blacklist "
        "retired_pages/pending retired_pages.pending",
    ),
    _names("pcie_replay_count", "pci/replay_counter pci/replays_since_reset pci/replay_counter_since_reset"),
    _names("pcie_transmit_bytes_per_second", "pci/tx_util pci/tx_throughput", "kb/s"),
    _names("pcie_receive_bytes_per_second", "pci/rx_util pci/rx_throughput", "kb/s"),
    _names(
        "pcie_link_generation",
        "pci/pci_gpu_link_info/pcie_gen/current_link_gen pci/gpu_link_info/pcie_generation/current "
        "pcie.link.gen.current pcie.link.gen.gpucurrent",
    ),
    _names(
        "pcie_link_width",
        "pci/pci_gpu_link_info/link_widths/current_link_width pci/gpu_link_info/link_width/current "
        "pcie.link.width.current",
    ),
    _names("fan_ratio", "fan_speed fan.speed", "%"),
)

IDENTITY: Mapping[str, tuple[str, ...]] = {
    "uuid": ("uuid", "gpu_uuid"),
    "serial": ("serial", "serial_number", "gpu_serial"),
    "model": ("product_name", "name", "gpu_name"),
    "pci_address": ("pci/pci_bus_id", "pci/bus_id", "pci.bus_id", "gpu_bus_id", "@pci"),
    "vbios_version": ("vbios_version",),
    "firmware_version": ("gsp_firmware_version",),
    "part_number": ("gpu_part_number", "board_part_number"),
    "slot": ("platform_info/slot_number", "platforminfo/slot_number", "platform.slot_number"),
    "gpu_index": ("index", "@index"),
    "driver_version": ("driver_version", "@driver_version"),
    "cuda_version": ("cuda_version", "@cuda_version"),
    "hostname": ("hostname",),
    "timestamp": ("timestamp", "@timestamp"),
}
"""`@` names what stands beside the GPU's own report: in its heading, or once for all GPUs."""

_ERROR_COUNTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "ecc_correctable_{}_count": (
        ("ecc_errors/{}/sram_correctable", "ecc_errors/{}/dram_correctable"),
        ("ecc_errors/{}/single_bit/total",),
        ("ecc.errors.corrected.{}.total",),
    ),
    "ecc_uncorrectable_{}_count": (
        (
            "ecc_errors/{}/sram_uncorrectable",
            "ecc_errors/{}/sram_uncorrectable_parity",
            "ecc_errors/{}/sram_uncorrectable_secded",
            "ecc_errors/{}/sram_uncorrectable_sec-ded",
            "ecc_errors/{}/dram_uncorrectable",
        ),
        ("ecc_errors/{}/double_bit/total",),
        ("ecc.errors.uncorrected.{}.total",),
    ),
}
"""Column -> ways to count it; the names of one way are added up."""

_REASONS: Mapping[int, tuple[str, ...]] = {
    0x001: ("gpu_idle", "idle"),
    0x002: ("applications_clocks_setting", "user_defined_clocks"),
    0x004: ("sw_power_cap",),
    0x008: ("hw_slowdown",),
    0x010: ("sync_boost",),
    0x020: ("sw_thermal_slowdown",),
    0x040: ("hw_thermal_slowdown",),
    0x080: ("hw_power_brake_slowdown", "hw_power_brake"),
    0x100: ("display_clocks_setting", "display_clock_setting"),
}
"""Bit of nvmlClocksEventReasons -> the names that nvidia-smi has for it."""

_REASON_FORMS = (
    "clocks_event_reasons/clocks_event_reason_{}",
    "clocks_throttle_reasons/clocks_throttle_reason_{}",
    "clocks_event_reasons/{}",
    "clocks_throttle_reasons/{}",
    "clocks_event_reasons/hw_slowdown/{}",
    "clocks_throttle_reasons/hw_slowdown/{}",
    "clocks_event_reasons.{}",
    "clocks_throttle_reasons.{}",
)

_ACTIONS = {
    "none": 0.0,
    "reset": 1.0,
    "gpu reset": 1.0,
    "reboot": 2.0,
    "node reboot": 2.0,
    "drain p2p": 3.0,
    "drain and reset": 4.0,
    "recover imex domain": 5.0,
}
"""What the driver asks for -> nvmlDeviceGpuRecoveryAction_t."""


def first_of(report: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Return the first value under one of `names` that is one, None if there is none."""
    return next((report[name] for name in names if not is_absent(report.get(name, ""))), None)


def cells_of(report: Mapping[str, str]) -> dict[str, float | None]:
    """Return the measured cells of one GPU's report. Raises Unbelievable if a value is no number."""
    cells = {each.column: _number(report, each) for each in _MEASURED}
    for scope in ("volatile", "aggregate"):
        for column, ways in _ERROR_COUNTS.items():
            cells[column.format(scope)] = _added(report, [[name.format(scope) for name in way] for way in ways])
    cells["clock_event_reasons"] = _reasons(report)
    action = report.get("gpu_recovery_action", "").strip().lower()
    cells["recovery_action"] = _ACTIONS.get(action)
    if action and action not in _ACTIONS and not is_absent(action):
        raise Unbelievable("bad_value", f"recovery_action: found {action[:80]!r}, expected {', '.join(_ACTIONS)}")
    return cells


def says_broken(report: Mapping[str, str]) -> bool:
    """Say whether some value could not be read: `ERR!`, `[Unknown Error]`, `[GPU requires reset]`."""
    return any(is_broken(value) for value in report.values())


def _number(report: Mapping[str, str], names: Names) -> float | None:
    found = first_of(report, names.names)
    return None if found is None else number(found, unit=names.unit, name=names.column)


def _added(report: Mapping[str, str], ways: Sequence[Sequence[str]]) -> float | None:
    for way in ways:
        counts = [number(report[name], name=name) for name in way if name in report]
        known = [count for count in counts if count is not None]
        if known:
            return sum(known)
    return None


def _reasons(report: Mapping[str, str]) -> float | None:
    mask = first_of(report, ("clocks_event_reasons.active", "clocks_throttle_reasons.active"))
    if mask is not None:
        return number(mask, name="clock_event_reasons")
    bits: list[int] = []
    for bit, names in _REASONS.items():
        shown = first_of(report, [form.format(name) for form in _REASON_FORMS for name in names])
        if shown is not None:
            bits.append(bit if number(shown, name="clock_event_reasons") else 0)
    return float(sum(bits)) if bits else None
