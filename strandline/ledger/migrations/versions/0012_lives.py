"""`jobs.generation`: of the results that a job writes itself, one higher with each life. `jobs.letters_first`: its first
dead letter. `jobs.deleted_ms`: a job that was deleted
keeps its row, so that epochs, slices and generations of a later job of its name go on from there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("generation", sa.BigInteger, nullable=False, server_default="1"))
    op.add_column("jobs", sa.Column("letters_first", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("deleted_ms", sa.BigInteger, nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "deleted_ms")
    op.drop_column("jobs", "letters_first")
    op.drop_column("jobs", "generation")
