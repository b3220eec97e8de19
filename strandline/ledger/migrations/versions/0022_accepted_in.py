"""`checkpoints.accepted_in`: by partition, the last slice with an accepted record. `ahead_ms`: how far event times were ahead."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    for name in ("accepted_in", "ahead_ms"):
        op.add_column("checkpoints", sa.Column(name, sa.Text, nullable=False, server_default="{}"))


def downgrade() -> None:
    for name in ("ahead_ms", "accepted_in"):
        op.drop_column("checkpoints", name)
