"""Create the chain, its projections, and the tables that are no history."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create every table of version 0001."""
    _create_chain()
    _create_projections()
    _create_ordinary_tables()


def _create_chain() -> None:
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


def _create_projections() -> None:
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


def _create_ordinary_tables() -> None:
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
