"""Add rollouts, the nodes in them, and the node of each action: what was done to nodes that are out is asked often."""

import json
from collections.abc import Mapping

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_PAGE_SIZE = 1_000


def upgrade() -> None:
    """Create the two tables that version 0006 brings, and name the nodes of actions begun before."""
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
    _name_nodes()


def _name_nodes() -> None:
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
