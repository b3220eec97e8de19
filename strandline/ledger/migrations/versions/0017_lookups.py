"""`lookups`: each version of their documents, the rows that replays need, and which version slices and jobs go by."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

_GO_BY = ("slices", "job_versions")


def upgrade() -> None:
    op.create_table(
        "lookups",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_lookups"),
        sa.CheckConstraint("version >= 1", name="ck_lookups_version"),
    )
    op.create_table(
        "lookup_versions",
        sa.Column("lookup", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("applied_ms", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["lookup"], ["lookups.name"], name="fk_lookup_versions_lookup"),
        sa.PrimaryKeyConstraint("lookup", "version", name="pk_lookup_versions"),
        sa.CheckConstraint("version >= 1", name="ck_lookup_versions_version"),
    )
    op.create_table(
        "lookup_tables",
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("packed", sa.Text, nullable=False),
        sa.Column("kept_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_lookup_tables"),
    )
    for table in _GO_BY:
        op.add_column(table, sa.Column("lookup_versions", sa.Text, nullable=False, server_default="{}"))


def downgrade() -> None:
    for table in _GO_BY:
        op.drop_column(table, "lookup_versions")
    for table in ("lookup_tables", "lookup_versions", "lookups"):
        op.drop_table(table)
