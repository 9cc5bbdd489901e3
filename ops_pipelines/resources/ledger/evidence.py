"""The ledger's ordinary tables: documents, evidence with its cursors, present conditions, rejected rows, the lease, and
the tests on nodes.

None of this is history: the chain names documents by digest and evidence by sequence number. Notes and heartbeats are
`outbox`'s.

Tests on nodes are one row a run, its document under its sha256. They stand in the order in which we kept them: the
times in a document are the node's, whose clock may be broken too. The verdict is in the document as well: a row
that was changed behind our back is an error when it is read. What a verdict rests on is `core.node_tests`'.
"""

import hashlib
import secrets
import zlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from sqlalchemy import ColumnElement, Connection, Integer, bindparam, delete, func, insert, select, update

from ops_pipelines.core.entries import Evidence, HeldLease, LedgerDamaged, LedgerError
from ops_pipelines.core.identity import Digest, NodeName
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.core.observation import Observation, Rejected, as_history, is_history
from ops_pipelines.observe.repeated import rule_of
from ops_pipelines.resources.documents import decode, decode_all, encode, keep_texts_of
from ops_pipelines.resources.ledger.chain import read_history_until
from ops_pipelines.resources.ledger.database import insert_many, known_among
from ops_pipelines.resources.ledger.tables import (
    conditions,
    cursors,
    documents,
    evidence,
    identity_of,
    leases,
    node_checks,
    rejected,
)

REJECTED_KEPT_COUNT = 10_000
"""Assumption: enough to see what is wrong with a source. One that sends nothing but rubbish must not fill the disk."""
REJECTED_TEXT_LENGTH = 2_000
"""Assumption: a kernel line is at most 1 KiB; more than twice that is no line that a person reads."""
_LEASE = "act"
# Statements that every pass asks dozens of times stand here: to build one costs as much as to ask it.
_DOCUMENT = select(documents.c.digest).where(documents.c.digest == bindparam("digest"))
_NEW_DOCUMENT = insert(documents)
_CURSOR = select(cursors.c.position).where(cursors.c.source == bindparam("source"))
_NEW_CURSOR = insert(cursors)
_MOVED = update(cursors).where(cursors.c.source == bindparam("its_source"))
_REMEMBERED = select(conditions.c.identity).where(conditions.c.source == bindparam("source"))
_CONDITIONS = select(conditions.c.body)
_NEW_CONDITIONS = insert(conditions)
_CONDITION_OVER = delete(conditions).where(
    conditions.c.source == bindparam("its_source"), conditions.c.identity == bindparam("its_identity")
)
_EVIDENCE_HEAD = select(func.max(evidence.c.seq))
_EVIDENCE_AFTER = (
    select(evidence.c.seq, evidence.c.body)
    .where(evidence.c.seq > bindparam("after"))
    .order_by(evidence.c.seq)
    .limit(bindparam("most", type_=Integer))
)
_REJECTED_HEAD = select(func.max(rejected.c.seq))
_REJECTED_UNTIL = delete(rejected).where(rejected.c.seq <= bindparam("last"))
_LEASE_ROW = select(leases).where(leases.c.name == _LEASE)
_LEASE_HELD = _LEASE_ROW.where(leases.c.expires_at > bindparam("now"))
_RENEWED = update(leases).where(leases.c.name == _LEASE)
_LEASE_RUNNING = select(leases.c.token).where(leases.c.name == _LEASE, leases.c.expires_at > bindparam("now"))
T = TypeVar("T")


# -- documents --------------------------------------------------------------------------------------------------------


def digest_document(document: str) -> Digest:
    """Return the sha256 of the document's UTF-8 bytes."""
    try:
        return Digest(hashlib.sha256(document.encode()).hexdigest())
    except UnicodeEncodeError as exc:
        raise LedgerError(f"a document must be valid text: {exc}; `documents.encode` makes such") from exc


def has_document(connection: Connection, digest: Digest) -> bool:
    """Return whether the document is kept already."""
    return connection.execute(_DOCUMENT, {"digest": digest}).first() is not None


def write_document(connection: Connection, digest: Digest, document: str) -> None:
    """Keep a document unless it is kept already."""
    if not has_document(connection, digest):
        row = {"digest": digest, "compressed": zlib.compress(document.encode())}
        connection.execute(_NEW_DOCUMENT, row)


def read_document(connection: Connection, digest: Digest) -> str:
    """Return the document; raise LedgerError if there is none, or its content no longer fits the digest."""
    compressed = connection.execute(select(documents.c.compressed).where(documents.c.digest == digest)).scalar()
    if compressed is None:
        raise LedgerError(f"there is no document {digest}; it was never stored in this ledger")
    try:
        document = zlib.decompress(compressed).decode()
    except (zlib.error, UnicodeDecodeError) as exc:
        raise LedgerError(f"document {digest} is damaged ({exc}); restore the ledger from a backup") from exc
    if digest_document(document) != digest:
        raise LedgerError(f"document {digest} was changed after it was stored; restore the ledger from a backup")
    return document


# -- evidence ---------------------------------------------------------------------------------------------------------


keep_texts_of(Observation)


def read_cursor(connection: Connection, source: str) -> str | None:
    """Return where reading of `source` stopped."""
    return connection.execute(_CURSOR, {"source": source}).scalar()


def move_cursor(connection: Connection, source: str, position: str, *, now: datetime) -> None:
    """Remember where reading of `source` stopped; write nothing if it did not move."""
    before = read_cursor(connection, source)
    if before is None:
        connection.execute(_NEW_CURSOR, {"source": source, "position": position, "moved_at": now})
    elif before != position:
        connection.execute(_MOVED, {"its_source": source, "position": position, "moved_at": now})


def write_evidence(connection: Connection, observations: Iterable[Observation]) -> int:
    """Insert what is new by (source, position) and return how many that were; the first of two alike counts."""
    by_identity: dict[str, Observation] = {}
    for observation in observations:
        by_identity.setdefault(identity_of(observation.source, observation.position), observation)
    new = _without_known(connection, evidence.c.identity, by_identity)
    if not new:
        return 0
    seq = connection.execute(_EVIDENCE_HEAD).scalar() or 0
    rows = [
        {"seq": seq + offset, "identity": identity, "body": encode(observation), **_counted_by(observation)}
        for offset, (identity, observation) in enumerate(new.items(), start=1)
    ]
    insert_many(connection, evidence, rows)
    return len(rows)


def without_history(
    connection: Connection, observations: Iterable[Observation]
) -> tuple[tuple[Observation, ...], tuple[Rejected, ...]]:
    """Return what happened since this ledger lives, and the rest as rejected: it was another's to act on."""
    listed, until = tuple(observations), read_history_until(connection)
    if until is None:
        return listed, ()
    past = tuple(as_history(each) for each in listed if is_history(each, until))
    return tuple(each for each in listed if not is_history(each, until)) if past else listed, past


def _counted_by(observation: Observation) -> dict[str, str | datetime | None]:
    rule = rule_of(observation)
    return {"rule": rule, "observed_at": None if rule is None else observation.observed_at}


_LONGEST_READING = timedelta(seconds=60)
"""# Assumption: no reading takes longer; the scheduler and the metrics have 4 and 10 s to answer."""
_AS_OF = "conditions/"
"""Before the name of a source: when the reading began that its remembered conditions are of."""


def write_conditions(connection: Connection, source: str, present: Collection[Observation], *, now: datetime) -> int:
    """Make `present` the remembered conditions of `source`; those that begin become evidence. Return how many began.

    Several processes read one source: a reading that began before the one that is remembered changes nothing. One that
    is far older is none: the clock was set back, and nobody must be blind until it has caught up.
    """
    as_of = read_cursor(connection, _AS_OF + source)
    if as_of is not None and timedelta(0) < datetime.fromisoformat(as_of) - now <= _LONGEST_READING:
        return 0
    move_cursor(connection, _AS_OF + source, now.isoformat(), now=now)
    now_by_identity: dict[str, Observation] = {}
    for observation in present:
        now_by_identity.setdefault(identity_of(observation.source, observation.position), observation)
    remembered = set(connection.execute(_REMEMBERED, {"source": source}).scalars())
    begun = {identity: item for identity, item in now_by_identity.items() if identity not in remembered}
    for gone in remembered - now_by_identity.keys():
        connection.execute(_CONDITION_OVER, {"its_source": source, "its_identity": gone})
    if begun:
        rows = [{"source": source, "identity": key, "body": encode(item)} for key, item in begun.items()]
        connection.execute(_NEW_CONDITIONS, rows)
    write_evidence(connection, (replace(item, position=_position_of_begin(item)) for item in begun.values()))
    return len(begun)


def change_conditions(
    connection: Connection, source: str, *, begun: Collection[Observation], ended: Collection[str], now: datetime
) -> int:
    """Remember what began and forget what ended; return how many pieces of evidence were new.

    What lasts is evidence however long ago it began; what is over may be history.
    """
    over = {each.position for each in begun} & set(ended)
    _, past = without_history(connection, [each for each in begun if each.position in over])
    write_rejected(connection, past, now=now)
    history = {each.position for each in past}
    begun = [each for each in begun if each.position not in history]
    remembered = set(connection.execute(_REMEMBERED, {"source": source}).scalars())
    by_identity: dict[str, Observation] = {}
    for observation in begun:
        by_identity.setdefault(identity_of(observation.source, observation.position), observation)
    gone = {identity_of(source, position) for position in ended}
    rows = [
        {"source": source, "identity": key, "body": encode(item)}
        for key, item in by_identity.items()
        if key not in remembered | gone
    ]
    if rows:
        connection.execute(_NEW_CONDITIONS, rows)
    for identity in sorted(gone & remembered):
        connection.execute(_CONDITION_OVER, {"its_source": source, "its_identity": identity})
    new = (replace(item, position=_position_of_begin(item)) for item in by_identity.values())
    return write_evidence(connection, new)


def _position_of_begin(condition: Observation) -> str:
    return f"{condition.position}@{condition.observed_at.astimezone(UTC).isoformat()}"


def read_conditions(connection: Connection) -> tuple[Observation, ...]:
    """Return every remembered condition, those that began first first."""
    bodies = connection.execute(_CONDITIONS).scalars()
    return tuple(
        sorted(decode_all(Observation, bodies), key=lambda item: (item.observed_at, item.source, item.position))
    )


def read_evidence(connection: Connection, *, after: int, limit: int) -> tuple[Evidence, ...]:
    """Return up to `limit` observations above `after`, in order."""
    rows = [(seq, body) for seq, body in connection.execute(_EVIDENCE_AFTER, {"after": after, "most": limit})]
    observations = decode_all(Observation, [body for _, body in rows])
    return tuple(Evidence(seq=seq, observation=told) for (seq, _), told in zip(rows, observations, strict=True))


def read_evidence_since(
    connection: Connection, since: datetime, *, rules: Collection[str], limit: int
) -> tuple[Evidence, ...]:
    """Return the newest `limit` observations of each rule, by the time at which they happened.

    A query a rule: each goes along the index backwards and ends at its limit, however much a storm has left there.
    """
    rows: list[tuple[datetime | None, int, str]] = []
    for rule in sorted(set(rules)):
        statement = (
            select(evidence.c.observed_at, evidence.c.seq, evidence.c.body)
            .where(evidence.c.rule == rule, evidence.c.observed_at >= since)
            .order_by(evidence.c.observed_at.desc(), evidence.c.seq.desc())
            .limit(limit)
        )
        rows += [(at, seq, body) for at, seq, body in connection.execute(statement)]
    rows.sort(key=lambda row: (row[0] or since, row[1]))
    observations = decode_all(Observation, [body for _, _, body in rows])
    return tuple(Evidence(seq=seq, observation=told) for (_, seq, _), told in zip(rows, observations, strict=True))


# -- rejected rows ----------------------------------------------------------------------------------------------------


def write_rejected(connection: Connection, refused: Collection[Rejected], *, now: datetime) -> None:
    """Keep what could not be believed, each once and cut to a bounded length; forget the oldest beyond the bound."""
    by_identity = {
        identity_of(row.source, row.position, row.reason, row.text): Rejected(
            source=row.source[:REJECTED_TEXT_LENGTH],
            position=row.position[:REJECTED_TEXT_LENGTH],
            reason=row.reason[:REJECTED_TEXT_LENGTH],
            text=row.text[:REJECTED_TEXT_LENGTH],
        )
        for row in refused
    }
    new = _without_known(connection, rejected.c.identity, by_identity)
    seq = connection.execute(_REJECTED_HEAD).scalar() or 0
    rows = [
        {"seq": seq + offset, "identity": identity, "rejected_at": now, "body": encode(row)}
        for offset, (identity, row) in enumerate(new.items(), start=1)
    ]
    if rows:
        insert_many(connection, rejected, rows)
        connection.execute(_REJECTED_UNTIL, {"last": seq + len(rows) - REJECTED_KEPT_COUNT})


def read_rejected(connection: Connection, *, limit: int) -> tuple[Rejected, ...]:
    """Return the newest rejected rows, newest first."""
    statement = select(rejected.c.body).order_by(rejected.c.seq.desc()).limit(limit)
    return tuple(decode(Rejected, body) for body in connection.execute(statement).scalars())


# -- lease ------------------------------------------------------------------------------------------------------------


def take_lease(
    connection: Connection, *, holder: str, ttl: timedelta, is_gone: Callable[[str], bool], now: datetime
) -> str | None:
    """Take or renew the lease and return its token; None while another holder's runs.

    The same holder keeps its token even over a gap: nobody else held the lease in between, or the row would say so.
    Each other holder begins a new epoch, which its token carries. A holder that `is_gone` is not waited for.
    """
    row = connection.execute(_LEASE_ROW).one_or_none()
    if row is not None and row.holder == holder:
        connection.execute(_RENEWED, {"expires_at": now + ttl})
        return str(row.token)
    if row is not None and row.expires_at > now and not is_gone(row.holder):
        return None
    epoch = 1 if row is None else row.epoch + 1
    token = f"{epoch}-{secrets.token_hex(16)}"
    values = {"holder": holder, "token": token, "expires_at": now + ttl, "epoch": epoch, "taken_at": now}
    if row is None:
        connection.execute(insert(leases), {"name": _LEASE, **values})
    else:
        connection.execute(_RENEWED, values)
    return token


def read_held_lease(connection: Connection, now: datetime) -> HeldLease | None:
    """Return the lease that runs at `now`, with who holds it."""
    row = connection.execute(_LEASE_HELD, {"now": now}).one_or_none()
    if row is None:
        return None
    return HeldLease(
        token=row.token, holder=row.holder, epoch=row.epoch, taken_at=row.taken_at, expires_at=row.expires_at
    )


def read_lease(connection: Connection, now: datetime) -> str | None:
    """Return the token of the lease that runs at `now`; it ends at, and not after, its expiry."""
    return connection.execute(_LEASE_RUNNING, {"now": now}).scalar()


def _without_known(connection: Connection, column: ColumnElement[str], items: dict[str, T]) -> dict[str, T]:
    known = known_among(connection, column, items)
    return {key: item for key, item in items.items() if key not in known}


# -- tests on nodes --


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCheck:
    """The document: what the tests found, and what we made of it."""

    check: NodeCheck
    is_well: bool


def write_check(connection: Connection, check: NodeCheck, *, is_well: bool) -> Digest:
    """Keep one run of tests and return its document's digest; of a key that is known, the digest of the first."""
    known = connection.execute(select(node_checks.c.digest).where(node_checks.c.key == check.key)).scalar()
    if known is not None:
        return Digest(known)
    document = encode(JudgedCheck(check=check, is_well=is_well))
    digest = digest_document(document)
    write_document(connection, digest, document)
    of_node = select(func.max(node_checks.c.number)).where(node_checks.c.node == check.node)
    row = {
        "key": check.key,
        "node": check.node,
        "number": (connection.execute(of_node).scalar() or 0) + 1,
        "suite": check.suite,
        "digest": digest,
        "is_well": int(is_well),
    }
    connection.execute(insert(node_checks), row)
    return digest


def read_checks(connection: Connection, node: NodeName, *, limit: int) -> tuple[tuple[NodeCheck, bool], ...]:
    """Return the tests of a node that were kept last, newest first, with their verdicts.

    Raises LedgerDamaged if a row and its document differ.
    """
    statement = select(node_checks).where(node_checks.c.node == node).order_by(node_checks.c.number.desc()).limit(limit)
    found: list[tuple[NodeCheck, bool]] = []
    for row in connection.execute(statement).all():
        judged = decode(JudgedCheck, read_document(connection, Digest(row.digest)))
        if (judged.check.key, judged.is_well) != (row.key, bool(row.is_well)):
            raise LedgerDamaged(
                f"the tests {row.key} of a node were changed after they were kept: row and document {row.digest} "
                "differ; restore the ledger from a backup"
            )
        found.append((judged.check, judged.is_well))
    return tuple(found)
