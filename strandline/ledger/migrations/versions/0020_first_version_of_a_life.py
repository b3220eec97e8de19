"""`jobs.version_first`: the first version of the job's present life, or, of a deleted job, of its next one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("version_first", sa.BigInteger, nullable=False, server_default="1"))
    # Which version began the present life isn't known. With the present one no place of an earlier life is overlooked.
    op.execute("UPDATE jobs SET version_first = version WHERE generation > 1 AND deleted_ms IS NULL")
    op.execute("UPDATE jobs SET version_first = version + 1 WHERE deleted_ms IS NOT NULL")


def downgrade() -> None:
    op.drop_column("jobs", "version_first")
