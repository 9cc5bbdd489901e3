"""The heartbeats in the ledger's database: one row a beating process, overwritten with each tick. No history.

What a beat means for the program's health is `core.health`'s business.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, insert, select, update

from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.health import BESIDE, WATCHER, Heartbeat
from ops_pipelines.core.policy import Mode
from ops_pipelines.resources.documents import decode, encode
from ops_pipelines.resources.ledger.tables import heartbeats, leases

TEXT_LENGTH = 500
"""Assumption: more than a person reads in a line. An error message may carry a whole answer of a server."""

_FORGOTTEN = timedelta(minutes=10)
"""Processes come and go: who watched beside another one this long ago is no row any more."""


def write_heartbeat(
    connection: Connection,
    *,
    name: str,
    holder: str,
    note: str,
    mode: Mode,
    answers: Mapping[str, str | None],
    now: datetime,
) -> None:
    """Remember a tick; of a process that another one keeps from acting only that it watches, beside the other's."""
    lease_holder = connection.execute(select(leases.c.holder).where(leases.c.expires_at > now)).scalar()
    connection.execute(
        delete(heartbeats).where(heartbeats.c.name.like(f"{WATCHER}{BESIDE}%"), heartbeats.c.at < now - _FORGOTTEN)
    )
    if lease_holder not in (None, holder):
        if name != WATCHER:
            return
        name = f"{name}{BESIDE}{holder}"[:TEXT_LENGTH]
    cut = {source: None if problem is None else problem[:TEXT_LENGTH] for source, problem in answers.items()}
    values = {
        "at": now,
        "holder": holder,
        "note": note[:TEXT_LENGTH],
        "mode": mode.value,
        "answers": encode(cut),
        "is_lease_held": int(lease_holder == holder),
    }
    if connection.execute(update(heartbeats).where(heartbeats.c.name == name).values(values)).rowcount == 0:
        connection.execute(insert(heartbeats), {"name": name, **values})


def read_heartbeats(connection: Connection) -> tuple[Heartbeat, ...]:
    """Return the last tick of every name, by name."""
    rows = connection.execute(select(heartbeats).order_by(heartbeats.c.name))
    return tuple(
        Heartbeat(
            name=row.name,
            at=row.at,
            holder=row.holder,
            note=row.note,
            mode=_mode(row.mode, name=row.name),
            answers=decode(dict[str, str | None], row.answers),
            is_lease_held=bool(row.is_lease_held),
        )
        for row in rows
    )


def _mode(word: str, *, name: str) -> Mode:
    try:
        return Mode(word)
    except ValueError as exc:
        raise LedgerError(
            f"the heartbeat of {name} names a mode {word!r} that this program does not know; "
            "another version wrote it: run that one here too"
        ) from exc
