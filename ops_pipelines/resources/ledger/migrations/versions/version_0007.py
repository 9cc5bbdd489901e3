"""Add proposals of quotas: how far each is, and which was begun last."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the one table that version 0007 brings, and its index."""
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
