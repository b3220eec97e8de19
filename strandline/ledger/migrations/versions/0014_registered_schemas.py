"""Which schema the schema registry gave for each number, so that a replay reads records as the first run did."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "registered_schemas",
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("document", sa.Text, nullable=True),
        sa.Column("kept_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("kind", "number", name="pk_registered_schemas"),
    )


def downgrade() -> None:
    op.drop_table("registered_schemas")
