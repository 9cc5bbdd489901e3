"""What of the lake a panel needs: the columns that detectors look at, and how devices become one number of a node.

Everything else of a row stays in the lake: half an hour of a large cluster has to fit in memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ops_pipelines.lake.schema import TABLES

GPU_LABELS = ("gpu_uuid", "pci_address", "gpu_model", "mig_instance", "driver_version", "job")

GPU_COLUMNS = (
    "utilisation_ratio", "graphics_active_ratio", "sm_active_ratio", "sm_occupancy_ratio", "tensor_active_ratio",
    "fp16_active_ratio", "fp32_active_ratio", "fp64_active_ratio", "dram_active_ratio", "memory_used_bytes",
    "temperature_celsius", "memory_temperature_celsius",
    "temperature_margin_celsius", "slowdown_temperature_celsius", "power_watts", "power_limit_watts",
    "power_limit_enforced_watts", "energy_joules", "sm_clock_hertz", "application_clock_hertz",
    "clock_event_reasons", "fan_ratio",
    "power_throttle_seconds", "thermal_throttle_seconds", "software_thermal_throttle_seconds", "power_brake_seconds",
    "board_limit_throttle_seconds", "reliability_throttle_seconds",
    "ecc_correctable_volatile_count", "ecc_uncorrectable_volatile_count", "ecc_correctable_aggregate_count",
    "ecc_uncorrectable_aggregate_count", "row_remap_correctable_count", "row_remap_uncorrectable_count",
    "row_remap_pending", "row_remap_failed", "retired_pages_correctable_count", "retired_pages_uncorrectable_count",
    "retired_pages_pending", "remap_banks_max_count", "remap_banks_high_count", "remap_banks_partial_count",
    "remap_banks_low_count", "remap_banks_none_count", "memory_unrepairable",
    "nvlink_bandwidth_bytes", "nvlink_crc_flit_error_count", "nvlink_crc_data_error_count",
    "nvlink_replay_error_count", "nvlink_recovery_error_count", "nvlink_recovery_failed_count",
    "pcie_replay_count", "pcie_link_generation", "pcie_link_width", "pcie_link_generation_limit",
    "pcie_link_width_limit", "pcie_transmit_bytes_per_second",
    "pcie_receive_bytes_per_second", "xid", "recovery_action",
)  # fmt: skip
NODE_COLUMNS = (
    "cpu_user_seconds", "cpu_system_seconds", "cpu_idle_seconds", "cpu_iowait_seconds", "load_1m",
    "memory_available_bytes", "memory_total_bytes", "memory_corrupted_bytes", "out_of_memory_kill_count",
    "pressure_cpu_waiting_seconds", "pressure_memory_stalled_seconds", "pressure_io_waiting_seconds",
    "pressure_io_stalled_seconds", "processes_blocked_count", "cpu_core_throttle_count", "clock_offset_seconds",
    "clock_synchronised", "boot_time_seconds", "nfs_retransmission_count", "tcp_retransmission_count",
)  # fmt: skip
"""Columns of node_telemetry that stand at the node itself."""
PORT_COLUMNS = (
    "link_state", "physical_state", "rate_bits_per_second", "receive_bytes", "transmit_bytes",
    "legacy_receive_bytes", "legacy_transmit_bytes", "link_downed_count", "link_error_recovery_count",
    "symbol_error_count", "receive_error_count", "receive_remote_physical_error_count", "transmit_discard_count",
    "transmit_wait_count", "local_integrity_error_count", "buffer_overrun_count", "out_of_sequence_count",
    "packet_sequence_error_count", "ack_timeout_count", "requester_error_count", "slow_restart_count",
    "checksum_error_count", "adaptive_retransmit_count", "ethernet_link_down_count", "ethernet_symbol_error_count",
    "ethernet_checksum_error_count",
)  # fmt: skip
DISK_COLUMNS = (
    "read_bytes", "written_bytes", "read_count", "write_count", "busy_seconds",
    "io_in_flight_count", "temperature_celsius", "wear_ratio",
    "spare_ratio", "spare_threshold_ratio", "media_error_count", "critical_warning", "healthy",
    "reallocated_sector_count", "pending_sector_count", "uncorrected_read_error_count",
    "uncorrected_write_error_count",
)  # fmt: skip
RACK_COLUMNS = ("inlet_temperature_celsius", "rack_power_watts", "rack_power_limit_watts")


class Over(Enum):
    """What becomes of several devices of a node."""

    SUM = "sum"
    """A counter of all."""
    LEAST = "least"
    MOST = "most"


@dataclass(frozen=True, slots=True, kw_only=True)
class FromDevices:
    """One column of the layer of nodes that comes from devices."""

    column: str
    table: str
    sources: tuple[str, ...]
    """Columns of the table that are added; the first group that has a value counts (see `instead`)."""
    over: Over
    devices: tuple[str, ...] = ("",)
    """What the names of the devices begin with."""
    instead: tuple[str, ...] = ()
    """Columns that count where none of `sources` has a value: older drivers name them otherwise."""


_WORST_STATES = (
    "chassis_health_state", "fan_health_state", "supply_health_state", "bmc_temperature_state", "bmc_fan_state",
    "bmc_voltage_state", "bmc_current_state", "bmc_power_state",
)  # fmt: skip
FROM_DEVICES = (
    FromDevices(
        column="shared_read_bytes",
        table="storage_telemetry",
        sources=("lustre_read_bytes", "nfs_read_bytes"),
        over=Over.SUM,
        # What a storage server's own targets do is not what its jobs read.
        devices=("lustre:client/", "nfs:"),
    ),
    FromDevices(
        column="shared_written_bytes",
        table="storage_telemetry",
        sources=("lustre_written_bytes", "nfs_written_bytes"),
        over=Over.SUM,
        devices=("lustre:client/", "nfs:"),
    ),
    FromDevices(
        column="fabric_bytes",
        table="fabric_telemetry",
        sources=("receive_bytes", "transmit_bytes"),
        over=Over.SUM,
        instead=("legacy_receive_bytes", "legacy_transmit_bytes"),
    ),
    *(
        FromDevices(column=name, table="node_telemetry", sources=(name,), over=Over.SUM)
        for name in (
            "edac_correctable_count",
            "edac_uncorrectable_count",
            "edac_dimm_correctable_count",
            "edac_dimm_uncorrectable_count",
            "cpu_package_throttle_count",
        )
    ),
    *(
        FromDevices(column=name, table="node_telemetry", sources=(name,), over=Over.MOST)
        for name in ("filesystem_read_only", "filesystem_failed", "raid_failed_count")
    ),
    *(
        FromDevices(column=name, table="facility_telemetry", sources=(name,), over=Over.MOST)
        for name in (*_WORST_STATES, "node_power_watts")
    ),
    *(
        FromDevices(column=name, table="facility_telemetry", sources=(name,), over=Over.LEAST)
        for name in ("healthy", "fan_revolutions_per_minute", "bmc_fan_revolutions_per_minute")
    ),
    # Up only if every exporter of the node is.
    FromDevices(column="target_up", table="platform_telemetry", sources=("target_up",), over=Over.LEAST),
)
FILESYSTEM_COLUMNS = ("filesystem_size_bytes", "filesystem_available_bytes", "filesystem_read_only")
INLET_COLUMNS = ("temperature_celsius", "bmc_temperature_celsius")
"""What BMCs measure; the sensor's name says where."""


def _of_table(table: str) -> tuple[str, ...]:
    found = (name for each in FROM_DEVICES if each.table == table for name in (*each.sources, *each.instead))
    return tuple(dict.fromkeys(found))


PANEL_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "gpu_telemetry": (*GPU_LABELS, *GPU_COLUMNS),
    "node_telemetry": tuple(dict.fromkeys((*NODE_COLUMNS, *FILESYSTEM_COLUMNS, *_of_table("node_telemetry")))),
    "fabric_telemetry": PORT_COLUMNS,
    "storage_telemetry": tuple(dict.fromkeys((*DISK_COLUMNS, *_of_table("storage_telemetry")))),
    "facility_telemetry": tuple(dict.fromkeys((*RACK_COLUMNS, *INLET_COLUMNS, *_of_table("facility_telemetry")))),
    "application_telemetry": ("step_count", "loss", "step_seconds"),
    "platform_telemetry": _of_table("platform_telemetry"),
    "job_logs": ("job", "step", "loss", "step_seconds", "signature"),
    "job_allocations": ("started_at", "ended_at", "gpu_count"),
    "rejected_rows": ("into", "reason", "text"),
}
"""Table -> the columns that a panel is made of, beside those of the table's key and its time."""


def columns_to_read(table: str) -> tuple[str, ...]:
    """Return the columns of a table that a panel is made of, with those of its key and its time."""
    return tuple(dict.fromkeys((*TABLES[table].key, "time", *PANEL_COLUMNS[table])))
