"""The first tables: streams, jobs and their versions, runs, slices, checkpoints, events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("desired", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.CheckConstraint("desired IN ('running', 'stopped', 'drained')", name="ck_jobs_desired"),
        sa.CheckConstraint(
            "state IN ('created', 'starting', 'running', 'stopping', 'stopped', 'draining', 'drained', 'failed')",
            name="ck_jobs_state",
        ),
        sa.CheckConstraint("epoch >= 0", name="ck_jobs_epoch"),
        sa.CheckConstraint("version >= 1", name="ck_jobs_version"),
        sa.PrimaryKeyConstraint("name", name="pk_jobs"),
    )
    op.create_table(
        "streams",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("topic_id", sa.Text, nullable=True),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.CheckConstraint("version >= 1", name="ck_streams_version"),
        sa.PrimaryKeyConstraint("name", name="pk_streams"),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("job", sa.Text, nullable=True),
        sa.Column("epoch", sa.BigInteger, nullable=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name="fk_events_job"),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_events_job_id",
        "events",
        ["job", "id"],
    )
    op.create_table(
        "job_versions",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.CheckConstraint("version >= 1", name="ck_job_versions_version"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name="fk_job_versions_job"),
        sa.PrimaryKeyConstraint("job", "version", name="pk_job_versions"),
    )
    op.create_table(
        "runs",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("pid", sa.BigInteger, nullable=False),
        sa.Column("started_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger, nullable=True),
        sa.Column("outcome", sa.Text, nullable=True),
        sa.Column("message", sa.Text, nullable=False),
        sa.CheckConstraint("(ended_ms IS NULL) = (outcome IS NULL)", name="ck_runs_ended"),
        sa.CheckConstraint("epoch >= 1", name="ck_runs_epoch"),
        sa.ForeignKeyConstraint(
            ["job", "version"], ["job_versions.job", "job_versions.version"], name="fk_runs_job_version"
        ),
        sa.PrimaryKeyConstraint("job", "epoch", name="pk_runs"),
    )
    op.create_index(
        "uq_runs_open",
        "runs",
        ["job"],
        unique=True,
        sqlite_where=sa.text("ended_ms IS NULL"),
        postgresql_where=sa.text("ended_ms IS NULL"),
    )
    op.create_table(
        "slices",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("offsets_first", sa.Text, nullable=False),
        sa.Column("offsets", sa.Text, nullable=False),
        sa.Column("cut_time_ms", sa.BigInteger, nullable=False),
        sa.Column("watermark_ms", sa.BigInteger, nullable=True),
        sa.Column("closes_ms", sa.BigInteger, nullable=True),
        sa.Column("tick_ms", sa.BigInteger, nullable=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("planned_ms", sa.BigInteger, nullable=False),
        sa.CheckConstraint("kind IN ('live', 'catch_up', 'idle', 'drain')", name="ck_slices_kind"),
        sa.CheckConstraint("status IN ('planned', 'committed')", name="ck_slices_status"),
        sa.CheckConstraint("number >= 1", name="ck_slices_number"),
        sa.ForeignKeyConstraint(["job", "epoch"], ["runs.job", "runs.epoch"], name="fk_slices_job_epoch"),
        sa.ForeignKeyConstraint(
            ["job", "version"], ["job_versions.job", "job_versions.version"], name="fk_slices_job_version"
        ),
        sa.PrimaryKeyConstraint("job", "number", name="pk_slices"),
    )
    op.create_index(
        "uq_slices_planned",
        "slices",
        ["job"],
        unique=True,
        sqlite_where=sa.text("status = 'planned'"),
        postgresql_where=sa.text("status = 'planned'"),
    )
    op.create_table(
        "checkpoints",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("slice", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("emitted", sa.Text, nullable=False),
        sa.Column("latest_event_ms", sa.BigInteger, nullable=True),
        sa.Column("latest_log_ms", sa.BigInteger, nullable=True),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("accepted", sa.BigInteger, nullable=False),
        sa.Column("rejected", sa.Text, nullable=False),
        sa.Column("results", sa.Text, nullable=False),
        sa.Column("dead_letter_offsets", sa.Text, nullable=False),
        sa.Column("committed_ms", sa.BigInteger, nullable=False),
        sa.Column("records_total", sa.BigInteger, nullable=False),
        sa.Column("accepted_total", sa.BigInteger, nullable=False),
        sa.Column("rejected_total", sa.Text, nullable=False),
        sa.Column("results_total", sa.Text, nullable=False),
        sa.CheckConstraint("records >= 0 AND accepted >= 0", name="ck_checkpoints_counts"),
        sa.ForeignKeyConstraint(["job", "epoch"], ["runs.job", "runs.epoch"], name="fk_checkpoints_job_epoch"),
        sa.ForeignKeyConstraint(["job", "slice"], ["slices.job", "slices.number"], name="fk_checkpoints_job_slice"),
        sa.ForeignKeyConstraint(
            ["job", "version"], ["job_versions.job", "job_versions.version"], name="fk_checkpoints_job_version"
        ),
        sa.PrimaryKeyConstraint("job", "slice", name="pk_checkpoints"),
    )
    op.create_index(
        "ix_checkpoints_job_latest_event_ms_slice",
        "checkpoints",
        ["job", "latest_event_ms", "slice"],
    )


def downgrade() -> None:
    op.drop_table("checkpoints")
    op.drop_table("slices")
    op.drop_table("runs")
    op.drop_table("job_versions")
    op.drop_table("events")
    op.drop_table("streams")
    op.drop_table("jobs")
