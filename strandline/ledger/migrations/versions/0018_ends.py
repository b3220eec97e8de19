"""`jobs.ends`: where a batch ends in each partition of its streams, recorded before it reads anything."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("ends", sa.Text, nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "ends")
