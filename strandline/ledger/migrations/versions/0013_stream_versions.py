"""`stream_versions`: each version of a stream's document stays, and slices, runs and backfills say which one they went by."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_GO_BY = ("slices", "runs", "backfills")


def upgrade() -> None:
    op.create_table(
        "stream_versions",
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("applied_ms", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["stream"], ["streams.name"], name="fk_stream_versions_stream"),
        sa.PrimaryKeyConstraint("stream", "version", name="pk_stream_versions"),
        sa.CheckConstraint("version >= 1", name="ck_stream_versions_version"),
    )
    # No version before decodes otherwise while a job reads the stream.
    op.execute(
        "INSERT INTO stream_versions (stream, version, document, applied_ms) "
        "SELECT name, version, document, created_ms FROM streams"
    )
    for table in _GO_BY:
        op.add_column(table, sa.Column("stream_versions", sa.Text, nullable=False, server_default="{}"))


def downgrade() -> None:
    for table in _GO_BY:
        op.drop_column(table, "stream_versions")
    op.drop_table("stream_versions")
