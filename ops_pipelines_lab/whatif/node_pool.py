"""Which nodes the job holds, which wait as spares, and which are away for repair. Nothing is created or lost here."""

from collections import deque
from collections.abc import Collection, Sequence

from ops_pipelines.core.identity import NodeName


class NodePool:
    """Nodes by where they are. A seat of the job that no spare could fill stays vacant: then the job cannot start."""

    def __init__(self, names: Sequence[NodeName], *, job_node_count: int) -> None:
        self.job_nodes: list[NodeName] = list(names[:job_node_count])
        self._spares = deque(names[job_node_count:])
        self._away: set[NodeName] = set()
        self._seat_count = job_node_count

    @property
    def vacant_count(self) -> int:
        """Seats of the job without a node."""
        return self._seat_count - len(self.job_nodes)

    @property
    def spare_count(self) -> int:
        return len(self._spares)

    @property
    def away_count(self) -> int:
        return len(self._away)

    def holds(self, node: NodeName) -> bool:
        return node in self.job_nodes

    def at(self, seat: float) -> NodeName:
        """Return the job's node at a place from 0 to 1."""
        return self.job_nodes[min(int(seat * len(self.job_nodes)), len(self.job_nodes) - 1)]

    def send_away(self, nodes: Collection[NodeName]) -> tuple[NodeName, ...]:
        """Take nodes out of the job, to be repaired; return the spares that took their places."""
        for node in nodes:
            self.job_nodes.remove(node)
            self._away.add(node)
        return self._fill()

    def take_back(self, node: NodeName) -> tuple[NodeName, ...]:
        """A node is repaired: it is a spare, or takes a vacant seat at once; return who took a seat."""
        self._away.remove(node)
        self._spares.append(node)
        return self._fill()

    def _fill(self) -> tuple[NodeName, ...]:
        taken: list[NodeName] = []
        while self.vacant_count and self._spares:
            spare = self._spares.popleft()
            self.job_nodes.append(spare)
            taken.append(spare)
        return tuple(taken)
