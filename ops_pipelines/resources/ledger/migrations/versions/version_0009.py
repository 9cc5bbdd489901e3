"""Give the ledger an identity: its id, when it was born, and up to when what happened is history to it."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the one table that version 0009 brings; who opens the ledger fills it, by the cluster's clock."""
    op.create_table(
        "identity",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("born_at", sa.Text(), nullable=False),
        sa.Column("history_until", sa.Text(), nullable=False),
    )
