"""Old runs can be removed: by which slices and checkpoints one is named is found without reading them all."""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    for table in ("slices", "checkpoints"):
        op.create_index(f"ix_{table}_job_epoch", table, ["job", "epoch"])


def downgrade() -> None:
    for table in ("slices", "checkpoints"):
        op.drop_index(f"ix_{table}_job_epoch", table)
