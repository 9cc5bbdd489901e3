"""Per table of the lake: columns, types, units, keys. The one definition that files, gates, checks and views share.

The telemetry tables take their columns from `quantities` (catalogue/metrics.csv); the others stand here. Nothing heavy
is imported before a table is asked for its Arrow form, so that Dagster may load this module.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING

from ops_pipelines.lake.quantities import Kind, Quantity, read_quantities

if TYPE_CHECKING:
    import pyarrow as pa


class ColumnType(Enum):
    TEXT = "text"
    NUMBER = "number"
    """64-bit float."""
    WHOLE = "whole"
    """64-bit integer."""
    FLAG = "flag"
    TIME = "time"
    """UTC, microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. Null means that the source did not give it; a key column is never null."""

    name: str
    type: ColumnType
    meaning: str
    unit: str = ""
    quantity: Quantity | None = None
    """What it measures, with its bounds; None for identities and texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table of the lake, stored by the hour of its `time` column, sorted by key and then time."""

    name: str
    meaning: str
    key: tuple[str, ...]
    """One row per key and time."""
    columns: tuple[Column, ...]
    by_name: Mapping[str, Column] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {column.name: column for column in self.columns})
        missing = {*self.key, "time"} - self.by_name.keys()
        if missing or len(self.by_name) != len(self.columns):
            raise ValueError(f"{self.name}: key without column ({sorted(missing)}), or a column named twice")

    @property
    def description(self) -> str:
        """The meaning as a sentence."""
        return f"{self.meaning[0].upper()}{self.meaning[1:]}."

    @property
    def sort_order(self) -> tuple[str, ...]:
        """The columns that rows are sorted by, and are unique in."""
        return (*self.key, "time")

    @property
    def counters(self) -> tuple[str, ...]:
        """The columns that only grow, but for restarts."""
        return tuple(
            column.name
            for column in self.columns
            if column.quantity is not None and column.quantity.kind is Kind.COUNTER
        )

    def arrow(self) -> "pa.Schema":
        """Return the Arrow schema: key columns and time are not nullable."""
        return _arrow(self.name)

    def from_rows(self, rows: Iterable[Mapping[str, object]]) -> "pa.Table":
        """Return rows as an Arrow table; a column that a row lacks is null. Raises KeyError on an unknown column."""
        import pyarrow as pa

        listed = list(rows)
        unknown = {name for row in listed for name in row} - self.by_name.keys()
        if unknown:
            raise KeyError(f"{self.name} has no column {', '.join(sorted(unknown))}")
        schema = self.arrow()
        return pa.table(
            {name: pa.array([row.get(name) for row in listed], schema.field(name).type) for name in schema.names},
            schema=schema,
        )


@cache
def _arrow(name: str) -> "pa.Schema":
    import pyarrow as pa

    table = TABLES[name]
    types = {
        ColumnType.TEXT: pa.string(),
        ColumnType.NUMBER: pa.float64(),
        ColumnType.WHOLE: pa.int64(),
        ColumnType.FLAG: pa.bool_(),
        ColumnType.TIME: pa.timestamp("us", tz="UTC"),
    }
    return pa.schema(
        [
            pa.field(column.name, types[column.type], nullable=column.name not in table.sort_order)
            for column in table.columns
        ]
    )


_TIME = Column(name="time", type=ColumnType.TIME, meaning="grid time of the cycle, or the time that the record states")
_NODE = Column(name="node", type=ColumnType.TEXT, meaning="name in the scheduler; empty where it belongs to no node")
_DEVICE = Column(name="device", type=ColumnType.TEXT, meaning="part of the node; empty for the node itself")
_UNKNOWN = Column(
    name="unknown_node", type=ColumnType.FLAG, meaning="cluster.yaml does not name the node; null without cluster.yaml"
)
_SOURCE = Column(name="source", type=ColumnType.TEXT, meaning="the system or file that stated so")


def _text(name: str, meaning: str) -> Column:
    return Column(name=name, type=ColumnType.TEXT, meaning=meaning)


def _number(name: str, unit: str, meaning: str) -> Column:
    return Column(name=name, type=ColumnType.NUMBER, unit=unit, meaning=meaning)


def _whole(name: str, unit: str, meaning: str) -> Column:
    return Column(name=name, type=ColumnType.WHOLE, unit=unit, meaning=meaning)


def _time(name: str, meaning: str) -> Column:
    return Column(name=name, type=ColumnType.TIME, meaning=meaning)


_LABELS: Mapping[str, tuple[Column, ...]] = {
    "gpu_telemetry": (
        _text("gpu_uuid", "UUID of the GPU"),
        _text("gpu_serial", "serial number of the board"),
        _text("pci_address", "PCI address, as 0000:18:00"),
        _whole("gpu_index", "1", "index in the driver's order; may change at a reboot"),
        _text("gpu_model", "product name"),
        _text("mig_instance", "GPU instance id of a MIG slice; null for a whole GPU"),
        _text("mig_profile", "profile of a MIG slice, as 1g.10gb"),
        _text("driver_version", "NVIDIA driver"),
        _text("job", "Slurm job that the exporter names"),
        _text("namespace", "Kubernetes namespace that holds the GPU"),
        _text("pod", "Kubernetes pod that holds the GPU"),
        _text("container", "container that holds the GPU"),
    ),
    "fabric_telemetry": (_text("link_layer", "InfiniBand or Ethernet"),),
    "application_telemetry": (
        _text("job", "job or service that reports"),
        _text("namespace", "Kubernetes namespace"),
        _text("pod", "Kubernetes pod"),
    ),
}
_MEANINGS = {
    "gpu_telemetry": "GPUs and MIG slices: device is the GPU's UUID, else its PCI address, else its index",
    "node_telemetry": "CPU, memory, pressure, file systems, NVMe wear, EDAC",
    "fabric_telemetry": "ports of InfiniBand, RoCE and Ethernet",
    "storage_telemetry": "block devices and shared file systems",
    "facility_telemetry": "racks, power supplies, inlet temperature, cooling, PUE",
    "application_telemetry": "training steps, queues, inference latency and errors",
    "platform_telemetry": "scheduler, orchestrator and monitoring themselves",
}
TELEMETRY_TABLES = tuple(_MEANINGS)


def _telemetry_table(name: str, quantities: Sequence[Quantity]) -> Table:
    measured = tuple(
        Column(
            name=quantity.column,
            type=ColumnType.NUMBER,
            unit=quantity.unit,
            meaning=quantity.meaning,
            quantity=quantity,
        )
        for quantity in quantities
    )
    return Table(
        name=name,
        meaning=_MEANINGS[name],
        key=("node", "device"),
        columns=(_NODE, _DEVICE, _TIME, *_LABELS.get(name, ()), *measured, _UNKNOWN),
    )


_RECORDS = (
    Table(
        name="job_accounting",
        meaning="every attempt of every job, by the hour in which it ended (began or was submitted, while it has not)",
        key=("job", "attempt"),
        columns=(
            _text("job", "job id as users write it: 123, 30_1, 40+1"),
            _text(
                "attempt", "start of the attempt, or `unstarted`; with duplicate ids the submit time distinguishes them"
            ),
            _TIME,
            _text("job_raw", "the scheduler's own number"),
            _text("cluster", "Slurm cluster"),
            _text("name", "job name; a user's text"),
            _text("user", "who submitted it"),
            _text("account", "account that pays"),
            _text("partition", "partition or queue"),
            _text("qos", "quality of service"),
            _text("state", "state in Slurm's words, in capitals: COMPLETED, CANCELLED, NODE_FAIL, ..."),
            _text("cancelled_by", "user id in `CANCELLED by 1234`"),
            _whole("exit_code", "1", "exit status"),
            _whole("exit_signal", "1", "signal that ended it"),
            _text("reason", "why it waits or ended, as the scheduler says"),
            _time("submitted_at", "when it was submitted"),
            _time("eligible_at", "when it could first have started"),
            _time("started_at", "when the attempt began"),
            _time("ended_at", "when the attempt ended"),
            _number("elapsed_seconds", "s", "run time of the attempt"),
            _number("time_limit_seconds", "s", "time limit; null for none"),
            _whole("node_count", "1", "nodes"),
            _whole("cpu_count", "1", "CPUs"),
            _whole("gpu_count", "1", "GPUs allocated, else asked for"),
            _number("memory_bytes", "B", "memory asked for"),
            _text("nodes", "host list as the scheduler writes it"),
            _text("workdir", "working directory"),
            _text("comment", "the job's comment; a user's text"),
            _whole("restart_count", "1", "attempts before this one"),
            _SOURCE,
        ),
    ),
    Table(
        name="job_steps",
        meaning="steps of jobs: what only a step records",
        key=("job", "step", "attempt"),
        columns=(
            _text("job", "job id"),
            _text("step", "batch, extern, 0, 1, ..."),
            _text("attempt", "start of the step"),
            _TIME,
            _text("name", "step name"),
            _text("state", "state in Slurm's words"),
            _whole("exit_code", "1", "exit status"),
            _number("elapsed_seconds", "s", "run time"),
            _whole("task_count", "1", "tasks"),
            _number("max_rss_bytes", "B", "largest resident size of a task"),
            _number("cpu_seconds", "s", "CPU time"),
            _SOURCE,
        ),
    ),
    Table(
        name="job_logs",
        meaning="lines that jobs wrote",
        key=("source", "position"),
        columns=(
            _SOURCE,
            _text("position", "where it is in its source"),
            _TIME,
            _text("node", "node that wrote it"),
            _UNKNOWN,
            _text("job", "job that wrote it"),
            _whole("rank", "1", "rank that wrote it"),
            _text("level", "debug, info, warning, error, critical"),
            _text("signature", "row of catalogue/log_signatures.csv that the line matches"),
            _text("component", "gpu, nccl, storage, application, ..."),
            _whole("step", "1", "training step"),
            _number("step_seconds", "s", "duration of a step"),
            _number("loss", "1", "training loss"),
            _number("tokens_per_second", "1/s", "training throughput"),
            _number("flops_per_second", "FLOP/s", "compute throughput of one GPU"),
            _text("text", "the line, without control characters, at most 1000 characters"),
        ),
    ),
    Table(
        name="kernel_events",
        meaning="lines of kernels, drivers, fabric managers and BMCs",
        key=("source", "position"),
        columns=(
            _SOURCE,
            _text("position", "where it is in its source"),
            _TIME,
            _text("node", "node that wrote it"),
            _UNKNOWN,
            _text("level", "emerg, alert, crit, err, warning, notice, info, debug"),
            _text("signature", "row of catalogue/log_signatures.csv that the line matches"),
            _text("component", "gpu, nvlink, fabric, memory, disk, network, ..."),
            _whole("code", "1", "Xid, SXid or another number that the signature names"),
            _text("pci_address", "PCI address in the line"),
            _text("device", "port, disk, link or GPU that the line names otherwise"),
            _text("text", "the line, without control characters, at most 1000 characters"),
        ),
    ),
    Table(
        name="job_allocations",
        meaning="which attempts held which nodes and GPUs within the hour: one row per attempt and node",
        key=("job", "attempt", "node"),
        columns=(
            _text("job", "job id"),
            _text("attempt", "start of the attempt"),
            _NODE,
            _TIME,
            _text("name", "job name; a user's text"),
            _text("user", "who submitted it"),
            _text("account", "account that pays"),
            _text("partition", "partition or queue"),
            _text("state", "state in Slurm's words when it was read"),
            _time("started_at", "when the attempt began"),
            _time("ended_at", "when it ended; null while it runs"),
            _number("held_seconds", "s", "how much of the hour it held the node"),
            _whole("node_count", "1", "nodes of the attempt"),
            _number("gpu_count", "1", "GPUs on this node: those of the attempt over its nodes"),
            _UNKNOWN,
            _SOURCE,
        ),
    ),
    Table(
        name="gpu_efficiency",
        meaning="how the GPUs of a job on a node were used within the hour, with the rule and evidence that decided",
        key=("node", "job"),
        columns=(
            _NODE,
            _text("job", "job that held the GPUs; empty for those that nobody held"),
            _TIME,
            _text("verdict", "compute_bound, tensor_bound, memory_bound, input_stalled, communication_bound, ..."),
            _text("rule", "name of the rule that decided"),
            _text("evidence", "the numbers that the rule saw"),
            _text("user", "who submitted the job"),
            _text("account", "account that pays"),
            _number("gpu_count", "1", "GPUs that were seen; a MIG slice counts as its share"),
            _whole("sample_count", "1", "samples of these GPUs"),
            _number("held_seconds", "s", "how much of the hour the job held the node"),
            _number("utilisation_ratio", "ratio", "mean share of time in which any kernel was resident"),
            _number("sm_active_ratio", "ratio", "mean share of cycles in which an SM had a warp"),
            _number("sm_occupancy_ratio", "ratio", "mean of resident warps over the most that fit"),
            _number("tensor_active_ratio", "ratio", "mean share of cycles in which a tensor pipe was active"),
            _number("dram_active_ratio", "ratio", "mean share of cycles in which device memory moved data"),
            _number("memory_used_ratio", "ratio", "mean device memory in use over all"),
            _number("power_watts", "W", "mean power of one GPU"),
            _number("pcie_bytes_per_second", "B/s", "mean PCIe traffic of one GPU, both ways"),
            _number("nvlink_bytes_per_second", "B/s", "mean NVLink traffic of one GPU"),
            _number("fabric_bytes_per_second", "B/s", "mean network traffic of the node's ports, both ways"),
            _number("spread_ratio", "ratio", "(most busy - least busy GPU) of the node, in SM activity or utilisation"),
            _text("straggler", "the GPU that lags behind its peers; null for none"),
        ),
    ),
    Table(
        name="gpu_demand",
        meaning="what each team ran, waited for and requested within the hour, by type of GPU: means over the hour",
        key=("team", "gpu_type"),
        columns=(
            _text("team", "account that pays; every declared team has a row in every hour"),
            _text("gpu_type", "type of GPU; empty where the cluster has one, or it cannot be distinguished"),
            _TIME,
            _number("gpus_running_avg", "1", "GPUs that its jobs held"),
            _number("gpus_pending_avg", "1", "GPUs that its jobs waited for, if GPUs or quota would start them"),
            _number("gpus_pending_max", "1", "most GPUs that waited at once"),
            _number("gpus_demand_avg", "1", "GPUs requested: ran and waited, less idle ones within the policy's bound"),
            _number("gpus_wasted_avg", "1", "GPUs held on which nothing ran, by gpu_efficiency"),
            _number("jobs_running_avg", "1", "attempts that ran"),
            _number("gpus_ran_last", "1", "GPUs that its jobs held in the last moment of the hour"),
        ),
    ),
    Table(
        name="gpu_quotas",
        meaning="what quotas were proposed for a local day, by team and type of GPU, at the day's beginning",
        key=("team", "gpu_type"),
        columns=(
            _text("team", "account that the quota is for"),
            _text("gpu_type", "type of GPU; empty where the cluster has one, or distinguishes none"),
            _TIME,
            _text("proposal", "the proposal's name"),
            _text("state", "what became of the proposal: proposed, refused, applied, undone, superseded, ..."),
            _whole("limit_gpus", "1", "what the scheduler held the team to; null: to nothing"),
            _number("before_gpus", "1", "what the change is counted from"),
            _whole("after_gpus", "1", "the quota that is proposed"),
            _number("guarantee_gpus", "1", "what was guaranteed"),
            _number("ran_last_gpus", "1", "what it ran in the last moment of the newest hour"),
            _number("used_mean_gpus", "1", "what it ran on average on the last full day"),
            _number("wanted_mean_gpus", "1", "what it requested on average on the last full day, queue included"),
            _number("debt_gpus", "1", "what it had beyond its fair share, mean of the window; below 0: it lent"),
            _text("reason", "why the quota changes, or does not"),
            _text("counterfactual", "what it is expected to miss with this quota, and with the one before"),
        ),
    ),
    Table(
        name="daily_peaks",
        meaning="the highest hour of a local day by resource, for forecasts of quarters, at the day's beginning",
        key=("resource", "gpu_type", "name"),
        columns=(
            _text("resource", "gpus, gpus_out, gpus_stranded, storage_bytes, network_ratio, rack_watts, cooling_watts"),
            _text("gpu_type", "type of GPU; empty where the cluster has one, distinguishes none, or it is not of GPUs"),
            _text("name", "team, file system, leaf switch, rack, ...; empty: all teams together, the whole fabric"),
            _TIME,
            _text("zone", "IANA name of the zone whose day it is"),
            _number("peak", "", "the highest hour, in `unit`"),
            _number("mean", "", "mean of the hours that are known, in `unit`"),
            _number("limit", "", "what held that day, in `unit`: a size, a rate, watts, a team's cap; null: not known"),
            _whole("hour_count", "h", "hours of the day that are known"),
            _number("near_peak_hours", "h", "hours within 10 % of the peak"),
            _number("running_mean", "1", "GPUs held, mean of the day; null: not of GPUs, or not kept"),
            _number("idle_mean", "1", "GPUs held on which nothing ran, mean of the day; null: not of GPUs"),
            _number("waiting_mean", "1", "GPUs that waited, mean of the day; null: not of GPUs"),
            _whole("censored_hours", "h", "hours in which a team stood at its hard cap: more may have been requested"),
            _text("unit", "of peak, mean and limit: 1, B, ratio, W"),
        ),
    ),
    Table(
        name="efficiency_advice",
        meaning="what a team could do better, by week: what was stated, what was not and why, and whether it followed",
        key=("team", "kind", "subject"),
        columns=(
            _text("team", "account that pays; empty where the scheduler names none"),
            _text("kind", "idle_allocation, input_stall, ... (docs/ADVICE.md)"),
            _text("subject", "user and name of jobs that are alike, or a path; a user's text"),
            _TIME,
            _text("week", "the week that was looked at, as 2026-W47; `time` is its end"),
            _text("withheld_because", "why nothing was stated; null for what was chosen"),
            _time("told_at", "when the team was notified; null if it was not"),
            _text("evidence", "what was seen, in sentences"),
            _text("counter_evidence", "the evidence against it"),
            _text("what_to_do", "what to change"),
            _text("confidence", "low, medium, high"),
            _number("gain_low_gpu_hours", "h", "GPU-hours a week that it gains with little doubt"),
            _number("gain_gpu_hours", "h", "GPU-hours a week that it is expected to gain"),
            _whole("gain_cents", "1", "the same in cents; null without prices"),
            _number("gain_bytes", "B", "storage that it frees"),
            _number("held_gpu_hours", "h", "GPU-hours that the jobs held in the week"),
            _number("measure", "1", "what it is judged by, smaller is better: a share, or bytes"),
            _text("followed", "followed, not_followed, not_run_again, unknown; null until two weeks later"),
            _number("measure_after", "1", "the same measure over the two weeks after"),
            _number("saved_gpu_hours", "h", "GPU-hours that following it saved in these two weeks"),
        ),
    ),
    Table(
        name="monitoring_coverage",
        meaning="which series that we expect were there within the hour, and since when they are missing",
        key=("node", "device", "quantity"),
        columns=(
            _NODE,
            _DEVICE,
            _text("quantity", "TABLE.COLUMN; `TABLE.*`: a device or a node's layer; `*`: all that a node says itself"),
            _TIME,
            _whole("expected_count", "1", "samples that should be there"),
            _whole("seen_count", "1", "samples that are there"),
            _number("coverage_ratio", "ratio", "seen over expected"),
            _time("missing_since", "the newest sample's time; null if it is not missing at the end of the hour"),
            _text("because", "what else is known: node down, exporter silent, quantity never seen on this model, ..."),
        ),
    ),
    Table(
        name="inventory",
        meaning="what is built in: nodes, GPUs, ports, disks, power supplies",
        key=("node", "device"),
        columns=(
            _NODE,
            _DEVICE,
            _TIME,
            _text("kind", "node, gpu, mig, nic, port, disk, psu, fan, cpu, memory, bmc, firmware, switch, ..."),
            _text("model", "product name"),
            _text("vendor", "manufacturer"),
            _text("part_number", "part number"),
            _text("serial", "serial number"),
            _text("uuid", "UUID or GUID"),
            _text("pci_address", "PCI address"),
            _whole("gpu_index", "1", "index in the driver's order"),
            _text("driver_version", "driver"),
            _text("firmware_version", "firmware"),
            _text("vbios_version", "VBIOS of a GPU"),
            _text("cuda_version", "newest CUDA that the driver offers"),
            _text("kernel_version", "kernel of a node"),
            _text("slot", "slot or location"),
            _text("rack", "rack in cluster.yaml"),
            _text("leaf_switch", "leaf switch in cluster.yaml"),
            _text("nvlink_domain", "NVLink domain in cluster.yaml"),
            _text("state", "state in the source's words"),
            _text("features", "features of a node in the scheduler"),
            _text("partitions", "partitions of a node in the scheduler"),
            _whole("cpu_count", "1", "CPUs"),
            _whole("gpu_count", "1", "GPUs"),
            _number("memory_bytes", "B", "memory"),
            _number("capacity_bytes", "B", "capacity of a disk"),
            _UNKNOWN,
            _SOURCE,
        ),
    ),
    Table(
        name="rejected_rows",
        meaning="what was not believed, and why",
        key=("source", "record"),
        columns=(
            _SOURCE,
            _text("record", "where it is in its source: a line, a series, a JSON pointer"),
            _TIME,
            _text("into", "the table that it would have gone to; null where that was not known"),
            _text("reason", "fixed snake_case code"),
            _text("detail", "what was found, what was expected"),
            _text("text", "the record, readable, at most 1000 characters"),
        ),
    ),
)


def _all_tables() -> dict[str, Table]:
    by_table: dict[str, list[Quantity]] = {name: [] for name in TELEMETRY_TABLES}
    for quantity in read_quantities():
        by_table[quantity.table].append(quantity)
    telemetry = (_telemetry_table(name, quantities) for name, quantities in by_table.items())
    return {table.name: table for table in (*telemetry, *_RECORDS)}


TABLES: Mapping[str, Table] = _all_tables()
