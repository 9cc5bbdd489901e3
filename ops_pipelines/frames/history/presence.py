"""Hours of the inventory -> how many nodes and GPUs there were to fail: the exposure of every rate.

An hour that the inventory does not have adds nothing: what nobody saw can neither fail nor run in the books.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

COLUMNS = ("node", "kind")
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Who was there in a stretch of time."""

    node_hours: float = 0.0
    gpu_hours: float = 0.0
    hour_count: int = 0
    """Hours that the inventory has."""
    gpus_of_node: Mapping[str, int] = field(default_factory=dict)
    """By the newest hour that shows the node."""

    @property
    def node_days(self) -> float:
        return self.node_hours / 24


def presence_of(hours: Iterable[tuple[datetime, pa.Table]], *, since: datetime, until: datetime) -> Presence:
    """Return the exposure within [since, until) of hours of the inventory, oldest first; edges count in part."""
    node_hours = gpu_hours = 0.0
    hour_count = 0
    gpus_of_node: dict[str, int] = {}
    for hour, rows in hours:
        weight = (min(until, hour + _HOUR) - max(since, hour)) / _HOUR
        if not rows.num_rows or weight <= 0:
            continue
        named = rows.filter(pc.is_valid(rows["node"]))
        nodes = {str(name): 0 for name in pc.unique(named["node"]).to_pylist() if name}
        of_gpus = named.filter(pc.equal(named["kind"].cast(pa.string()), "gpu"))
        for each in of_gpus["node"].value_counts().to_pylist():
            if each["values"]:
                nodes[each["values"]] = each["counts"]
        hour_count += 1
        node_hours += weight * len(nodes)
        gpu_hours += weight * sum(nodes.values())
        gpus_of_node |= nodes
    return Presence(node_hours=node_hours, gpu_hours=gpu_hours, hour_count=hour_count, gpus_of_node=gpus_of_node)


def sums_of_coverage(rows: pa.Table) -> tuple[float, float]:
    """Return how many samples were there and should have been, by rows of `monitoring_coverage`."""
    seen, expected = (float(pc.sum(rows[name]).as_py() or 0) for name in ("seen_count", "expected_count"))
    return seen, expected
