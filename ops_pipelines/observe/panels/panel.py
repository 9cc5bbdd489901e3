"""A span of time as columns: what detectors look at, which columns of the lake it needs, what a detector reports.

Everything else of a row stays in the lake: half an hour of a large cluster has to fit in memory.

And how flags over time become intervals. What an interval means is `observe.rules`; which detectors there are is
`signals`.

Live, the last minutes of cycles; from the lake, the minutes before a moment; from the simulator, whole days. A detector
cannot tell which: it gives the same answer for a grid time whatever came after it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.core.fault import Component
from ops_pipelines.core.identity import GpuUuid, JobId, NodeName, PciAddress
from ops_pipelines.core.observation import DETECTOR_SOURCE, Observation, Signal
from ops_pipelines.lake.schema import TABLES

# -- what of the lake a panel needs --


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


# -- an interval of time as columns --


LOOKBACK_SECONDS = 2_400
"""No detector looks further back than this from the grid time that it judges."""

Numbers = NDArray[np.floating]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One column's owner."""

    node: NodeName
    """NO_NODE where it belongs to none."""
    device: str = ""
    """PCI address of a GPU, name of a port or disk, rack; empty for the node itself. Job id in the layer of jobs."""
    uuid: GpuUuid | None = None
    model: str = ""
    driver: str = ""
    firmware: str = ""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """All parts of one kind. Values are as the source gave them, counters as counters; NaN: no sample."""

    parts: tuple[Part, ...]
    values: Mapping[str, Numbers]
    """Column of the lake -> matrix (times, parts)."""
    step_seconds: int
    _rates: dict[str, Numbers] = field(default_factory=dict, repr=False, compare=False)

    def __contains__(self, column: str) -> bool:
        return column in self.values

    def value(self, column: str) -> Numbers:
        """Return the samples of a quantity; all NaN if nobody measures it."""
        found = self.values.get(column)
        if found is not None:
            return found
        return np.full((self.time_count, len(self.parts)), np.nan, dtype=np.float32)

    def rate(self, column: str) -> Numbers:
        """Return how fast a counter grew since the sample before, per second; NaN at the first sample, over a gap, and
        where it fell: a restarted counter says nothing of the time in between."""
        if column not in self._rates:
            samples = self.value(column)
            grown = np.full(samples.shape, np.nan, dtype=np.float32)
            np.subtract(samples[1:], samples[:-1], out=grown[1:], casting="unsafe")
            grown[grown < 0] = np.nan
            grown /= self.step_seconds
            self._rates[column] = grown
        return self._rates[column]

    @property
    def time_count(self) -> int:
        return next((len(matrix) for matrix in self.values.values()), 0)

    @cached_property
    def present(self) -> Flags:
        """Return where any quantity of a part has a sample."""
        seen = np.zeros((self.time_count, len(self.parts)), dtype=bool)
        for matrix in self.values.values():
            seen |= ~np.isnan(matrix)
        return seen

    @cached_property
    def _by_node(self) -> Mapping[NodeName, list[int]]:
        found: dict[NodeName, list[int]] = {}
        for column, part in enumerate(self.parts):
            found.setdefault(part.node, []).append(column)
        return found

    def columns_of(self, nodes: Iterable[NodeName]) -> NDArray[np.intp]:
        """Return the columns of the parts of these nodes, in order."""
        return np.array(sorted(column for node in nodes for column in self._by_node.get(node, ())), dtype=np.intp)

    @cached_property
    def nodes(self) -> tuple[NodeName, ...]:
        """Return the nodes of the parts, each once, in the order of their first part."""
        return tuple(dict.fromkeys(part.node for part in self.parts))


@dataclass(frozen=True, kw_only=True)
class Panel:
    """All layers over the same grid times.

    gpus     columns of gpu_telemetry
    nodes    columns of node_telemetry, and of facility_telemetry that stand at a node; besides, over its devices:
             shared_read_bytes, shared_written_bytes (counters: Lustre, NFS), fabric_bytes (counter: both ways, all
             ports), filesystem_available_ratio (least), cpu_busy_seconds (counter: user and system, all cores),
             target_up
    ports    columns of fabric_telemetry
    disks    columns of storage_telemetry of local disks
    racks    inlet_temperature_celsius, rack_power_watts (node is NO_NODE, device the rack)
    jobs     step_count (counter), loss, step_seconds, line_count (counter of log lines; device is the job id)
    """

    times: NDArray[np.int64]
    """Seconds since 1970, evenly spaced."""
    step_seconds: int
    gpus: Layer
    nodes: Layer
    ports: Layer
    disks: Layer
    racks: Layer
    jobs: Layer
    held_by: NDArray[np.int32]
    """(times, nodes of the layer `nodes`) -> column of the layer `jobs`; -1: nobody holds the node as a whole."""

    def __post_init__(self) -> None:
        layers = (self.gpus, self.nodes, self.ports, self.disks, self.racks, self.jobs)
        for layer in layers:
            for name, matrix in layer.values.items():
                if matrix.shape != (len(self.times), len(layer.parts)):
                    raise ValueError(
                        f"{name} is {matrix.shape}; expected {len(self.times)} times and {len(layer.parts)} parts"
                    )
        if self.held_by.shape != (len(self.times), len(self.nodes.parts)):
            raise ValueError(f"held_by is {self.held_by.shape}; expected one row a time and one column a node")

    def time(self, row: int) -> datetime:
        return datetime.fromtimestamp(int(self.times[row]), tz=UTC)

    def row_of(self, at: datetime) -> int:
        """Return the row of the newest grid time at or before `at`; -1 if there is none."""
        return int(np.searchsorted(self.times, at.timestamp(), side="right")) - 1

    def rows_in(self, seconds: float) -> int:
        """Return how many grid times make up so many seconds; at least one."""
        return max(1, round(seconds / self.step_seconds))

    def job(self, column: int) -> JobId:
        """Return the job of a column; who makes a panel gives a column to nothing else (`panel_jobs.is_job_id`)."""
        return JobId(self.jobs.parts[column].device)


# -- what a detector says --


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """One interval in which a detector saw one thing."""

    signal: Signal
    node: NodeName
    began_at: datetime
    """When the trouble itself began, as far as the panel shows it."""
    first_seen_at: datetime
    """The first grid time at which it was certain enough to say."""
    last_seen_at: datetime
    """The last grid time at which it held."""
    text: str
    gpu: PciAddress | None = None
    gpu_uuid: GpuUuid | None = None
    component: Component | None = None
    job: JobId | None = None
    code: int | None = None
    value: float | None = None

    @property
    def position(self) -> str:
        """Return what names this condition, whenever it began."""
        parts = (self.signal.value, self.node, self.gpu, self.component, self.job, self.code)
        return "/".join("" if part is None else str(part) for part in parts)

    def observation(self) -> Observation:
        """Return it as evidence."""
        return Observation(
            signal=self.signal,
            node=self.node,
            observed_at=self.began_at,
            source=DETECTOR_SOURCE,
            position=self.position,
            code=self.code,
            gpu=self.gpu,
            gpu_uuid=self.gpu_uuid,
            text=self.text,
            component=self.component,
            job=self.job,
            value=self.value,
        )


Detector = Callable[[Panel], Iterable[Detection]]
"""Looks at a whole panel. What it says of a grid time depends on the LOOKBACK_SECONDS before it and nothing else."""


@dataclass(frozen=True, slots=True)
class Run:
    """Rows `first` to `last`, both included, of one column."""

    column: int
    first: int
    last: int


def runs_of(holds: Flags) -> Iterator[Run]:
    """Yield each unbroken run of True in each column, by column and then by time."""
    if not holds.any():
        return
    for column in np.flatnonzero(holds.any(axis=0)):
        flags = np.concatenate(([False], holds[:, column], [False]))
        edges = np.flatnonzero(flags[1:] != flags[:-1])
        for first, end in zip(edges[::2], edges[1::2], strict=True):
            yield Run(int(column), int(first), int(end) - 1)


def lasting(flags: Flags, rows: int) -> Flags:
    """Return where a flag has held for `rows` grid times up to and including each one."""
    if rows <= 1:
        return flags
    return np.equal(counted(flags, rows), rows)


def counted(flags: Flags, rows: int) -> NDArray[np.int32]:
    """Return how many of the last `rows` grid times, this one included, a flag held; fewer rows at the beginning."""
    sums = np.cumsum(flags, axis=0, dtype=np.int32)
    if len(sums) > rows:
        sums[rows:] -= sums[:-rows].copy()
    return sums


def held_lately(flags: Flags, rows: int) -> Flags:
    """Return where a flag held at any of the last `rows` grid times: it keeps a condition from flapping."""
    return np.greater(counted(flags, rows), 0)
