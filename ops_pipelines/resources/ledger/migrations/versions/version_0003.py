"""Add what evidence is found by when repetitions are counted: its rule and its time.

Evidence of before has neither: it is not counted, and repetitions of 30 days are whole 30 days after the upgrade.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the two columns and their index that version 0003 brings."""
    op.add_column("evidence", sa.Column("rule", sa.Text(), nullable=True))
    op.add_column("evidence", sa.Column("observed_at", sa.Text(), nullable=True))
    op.create_index("ix_evidence_rule_observed_at", "evidence", ["rule", "observed_at"])
