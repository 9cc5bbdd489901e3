"""A stretch of time as columns: what detectors look at. One matrix a quantity, a row a grid time, a column a part.

Live, the last minutes of cycles; from the lake, the minutes before a moment; from the simulator, whole days. A detector
cannot tell which: it gives the same answer for a grid time whatever came after it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.core.identity import GpuUuid, JobId, NodeName

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
