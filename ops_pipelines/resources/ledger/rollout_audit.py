"""Whether the rows of rollouts and their nodes say what the ROLLOUT lines say, and plan and release are still there.

One rollout is looked at after the other, its lines streamed: memory grows with the nodes of one, not with history.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import Connection, RowMapping, Text, exists, select, type_coerce

from ops_pipelines.core.entries import EntryKind, LedgerError
from ops_pipelines.core.identity import Digest
from ops_pipelines.core.release import Release
from ops_pipelines.core.rollout import Rollout, RolloutNode, RolloutPlan
from ops_pipelines.resources.documents import decode
from ops_pipelines.resources.ledger.chain import RolloutChange
from ops_pipelines.resources.ledger.evidence import read_document
from ops_pipelines.resources.ledger.projection_audit import (
    Fault,
    as_stored,
    differing,
    differs,
    invented,
    lost,
    pages,
)
from ops_pipelines.resources.ledger.rollouts import node_row, rollout_row
from ops_pipelines.resources.ledger.tables import entries, rollout_nodes, rollouts

T = TypeVar("T", Rollout, RolloutNode)


@dataclass(slots=True, kw_only=True)
class _Told:
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
        told = _told_of(connection, row["rollout"])
        if told is None:
            yield invented("rollout", row["rollout"], row["seq"])
            continue
        wrong = _differing_rollout(row, told, number=number)
        if wrong or told.first_seq <= last_first_seq:
            yield differs("rollout", row["rollout"], told.seq, wrong or ["number"])
        last_first_seq = told.first_seq
        yield from _document_faults(connection, told)
        yield from _node_faults(connection, row["rollout"], told)
    yield from _ownerless(connection)
    yield from lost(connection, EntryKind.ROLLOUT, rollouts.c.rollout == entries.c.incident)


def _told_of(connection: Connection, rollout: str) -> _Told | None:
    """Return what the chain says of one rollout; None if it never opened it."""
    statement = (
        select(entries.c.seq, entries.c.body)
        .where(entries.c.incident == rollout, entries.c.kind == EntryKind.ROLLOUT.value)
        .order_by(entries.c.seq)
    )
    told: _Told | None = None
    for page in pages(connection, statement):
        for line in page:
            change = decode(RolloutChange, line["body"])
            if change.rollout is not None and told is None:
                told = _Told(
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


def _differing_rollout(row: RowMapping, told: _Told, *, number: int) -> list[str]:
    expected = {
        **as_stored(rollout_row(told.rollout)),
        "number": number,
        "plan_document": told.plan_document,
        "first_seq": told.first_seq,
        "seq": told.seq,
    }
    return differing(row, expected) + ([] if _says(row, told.rollout) else ["body"])


def _node_faults(connection: Connection, rollout: str, told: _Told) -> Iterator[Fault]:
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


def _says(row: RowMapping, value: T) -> bool:
    """Return whether the row's body says the value; read and not compared as text, which versions write differently."""
    try:
        return decode(type(value), row["body"]) == value
    except LedgerError:
        return False


def _document_faults(connection: Connection, told: _Told) -> Iterator[Fault]:
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
        yield Fault(seq=row.seq, problem=f"node {name} stands in its table, but its rollout does not")
