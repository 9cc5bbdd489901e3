"""How many nodes of each part of the cluster could take a job, kept up to date while one sweep goes on.

To look at every node whenever a job starts takes too long on a large cluster: a node is counted anew only after it
changed. What could take a job is `occupancy.could_take`'s to say; this only counts it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ops_pipelines.core.identity import NodeName, Place
from ops_pipelines.domain.placement.occupancy import Occupancy, is_for
from ops_pipelines.domain.placement.standing import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Nodes that the same jobs may ask for."""

    example: Machine
    at_least: tuple[dict[str, int], ...]
    """By a number of GPUs: part -> how many of its nodes offer as many or more; parts with none are left out."""


@dataclass(slots=True, kw_only=True)
class _Counted:
    """How a node was counted last."""

    machine: Machine
    part: str
    kind: _Kind
    offered: int = 0
    is_broken: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_broken = self.offered != self.machine.gpu_count


class Room:
    """The parts of one sort, racks for instance, of a cluster that changes."""

    def __init__(self, occupancy: Occupancy, part_of: Callable[[Place], str]) -> None:
        self._occupancy = occupancy
        self._counted: dict[NodeName, _Counted] = {}
        self._broken: dict[str, int] = {}
        kinds: dict[tuple[frozenset[str] | None, str], _Kind] = {}
        most = max((each.gpu_count for each in occupancy.machines.values()), default=0)
        for node, machine in occupancy.machines.items():
            key = machine.partitions, machine.place.model
            if key not in kinds:
                kinds[key] = _Kind(example=machine, at_least=tuple({} for _ in range(most + 1)))
            self._counted[node] = counted = _Counted(machine=machine, part=part_of(machine.place), kind=kinds[key])
            _add(self._broken, counted.part, counted.is_broken)
        self._kinds = tuple(kinds.values())
        self._fitting: dict[tuple[str, str | None], tuple[_Kind, ...]] = {}
        self._touched: set[NodeName] = set(self._counted)

    def touch(self, nodes: Iterable[NodeName]) -> None:
        """Say that these nodes change now, or have changed; nodes that nobody knows are passed over."""
        self._touched.update(nodes)

    def counts(self, *, gpus: int, partition: str, model: str | None) -> Mapping[str, int]:
        """Return part -> its nodes that could give so many GPUs to a job; parts without one are left out.

        Not to be changed, nor kept beyond the next change.
        """
        self._catch_up()
        key = partition, model
        if key not in self._fitting:
            self._fitting[key] = tuple(
                kind for kind in self._kinds if is_for(kind.example, partition=partition, model=model)
            )
        found = [kind.at_least[gpus] for kind in self._fitting[key] if gpus < len(kind.at_least)]
        if len(found) == 1:
            return found[0]
        summed: dict[str, int] = {}
        for counts in found:
            for part, count in counts.items():
                _add(summed, part, count)
        return summed

    @property
    def broken(self) -> Mapping[str, int]:
        """Return part -> its nodes that do not offer all of their GPUs; parts without one are whole, and left out."""
        self._catch_up()
        return self._broken

    def _catch_up(self) -> None:
        for node in self._touched:
            counted = self._counted.get(node)
            if counted is None:
                continue
            was, now = counted.offered, self._occupancy.offered(node)
            if was == now:
                continue
            step = 1 if now > was else -1
            for gpus in range(min(was, now) + 1, max(was, now) + 1):
                _add(counted.kind.at_least[gpus], counted.part, step)
            is_broken = now != counted.machine.gpu_count
            _add(self._broken, counted.part, is_broken - counted.is_broken)
            counted.offered, counted.is_broken = now, is_broken
        self._touched.clear()


def _add(counts: dict[str, int], part: str, count: int) -> None:
    """Count a part up or down; one that comes to 0 is left out."""
    total = counts.get(part, 0) + count
    if total:
        counts[part] = total
    else:
        counts.pop(part, None)
