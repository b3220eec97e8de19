"""By which document of its stream each job has decoded records: a start holds the present one against it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "inputs",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("recorded_ms", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name="fk_inputs_job"),
        sa.ForeignKeyConstraint(["stream"], ["streams.name"], name="fk_inputs_stream"),
        sa.PrimaryKeyConstraint("job", "stream", name="pk_inputs"),
    )


def downgrade() -> None:
    op.drop_table("inputs")
