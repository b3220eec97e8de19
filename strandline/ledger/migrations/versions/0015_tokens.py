"""Tokens, of which only a digest is kept, and who caused an event."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("events", sa.Column("principal", sa.Text, nullable=True))
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=True),
        sa.Column("writes", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=True),
        sa.Column("revoked_ms", sa.BigInteger, nullable=True),
        sa.Column("revoked_by", sa.Text, nullable=True),
        sa.Column("used_ms", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.CheckConstraint("role IN ('viewer', 'operator', 'admin')", name="ck_tokens_role"),
    )
    op.create_index(
        "uq_tokens_live",
        "tokens",
        ["name"],
        unique=True,
        sqlite_where=sa.text("revoked_ms IS NULL"),
        postgresql_where=sa.text("revoked_ms IS NULL"),
    )


def downgrade() -> None:
    op.drop_table("tokens")
    op.drop_column("events", "principal")
