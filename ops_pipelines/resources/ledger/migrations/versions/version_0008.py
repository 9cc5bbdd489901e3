"""Count who has held the right to act: each holder after another has a higher epoch."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the two columns that version 0008 brings; whoever holds the lease now is the first that is counted."""
    op.add_column("leases", sa.Column("epoch", sa.BigInteger(), nullable=False, server_default="1"))
    op.add_column("leases", sa.Column("taken_at", sa.Text(), nullable=True))
