"""Whether each row of a proposal of quotas says what the chain says of it, and its document is there.

A proposal is spoken of by its own lines and, at its end, by the line of the one that took its place.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, select

from ops_pipelines.core.entries import EntryKind, LedgerError
from ops_pipelines.core.identity import Digest
from ops_pipelines.core.proposal import ProposalEvent, ProposalId
from ops_pipelines.resources.documents import decode
from ops_pipelines.resources.ledger.chain import ProposalChange, ProposalStanding
from ops_pipelines.resources.ledger.evidence import read_document
from ops_pipelines.resources.ledger.projection_audit import Fault, differing, differs, invented, lost, pages
from ops_pipelines.resources.ledger.proposals import decode_proposal, superseded_by
from ops_pipelines.resources.ledger.tables import entries, quota_proposals


@dataclass(slots=True, kw_only=True)
class _Told:
    """What the chain says of one proposal, the last of each."""

    number: int
    document: Digest
    first_seq: int
    seq: int
    standing: ProposalStanding
    begun_seq: int | None = None


def proposal_faults(connection: Connection) -> Iterator[Fault]:
    """Yield every row that differs from its lines, every row without a line and every line without its row."""
    told = _told(connection)
    for page in pages(connection, select(quota_proposals).order_by(quota_proposals.c.number)):
        for row in page:
            its = told.get(row["proposal"])
            if its is None:
                yield invented("proposal", row["proposal"], row["seq"])
                continue
            wrong = _differing(row, its)
            if wrong:
                yield differs("proposal", row["proposal"], its.seq, wrong)
            yield from _document_faults(connection, row, its)
    yield from lost(connection, EntryKind.QUOTAS, quota_proposals.c.proposal == entries.c.incident)


def _told(connection: Connection) -> dict[str, _Told]:
    """Read all lines about proposals, in order; a few a day, small ones."""
    statement = (
        select(entries.c.seq, entries.c.body).where(entries.c.kind == EntryKind.QUOTAS.value).order_by(entries.c.seq)
    )
    told: dict[str, _Told] = {}
    for page in pages(connection, statement):
        for line in page:
            _take(told, decode(ProposalChange, line["body"]), seq=line["seq"])
    return told


def _take(told: dict[str, _Told], change: ProposalChange, *, seq: int) -> None:
    known = told.get(change.proposal)
    if known is not None and change.event is ProposalEvent.RENEW and change.document is not None:
        told[change.proposal] = _Told(
            number=_newest(told) + 1, document=change.document, first_seq=seq, seq=seq, standing=change.standing
        )
    elif known is not None:
        known.seq, known.standing = seq, change.standing
        known.begun_seq = seq if change.event is ProposalEvent.BEGIN else known.begun_seq
    elif change.document is not None:
        told[change.proposal] = _Told(
            number=_newest(told) + 1, document=change.document, first_seq=seq, seq=seq, standing=change.standing
        )
    for name in change.superseded:
        if name in told:
            told[name].seq, told[name].standing = seq, superseded_by(change.proposal, change.standing)


def _newest(told: Mapping[str, _Told]) -> int:
    return max((each.number for each in told.values()), default=0)


def _differing(row: RowMapping, told: _Told) -> list[str]:
    expected = {
        "number": told.number,
        "state": told.standing.state.value,
        "document": told.document,
        "first_seq": told.first_seq,
        "begun_seq": told.begun_seq,
        "seq": told.seq,
    }
    return differing(row, expected) + ([] if _says(row["body"], told.standing) else ["body"])


def _says(body: str, standing: ProposalStanding) -> bool:
    """Return whether the body says the standing; read and not compared as text, which versions write differently."""
    try:
        return decode(ProposalStanding, body) == standing
    except LedgerError:
        return False


def _document_faults(connection: Connection, row: RowMapping, told: _Told) -> Iterator[Fault]:
    name = ProposalId(row["proposal"])
    try:
        proposal = decode_proposal(read_document(connection, told.document))
    except LedgerError as problem:
        yield Fault(seq=told.first_seq, problem=f"what {name} proposes cannot be read: {problem}")
        return
    if (proposal.proposal, proposal.day.isoformat()) != (name, row["day"]):
        yield differs("proposal", name, told.first_seq, ["day" if proposal.proposal == name else "document"])
