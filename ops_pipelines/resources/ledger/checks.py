"""The tests on nodes in the ledger's database: one row a run, its document under its sha256.

They stand in the order in which we kept them: the times in a document are the node's, whose clock may be broken too.

The verdict stands in the document as well: a row that was changed behind our back is an error when it is read.
What a verdict rests on is `core.node_tests`' business.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select

from ops_pipelines.core.entries import LedgerDamaged
from ops_pipelines.core.identity import Digest, NodeName
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.resources.documents import decode, encode
from ops_pipelines.resources.ledger.evidence import digest_document, read_document, write_document
from ops_pipelines.resources.ledger.tables import node_checks


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
