"""`slices` without `closes_ms`, which checkpoints have since 0005, and without `tick_ms`, which nothing needs any more."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.drop_column("slices", "tick_ms")
    op.drop_column("slices", "closes_ms")


def downgrade() -> None:
    op.add_column("slices", sa.Column("closes_ms", sa.BigInteger, nullable=True))
    op.add_column("slices", sa.Column("tick_ms", sa.BigInteger, nullable=True))
    op.get_bind().execute(
        sa.text(
            "UPDATE slices SET closes_ms = (SELECT checkpoints.closes_ms FROM checkpoints"
            " WHERE checkpoints.job = slices.job AND checkpoints.slice = slices.number)"
        )
    )
