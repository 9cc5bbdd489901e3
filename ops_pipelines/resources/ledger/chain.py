"""The chain itself: how a line is hashed, appended and read, the bodies of lines that record no domain value, and which
ledger this is: its id, since when it lives, how far it goes.

What follows from the lines is `state`'s; whether they are whole is `audit`'s; whether this is the ledger that was seen
before is `watch`'s. A ledger older than identities has one all the same: it follows from its first line, so that each
of its copies has it.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, func, insert, inspect, select, union, update

from ops_pipelines.core.action import Action
from ops_pipelines.core.entries import Entry, EntryKind
from ops_pipelines.core.identity import ActionKey, Digest, IncidentId, PlanId
from ops_pipelines.core.proof import ActProof, QuotaProof, Refusal
from ops_pipelines.core.proposal import ProposalEvent, ProposalId, ProposalState, SentChange
from ops_pipelines.core.rollout import Rollout, RolloutNode
from ops_pipelines.resources.ledger.tables import entries, identity, incidents, leases, safe_text, utc_text

# -- lines --


GENESIS_HASH = "0" * 64
"""What the first line names as the hash before it."""

CHANGES = frozenset(
    {
        EntryKind.INCIDENT,
        EntryKind.PLAN,
        EntryKind.APPROVAL,
        EntryKind.ACTION_BEGUN,
        EntryKind.ACTION_RESENT,
        EntryKind.ACTION_SENT,
        EntryKind.ACTION_FINISHED,
    }
)
"""Lines that change an incident. A refusal does not: nothing happened, and a retry must not be provoked by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Body of a DECISION line; the incidents and plans follow as lines of their own."""

    inputs: Digest
    decided_through: int
    incidents: tuple[IncidentId, ...]
    plans: tuple[PlanId, ...]
    refusals: tuple[tuple[IncidentId, Refusal], ...] | None = None
    """Why the other open incidents got no plan; None where nothing was planned, and in lines of older versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedAction:
    """Body of an ACTION_REFUSED line."""

    action: Action
    refusal: Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Resent:
    """Body of an ACTION_RESENT line."""

    key: ActionKey
    at: datetime
    proof: ActProof | None = None
    """What was proved of it once more; None: a message, or sent by an older version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutChange:
    """Body of a ROLLOUT line: what changed of one rollout, as it is from now on."""

    rollout: Rollout | None
    """None where only nodes changed."""
    nodes: tuple[RolloutNode, ...]
    plan_document: Digest | None = None
    """Of the line that opens it: under which its plan is kept. Where its release is kept, the rollout says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalStanding:
    """How far a proposal of quotas is, and by whose word."""

    state: ProposalState
    since: datetime
    actor: str
    reason: str
    sent: tuple[SentChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalChange:
    """Body of a QUOTAS line: the state of one proposal from now on."""

    proposal: ProposalId
    event: ProposalEvent | None
    """None: it is new."""
    standing: ProposalStanding
    document: Digest | None = None
    """Of the line that brings it: under which it is kept."""
    superseded: tuple[ProposalId, ...] = ()
    """Whose place it takes."""
    proof: QuotaProof | None = None
    """Of the line that begins it; None: any other, or written by an older version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """Body of a RESUME_AUTOPILOT line."""

    actor: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """What is known of the time between a backup and its return."""

    backed_up_at: datetime
    head_seq: int
    head_hash: str
    lost_count: int | None
    """Lines that the ledger had beyond the backup; None: nobody knows."""
    lost_from: datetime | None = None
    lost_until: str = ""
    """When the last of them was seen, in words."""
    unknown_drains: tuple[str, ...] = ()
    """Nodes that carry our drain now, of which this ledger knows nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOrder:
    """Body of a LEDGER line."""

    actor: str
    at: datetime
    reason: str
    in_place_of: str
    """What had been seen, as it was kept; empty: nothing."""
    restored: Restoration | None = None
    """None: the ledger was taken as it is."""


def hash_entry(
    *, seq: int, written_at: str, kind: str, actor: str, incident: str | None, body: str, previous_hash: str
) -> str:
    """Return the sha256 over the canonical JSON list of all fields, in this order; `written_at` as stored."""
    line = json.dumps([seq, written_at, kind, actor, incident, body, previous_hash], separators=(",", ":"))
    return hashlib.sha256(line.encode()).hexdigest()


_NEW_LINES = insert(entries)
_CHANGED = update(incidents).where(incidents.c.incident == bindparam("its_name"))


class ChainWriter:
    """Appends lines within one writing transaction, which it must not outlive.

    Lines are hashed at once and written together when the `with` block ends: a storm has thousands. Until then nobody
    in the same transaction reads `entries`.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.head_seq, self._head_hash = read_head(connection)
        self._lines: list[dict[str, object]] = []
        self._changed: dict[str, int] = {}

    def __enter__(self) -> "ChainWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self._write()

    def append(self, body: str, *, kind: EntryKind, actor: str, incident: IncidentId | None, now: datetime) -> int:
        """Add one line with `body`, canonical JSON, and return its sequence number."""
        seq = self.head_seq + 1
        who = safe_text(actor)
        about = None if incident is None else IncidentId(safe_text(incident))
        entry_hash = hash_entry(
            seq=seq,
            written_at=utc_text(now),
            kind=kind.value,
            actor=who,
            incident=about,
            body=body,
            previous_hash=self._head_hash,
        )
        self._lines.append(
            {
                "seq": seq,
                "written_at": now,
                "kind": kind.value,
                "actor": who,
                "incident": about,
                "body": body,
                "previous_hash": self._head_hash,
                "entry_hash": entry_hash,
            }
        )
        if kind in CHANGES and about is not None:
            self._changed[about] = seq
        self.head_seq, self._head_hash = seq, entry_hash
        return seq

    def _write(self) -> None:
        if self._lines:
            self.connection.execute(_NEW_LINES, self._lines)
        if self._changed:
            self.connection.execute(
                _CHANGED,
                [{"its_name": about, "last_change_seq": seq} for about, seq in self._changed.items()],
            )


_HEAD = select(entries.c.seq, entries.c.entry_hash).order_by(entries.c.seq.desc()).limit(1)


def read_head(connection: Connection) -> tuple[int, str]:
    """Return sequence number and hash of the last line; of an empty chain 0 and the genesis hash."""
    row = connection.execute(_HEAD).one_or_none()
    return (0, GENESIS_HASH) if row is None else (row.seq, row.entry_hash)


def read_entries(connection: Connection, *, after: int, limit: int) -> tuple[Entry, ...]:
    """Return up to `limit` lines above `after`, in order."""
    return _to_entries(connection, select(entries).where(entries.c.seq > after).order_by(entries.c.seq).limit(limit))


_ABOUT = entries.alias("about")
_DECISION_BEFORE = entries.alias("decision_before")
_FOLLOWED = (
    select(func.max(_DECISION_BEFORE.c.seq))
    .where(_DECISION_BEFORE.c.kind == EntryKind.DECISION.value, _DECISION_BEFORE.c.seq < _ABOUT.c.seq)
    .scalar_subquery()
)
"""What a decision changes and plans is written behind it, in one transaction."""
_IS_ABOUT = _ABOUT.c.incident == bindparam("about_incident", type_=entries.c.incident.type)
# A union, because with OR SQLite scans the whole chain.
_ENTRIES_ABOUT = (
    select(entries)
    .where(
        entries.c.seq.in_(
            union(
                select(_ABOUT.c.seq).where(_IS_ABOUT),
                select(_FOLLOWED).where(_IS_ABOUT, _ABOUT.c.kind.in_([EntryKind.INCIDENT.value, EntryKind.PLAN.value])),
            )
        )
    )
    .order_by(entries.c.seq)
)


def read_entries_about(connection: Connection, incident: IncidentId) -> tuple[Entry, ...]:
    """Return the lines about one incident and the decisions before them, in order, as the port says."""
    return _to_entries(connection, _ENTRIES_ABOUT, {"about_incident": incident})


def _to_entries(
    connection: Connection, statement: Select[Any], values: Mapping[str, object] | None = None
) -> tuple[Entry, ...]:
    return tuple(
        Entry(
            seq=row.seq,
            written_at=row.written_at,
            kind=EntryKind(row.kind),
            actor=row.actor,
            incident=None if row.incident is None else IncidentId(row.incident),
            body=row.body,
            previous_hash=row.previous_hash,
            entry_hash=row.entry_hash,
        )
        for row in connection.execute(statement, values or {})
    )


# -- which ledger this is --


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
    """Return up to when what happened is history; None: nothing states since when this ledger lives."""
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
