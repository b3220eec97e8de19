"""Leases: which control service leads which job; and how often a restart of a job was asked for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "control_services",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("data_dir", sa.Text, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_control_services"),
    )
    op.create_table(
        "leases",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("granted_ms", sa.BigInteger, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        sa.Column("length_ms", sa.BigInteger, nullable=False),
        sa.CheckConstraint("epoch >= 1", name="ck_leases_epoch"),
        sa.CheckConstraint("length_ms > 0", name="ck_leases_length"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name="fk_leases_job"),
        sa.PrimaryKeyConstraint("job", name="pk_leases"),
    )
    op.add_column("jobs", sa.Column("restarts", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("jobs", "restarts")
    op.drop_table("leases")
    op.drop_table("control_services")
