"""The ledger's tables, one class a table. The chain is `entries`; `evidence`, `leases` and the like are no history.

Tables whose charter says *projection* are answers kept beside the chain for speed; the audit recomputes each.
Statements belong to the modules that use them; the migrations repeat all this on purpose, frozen in time.
"""

import re
from datetime import UTC, datetime
from typing import cast

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Named,
    Table,
    Text,
    TypedColumns,
)
from sqlalchemy.types import TypeDecorator

from ops_pipelines.core.identity import digest_of

metadata = MetaData()

_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")


def utc_text(moment: datetime) -> str:
    """Return `moment` in UTC with a fixed width, so that texts sort like times in every collation."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def identity_of(*parts: str) -> str:
    """Return one digest of texts that may be anything, for a unique index."""
    return digest_of(*(safe_text(part) for part in parts))


def safe_text(text: str) -> str:
    """Return `text` as every database stores it: NUL and lone surrogates become U+FFFD."""
    return _NOT_STORABLE.sub("\ufffd", text)


class UtcText(TypeDecorator[datetime]):
    """An aware datetime, kept as text: SQLite has no time type, and the text is what the chain hashes."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:
        return None if value is None else utc_text(value)

    def process_result_value(self, value: object, dialect: Dialect) -> datetime | None:
        return None if value is None else datetime.fromisoformat(cast("str", value))


class SafeText(TypeDecorator[str]):
    """Text from logs and people: it may hold NUL, which PostgreSQL refuses, and lone surrogates, which none encodes."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else safe_text(value)


_Sequence = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite makes only `INTEGER PRIMARY KEY` the row id itself; it holds 64 bits there."""


class EntryColumns(TypedColumns):
    """The chain. `seq` is set by the writer, not the database: a gap would be a broken chain."""

    seq: Named[int] = Column(_Sequence, primary_key=True, autoincrement=False)
    written_at: Named[datetime] = Column(UtcText())
    kind: Named[str] = Column(Text())
    actor: Named[str] = Column(SafeText())
    incident: Named[str | None] = Column(SafeText())
    body: Named[str] = Column(Text())
    previous_hash: Named[str] = Column(Text())
    entry_hash: Named[str] = Column(Text())


class DocumentColumns(TypedColumns):
    """Texts by their sha256, compressed with zlib."""

    digest: Named[str] = Column(Text(), primary_key=True)
    compressed: Named[bytes] = Column(LargeBinary())


class IncidentColumns(TypedColumns):
    """Projection: each incident as it is now. `number` counts them in the order first recorded, from 1."""

    incident: Named[str] = Column(SafeText(), primary_key=True)
    number: Named[int] = Column(BigInteger(), unique=True)
    is_open: Named[int] = Column(Integer())
    opened_at: Named[datetime] = Column(UtcText())
    changed_at: Named[datetime] = Column(UtcText())
    first_seq: Named[int] = Column(BigInteger())
    seq: Named[int] = Column(BigInteger())
    last_change_seq: Named[int] = Column(BigInteger())
    """The last entry about it that is in `chain.CHANGES`."""
    body: Named[str] = Column(Text())


class PlanColumns(TypedColumns):
    """Projection: each plan, never changed once written."""

    plan: Named[str] = Column(SafeText(), primary_key=True)
    seq: Named[int] = Column(BigInteger(), unique=True)
    body: Named[str] = Column(Text())


class ProofColumns(TypedColumns):
    """Projection: the newest proof of each plan."""

    plan: Named[str] = Column(SafeText(), primary_key=True)
    seq: Named[int] = Column(BigInteger(), unique=True)
    body: Named[str] = Column(Text())


class ApprovalColumns(TypedColumns):
    """Projection: each approval, by the entry that gave it."""

    seq: Named[int] = Column(BigInteger(), primary_key=True, autoincrement=False)
    expires_at: Named[datetime] = Column(UtcText(), index=True)
    body: Named[str] = Column(Text())


class ActionColumns(TypedColumns):
    """Projection: each action started, with what came of it since. The primary key is the idempotency key.

    Three lines of the chain may speak of it; `body` is that of the last.
    """

    key: Named[str] = Column(Text(), primary_key=True)
    incident: Named[str] = Column(SafeText())
    """Its cause: an incident, or a rollout."""
    node: Named[str | None] = Column(SafeText())
    """Null for what is done to no node."""
    begun_at: Named[datetime] = Column(UtcText(), index=True)
    begun_seq: Named[int] = Column(BigInteger(), unique=True)
    sent_seq: Named[int | None] = Column(BigInteger(), unique=True)
    finished_seq: Named[int | None] = Column(BigInteger(), unique=True)
    body: Named[str] = Column(Text())


class RefusalColumns(TypedColumns):
    """Projection: which (key, guardrail, reason) is already on record."""

    identity: Named[str] = Column(Text(), primary_key=True)
    seq: Named[int] = Column(BigInteger(), unique=True)


class RolloutColumns(TypedColumns):
    """Projection: each rollout as it is now. `number` counts them in the order opened, from 1."""

    rollout: Named[str] = Column(SafeText(), primary_key=True)
    number: Named[int] = Column(BigInteger(), unique=True)
    is_open: Named[int] = Column(Integer())
    changed_at: Named[datetime] = Column(UtcText(), index=True)
    """When its present state began."""
    plan: Named[str] = Column(SafeText(), index=True)
    plan_document: Named[str] = Column(Text())
    """Digest of the document that holds the plan."""
    first_seq: Named[int] = Column(BigInteger(), unique=True)
    seq: Named[int] = Column(BigInteger(), unique=True)
    """The last line that says something of the rollout itself, and not only of nodes in it."""
    body: Named[str] = Column(Text())


class RolloutNodeColumns(TypedColumns):
    """Projection: each node of each rollout as it is now."""

    rollout: Named[str] = Column(SafeText(), primary_key=True)
    node: Named[str] = Column(SafeText(), primary_key=True)
    stage: Named[str] = Column(Text())
    seq: Named[int] = Column(BigInteger())
    """The last line that says something of the node: one line may speak of many."""
    body: Named[str] = Column(Text())


class QuotaProposalColumns(TypedColumns):
    """Projection: each proposal of quotas as it is now. `number` counts them in the order kept, from 1."""

    proposal: Named[str] = Column(SafeText(), primary_key=True)
    number: Named[int] = Column(BigInteger(), unique=True)
    day: Named[str] = Column(Text())
    state: Named[str] = Column(Text(), index=True)
    document: Named[str] = Column(Text())
    """Digest of the document that holds the proposal itself, which never changes."""
    first_seq: Named[int] = Column(BigInteger(), unique=True)
    begun_seq: Named[int | None] = Column(BigInteger(), unique=True)
    """The last line that began to apply it: of two that were applied, the one with the larger number is the newer."""
    seq: Named[int] = Column(BigInteger())
    """The last line that says something of it: one line may supersede many."""
    body: Named[str] = Column(Text())


class EvidenceColumns(TypedColumns):
    """Observations as taken in."""

    seq: Named[int] = Column(_Sequence, primary_key=True, autoincrement=False)
    identity: Named[str] = Column(Text(), unique=True)
    """`identity_of` (source, position): both may be longer than an index of PostgreSQL can hold."""
    body: Named[str] = Column(Text())
    rule: Named[str | None] = Column(SafeText())
    """`history.rule_of`; null for what is never counted, and in rows of before version 0003."""
    observed_at: Named[datetime | None] = Column(UtcText())
    """Null where `rule` is."""


class RejectedColumns(TypedColumns):
    """The newest rows that could not be believed."""

    seq: Named[int] = Column(_Sequence, primary_key=True, autoincrement=False)
    identity: Named[str] = Column(Text(), unique=True)
    rejected_at: Named[datetime] = Column(UtcText())
    body: Named[str] = Column(Text())


class CursorColumns(TypedColumns):
    """Where reading of each source stopped."""

    source: Named[str] = Column(SafeText(), primary_key=True)
    position: Named[str] = Column(SafeText())
    moved_at: Named[datetime] = Column(UtcText())


class ConditionColumns(TypedColumns):
    """Conditions present at the last look at their source."""

    source: Named[str] = Column(SafeText(), primary_key=True)
    identity: Named[str] = Column(Text(), primary_key=True)
    body: Named[str] = Column(Text())


class LeaseColumns(TypedColumns):
    """Who may act, and until when: at most one row."""

    name: Named[str] = Column(Text(), primary_key=True)
    holder: Named[str] = Column(SafeText())
    token: Named[str] = Column(Text())
    expires_at: Named[datetime] = Column(UtcText())
    epoch: Named[int] = Column(BigInteger(), server_default="1")
    """Grows with each change of holder, and never falls."""
    taken_at: Named[datetime | None] = Column(UtcText())
    """When this epoch began; None: before this was written down."""


class IdentityColumns(TypedColumns):
    """Which ledger this is: one row, filled by who opens it first."""

    name: Named[str] = Column(Text(), primary_key=True)
    ledger: Named[str] = Column(Text())
    """Its id; what is beside the ledger names it too (`watch`)."""
    born_at: Named[datetime] = Column(UtcText())
    history_until: Named[datetime] = Column(UtcText())
    """What happened before is no evidence: the birth, or when a person last took it for the one to continue with."""


class HeartbeatColumns(TypedColumns):
    """The last tick of each beating process."""

    name: Named[str] = Column(SafeText(), primary_key=True)
    at: Named[datetime] = Column(UtcText())
    holder: Named[str] = Column(SafeText())
    note: Named[str] = Column(SafeText())
    mode: Named[str] = Column(Text())
    answers: Named[str] = Column(Text())
    """Canonical JSON: each source that was asked, with what went wrong or null."""
    is_lease_held: Named[int] = Column(Integer())


class NodeCheckColumns(TypedColumns):
    """Tests on nodes; what they found is a document, with the verdict, under its sha256."""

    key: Named[str] = Column(Text(), primary_key=True)
    node: Named[str] = Column(SafeText())
    number: Named[int] = Column(BigInteger())
    """Counts the tests of one node in the order in which they were kept, from 1."""
    suite: Named[str] = Column(SafeText())
    digest: Named[str] = Column(Text())
    is_well: Named[int] = Column(Integer())


class NoteColumns(TypedColumns):
    """The outbox: what is sent to whom, and what became of it. No history: what was sent is forgotten after a
    while.
    """

    key: Named[str] = Column(Text(), primary_key=True)
    number: Named[int] = Column(BigInteger(), unique=True)
    """Counts notes in the order in which they were handed in."""
    thread: Named[str] = Column(SafeText())
    audience: Named[str] = Column(Text())
    recipient: Named[str] = Column(SafeText())
    state: Named[str] = Column(Text())
    batch: Named[str | None] = Column(Text(), index=True)
    attempt_count: Named[int] = Column(Integer())
    next_at: Named[datetime] = Column(UtcText())
    sent_at: Named[datetime | None] = Column(UtcText(), index=True)
    receipt: Named[str] = Column(SafeText())
    problem: Named[str] = Column(SafeText())
    body: Named[str] = Column(Text())


entries = Table("entries", metadata, EntryColumns)
documents = Table("documents", metadata, DocumentColumns)
incidents = Table("incidents", metadata, IncidentColumns)
plans = Table("plans", metadata, PlanColumns)
proofs = Table("proofs", metadata, ProofColumns)
approvals = Table("approvals", metadata, ApprovalColumns)
actions = Table("actions", metadata, ActionColumns)
refusals = Table("refusals", metadata, RefusalColumns)
rollouts = Table("rollouts", metadata, RolloutColumns)
rollout_nodes = Table("rollout_nodes", metadata, RolloutNodeColumns)
quota_proposals = Table("quota_proposals", metadata, QuotaProposalColumns)
evidence = Table("evidence", metadata, EvidenceColumns)
rejected = Table("rejected", metadata, RejectedColumns)
cursors = Table("cursors", metadata, CursorColumns)
conditions = Table("conditions", metadata, ConditionColumns)
leases = Table("leases", metadata, LeaseColumns)
identity = Table("identity", metadata, IdentityColumns)
heartbeats = Table("heartbeats", metadata, HeartbeatColumns)
node_checks = Table("node_checks", metadata, NodeCheckColumns)
notes = Table("notes", metadata, NoteColumns)

Index("ix_actions_incident_node", actions.c.incident, actions.c.node)
Index("ix_entries_kind_seq", entries.c.kind, entries.c.seq)
Index("ix_entries_incident_seq", entries.c.incident, entries.c.seq)
Index("ix_evidence_rule_observed_at", evidence.c.rule, evidence.c.observed_at)
Index("ix_incidents_changed_at", incidents.c.changed_at)
Index("ix_incidents_open", incidents.c.is_open, incidents.c.number)
Index("ix_node_checks_node_number", node_checks.c.node, node_checks.c.number)
Index("ix_notes_state_number", notes.c.state, notes.c.number)
Index("ix_notes_thread_number", notes.c.thread, notes.c.number)
Index("ix_rollout_nodes_rollout_stage", rollout_nodes.c.rollout, rollout_nodes.c.stage)
Index("ix_rollouts_open", rollouts.c.is_open, rollouts.c.number)
