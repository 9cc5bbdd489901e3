"""Whether the ledger is whole: every hash recomputed from the first line, then every projection compared.

Rows are streamed, so a million lines need no more memory than a thousand. What cannot be seen from inside: lines cut
off the end, and a chain written anew from some line on with all later hashes. Both show against a head hash that was
kept elsewhere (`SqlLedger.head_hash`).
"""

from itertools import chain

from sqlalchemy import Connection, RowMapping, Text, select, type_coerce

from ops_pipelines.core.entries import ChainVerdict
from ops_pipelines.resources.ledger.chain import GENESIS_HASH, hash_entry
from ops_pipelines.resources.ledger.projection_audit import Fault, pages, projection_faults
from ops_pipelines.resources.ledger.proposal_audit import proposal_faults
from ops_pipelines.resources.ledger.rollout_audit import rollout_faults
from ops_pipelines.resources.ledger.tables import entries


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
