"""`jobs.generation`: of the results that a job writes itself, one higher with each life. `jobs.letters_first`: its first
dead letter. `jobs.deleted_ms`: a job that was deleted
keeps its row, so that epochs, slices and generations of a later job of its name go on from there.

`replay_attempts` and `replays`: what was put back from dead letters."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("generation", sa.BigInteger, nullable=False, server_default="1"))
    op.add_column("jobs", sa.Column("letters_first", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("deleted_ms", sa.BigInteger, nullable=True))
    op.create_table(
        "replay_attempts",
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("since", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("stream", name="pk_replay_attempts"),
    )
    op.create_table(
        "replays",
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("identity", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("letter", sa.BigInteger, nullable=False),
        sa.Column("repaired", sa.BigInteger, nullable=False),
        sa.Column("intended_ms", sa.BigInteger, nullable=False),
        sa.Column("sent_ms", sa.BigInteger, nullable=True),
        sa.CheckConstraint("repaired IN (0, 1)", name="ck_replays_repaired"),
        sa.PrimaryKeyConstraint("stream", "identity", name="pk_replays"),
    )


def downgrade() -> None:
    op.drop_table("replays")
    op.drop_table("replay_attempts")
    op.drop_column("jobs", "deleted_ms")
    op.drop_column("jobs", "letters_first")
    op.drop_column("jobs", "generation")
