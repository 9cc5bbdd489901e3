"""Where each node stands: rack, NVLink domain, leaf switch; and so who shares fate with whom.

Only nodes listed here are ever acted on. Reading cluster.yaml belongs to `resources.config.files`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ops_pipelines.domain.identity import NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one node stands. `nvlink_domain` equals the node's own name where NVLink ends at the chassis (HGX)."""

    rack: str
    nvlink_domain: str
    leaf_switch: str
    power_feed: str = ""
    """What supplies it with power, and its rack with it; empty where cluster.yaml does not say."""
    model: str = ""
    """What kind of machine it is, as releases name it; empty where cluster.yaml does not say: no release is for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The nodes that exist, as declared. A node missing here is observed, reported and never touched."""

    places: Mapping[NodeName, Place]
    gpus_per_node: int

    def __post_init__(self) -> None:
        if self.gpus_per_node < 1:
            raise ValueError(f"gpus_per_node is {self.gpus_per_node}; it must be 1 or more")

    def knows(self, node: NodeName) -> bool:
        return node in self.places

    def shared_place(self, nodes: frozenset[NodeName]) -> str | None:
        """Return `rack r07` or `leaf switch s3` if every given node stands there, None if they share neither."""
        known = [self.places[node] for node in nodes if node in self.places]
        if not known or len(known) != len(nodes):
            return None
        if len({place.rack for place in known}) == 1:
            return f"rack {known[0].rack}"
        if len({place.leaf_switch for place in known}) == 1:
            return f"leaf switch {known[0].leaf_switch}"
        return None
