"""cluster.yaml and rows of inventory -> the nodes that jobs may be given. When they took none, `flow.cost` knows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from ops_pipelines.core.identity import NodeName, Topology
from ops_pipelines.domain.placement.standing import Machine
from ops_pipelines.frames.placement.recorded_times import number_of, rows_of, text_of

INVENTORY_COLUMNS = ("node", "device", "time", "kind", "partitions", "cpu_count", "gpu_count", "memory_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinesRead:
    """The nodes of cluster.yaml."""

    machines: tuple[Machine, ...]
    notes: tuple[str, ...]


def read_machines(inventory: pa.Table, *, topology: Topology) -> MachinesRead:
    """Return the nodes as the newest rows have them."""
    machines = {
        node: Machine(node=node, place=place, gpu_count=topology.gpus_per_node)
        for node, place in sorted(topology.places.items())
    }
    rows = [row for row in rows_of(inventory, INVENTORY_COLUMNS) if row["kind"] == "node"]
    for row in sorted(rows, key=lambda each: str(each["time"])):
        node = NodeName(text_of(row["node"]))
        if node not in machines:
            continue
        machine = machines[node]
        gpus, cpus, memory = (number_of(row[name]) for name in ("gpu_count", "cpu_count", "memory_bytes"))
        listed = row["partitions"]
        machines[node] = replace(
            machine,
            # A node that is down may show none of its GPUs.
            gpu_count=int(gpus) if gpus else machine.gpu_count,
            cpu_count=int(cpus) if cpus else machine.cpu_count,
            memory_bytes=memory or machine.memory_bytes,
            partitions=_partitions(listed) if isinstance(listed, str) else machine.partitions,
        )
    return MachinesRead(machines=tuple(machines.values()), notes=_notes(tuple(machines.values())))


def _partitions(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def _notes(machines: Sequence[Machine]) -> tuple[str, ...]:
    return tuple(
        f"the {what} of {lacking} of {len(machines)} nodes are not known: they strand nothing there"
        for what, lacking in (
            ("CPUs", sum(each.cpu_count is None for each in machines)),
            ("bytes of memory", sum(each.memory_bytes is None for each in machines)),
            ("partitions", sum(each.partitions is None for each in machines)),
        )
        if lacking
    )
