"""The ledger's schema, version by version: one function each, frozen once released, run when a ledger is opened.

The steps are alembic's operations; the version is in the table that alembic would keep, one row. Nothing else changes
a schema, and nothing returns to an older one.
"""

import json
from collections.abc import Callable, Mapping

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_PAGE_SIZE = 1_000
_VERSION = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def upgrade(connection: sa.Connection, *, found: str | None, version: str) -> None:
    """Run the steps after `found`, up to `version`, in the transaction of `connection`; None: an empty database."""
    _VERSION.create(connection, checkfirst=True)
    operations = Operations(MigrationContext.configure(connection))
    for step, change in STEPS.items():
        if (found is None or step > found) and step <= version:
            change(operations)
    connection.execute(sa.delete(_VERSION))
    connection.execute(sa.insert(_VERSION), {"version_num": version})


def _to_0001(op: Operations) -> None:
    """Create the chain, its projections, and the tables that are no history."""
    _create_chain(op)
    _create_projections(op)
    _create_ordinary_tables(op)


def _create_chain(op: Operations) -> None:
    op.create_table(
        "entries",
        sa.Column("seq", _SEQUENCE, primary_key=True, autoincrement=False),
        sa.Column("written_at", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("incident", sa.Text(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("previous_hash", sa.Text(), nullable=False),
        sa.Column("entry_hash", sa.Text(), nullable=False),
    )
    op.create_index("ix_entries_kind_seq", "entries", ["kind", "seq"])
    op.create_index("ix_entries_incident_seq", "entries", ["incident", "seq"])


def _create_projections(op: Operations) -> None:
    op.create_table(
        "incidents",
        sa.Column("incident", sa.Text(), primary_key=True),
        sa.Column("number", sa.BigInteger(), nullable=False, unique=True),
        sa.Column("is_open", sa.Integer(), nullable=False),
        sa.Column("opened_at", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.Text(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("last_change_seq", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("ix_incidents_open", "incidents", ["is_open", "number"])
    op.create_index("ix_incidents_changed_at", "incidents", ["changed_at"])
    op.create_table(
        "plans",
        sa.Column("plan", sa.Text(), primary_key=True),
        sa.Column("seq", sa.BigInteger(), nullable=False, unique=True),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_table(
        "approvals",
        sa.Column("seq", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("expires_at", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("ix_approvals_expires_at", "approvals", ["expires_at"])
    op.create_table(
        "actions",
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("incident", sa.Text(), nullable=False),
        sa.Column("begun_at", sa.Text(), nullable=False),
        sa.Column("begun_seq", sa.BigInteger(), nullable=False, unique=True),
        sa.Column("sent_seq", sa.BigInteger(), nullable=True, unique=True),
        sa.Column("finished_seq", sa.BigInteger(), nullable=True, unique=True),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("ix_actions_incident", "actions", ["incident"])
    op.create_index("ix_actions_begun_at", "actions", ["begun_at"])
    op.create_table(
        "refusals",
        sa.Column("identity", sa.Text(), primary_key=True),
        sa.Column("seq", sa.BigInteger(), nullable=False, unique=True),
    )


def _create_ordinary_tables(op: Operations) -> None:
    op.create_table(
        "documents",
        sa.Column("digest", sa.Text(), primary_key=True),
        sa.Column("compressed", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "evidence",
        sa.Column("seq", _SEQUENCE, primary_key=True, autoincrement=False),
        sa.Column("identity", sa.Text(), nullable=False, unique=True),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_table(
        "rejected",
        sa.Column("seq", _SEQUENCE, primary_key=True, autoincrement=False),
        sa.Column("identity", sa.Text(), nullable=False, unique=True),
        sa.Column("rejected_at", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_table(
        "cursors",
        sa.Column("source", sa.Text(), primary_key=True),
        sa.Column("position", sa.Text(), nullable=False),
        sa.Column("moved_at", sa.Text(), nullable=False),
    )
    op.create_table(
        "conditions",
        sa.Column("source", sa.Text(), primary_key=True),
        sa.Column("identity", sa.Text(), primary_key=True),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Text(), nullable=False),
    )


def _to_0002(op: Operations) -> None:
    """Add the heartbeats of the processes that watch."""
    op.create_table(
        "heartbeats",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("at", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("answers", sa.Text(), nullable=False),
        sa.Column("is_lease_held", sa.Integer(), nullable=False),
    )


def _to_0003(op: Operations) -> None:
    """Add what evidence is found by when repetitions are counted: its rule and its time.

    Evidence of before has neither: it is not counted, and repetitions of 30 days are whole 30 days after the upgrade.
    """
    op.add_column("evidence", sa.Column("rule", sa.Text(), nullable=True))
    op.add_column("evidence", sa.Column("observed_at", sa.Text(), nullable=True))
    op.create_index("ix_evidence_rule_observed_at", "evidence", ["rule", "observed_at"])


def _to_0004(op: Operations) -> None:
    """Add the tests on nodes: in which order they were kept, and the digest of what they found."""
    op.create_table(
        "node_checks",
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("suite", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("is_well", sa.Integer(), nullable=False),
    )
    op.create_index("ix_node_checks_node_number", "node_checks", ["node", "number"])


def _to_0005(op: Operations) -> None:
    """Add the outbox: what is to be sent to whom, and what became of it."""
    op.create_table(
        "notes",
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("number", sa.BigInteger(), nullable=False, unique=True),
        sa.Column("thread", sa.Text(), nullable=False),
        sa.Column("audience", sa.Text(), nullable=False),
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("batch", sa.Text(), nullable=True),
        sa.Column("attempt_count", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.Text(), nullable=False),
        sa.Column("sent_at", sa.Text(), nullable=True),
        sa.Column("receipt", sa.Text(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("ix_notes_state_number", "notes", ["state", "number"])
    op.create_index("ix_notes_thread_number", "notes", ["thread", "number"])
    op.create_index("ix_notes_sent_at", "notes", ["sent_at"])
    op.create_index("ix_notes_batch", "notes", ["batch"])


def _to_0006(op: Operations) -> None:
    """Add rollouts, the nodes in them, and the node of each action: it is asked for often."""
    op.create_table(
        "rollouts",
        sa.Column("rollout", sa.Text(), primary_key=True),
        sa.Column("number", sa.BigInteger(), nullable=False, unique=True),
        sa.Column("is_open", sa.Integer(), nullable=False),
        sa.Column("changed_at", sa.Text(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("plan_document", sa.Text(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False, unique=True),
        sa.Column("seq", sa.BigInteger(), nullable=False, unique=True),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("ix_rollouts_open", "rollouts", ["is_open", "number"])
    op.create_index("ix_rollouts_changed_at", "rollouts", ["changed_at"])
    op.create_index("ix_rollouts_plan", "rollouts", ["plan"])
    op.create_table(
        "rollout_nodes",
        sa.Column("rollout", sa.Text(), primary_key=True),
        sa.Column("node", sa.Text(), primary_key=True),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("ix_rollout_nodes_rollout_stage", "rollout_nodes", ["rollout", "stage"])
    op.add_column("actions", sa.Column("node", sa.Text(), nullable=True))
    op.drop_index("ix_actions_incident", "actions")
    op.create_index("ix_actions_incident_node", "actions", ["incident", "node"])
    _name_nodes(op)


def _name_nodes(op: Operations) -> None:
    """Fill the new column page by page: a ledger of years does not fit into memory."""
    connection = op.get_bind()
    page = sa.text("SELECT key, body FROM actions WHERE key > :after ORDER BY key LIMIT :size")
    name = sa.text("UPDATE actions SET node = :node WHERE key = :key")
    after = ""
    while rows := connection.execute(page, {"after": after, "size": _PAGE_SIZE}).all():
        named = [{"key": row.key, "node": node} for row in rows if (node := _node_in(row.body)) is not None]
        if named:
            connection.execute(name, named)
        after = rows[-1].key


def _node_in(body: str) -> str | None:
    """Return the node that an action is about; of what cannot be read, None: the audit finds it, no upgrade does."""
    try:
        record = json.loads(body)
    except ValueError:
        return None
    action = record.get("action") if isinstance(record, Mapping) else None
    node = action.get("node") if isinstance(action, Mapping) else None
    return node if isinstance(node, str) else None


def _to_0007(op: Operations) -> None:
    """Add proposals of quotas: how far each is, and which was started last."""
    op.create_table(
        "quota_proposals",
        sa.Column("proposal", sa.Text(), primary_key=True),
        sa.Column("number", sa.BigInteger(), nullable=False, unique=True),
        sa.Column("day", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False, unique=True),
        sa.Column("begun_seq", sa.BigInteger(), nullable=True, unique=True),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("ix_quota_proposals_state", "quota_proposals", ["state"])


def _to_0008(op: Operations) -> None:
    """Count who has held the right to act: each holder after another has a higher epoch."""
    op.add_column("leases", sa.Column("epoch", sa.BigInteger(), nullable=False, server_default="1"))
    op.add_column("leases", sa.Column("taken_at", sa.Text(), nullable=True))


def _to_0009(op: Operations) -> None:
    """Give the ledger an identity: its id, when it was born, and up to when what happened is history to it."""
    op.create_table(
        "identity",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("born_at", sa.Text(), nullable=False),
        sa.Column("history_until", sa.Text(), nullable=False),
    )


def _to_0010(op: Operations) -> None:
    """Keep what was proved of each plan."""
    proofs = op.create_table(
        "proofs",
        sa.Column("plan", sa.Text(), primary_key=True),
        sa.Column("seq", sa.BigInteger(), nullable=False, unique=True),
        sa.Column("body", sa.Text(), nullable=False),
    )
    lines = op.get_bind().execute(sa.text("SELECT seq, body FROM entries WHERE kind = 'proof' ORDER BY seq"))
    newest = {json.loads(body)["plan"]: {"seq": seq, "body": body} for seq, body in lines}
    op.bulk_insert(proofs, [{"plan": plan, **row} for plan, row in newest.items()])


STEPS: Mapping[str, Callable[[Operations], None]] = {
    "0001": _to_0001,
    "0002": _to_0002,
    "0003": _to_0003,
    "0004": _to_0004,
    "0005": _to_0005,
    "0006": _to_0006,
    "0007": _to_0007,
    "0008": _to_0008,
    "0009": _to_0009,
    "0010": _to_0010,
}
"""Schema versions, oldest first, each with what brings it."""
