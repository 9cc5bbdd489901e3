"""Reservations of Slurm: what is asked for, and how `scontrol show reservation -o` is read. Pure.

Ours keep nodes free and let no job in, so three things were chosen by trying 22.05.8:

* `Users=` is our own user alone, and even his jobs start there only if they ask for the reservation by name.
* `Flags=FLEX`: such a job outlives the end of the reservation. Without the flag Slurm kills it (TIMEOUT at the end).
* Neither IGNORE_JOBS nor OVERLAP: a node that is busy or reserved otherwise is refused, and with it the whole batch.

Bookings announce maintenance, `Flags=MAINT,IGNORE_JOBS`: jobs that run are let be, and who would run into it waits
("ReqNodeNotAvail, May be reserved for other job"). MAINT lies over other reservations and they over it, on nodes that
are busy, drained or reserved. Nodes and end may change at any time, the beginning only until it has come ("Reservation
already started"): to put off one that is in force it is deleted and made anew.

Text, because 22.05 knows no other form: only administrators make reservations, so no user's text stands in it.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import Rejected
from ops_pipelines.core.sources import SourceNonsense
from ops_pipelines.resources.slurm.values import nodes_of

_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
_RECORD = re.compile(
    r"ReservationName=(?P<name>.+?) StartTime=(?P<start>\S+) EndTime=(?P<end>\S+) Duration=\S+ Nodes=(?P<nodes>\S*) .*"
)
_NONE = "No reservations in the system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Slurm keeps the record of one that is over for half a minute (seen: 26 s); its nodes take work at its end."""

    name: str
    nodes: frozenset[NodeName]
    starts_at: datetime
    ends_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationsAnswer:
    """What was said of reservations, and the lines that could not be believed."""

    reservations: tuple[Reservation, ...]
    rejected: tuple[Rejected, ...]


def checked_reservation_name(name: str) -> str:
    """Return `name`; raise ValueError unless it is a word that means nothing else to Slurm."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} names no reservation; expected 1 to 60 letters, digits, '_' and '-'")
    return name


def reservation_words(
    nodes: Sequence[NodeName], *, name: str, until: datetime, now: datetime, user_id: int, is_known: bool
) -> tuple[str, ...]:
    """Return the command that makes the reservation, or changes the one that is known under this name.

    Changing replaces the nodes in one step, and changes nothing if it is refused. Slurm counts in whole seconds.
    """
    if until.tzinfo is None or until.replace(microsecond=0) <= now:
        raise ValueError(f"the reservation would end at {until}, and it is {now}; give a later time with its zone")
    end = f"EndTime={until.astimezone(UTC).strftime(_TIME_FORMAT)}"
    what = (f"ReservationName={checked_reservation_name(name)}", f"Nodes={','.join(nodes)}")
    if is_known:
        return ("scontrol", "update", *what, end)
    return ("scontrol", "create", "reservation", *what, f"Users={user_id}", "StartTime=now", end, "Flags=FLEX")


def booking_words(
    nodes: Sequence[NodeName],
    *,
    name: str,
    begins_at: datetime,
    ends_at: datetime,
    now: datetime,
    user_id: int,
    known: Reservation | None,
) -> tuple[str, ...]:
    """Return the command that announces maintenance, or changes what is `known` under this name (`can_be_changed`)."""
    if begins_at.tzinfo is None or ends_at.tzinfo is None:
        raise ValueError(f"maintenance from {begins_at} to {ends_at} has no zone; give both times with theirs")
    if ends_at.replace(microsecond=0) <= max(begins_at, now).replace(microsecond=0):
        raise ValueError(f"maintenance from {begins_at} to {ends_at} is none at {now}; it must end later")
    start = "now" if begins_at <= now else begins_at.astimezone(UTC).strftime(_TIME_FORMAT)
    end = f"EndTime={ends_at.astimezone(UTC).strftime(_TIME_FORMAT)}"
    what = (f"ReservationName={checked_reservation_name(name)}", f"Nodes={','.join(nodes)}")
    if known is None:
        who = f"Users={user_id}"
        return ("scontrol", "create", "reservation", *what, who, f"StartTime={start}", end, "Flags=MAINT,IGNORE_JOBS")
    return ("scontrol", "update", *what, *((f"StartTime={start}",) if known.starts_at > now else ()), end)


def can_be_changed(known: Reservation, *, begins_at: datetime, now: datetime) -> bool:
    """Return whether what is known can become a booking from `begins_at`; else it is deleted first."""
    return known.ends_at > now and (known.starts_at > now or begins_at <= now)


def read_reservations_answer(text: str, *, source: str) -> ReservationsAnswer:
    """Return the reservations of `scontrol show reservation -o`, printed in UTC. Raises SourceNonsense on no text."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise SourceNonsense(f"{source} printed nothing; expected records or {_NONE!r}. Run it by hand")
    reservations: list[Reservation] = []
    rejected: list[Rejected] = []
    for position, line in enumerate(lines):
        if line.strip() == _NONE:
            continue
        try:
            reservations.append(_read_record(line))
        except ValueError as exc:
            rejected.append(Rejected(source=source, position=f"line {position + 1}", reason=str(exc), text=line[:500]))
    return ReservationsAnswer(reservations=tuple(reservations), rejected=tuple(rejected))


def reserved_nodes(reservations: Collection[Reservation], *, now: datetime) -> dict[NodeName, str]:
    """Return node -> reservation in force; of several the first by name, so that each reading says the same."""
    in_force = [each for each in reservations if each.starts_at <= now < each.ends_at]
    return {
        node: each.name for each in sorted(in_force, key=lambda each: each.name, reverse=True) for node in each.nodes
    }


def _read_record(line: str) -> Reservation:
    found = _RECORD.fullmatch(line)
    if found is None:
        raise ValueError("it is no record; expected ReservationName=, StartTime=, EndTime=, Duration= and Nodes=")
    return Reservation(
        name=found["name"],
        # A reservation may be of licences alone.
        nodes=nodes_of("" if found["nodes"] == "(null)" else found["nodes"]),
        starts_at=datetime.strptime(found["start"], _TIME_FORMAT).replace(tzinfo=UTC),
        ends_at=datetime.strptime(found["end"], _TIME_FORMAT).replace(tzinfo=UTC),
    )
