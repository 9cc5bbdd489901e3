"""Which ledger this is, since when it lives, and how far it goes: what `seen` compares with what was seen before.

A ledger of before identities has one all the same: it follows from its first line, so that each of its copies has it.
"""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, insert, inspect, select, update

from ops_pipelines.resources.ledger.chain import GENESIS_HASH, read_head
from ops_pipelines.resources.ledger.tables import entries, identity, leases

_NAME = "ledger"
_ID_BYTES = 16
_IDENTITY = select(identity.c.ledger, identity.c.born_at, identity.c.history_until).where(identity.c.name == _NAME)
_FIRST = select(entries.c.written_at, entries.c.entry_hash).order_by(entries.c.seq).limit(1)
_HASH_AT = select(entries.c.entry_hash).where(entries.c.seq == bindparam("seq"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A ledger as it is now."""

    ledger: str | None
    """Its id; None: nobody has given it one."""
    head_seq: int
    head_hash: str


def ensure_identity(connection: Connection, now: datetime) -> None:
    """Give a ledger without an identity one: born now, or with its first line, if it has any."""
    if connection.execute(_IDENTITY).first() is not None:
        return
    first = connection.execute(_FIRST).one_or_none()
    ledger = _id_from_first_line(connection) or secrets.token_hex(_ID_BYTES)
    born_at = now if first is None else min(first.written_at, now)
    row = {"name": _NAME, "ledger": ledger, "born_at": born_at, "history_until": born_at}
    connection.execute(insert(identity), row)


def has_identity(connection: Connection) -> bool:
    """Return whether somebody has given the ledger an identity."""
    return connection.execute(_IDENTITY).first() is not None


def read_found(connection: Connection) -> Found:
    """Return what this ledger is."""
    row = connection.execute(_IDENTITY).one_or_none()
    head_seq, head_hash = read_head(connection)
    return Found(
        ledger=_id_from_first_line(connection) if row is None else row.ledger, head_seq=head_seq, head_hash=head_hash
    )


def read_found_of_any_version(connection: Connection) -> Found:
    """Return what a ledger is whose schema may be older than this program's."""
    if inspect(connection).has_table(identity.name):
        return read_found(connection)
    head_seq, head_hash = read_head(connection)
    return Found(ledger=_id_from_first_line(connection), head_seq=head_seq, head_hash=head_hash)


def read_hash_at(connection: Connection, seq: int) -> str | None:
    """Return the hash of one line; None if there is no such line."""
    return GENESIS_HASH if seq == 0 else connection.execute(_HASH_AT, {"seq": seq}).scalar()


def read_history_until(connection: Connection) -> datetime | None:
    """Return up to when what happened is history; None: nobody has said since when this ledger lives."""
    row = connection.execute(_IDENTITY).one_or_none()
    return None if row is None else row.history_until


def forget_the_past(connection: Connection, now: datetime) -> None:
    """Make history of whatever happened until now, and begin an epoch of the lease that nobody has had before.

    Dagster remembers the keys of runs, and an epoch is part of them: those of what is lost must not come again.
    """
    connection.execute(update(identity).where(identity.c.name == _NAME).values(history_until=now))
    row = connection.execute(select(leases.c.epoch).where(leases.c.name == "act")).one_or_none()
    epoch = max(int(now.timestamp()), 0 if row is None else row.epoch + 1)
    connection.execute(delete(leases))
    nobody = {"name": "act", "holder": "", "token": secrets.token_hex(_ID_BYTES), "expires_at": now, "epoch": epoch}
    connection.execute(insert(leases), {**nobody, "taken_at": now})


def _id_from_first_line(connection: Connection) -> str | None:
    first = connection.execute(_FIRST).one_or_none()
    if first is None:
        return None
    return hashlib.sha256(f"the ledger that begins with {first.entry_hash}".encode()).hexdigest()[: 2 * _ID_BYTES]
