"""Whether the ledger is whole: every hash recomputed from the first line, then every projection compared; here those of
rollouts and of proposals of quotas, of which one line speaks of many rows, the others in `projection_audit`.

Rows are streamed, so a million lines need no more memory than a thousand; of rollouts one is looked at after the other,
so memory grows with the nodes of one. A proposal is spoken of by its own lines and, at its end, by the line of the one
that took its place.

What cannot be seen from inside: lines cut off the end, and a chain rewritten from some line on with all later
hashes. Both show against a head hash that was kept elsewhere (`SqlLedger.head_hash`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

from sqlalchemy import Connection, RowMapping, Text, exists, select, type_coerce

from ops_pipelines.core.entries import ChainVerdict, EntryKind, LedgerError
from ops_pipelines.core.identity import Digest
from ops_pipelines.core.proposal import ProposalEvent, ProposalId
from ops_pipelines.core.release import Release
from ops_pipelines.core.rollout import Rollout, RolloutNode, RolloutPlan
from ops_pipelines.resources.documents import decode
from ops_pipelines.resources.ledger.chain import (
    GENESIS_HASH,
    ProposalChange,
    ProposalStanding,
    RolloutChange,
    hash_entry,
)
from ops_pipelines.resources.ledger.decisions import decode_proposal, superseded_by
from ops_pipelines.resources.ledger.evidence import read_document
from ops_pipelines.resources.ledger.projection_audit import (
    Fault,
    as_stored,
    differing,
    differs,
    invented,
    lost,
    pages,
    projection_faults,
)
from ops_pipelines.resources.ledger.rollouts import node_row, rollout_row
from ops_pipelines.resources.ledger.tables import entries, quota_proposals, rollout_nodes, rollouts

T = TypeVar("T", Rollout, RolloutNode, ProposalStanding)


def _says(row: RowMapping, value: T) -> bool:
    """Return whether the row's body says the value; read and not compared as text, which versions write differently."""
    try:
        return decode(type(value), row["body"]) == value
    except LedgerError:
        return False


# -- rollouts and their nodes --


@dataclass(slots=True, kw_only=True)
class _RolloutLines:
    """What the lines of one rollout say, the last of each."""

    first_seq: int
    plan_document: Digest | None
    rollout: Rollout
    seq: int
    nodes: dict[str, tuple[int, RolloutNode]] = field(default_factory=dict)


def rollout_faults(connection: Connection) -> Iterator[Fault]:
    """Yield every row that differs from its lines, every row without a line and every line without its row."""
    statement = select(
        rollouts.c.rollout,
        rollouts.c.number,
        rollouts.c.is_open,
        type_coerce(rollouts.c.changed_at, Text).label("changed_at"),
        rollouts.c.plan,
        rollouts.c.plan_document,
        rollouts.c.first_seq,
        rollouts.c.seq,
        rollouts.c.body,
    ).order_by(rollouts.c.number)
    rows = [row for page in pages(connection, statement) for row in page]
    last_first_seq = 0
    for number, row in enumerate(rows, start=1):
        told = _rollout_lines(connection, row["rollout"])
        if told is None:
            yield invented("rollout", row["rollout"], row["seq"])
            continue
        wrong = _differing_rollout(row, told, number=number)
        if wrong or told.first_seq <= last_first_seq:
            yield differs("rollout", row["rollout"], told.seq, wrong or ["number"])
        last_first_seq = told.first_seq
        yield from _plan_faults(connection, told)
        yield from _node_faults(connection, row["rollout"], told)
    yield from _ownerless(connection)
    yield from lost(connection, EntryKind.ROLLOUT, rollouts.c.rollout == entries.c.incident)


def _rollout_lines(connection: Connection, rollout: str) -> _RolloutLines | None:
    """Return what the chain says of one rollout; None if it never opened it."""
    statement = (
        select(entries.c.seq, entries.c.body)
        .where(entries.c.incident == rollout, entries.c.kind == EntryKind.ROLLOUT.value)
        .order_by(entries.c.seq)
    )
    told: _RolloutLines | None = None
    for page in pages(connection, statement):
        for line in page:
            change = decode(RolloutChange, line["body"])
            if change.rollout is not None and told is None:
                told = _RolloutLines(
                    first_seq=line["seq"],
                    plan_document=change.plan_document,
                    rollout=change.rollout,
                    seq=line["seq"],
                )
            if told is None:
                return None
            if change.rollout is not None:
                told.rollout, told.seq = change.rollout, line["seq"]
            told.nodes |= {each.node: (line["seq"], each) for each in change.nodes}
    return told


def _differing_rollout(row: RowMapping, told: _RolloutLines, *, number: int) -> list[str]:
    expected = {
        **as_stored(rollout_row(told.rollout)),
        "number": number,
        "plan_document": told.plan_document,
        "first_seq": told.first_seq,
        "seq": told.seq,
    }
    return differing(row, expected) + ([] if _says(row, told.rollout) else ["body"])


def _node_faults(connection: Connection, rollout: str, told: _RolloutLines) -> Iterator[Fault]:
    missing = dict(told.nodes)
    for page in pages(connection, select(rollout_nodes).where(rollout_nodes.c.rollout == rollout)):
        for row in page:
            name = f"{row['node']} of {rollout}"
            seq, node = missing.pop(row["node"], (row["seq"], None))
            if node is None:
                yield invented("node", name, seq)
                continue
            expected: Mapping[str, str | int] = {"stage": node_row(node)["stage"], "seq": seq}
            wrong = differing(row, expected) + ([] if _says(row, node) else ["body"])
            if wrong:
                yield differs("node", name, seq, wrong)
    for name, (seq, _) in missing.items():
        yield Fault(seq=seq, problem=f"what line {seq} (rollout) recorded of {name} is missing from its table")


def _plan_faults(connection: Connection, told: _RolloutLines) -> Iterator[Fault]:
    try:
        if told.plan_document is not None:
            decode(RolloutPlan, read_document(connection, told.plan_document))
        decode(Release, read_document(connection, told.rollout.release_digest))
    except LedgerError as problem:
        name = told.rollout.rollout
        yield Fault(seq=told.first_seq, problem=f"plan or release of {name} cannot be read: {problem}")


def _ownerless(connection: Connection) -> Iterator[Fault]:
    """Yield the nodes of rollouts that are not there."""
    has_rollout = exists().where(rollouts.c.rollout == rollout_nodes.c.rollout).correlate(rollout_nodes)
    statement = select(rollout_nodes.c.rollout, rollout_nodes.c.node, rollout_nodes.c.seq).where(~has_rollout)
    for row in connection.execute(statement):
        name = f"{row.node} of {row.rollout}"
        yield Fault(seq=row.seq, problem=f"node {name} is in its table, but its rollout is not")


# -- proposals of quotas --


@dataclass(slots=True, kw_only=True)
class _ProposalLines:
    """What the chain says of one proposal, the last of each."""

    number: int
    document: Digest
    first_seq: int
    seq: int
    standing: ProposalStanding
    begun_seq: int | None = None


def proposal_faults(connection: Connection) -> Iterator[Fault]:
    """Yield every row that differs from its lines, every row without a line and every line without its row."""
    told = _proposal_lines(connection)
    for page in pages(connection, select(quota_proposals).order_by(quota_proposals.c.number)):
        for row in page:
            its = told.get(row["proposal"])
            if its is None:
                yield invented("proposal", row["proposal"], row["seq"])
                continue
            wrong = _differing_proposal(row, its)
            if wrong:
                yield differs("proposal", row["proposal"], its.seq, wrong)
            yield from _proposal_document_faults(connection, row, its)
    yield from lost(connection, EntryKind.QUOTAS, quota_proposals.c.proposal == entries.c.incident)


def _proposal_lines(connection: Connection) -> dict[str, _ProposalLines]:
    """Read all lines about proposals, in order; a few a day, small ones."""
    statement = (
        select(entries.c.seq, entries.c.body).where(entries.c.kind == EntryKind.QUOTAS.value).order_by(entries.c.seq)
    )
    told: dict[str, _ProposalLines] = {}
    for page in pages(connection, statement):
        for line in page:
            _take(told, decode(ProposalChange, line["body"]), seq=line["seq"])
    return told


def _take(told: dict[str, _ProposalLines], change: ProposalChange, *, seq: int) -> None:
    known = told.get(change.proposal)
    if known is not None and change.event is ProposalEvent.RENEW and change.document is not None:
        told[change.proposal] = _ProposalLines(
            number=_newest(told) + 1, document=change.document, first_seq=seq, seq=seq, standing=change.standing
        )
    elif known is not None:
        known.seq, known.standing = seq, change.standing
        known.begun_seq = seq if change.event is ProposalEvent.BEGIN else known.begun_seq
    elif change.document is not None:
        told[change.proposal] = _ProposalLines(
            number=_newest(told) + 1, document=change.document, first_seq=seq, seq=seq, standing=change.standing
        )
    for name in change.superseded:
        if name in told:
            told[name].seq, told[name].standing = seq, superseded_by(change.proposal, change.standing)


def _newest(told: Mapping[str, _ProposalLines]) -> int:
    return max((each.number for each in told.values()), default=0)


def _differing_proposal(row: RowMapping, told: _ProposalLines) -> list[str]:
    expected = {
        "number": told.number,
        "state": told.standing.state.value,
        "document": told.document,
        "first_seq": told.first_seq,
        "begun_seq": told.begun_seq,
        "seq": told.seq,
    }
    return differing(row, expected) + ([] if _says(row, told.standing) else ["body"])


def _proposal_document_faults(connection: Connection, row: RowMapping, told: _ProposalLines) -> Iterator[Fault]:
    name = ProposalId(row["proposal"])
    try:
        proposal = decode_proposal(read_document(connection, told.document))
    except LedgerError as problem:
        yield Fault(seq=told.first_seq, problem=f"what {name} proposes cannot be read: {problem}")
        return
    if (proposal.proposal, proposal.day.isoformat()) != (name, row["day"]):
        yield differs("proposal", name, told.first_seq, ["day" if proposal.proposal == name else "document"])


# -- the whole ledger --


def verify(connection: Connection) -> ChainVerdict:
    """Return the first line that is not whole; a broken chain is reported before its projections are looked at."""
    count, head_hash, fault = _walk_chain(connection)
    if fault is None:
        faults = chain(projection_faults(connection), rollout_faults(connection), proposal_faults(connection))
        fault = min(faults, key=lambda found: found.seq, default=None)
    return ChainVerdict(
        entry_count=count,
        head_hash=head_hash,
        first_broken_seq=None if fault is None else fault.seq,
        problem="" if fault is None else fault.problem,
    )


def _walk_chain(connection: Connection) -> tuple[int, str, Fault | None]:
    """Return how many lines there are, the hash of the last, and the first fault."""
    # written_at as stored: a time that cannot be parsed is a fault, not an error.
    statement = select(
        entries.c.seq,
        type_coerce(entries.c.written_at, Text).label("written_at"),
        entries.c.kind,
        entries.c.actor,
        entries.c.incident,
        entries.c.body,
        entries.c.previous_hash,
        entries.c.entry_hash,
    ).order_by(entries.c.seq)
    count = 0
    head_hash = GENESIS_HASH
    fault: Fault | None = None
    for page in pages(connection, statement):
        for line in page:
            count += 1
            if fault is None:
                fault = _judge_line(line, expected_seq=count, expected_previous=head_hash)
            head_hash = line["entry_hash"]
    return count, head_hash, fault


def _judge_line(line: RowMapping, *, expected_seq: int, expected_previous: str) -> Fault | None:
    seq = line["seq"]
    if seq < expected_seq:
        return Fault(seq=seq, problem=f"line {seq} was inserted; sequence numbers begin at 1")
    if seq > expected_seq:
        return Fault(seq=expected_seq, problem=f"line {expected_seq} is missing; the next one there is {seq}")
    if line["previous_hash"] != expected_previous:
        return Fault(seq=seq, problem=f"line {seq} does not follow the one before it: one was replaced or moved")
    try:
        entry_hash = hash_entry(
            seq=seq,
            written_at=line["written_at"],
            kind=line["kind"],
            actor=line["actor"],
            incident=line["incident"],
            body=line["body"],
            previous_hash=line["previous_hash"],
        )
    except (TypeError, UnicodeEncodeError):  # SQLite lets anybody put bytes into a text column
        entry_hash = ""
    if line["entry_hash"] != entry_hash:
        return Fault(seq=seq, problem=f"line {seq} was changed after it was written: its hash does not fit it")
    return None
