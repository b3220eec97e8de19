"""`lookup_sources`: how the reading of each lookup goes whose rows come from a stream or a database.

`jobs.ends`: where a batch ends in each partition of its streams, recorded before it reads anything.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.create_table(
        "lookup_sources",
        sa.Column("lookup", sa.Text, nullable=False),
        sa.Column("claim", sa.BigInteger, nullable=False),
        sa.Column("reader", sa.Text, nullable=False),
        sa.Column("due_ms", sa.BigInteger, nullable=False),
        sa.Column("wait_ms", sa.BigInteger, nullable=False),
        sa.Column("position", sa.Text, nullable=True),
        sa.Column("current_ms", sa.BigInteger, nullable=False),
        sa.Column("failing_since_ms", sa.BigInteger, nullable=True),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("skipped", sa.BigInteger, nullable=False),
        sa.Column("skipped_last", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["lookup"], ["lookups.name"], name="fk_lookup_sources_lookup"),
        sa.PrimaryKeyConstraint("lookup", name="pk_lookup_sources"),
        sa.CheckConstraint("claim >= 1", name="ck_lookup_sources_claim"),
    )
    op.add_column("jobs", sa.Column("ends", sa.Text, nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "ends")
    op.drop_table("lookup_sources")
