"""`checkpoints.sender_faults`: keys that are ahead of their log time, and partitions whose records are all rejected."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("sender_faults", sa.Text, nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("checkpoints", "sender_faults")
