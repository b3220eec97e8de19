"""Backfills: windows that are computed anew under a generation of their own, and how far that has come."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_STATES = "'requested', 'running', 'swapping', 'complete', 'failed', 'cancelled'"
_OPEN = sa.text("state IN ('requested', 'running', 'swapping')")


def upgrade() -> None:
    op.create_table(
        "backfills",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("from_ms", sa.BigInteger, nullable=False),
        sa.Column("to_ms", sa.BigInteger, nullable=True),
        sa.Column("windows", sa.Text, nullable=False),
        sa.Column("slice", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("done_ms", sa.BigInteger, nullable=True),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("records_done", sa.BigInteger, nullable=False),
        sa.Column("results", sa.Text, nullable=False),
        sa.Column("refused", sa.Text, nullable=False),
        sa.Column("sample", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("requested_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger, nullable=True),
        sa.CheckConstraint("generation >= 2", name="ck_backfills_generation"),
        sa.CheckConstraint("epoch >= 0", name="ck_backfills_epoch"),
        sa.CheckConstraint("records >= 0 AND records_done >= 0", name="ck_backfills_counts"),
        sa.CheckConstraint(f"state IN ({_STATES})", name="ck_backfills_state"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name="fk_backfills_job"),
        sa.ForeignKeyConstraint(
            ["job", "version"], ["job_versions.job", "job_versions.version"], name="fk_backfills_job_version"
        ),
        sa.ForeignKeyConstraint(["job", "slice"], ["slices.job", "slices.number"], name="fk_backfills_job_slice"),
        sa.PrimaryKeyConstraint("job", "generation", name="pk_backfills"),
    )
    op.create_index("uq_backfills_open", "backfills", ["job"], unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN)


def downgrade() -> None:
    op.drop_table("backfills")
