"""Add the tests on nodes: in which order they were kept, and the digest of what they found."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the one table that version 0004 brings, and its index."""
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
