"""Which indices each job made (one that is gone is a loss, and is not made again as if it were new), and how many of a slice's
results the store refused."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("refused", sa.Text, nullable=False, server_default="{}"))
    op.add_column("checkpoints", sa.Column("refused_total", sa.Text, nullable=True))
    op.create_table(
        "result_indices",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("made_ms", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name="fk_result_indices_job"),
        sa.PrimaryKeyConstraint("job", "name", name="pk_result_indices"),
    )


def downgrade() -> None:
    op.drop_table("result_indices")
    op.drop_column("checkpoints", "refused_total")
    op.drop_column("checkpoints", "refused")
