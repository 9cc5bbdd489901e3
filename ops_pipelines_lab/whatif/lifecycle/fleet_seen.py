"""The simulated nodes as production sees a fleet: made when asked for, and made again when something changed."""

from collections.abc import Iterator, Mapping

from ops_pipelines.core.identity import NodeName, Place
from ops_pipelines.core.release import Component
from ops_pipelines.rollouts.fleet import FleetNode
from ops_pipelines_lab.whatif.lifecycle.gate_record import name_of, number_of, time_of
from ops_pipelines_lab.whatif.lifecycle.nodes import MODELS
from ops_pipelines_lab.whatif.lifecycle.world import World

_Seen = tuple[float | None, bool, bool]
_PARTITIONS = tuple(frozenset({each}) for each in MODELS)
_VERSIONS = {Component.DRIVER: "1"}


class FleetSeen(Mapping[NodeName, FleetNode]):
    """Every node as it is now, by its name."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[NodeName, tuple[_Seen, FleetNode]] = {}
        racks = world.site.racks_per_leaf
        self._places = [
            Place(rack=f"r{each.rack}", nvlink_domain=name_of(each.number), leaf_switch=f"s{each.rack // racks}")
            for each in world.nodes
        ]

    def __getitem__(self, name: NodeName) -> FleetNode:
        node = self._world.nodes[number_of(name)]
        seen = (None if node.job is None else node.job.ends_by, node.is_out, node.is_drained)
        known = self._known.get(name)
        if known is None or known[0] != seen:
            known = (seen, self._look_at(node.number, name, seen))
            self._known[name] = known
        return known[1]

    def __iter__(self) -> Iterator[NodeName]:
        return (name_of(each.number) for each in self._world.nodes)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name[:1] == "n" and 0 <= int(name[1:]) < len(self._places)

    def _look_at(self, number: int, name: NodeName, seen: _Seen) -> FleetNode:
        ends_by, is_out, is_drained = seen
        model = self._world.nodes[number].model
        return FleetNode(
            node=name,
            model=MODELS[model],
            place=self._places[number],
            gpu_count=self._world.site.gpus_per_node,
            versions=_VERSIONS,
            is_in_service=not (is_out or is_drained),
            free_at=None if ends_by is None else time_of(ends_by),
            is_idle=ends_by is None,
            partitions=_PARTITIONS[model],
            is_in_hand=is_drained,
        )
