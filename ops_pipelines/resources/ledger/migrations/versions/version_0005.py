"""Add the outbox: what is to be told to whom, and what became of it."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the one table that version 0005 brings, and its indexes."""
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
