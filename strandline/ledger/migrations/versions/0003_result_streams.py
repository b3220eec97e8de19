"""Result streams: where each stream of results ends at a checkpoint; from how many places a run may write."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("result_offsets", sa.Text, nullable=False, server_default="{}"))
    op.add_column("runs", sa.Column("slots", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("runs", "slots")
    op.drop_column("checkpoints", "result_offsets")
