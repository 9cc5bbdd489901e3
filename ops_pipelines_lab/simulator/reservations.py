"""Reservations of the simulated scheduler: nodes on which nobody's job starts, now or at a time that was announced.

When jobs are placed is `controller`'s business, whether a reservation can be had `commands`'.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.identity import NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Nodes kept free under a name."""

    name: str
    nodes: frozenset[NodeName]
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """Maintenance that was announced: what runs is let be, what would run into it does not start."""

    name: str
    nodes: frozenset[NodeName]
    begins_at: datetime
    ends_at: datetime


class Reservations:
    """Every reservation that holds now, and every booking that is not over. They may lie over one another."""

    def __init__(self) -> None:
        self._by_name: dict[str, Reservation] = {}
        self._bookings: dict[str, Booking] = {}

    def book(self, booking: Booking) -> None:
        """Announce maintenance, in place of what was announced under its name before."""
        self._bookings[booking.name] = booking

    def bookings(self) -> tuple[Booking, ...]:
        """Return them in the order of their names."""
        return tuple(self._bookings[name] for name in sorted(self._bookings))

    def booking_of(self, node: NodeName, *, at: datetime) -> str | None:
        """Return the name of a booking that the node is in by now; None if it is in none."""
        return next(
            (each.name for each in self.bookings() if node in each.nodes and each.begins_at <= at < each.ends_at), None
        )

    def booked(self, *, begins_at: datetime, ends_at: datetime | None) -> frozenset[NodeName]:
        """Return the nodes on which a job would run into a booking; `ends_at` None: nobody knows when it would end."""
        return frozenset(
            node
            for each in self._bookings.values()
            if each.ends_at > begins_at and (ends_at is None or ends_at > each.begins_at)
            for node in each.nodes
        )

    def end_booking(self, booking: Booking) -> None:
        """End this very booking; what has taken its place stays."""
        if self._bookings.get(booking.name) is booking:
            del self._bookings[booking.name]

    def all(self) -> tuple[Reservation, ...]:
        """Return them in the order of their names."""
        return tuple(self._by_name[name] for name in sorted(self._by_name))

    def reserve(self, nodes: Iterable[NodeName], *, name: str, until: datetime) -> Reservation:
        """Keep the nodes under the name, in place of what was kept under it before."""
        self._by_name[name] = Reservation(name=name, nodes=frozenset(nodes), until=until)
        return self._by_name[name]

    def give_back(self, name: str) -> None:
        """End the reservation or the booking, if there is one of this name."""
        self._by_name.pop(name, None)
        self._bookings.pop(name, None)

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
