"""What is close together fails together: which switch, rack, power feed or store explains the same trouble on many
nodes.

Pure geometry over the declared topology. Turning many incidents into one is `gathering`'s business.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from operator import attrgetter

from ops_pipelines.core.fault import Component, ComponentKind, Family
from ops_pipelines.core.finding import REPAIRS, Finding
from ops_pipelines.core.identity import NodeName, Place, Topology

MIN_NODE_COUNT = 3
"""Two neighbours may fail by chance; Meta RSC (arXiv 2410.21680) saw two faults at once in 3 to 5 % of cases."""
MIN_COVERAGE = 0.5
"""Share of a place's nodes that must show it: a switch with half its ports well is not down.
Assumption; the replay measures what it costs."""
MIN_EXPLAINED = 0.7
"""Share of all nodes in the same trouble that one place must explain: a rack does not explain five dark racks."""
SHARED_STORAGE = "shared"
WIDE_KINDS = frozenset(
    {
        ComponentKind.NVLINK_DOMAIN,
        ComponentKind.LEAF_SWITCH,
        ComponentKind.RACK,
        ComponentKind.POWER_FEED,
        ComponentKind.STORAGE,
        ComponentKind.FABRIC,
        ComponentKind.DRIVER,
    }
)
"""Parts wider than a node: what they break is nobody's node."""
_PLACES: Mapping[Family, tuple[ComponentKind, ...]] = {
    Family.FABRIC: (ComponentKind.LEAF_SWITCH,),
    Family.SILENCE: (ComponentKind.RACK, ComponentKind.POWER_FEED),
    Family.HEAT: (ComponentKind.RACK, ComponentKind.POWER_FEED),
    Family.NVLINK: (ComponentKind.NVLINK_DOMAIN,),
}
"""Trouble -> what its nodes may share that causes it, the narrowest first."""
GATHERED_FAMILIES = tuple(_PLACES)
_DAMAGE = frozenset({Family.COLLECTIVE, Family.STALL, Family.SLOWNESS})
_EVERYTHING = frozenset(Family) - {Family.APPLICATION, Family.NORMAL, Family.DISK}
_EXPLAINED: Mapping[Family, frozenset[Family]] = {
    Family.FABRIC: frozenset({Family.FABRIC, Family.STORAGE}) | _DAMAGE,
    Family.SILENCE: _EVERYTHING,
    Family.HEAT: frozenset({Family.HEAT, Family.POWER}) | _DAMAGE,
    Family.POWER: _EVERYTHING,
    Family.NVLINK: frozenset({Family.NVLINK}) | _DAMAGE,
    Family.STORAGE: frozenset({Family.STORAGE}) | _DAMAGE,
}
"""What is wrong with a wide part -> the trouble on its nodes that this explains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlace:
    """One place whose nodes show the same trouble."""

    suspect: Component
    nodes: frozenset[NodeName]
    """Those that show it."""
    node_count: int
    """How many stand there."""

    @property
    def coverage(self) -> float:
        return len(self.nodes) / self.node_count


_NAME_AT: Mapping[ComponentKind, Callable[[Place], str]] = {
    ComponentKind.RACK: attrgetter("rack"),
    ComponentKind.POWER_FEED: attrgetter("power_feed"),
    ComponentKind.LEAF_SWITCH: attrgetter("leaf_switch"),
    ComponentKind.NVLINK_DOMAIN: attrgetter("nvlink_domain"),
}
"""What a node shares with others, by kind."""


def nodes_at(suspect: Component, topology: Topology) -> frozenset[NodeName]:
    """Return the nodes that stand at a switch, rack, feed or domain; every node for what all of them share."""
    if suspect.kind in (ComponentKind.STORAGE, ComponentKind.FABRIC, ComponentKind.DRIVER):
        return frozenset(topology.places)
    name_at = _NAME_AT.get(suspect.kind)
    if name_at is None:
        return frozenset()
    return frozenset(node for node, place in topology.places.items() if name_at(place) == suspect.name)


def find_shared_place(family: Family, nodes: Collection[NodeName], topology: Topology) -> SharedPlace | None:
    """Return the place that explains the most of `nodes` best; None if none has enough of them.

    Of two that explain the same nodes the one with fewer others counts, and of two alike the narrower.
    """
    if len(set(nodes)) < MIN_NODE_COUNT:
        return None
    best: tuple[float, int, SharedPlace] | None = None
    for width, kind in enumerate(_PLACES.get(family, ())):
        by_name: dict[str, set[NodeName]] = {}
        for node in nodes:
            place = topology.places.get(node)
            name = "" if place is None else _NAME_AT[kind](place)
            if name:
                by_name.setdefault(name, set()).add(node)
        for name, found in sorted(by_name.items()):
            if len(found) < max(MIN_NODE_COUNT, MIN_EXPLAINED * len(set(nodes))):
                continue
            suspect = Component(kind=kind, name=name)
            shared = SharedPlace(suspect=suspect, nodes=frozenset(found), node_count=len(nodes_at(suspect, topology)))
            if shared.coverage < MIN_COVERAGE:
                continue
            score = len(found) * shared.coverage
            if best is None or (score, -width) > best[:2]:
                best = (score, -width, shared)
    return None if best is None else best[2]


def wide_suspect(finding: Finding) -> Component | None:
    """Return the wide part that a single finding names by itself; None if it is about a node or a job."""
    if finding.component is not None and finding.component.kind in WIDE_KINDS:
        return finding.component
    if finding.family is Family.STORAGE and not finding.is_secondary:
        return Component(kind=ComponentKind.STORAGE, name=SHARED_STORAGE)
    return None


def explains(suspect: Component, family_of_suspect: Family, finding: Finding, topology: Topology) -> bool:
    """Return whether trouble of a wide part explains a finding on one of the nodes there."""
    if finding.family not in _EXPLAINED.get(family_of_suspect, frozenset()):
        return False
    if finding.response in REPAIRS and not finding.is_lasting:
        return False  # What a GPU or its driver reported of itself holds, whatever befell its neighbours.
    place = topology.places.get(finding.node)
    if suspect.kind in (ComponentKind.STORAGE, ComponentKind.FABRIC):
        return finding.family is not Family.SILENCE
    name_at = _NAME_AT.get(suspect.kind)
    return place is not None and name_at is not None and name_at(place) == suspect.name
