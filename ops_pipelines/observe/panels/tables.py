"""Tables of the lake -> a panel: each layer as its docstring says, gaps as gaps.

What a table holds is `schema`; what a panel means is `panel`; who asks for which rows is `observe.window` and
`review.retrace`. MIG slices are left out: detectors compare whole GPUs.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa

from ops_pipelines.core.identity import GpuUuid, NodeName, Topology
from ops_pipelines.core.observation import NO_NODE, JobStatus
from ops_pipelines.observe.panels.grid import (
    RACK,
    SELECTIONS,
    Grid,
    Ints,
    Matrix,
    Name,
    NodeOrder,
    Parts,
    of_devices,
    place,
)
from ops_pipelines.observe.panels.jobs import (
    NOBODY,
    UNSAID,
    Holders,
    JobMatrices,
    add_application,
    add_lines,
    add_refused_losses,
    holders_by_labels,
    holders_by_spans,
    job_layer,
    least,
    most,
    nodes_of,
    spans_of_allocations,
    spans_of_jobs,
    summed_counters,
)
from ops_pipelines.observe.panels.panel import (
    DISK_COLUMNS,
    FROM_DEVICES,
    GPU_COLUMNS,
    INLET_COLUMNS,
    NODE_COLUMNS,
    PORT_COLUMNS,
    RACK_COLUMNS,
    FromDevices,
    Layer,
    Over,
    Panel,
    Part,
)
from ops_pipelines.observe.panels.rolled import Rolled

_Find = Callable[[str], Parts | None]
"""Name of a selection -> its parts; None where its table has no row."""


def panel_from_tables(
    tables: Mapping[str, pa.Table],
    *,
    start: datetime,
    end: datetime,
    step_seconds: int,
    topology: Topology | None,
    jobs: Sequence[JobStatus] = (),
    lines_until: datetime | None = None,
) -> Panel:
    """Return the panel of the grid times in [start, end) from rows of the lake (tables and columns may be missing).

    A row belongs to the first grid time that is not before its own: the one at which it is known. The nodes of
    `topology` are all there, others follow. GPUs are keyed by PCI address, or named as the row names them where no
    series says an address. `jobs` are attempts as the scheduler reports them live, each once. Lines of jobs are counted
    up to `lines_until` (None: all logs were read).
    """
    grid = Grid.between(start, end, step_seconds=step_seconds)
    rows = {name: table for name, table in tables.items() if table.num_rows}
    order = _order_of(topology)

    def find(name: str) -> Parts | None:
        spec = SELECTIONS[name]
        if spec.table not in rows:
            return None
        return place(spec.choose(rows[spec.table]), name=spec.table, grid=grid, node_order=order, rename=spec.rename)

    return _panel(find, rows, grid=grid, topology=topology, jobs=jobs, lines_until=lines_until)


class RollingPanel:
    """The same panel for anyone who asks again and again as time continues: rows of `SELECTED_TABLES` are taken in
    once."""

    def __init__(self, *, topology: Topology, step_seconds: int, row_count: int) -> None:
        self._topology = topology
        self._step_seconds = step_seconds
        self._rolled = {
            name: Rolled(
                spec.table, columns=spec.columns, texts=spec.texts, step_seconds=step_seconds, row_count=row_count
            )
            for name, spec in SELECTIONS.items()
        }

    @property
    def time_count(self) -> int:
        """Return of how many grid times there are rows."""
        return max(each.time_count for each in self._rolled.values())

    def add(self, table: str, rows: pa.Table, *, at: datetime) -> None:
        """Take in rows of the cycle `at`."""
        number = int(at.timestamp()) // self._step_seconds
        for name, spec in SELECTIONS.items():
            if spec.table == table:
                self._rolled[name].add(spec.choose(rows), at=number)

    def panel(
        self,
        others: Mapping[str, pa.Table],
        *,
        start: datetime,
        end: datetime,
        jobs: Sequence[JobStatus],
        lines_until: datetime | None,
    ) -> Panel:
        """Return what `panel_from_tables` does; `others` are the tables that are not taken in.

        Its matrices are not to be written to, and are those of a moment: what comes later may show in them.
        """
        grid = Grid.between(start, end, step_seconds=self._step_seconds)
        order = _order_of(self._topology)

        def find(name: str) -> Parts | None:
            return self._rolled[name].placed(grid, node_order=order, rename=SELECTIONS[name].rename)

        return _panel(find, others, grid=grid, topology=self._topology, jobs=jobs, lines_until=lines_until)


def _order_of(topology: Topology | None) -> NodeOrder:
    known = {node: number for number, node in enumerate(() if topology is None else topology.places)}
    return lambda node: (known.get(NodeName(node), len(known)), node)


def _panel(
    find: _Find,
    rows: Mapping[str, pa.Table],
    *,
    grid: Grid,
    topology: Topology | None,
    jobs: Sequence[JobStatus],
    lines_until: datetime | None,
) -> Panel:
    order = _order_of(topology)
    gpus, ports, disks = find("gpus"), find("ports"), find("disks")
    of_nodes = _node_columns(find, grid=grid)
    seen = {node for names, _ in of_nodes.values() for node in names}
    seen |= {node for placed in (gpus, ports, disks) if placed is not None for node, _ in placed.names}
    nodes = sorted({*(() if topology is None else topology.places), *seen} - {""}, key=order)
    found = JobMatrices(grid=grid)
    if "application_telemetry" in rows:
        add_application(found, rows["application_telemetry"])
    if "rejected_rows" in rows:
        add_refused_losses(found, rows["rejected_rows"])
    if "job_logs" in rows:
        add_lines(found, rows["job_logs"], until=lines_until)
    held = _holders(
        gpus,
        jobs=jobs,
        allocations=rows.get("job_allocations"),
        nodes=nodes,
        gpus_per_node=None if topology is None else topology.gpus_per_node,
        found=found,
    )
    job_order = {name: number for number, name in enumerate(sorted(found.jobs))}
    renumbered = np.array([*(job_order[name] for name in found.jobs), -1], dtype=np.int32)
    return Panel(
        times=grid.times,
        step_seconds=grid.step_seconds,
        gpus=_gpu_layer(gpus, grid=grid),
        nodes=_node_layer(of_nodes, nodes=nodes, grid=grid),
        ports=_device_layer(ports, PORT_COLUMNS, grid=grid),
        disks=_device_layer(disks, DISK_COLUMNS, grid=grid),
        racks=_rack_layer(find("racks"), of_nodes.get("inlet_temperature_celsius"), topology=topology, grid=grid),
        jobs=_filled(job_layer(found), "step_count", grid=grid),
        held_by=renumbered[held],
    )


# -- GPUs, ports, disks --


def _gpu_layer(placed: Parts | None, *, grid: Grid) -> Layer:
    if placed is None:
        return _filled(Layer(parts=(), values={}, step_seconds=grid.step_seconds), GPU_COLUMNS[0], grid=grid)
    labels = zip(*(placed.newest_texts(name) for name in ("gpu_uuid", "gpu_model", "driver_version")), strict=True)
    parts = tuple(
        Part(node=NodeName(node), device=device, uuid=GpuUuid(uuid) if uuid else None, model=model, driver=driver)
        for (node, device), (uuid, model, driver) in zip(placed.names, labels, strict=True)
    )
    layer = Layer(parts=parts, values=_matrices(placed, GPU_COLUMNS), step_seconds=grid.step_seconds)
    return _filled(layer, GPU_COLUMNS[0], grid=grid)


def _device_layer(placed: Parts | None, columns: Sequence[str], *, grid: Grid) -> Layer:
    layer = Layer(parts=(), values={}, step_seconds=grid.step_seconds)
    if placed is not None:
        parts = tuple(Part(node=NodeName(node), device=device) for node, device in placed.names)
        layer = Layer(parts=parts, values=_matrices(placed, columns), step_seconds=grid.step_seconds)
    return _filled(layer, columns[0], grid=grid)


def _matrices(placed: Parts, columns: Sequence[str]) -> dict[str, Matrix]:
    found = ((name, placed.matrix(name)) for name in columns)
    return {name: matrix for name, matrix in found if matrix is not None}


def _filled(layer: Layer, column: str, *, grid: Grid) -> Layer:
    """Return the layer with at least one matrix: it is what reports how many times there are."""
    if layer.values:
        return layer
    empty = np.full((grid.count, len(layer.parts)), np.nan, dtype=np.float32)
    return Layer(parts=layer.parts, values={column: empty}, step_seconds=layer.step_seconds)


# -- nodes --

_OfNodes = tuple[list[str], Matrix]
"""Nodes, and a matrix with a column for each."""


def _node_columns(find: _Find, *, grid: Grid) -> dict[str, _OfNodes]:
    found: dict[str, _OfNodes] = {}
    own = find("nodes")
    if own is not None:
        names = [node for node, _ in own.names]
        found |= {name: (names, matrix) for name, matrix in _matrices(own, NODE_COLUMNS).items()}
        if "cpu_user_seconds" in found and "cpu_system_seconds" in found:
            user, system = found["cpu_user_seconds"][1], found["cpu_system_seconds"][1]
            found["cpu_busy_seconds"] = names, np.add(user, system, dtype=np.float64)
    space = _free_space(find("filesystems"))
    if space is not None:
        found["filesystem_available_ratio"] = space
    for each in FROM_DEVICES:
        matrix = _from_devices(find, each, grid=grid)
        if matrix is not None:
            found[each.column] = matrix
    inlets = _inlets(find)
    if inlets is not None:
        found["inlet_temperature_celsius"] = inlets
    return found


def _from_devices(find: _Find, spec: FromDevices, *, grid: Grid) -> _OfNodes | None:
    for name, columns in of_devices(spec).items():
        placed = find(name)
        if placed is None or not (matrices := _matrices(placed, columns)):
            continue
        nodes, starts = nodes_of(placed.names)
        if spec.over is Over.SUM:
            return nodes, _summed(list(matrices.values()), starts=starts, names=placed.names, grid=grid)
        (matrix,) = matrices.values()
        return nodes, (least if spec.over is Over.LEAST else most)(matrix, starts=starts)
    return None


def _summed(matrices: Sequence[Matrix], *, starts: Ints, names: Sequence[Name], grid: Grid) -> Matrix:
    """Return the sum over devices and over several columns of each: a device has two directions, or is of one kind."""
    if len(matrices) == 1:
        return summed_counters(matrices[0], starts=starts, grid=grid)
    # Side by side, node by node: what counts in and what counts out are two counters of the node.
    width = len(matrices)
    side_by_side = np.stack([np.asarray(each, dtype=np.float64) for each in matrices], axis=2)
    return summed_counters(
        side_by_side.reshape(len(side_by_side), len(names) * width), starts=starts * width, grid=grid
    )


def _free_space(placed: Parts | None) -> _OfNodes | None:
    """Return the least share of space that is left on a file system that can be written."""
    if placed is None:
        return None
    size, free = placed.matrix("filesystem_size_bytes"), placed.matrix("filesystem_available_bytes")
    if size is None or free is None:
        return None
    sealed = placed.matrix("filesystem_read_only")
    ratio = np.divide(free, size, out=np.full(size.shape, np.nan, dtype=np.float32), where=size > 0)
    if sealed is not None:
        ratio[sealed == 1] = np.nan
    nodes, starts = nodes_of(placed.names)
    return nodes, least(ratio, starts=starts)


def _inlets(find: _Find) -> _OfNodes | None:
    """Return the air at the front of each node as its BMC measures it."""
    for name in INLET_COLUMNS:
        placed = find(f"inlets, {name}")
        matrix = None if placed is None else placed.matrix(name)
        if placed is not None and matrix is not None:
            nodes, starts = nodes_of(placed.names)
            return nodes, least(matrix, starts=starts)
    return None


def _node_layer(found: Mapping[str, _OfNodes], *, nodes: Sequence[str], grid: Grid) -> Layer:
    position = {node: number for number, node in enumerate(nodes)}
    values: dict[str, Matrix] = {}
    for name, (owners, matrix) in found.items():
        if owners == nodes:
            values[name] = matrix
            continue
        whole = np.full((grid.count, len(nodes)), np.nan, dtype=matrix.dtype)
        whole[:, [position[owner] for owner in owners]] = matrix
        values[name] = whole
    parts = tuple(Part(node=NodeName(node)) for node in nodes)
    return _filled(Layer(parts=parts, values=values, step_seconds=grid.step_seconds), "target_up", grid=grid)


# -- racks, and who holds what --


def _rack_layer(placed: Parts | None, inlets: _OfNodes | None, *, topology: Topology | None, grid: Grid) -> Layer:
    """Return racks as their own sensors show them; the air of a rack without one is the median of its nodes' inlets."""
    own: dict[str, dict[str, Matrix]] = {}
    if placed is not None:
        for column, matrix in _matrices(placed, RACK_COLUMNS).items():
            own[column] = {
                device.removeprefix(RACK): matrix[:, number] for number, (_, device) in enumerate(placed.names)
            }
    if inlets is not None and topology is not None:
        nodes, matrix = inlets
        racks: dict[str, list[int]] = {}
        for number, node in enumerate(nodes):
            if topology.knows(NodeName(node)):
                racks.setdefault(topology.places[NodeName(node)].rack, []).append(number)
        measured = own.setdefault("inlet_temperature_celsius", {})
        for rack, members in racks.items():
            measured.setdefault(rack, _median(matrix[:, members]))
    names = sorted({rack for columns in own.values() for rack in columns})
    nothing = np.full(grid.count, np.nan, dtype=np.float32)
    values = {
        column: np.stack([columns.get(rack, nothing) for rack in names], axis=1)
        for column, columns in own.items()
        if columns
    }
    parts = tuple(Part(node=NO_NODE, device=rack) for rack in names)
    return _filled(Layer(parts=parts, values=values, step_seconds=grid.step_seconds), RACK_COLUMNS[0], grid=grid)


def _median(matrix: Matrix) -> Matrix:
    """Return the median of each row over its known values; NaN where there is none."""
    ordered = np.sort(matrix, axis=1)  # NaN comes last
    known = np.count_nonzero(~np.isnan(ordered), axis=1)
    rows = np.arange(len(ordered))
    middle = ordered[rows, np.maximum(known - 1, 0) // 2] + ordered[rows, np.minimum(known // 2, ordered.shape[1] - 1)]
    return np.where(known > 0, middle / 2, np.nan).astype(matrix.dtype)


def _holders(
    gpus: Parts | None,
    *,
    jobs: Sequence[JobStatus],
    allocations: pa.Table | None,
    nodes: Sequence[str],
    gpus_per_node: int | None,
    found: JobMatrices,
) -> Holders:
    """Return who holds each node, by the columns of `found`: the exporter's word, else the scheduler's, else the
    accounting's."""
    grid = found.grid
    held = np.full((grid.count, len(nodes)), UNSAID, dtype=np.int32)
    if gpus is not None:
        _lay_under(held, *holders_by_labels(gpus, nodes=nodes), found=found)
    said = [spans_of_jobs(jobs, nodes=nodes, gpus_per_node=gpus_per_node, grid=grid)]
    if allocations is not None:
        said.append(spans_of_allocations(allocations, nodes=nodes, gpus_per_node=gpus_per_node, grid=grid))
    for spans in said:
        _lay_under(held, holders_by_spans(spans, node_count=len(nodes), grid=grid), spans.jobs, found=found)
    held[held == UNSAID] = NOBODY
    return held


def _lay_under(held: Holders, said: Holders, jobs: Sequence[str], *, found: JobMatrices) -> None:
    """Take what `said` says where nothing was stated so far; its jobs get their columns."""
    present = np.unique(said)
    columns = {place: found.column(jobs[place]) for place in present.tolist() if place >= 0}
    translated = np.array([columns.get(place, NOBODY) for place in range(len(jobs))], dtype=np.int32)
    own = said.copy()
    own[said >= 0] = translated[said[said >= 0]]
    np.copyto(held, own, where=held == UNSAID)
