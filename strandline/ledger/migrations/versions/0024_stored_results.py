"""`checkpoints.stored`: number of results that each store had confirmed when the slice was committed. `jobs.restores`: true if
the next run restores results that a store lost."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    # Nothing is known about the results of earlier checkpoints, and so they aren't compared.
    op.add_column("checkpoints", sa.Column("stored", sa.Text, nullable=False, server_default="{}"))
    op.add_column("jobs", sa.Column("restores", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("jobs", "restores")
    op.drop_column("checkpoints", "stored")
