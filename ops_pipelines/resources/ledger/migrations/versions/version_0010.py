"""Keep what was proved of each plan."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the one table that version 0010 brings; plans without a proof are proved when they are next touched.

    A ledger that this version wrote to, and that was taken back, has lines of proofs already.
    """
    proofs = op.create_table(
        "proofs",
        sa.Column("plan", sa.Text(), primary_key=True),
        sa.Column("seq", sa.BigInteger(), nullable=False, unique=True),
        sa.Column("body", sa.Text(), nullable=False),
    )
    lines = op.get_bind().execute(sa.text("SELECT seq, body FROM entries WHERE kind = 'proof' ORDER BY seq"))
    newest = {json.loads(body)["plan"]: {"seq": seq, "body": body} for seq, body in lines}
    op.bulk_insert(proofs, [{"plan": plan, **row} for plan, row in newest.items()])
