"""Old slices can be removed: a backfill that has ended names a slice that may be gone."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    with op.batch_alter_table("backfills") as table:
        table.drop_constraint("fk_backfills_job_slice", type_="foreignkey")


def downgrade() -> None:
    # A backfill whose slice is gone is of no use to the release before, which reads it only while it is open.
    op.execute(
        "DELETE FROM backfills WHERE NOT EXISTS"
        " (SELECT 1 FROM slices WHERE slices.job = backfills.job AND slices.number = backfills.slice)"
    )
    with op.batch_alter_table("backfills") as table:
        table.create_foreign_key("fk_backfills_job_slice", "slices", ["job", "slice"], ["job", "number"])
