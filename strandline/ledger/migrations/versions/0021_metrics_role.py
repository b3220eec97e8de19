"""`tokens.role` can be `metrics`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"

_COLUMNS = "id, name, digest, role, writes, created_ms, created_by, expires_ms, revoked_ms, revoked_by, used_ms"


def upgrade() -> None:
    _replace_choices("'metrics', 'viewer', 'operator', 'admin'")


def downgrade() -> None:
    # The release before doesn't know the role. Without a role, such a token has no rights.
    op.execute("UPDATE tokens SET role = NULL WHERE role = 'metrics'")
    _replace_choices("'viewer', 'operator', 'admin'")


def _replace_choices(choices: str) -> None:
    if op.get_bind().dialect.name != "sqlite":
        op.drop_constraint(op.f("ck_tokens_role"), "tokens", type_="check")
        op.create_check_constraint(op.f("ck_tokens_role"), "tokens", f"role IN ({choices})")
        return
    # SQLite can't change a constraint, so the table is made again.
    op.drop_index("uq_tokens_live", "tokens")
    op.rename_table("tokens", "tokens_before")
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
        sa.CheckConstraint(f"role IN ({choices})", name="ck_tokens_role"),
    )
    op.execute(f"INSERT INTO tokens ({_COLUMNS}) SELECT {_COLUMNS} FROM tokens_before")  # noqa: S608
    op.drop_table("tokens_before")
    op.create_index("uq_tokens_live", "tokens", ["name"], unique=True, sqlite_where=sa.text("revoked_ms IS NULL"))
