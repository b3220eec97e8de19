"""What records have declared for those after them, with each slice and checkpoint."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("slices", sa.Column("sessions", sa.Text, nullable=False, server_default="{}"))
    op.add_column("checkpoints", sa.Column("sessions", sa.Text, nullable=False, server_default="{}"))
    op.create_table(
        "decoder_contents",
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("kept_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_decoder_contents"),
    )


def downgrade() -> None:
    op.drop_table("decoder_contents")
    op.drop_column("checkpoints", "sessions")
    op.drop_column("slices", "sessions")
