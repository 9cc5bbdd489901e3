"""Which type of GPU attempts held, from their nodes, and which they wait for, from their partition. Never a guess.

Accounting has no type. A cluster of which no type is known has one, called ``.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.frames.demand.attempts import Texts
from ops_pipelines.lake.node_names import expand_host_list

UNTOLD = GpuType("")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTypes:
    """Where which type is built in."""

    by_node: Mapping[NodeName, GpuType] = field(default_factory=dict)
    by_partition: Mapping[str, GpuType] = field(default_factory=dict)

    @property
    def names(self) -> tuple[GpuType, ...]:
        """All types that can come out, in alphabetical order: what cannot be told first."""
        return tuple(sorted({UNTOLD, *self.by_node.values(), *self.by_partition.values()}))

    @property
    def only(self) -> GpuType | None:
        """The type of the whole cluster if it has one, None if it has several."""
        found = {*self.by_node.values(), *self.by_partition.values()}
        return next(iter(found)) if len(found) == 1 else None if found else UNTOLD

    def of_nodes(self, host_list: str) -> Mapping[GpuType, float]:
        """Return what share of the GPUs of an attempt on these nodes is of which type."""
        nodes = self._nodes(host_list)
        counts = Counter(self.by_node.get(node, UNTOLD) for node in nodes)
        return {kind: count / len(nodes) for kind, count in sorted(counts.items())} or {UNTOLD: 1.0}

    def of_node(self, node: str) -> GpuType:
        return self.by_node.get(NodeName(node), UNTOLD)

    def wanted_in(self, partition: str) -> GpuType:
        """Return the type that a job in a partition, or in one of several `a,b`, waits for."""
        if self.only is not None:
            return self.only
        found = {self.by_partition.get(name, UNTOLD) for name in partition.split(",")}
        return found.pop() if len(found) == 1 else UNTOLD

    @staticmethod
    def _nodes(host_list: str) -> Sequence[NodeName]:
        try:
            return expand_host_list(host_list) if host_list else ()
        except ValueError:
            return ()


def partition_types(inventory: pa.Table, by_node: Mapping[NodeName, GpuType]) -> Mapping[str, GpuType]:
    """Return the type of each partition whose nodes all have it, by rows of the inventory."""
    found: dict[str, set[GpuType]] = {}
    for node, partitions in zip(inventory["node"].to_pylist(), inventory["partitions"].to_pylist(), strict=True):
        for name in (partitions or "").split(","):
            if name:
                found.setdefault(name, set()).add(by_node.get(NodeName(node), UNTOLD))
    return {name: kinds.pop() for name, kinds in sorted(found.items()) if len(kinds) == 1 and UNTOLD not in kinds}


def shares_of(host_lists: Texts, types: GpuTypes) -> Sequence[Mapping[GpuType, float]]:
    """Return the shares of each distinct host list, in the order of its words. Each is read once."""
    if not types.by_node:
        return [{types.only or UNTOLD: 1.0}] * len(host_lists.words)
    return [types.of_nodes(word) for word in host_lists.words]
