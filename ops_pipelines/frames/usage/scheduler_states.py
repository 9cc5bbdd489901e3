"""Rows of inventory -> what the scheduler said of nodes in an hour; of storage_telemetry -> the size of storage."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import NodeName, parse_node_name
from ops_pipelines.frames.usage.intervals import Condition

INVENTORY_COLUMNS = ("node", "kind", "state")
STORAGE_COLUMNS = ("device", "lustre_capacity_bytes")
_TARGETS = "lustre:ost/"
"""Where data is kept; clients tell the same space once more, and metadata targets hold no files."""


def read_scheduler_states(inventory: pa.Table) -> Mapping[NodeName, Condition | None]:
    """Return each node whose state is told, with what keeps it from work; None: nothing does."""
    is_node = pc.and_(pc.equal(inventory["kind"], "node"), pc.is_valid(inventory["state"]))
    found: dict[NodeName, Condition | None] = {}
    for row in inventory.filter(is_node).select(list(INVENTORY_COLUMNS)).to_pylist():
        marks = str(row["state"]).upper().split("+")
        try:
            node = parse_node_name(row["node"])
        except ValueError:
            continue
        if "DOWN" in marks or "NOT_RESPONDING" in marks:
            found[node] = Condition.DOWN
        else:
            found[node] = Condition.DRAINED if "DRAIN" in marks else None
    return found


def read_storage_bytes(storage: pa.Table) -> int:
    """Return the capacity of the file systems that rows name, each target once."""
    targets = storage.filter(pc.starts_with(storage["device"], _TARGETS))
    by_target: dict[str, float] = {}
    for row in targets.select(list(STORAGE_COLUMNS)).to_pylist():
        size = row["lustre_capacity_bytes"]
        if size is not None and size >= 0:
            by_target[row["device"]] = max(size, by_target.get(row["device"], 0.0))
    return round(sum(by_target.values()))
