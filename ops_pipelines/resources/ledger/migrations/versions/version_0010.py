"""Keep what was proved of each plan."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the one table that version 0010 brings; plans that are known are proved when they are next touched."""
    op.create_table(
        "proofs",
        sa.Column("plan", sa.Text(), primary_key=True),
        sa.Column("seq", sa.BigInteger(), nullable=False, unique=True),
        sa.Column("body", sa.Text(), nullable=False),
    )
