"""From which slice on each stream of a job reads records by a registered schema, and which numbers its open slice has not."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.create_table(
        "schema_uses",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("slice", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("job", "stream", "kind", "number", name="pk_schema_uses"),
    )
    op.create_table(
        "unknown_schemas",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("slice", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("job", "stream", "slice", "kind", "number", name="pk_unknown_schemas"),
    )
    # Which slices read by a schema was not recorded: they read it from the first one on.
    op.execute(
        "INSERT INTO schema_uses (job, stream, kind, number, slice) "
        "SELECT inputs.job, inputs.stream, registered_schemas.kind, registered_schemas.number, 1 "
        "FROM inputs CROSS JOIN registered_schemas WHERE registered_schemas.document IS NOT NULL"
    )
    op.execute("DELETE FROM registered_schemas WHERE document IS NULL")
    with op.batch_alter_table("registered_schemas") as table:
        table.alter_column("document", existing_type=sa.Text, nullable=False)


def downgrade() -> None:
    with op.batch_alter_table("registered_schemas") as table:
        table.alter_column("document", existing_type=sa.Text, nullable=True)
    op.drop_table("unknown_schemas")
    op.drop_table("schema_uses")
