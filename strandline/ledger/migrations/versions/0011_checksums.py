"""`slices.checksums`: what the last record of each partition was, so that another record under its offset is noticed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("slices", sa.Column("checksums", sa.Text, nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("slices", "checksums")
