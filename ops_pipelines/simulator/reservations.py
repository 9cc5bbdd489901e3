"""Reservations of the pretended scheduler: nodes on which nobody's job starts, until they are given back or run out.

When jobs are placed is `controller`'s business, whether a reservation can be had `commands`'.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.domain.identity import NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Nodes kept free under a name."""

    name: str
    nodes: frozenset[NodeName]
    until: datetime


class Reservations:
    """Every reservation that holds now."""

    def __init__(self) -> None:
        self._by_name: dict[str, Reservation] = {}

    def all(self) -> tuple[Reservation, ...]:
        """Return them in the order of their names."""
        return tuple(self._by_name[name] for name in sorted(self._by_name))

    def reserve(self, nodes: Iterable[NodeName], *, name: str, until: datetime) -> Reservation:
        """Keep the nodes under the name, in place of what was kept under it before."""
        self._by_name[name] = Reservation(name=name, nodes=frozenset(nodes), until=until)
        return self._by_name[name]

    def give_back(self, name: str) -> None:
        """End the reservation, if there is one of this name."""
        self._by_name.pop(name, None)

    def run_out(self, reservation: Reservation) -> None:
        """End this very reservation; what has taken its place stays."""
        if self._by_name.get(reservation.name) is reservation:
            self.give_back(reservation.name)

    def name_of(self, node: NodeName) -> str | None:
        """Return under which name the node is kept free; None if it is not."""
        return next((each.name for each in self.all() if node in each.nodes), None)

    def keeps(self, nodes: Collection[NodeName], *, besides: str) -> frozenset[NodeName]:
        """Return those of the nodes that are kept free under another name than `besides`."""
        return frozenset(node for node in nodes if self.name_of(node) not in (None, besides))
