"""`checkpoints.accepted_in`: the last slice with an accepted record of each partition. `checkpoints.ahead_ms`: how far event times
were ahead of log times."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    for name in ("accepted_in", "ahead_ms"):
        op.add_column("checkpoints", sa.Column(name, sa.Text, nullable=False, server_default="{}"))


def downgrade() -> None:
    for name in ("ahead_ms", "accepted_in"):
        op.drop_column("checkpoints", name)
