"""The schema of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0001"
down_revision = None

_TABLES = (
    "streams",
    "stream_versions",
    "lookups",
    "lookup_versions",
    "lookup_tables",
    "lookup_sources",
    "jobs",
    "job_versions",
    "inputs",
    "places",
    "control_services",
    "leases",
    "runs",
    "slices",
    "checkpoints",
    "job_costs",
    "backfills",
    "result_indices",
    "decoder_contents",
    "registered_schemas",
    "schema_uses",
    "unknown_schemas",
    "replay_attempts",
    "replays",
    "events",
    "tokens",
    "notices",
    "notice_problems",
    "notice_messages",
    "notice_attempts",
    "service_readings",
    "notice_leader",
)
"""In the order of creation: foreign keys refer only to earlier tables."""


def upgrade() -> None:
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
        "stream_versions",
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("applied_ms", sa.BigInteger, nullable=False),
        sa.CheckConstraint("version >= 1", name="ck_stream_versions_version"),
        sa.ForeignKeyConstraint(["stream"], ["streams.name"], name="fk_stream_versions_stream"),
        sa.PrimaryKeyConstraint("stream", "version", name="pk_stream_versions"),
    )
    op.create_table(
        "lookups",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.CheckConstraint("version >= 1", name="ck_lookups_version"),
        sa.PrimaryKeyConstraint("name", name="pk_lookups"),
    )
    op.create_table(
        "lookup_versions",
        sa.Column("lookup", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("applied_ms", sa.BigInteger, nullable=False),
        sa.CheckConstraint("version >= 1", name="ck_lookup_versions_version"),
        sa.ForeignKeyConstraint(["lookup"], ["lookups.name"], name="fk_lookup_versions_lookup"),
        sa.PrimaryKeyConstraint("lookup", "version", name="pk_lookup_versions"),
    )
    op.create_table(
        "lookup_tables",
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("packed", sa.Text, nullable=False),
        sa.Column("kept_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_lookup_tables"),
    )
    op.create_table(
        "lookup_sources",
        sa.Column("lookup", sa.Text, nullable=False),
        sa.Column("claim", sa.BigInteger, nullable=False),
        sa.Column("reader", sa.Text, nullable=False),
        sa.Column("due_ms", sa.BigInteger, nullable=False),
        sa.Column("wait_ms", sa.BigInteger, nullable=False),
        sa.Column("position", sa.Text, nullable=True),
        sa.Column("current_ms", sa.BigInteger, nullable=False),
        sa.Column("failing_since_ms", sa.BigInteger, nullable=True),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("skipped", sa.BigInteger, nullable=False),
        sa.Column("skipped_last", sa.Text, nullable=False),
        sa.CheckConstraint("claim >= 1", name="ck_lookup_sources_claim"),
        sa.ForeignKeyConstraint(["lookup"], ["lookups.name"], name="fk_lookup_sources_lookup"),
        sa.PrimaryKeyConstraint("lookup", name="pk_lookup_sources"),
    )
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
        sa.Column("restarts", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("letters_first", sa.BigInteger, nullable=False),
        sa.Column("deleted_ms", sa.BigInteger, nullable=True),
        sa.Column("ends", sa.Text, nullable=True),
        sa.Column("version_first", sa.BigInteger, nullable=False),
        sa.Column("restores", sa.Boolean, nullable=False),
        sa.CheckConstraint("desired IN ('running', 'stopped', 'drained')", name="ck_jobs_desired"),
        sa.CheckConstraint("epoch >= 0", name="ck_jobs_epoch"),
        sa.CheckConstraint(
            "state IN ('created', 'starting', 'running', 'stopping', 'stopped', 'draining', 'drained', 'failed')",
            name="ck_jobs_state",
        ),
        sa.CheckConstraint("version >= 1", name="ck_jobs_version"),
        sa.PrimaryKeyConstraint("name", name="pk_jobs"),
    )
    op.create_table(
        "job_versions",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("lookup_versions", sa.Text, nullable=False),
        sa.CheckConstraint("version >= 1", name="ck_job_versions_version"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name="fk_job_versions_job"),
        sa.PrimaryKeyConstraint("job", "version", name="pk_job_versions"),
    )
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
    op.create_table(
        "places",
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("stage", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name="fk_places_job"),
        sa.PrimaryKeyConstraint("kind", "name", name="pk_places"),
    )
    op.create_table(
        "control_services",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("data_dir", sa.Text, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_control_services"),
    )
    op.create_table(
        "leases",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("granted_ms", sa.BigInteger, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        sa.Column("length_ms", sa.BigInteger, nullable=False),
        sa.CheckConstraint("epoch >= 1", name="ck_leases_epoch"),
        sa.CheckConstraint("length_ms > 0", name="ck_leases_length"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name="fk_leases_job"),
        sa.PrimaryKeyConstraint("job", name="pk_leases"),
    )
    op.create_table(
        "runs",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("pid", sa.BigInteger, nullable=False),
        sa.Column("started_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger, nullable=True),
        sa.Column("outcome", sa.Text, nullable=True),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("slots", sa.BigInteger, nullable=False),
        sa.Column("stream_versions", sa.Text, nullable=False),
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
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("offsets_first", sa.Text, nullable=False),
        sa.Column("offsets", sa.Text, nullable=False),
        sa.Column("cut_time_ms", sa.BigInteger, nullable=False),
        sa.Column("watermark_ms", sa.BigInteger, nullable=True),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("reached", sa.Text, nullable=False),
        sa.Column("silence_ms", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("planned_ms", sa.BigInteger, nullable=False),
        sa.Column("checksums", sa.Text, nullable=False),
        sa.Column("stream_versions", sa.Text, nullable=False),
        sa.Column("sessions", sa.Text, nullable=False),
        sa.Column("lookup_versions", sa.Text, nullable=False),
        sa.CheckConstraint("kind IN ('live', 'catch_up', 'idle', 'drain')", name="ck_slices_kind"),
        sa.CheckConstraint("number >= 1", name="ck_slices_number"),
        sa.CheckConstraint("status IN ('planned', 'committed')", name="ck_slices_status"),
        sa.ForeignKeyConstraint(["job", "epoch"], ["runs.job", "runs.epoch"], name="fk_slices_job_epoch"),
        sa.ForeignKeyConstraint(
            ["job", "version"], ["job_versions.job", "job_versions.version"], name="fk_slices_job_version"
        ),
        sa.PrimaryKeyConstraint("job", "number", name="pk_slices"),
    )
    op.create_index("ix_slices_job_epoch", "slices", ["job", "epoch"])
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
        sa.Column("slice", sa.BigInteger, nullable=False),
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
        sa.Column("result_offsets", sa.Text, nullable=False),
        sa.Column("closes_ms", sa.BigInteger, nullable=True),
        sa.Column("reached", sa.Text, nullable=False),
        sa.Column("refused", sa.Text, nullable=False),
        sa.Column("refused_total", sa.Text, nullable=False),
        sa.Column("sessions", sa.Text, nullable=False),
        sa.Column("accepted_in", sa.Text, nullable=False),
        sa.Column("ahead_ms", sa.Text, nullable=False),
        sa.Column("stored", sa.Text, nullable=False),
        sa.Column("sender_faults", sa.Text, nullable=False),
        sa.CheckConstraint("records >= 0 AND accepted >= 0", name="ck_checkpoints_counts"),
        sa.ForeignKeyConstraint(["job", "epoch"], ["runs.job", "runs.epoch"], name="fk_checkpoints_job_epoch"),
        sa.ForeignKeyConstraint(["job", "slice"], ["slices.job", "slices.number"], name="fk_checkpoints_job_slice"),
        sa.ForeignKeyConstraint(
            ["job", "version"], ["job_versions.job", "job_versions.version"], name="fk_checkpoints_job_version"
        ),
        sa.PrimaryKeyConstraint("job", "slice", name="pk_checkpoints"),
    )
    op.create_index("ix_checkpoints_job_epoch", "checkpoints", ["job", "epoch"])
    op.create_index("ix_checkpoints_job_latest_event_ms_slice", "checkpoints", ["job", "latest_event_ms", "slice"])
    op.create_table(
        "job_costs",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("cpu_us", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("state_bytes", sa.BigInteger, nullable=False),
        sa.Column("cpu_us_recent", sa.BigInteger, nullable=False),
        sa.Column("cpu_us_before", sa.BigInteger, nullable=False),
        sa.Column("bytes_before", sa.BigInteger, nullable=False),
        sa.Column("noted_ms", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name="fk_job_costs_job"),
        sa.PrimaryKeyConstraint("job", name="pk_job_costs"),
    )
    op.create_table(
        "backfills",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("from_ms", sa.BigInteger, nullable=False),
        sa.Column("to_ms", sa.BigInteger, nullable=True),
        sa.Column("windows", sa.Text, nullable=False),
        sa.Column("slice", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("done_ms", sa.BigInteger, nullable=True),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("records_done", sa.BigInteger, nullable=False),
        sa.Column("results", sa.Text, nullable=False),
        sa.Column("refused", sa.Text, nullable=False),
        sa.Column("sample", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("requested_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger, nullable=True),
        sa.Column("stream_versions", sa.Text, nullable=False),
        sa.CheckConstraint("records >= 0 AND records_done >= 0", name="ck_backfills_counts"),
        sa.CheckConstraint("epoch >= 0", name="ck_backfills_epoch"),
        sa.CheckConstraint("generation >= 2", name="ck_backfills_generation"),
        sa.CheckConstraint(
            "state IN ('requested', 'running', 'swapping', 'complete', 'failed', 'cancelled')",
            name="ck_backfills_state",
        ),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name="fk_backfills_job"),
        sa.ForeignKeyConstraint(
            ["job", "version"], ["job_versions.job", "job_versions.version"], name="fk_backfills_job_version"
        ),
        sa.PrimaryKeyConstraint("job", "generation", name="pk_backfills"),
    )
    op.create_index(
        "uq_backfills_open",
        "backfills",
        ["job"],
        unique=True,
        sqlite_where=sa.text("state IN ('requested', 'running', 'swapping')"),
        postgresql_where=sa.text("state IN ('requested', 'running', 'swapping')"),
    )
    op.create_table(
        "result_indices",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("made_ms", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name="fk_result_indices_job"),
        sa.PrimaryKeyConstraint("job", "name", name="pk_result_indices"),
    )
    op.create_table(
        "decoder_contents",
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("kept_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_decoder_contents"),
    )
    op.create_table(
        "registered_schemas",
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("kept_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("kind", "number", name="pk_registered_schemas"),
    )
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
    op.create_table(
        "replay_attempts",
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("since", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("stream", name="pk_replay_attempts"),
    )
    op.create_table(
        "replays",
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("identity", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("letter", sa.BigInteger, nullable=False),
        sa.Column("repaired", sa.BigInteger, nullable=False),
        sa.Column("intended_ms", sa.BigInteger, nullable=False),
        sa.Column("sent_ms", sa.BigInteger, nullable=True),
        sa.CheckConstraint("repaired IN (0, 1)", name="ck_replays_repaired"),
        sa.PrimaryKeyConstraint("stream", "identity", name="pk_replays"),
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
        sa.Column("principal", sa.Text, nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name="fk_events_job"),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_job_id", "events", ["job", "id"])
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
        sa.CheckConstraint("role IN ('metrics', 'viewer', 'operator', 'admin')", name="ck_tokens_role"),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    )
    op.create_index(
        "uq_tokens_live",
        "tokens",
        ["name"],
        unique=True,
        sqlite_where=sa.text("revoked_ms IS NULL"),
        postgresql_where=sa.text("revoked_ms IS NULL"),
    )
    op.create_table(
        "notices",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("applied_ms", sa.BigInteger, nullable=False),
        sa.Column("event_seen", sa.BigInteger, nullable=False),
        sa.Column("memory", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("muted_until_ms", sa.BigInteger, nullable=True),
        sa.Column("muted_by", sa.Text, nullable=True),
        sa.CheckConstraint("version >= 1", name="ck_notices_version"),
        sa.PrimaryKeyConstraint("name", name="pk_notices"),
    )
    op.create_table(
        "notice_problems",
        sa.Column("notice", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("condition", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=True),
        sa.Column("cause", sa.BigInteger, nullable=False),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
        sa.Column("opened_ms", sa.BigInteger, nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("affected", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("reported_ms", sa.BigInteger, nullable=True),
        sa.Column("reminded_ms", sa.BigInteger, nullable=True),
        sa.Column("ended_ms", sa.BigInteger, nullable=True),
        sa.Column("end_reported_ms", sa.BigInteger, nullable=True),
        sa.Column("end_reason", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["notice"], ["notices.name"], name="fk_notice_problems_notice"),
        sa.PrimaryKeyConstraint("notice", "number", name="pk_notice_problems"),
    )
    op.create_index(
        "uq_notice_problems_open",
        "notice_problems",
        ["notice", "condition", "subject"],
        unique=True,
        sqlite_where=sa.text("ended_ms IS NULL"),
        postgresql_where=sa.text("ended_ms IS NULL"),
    )
    op.create_table(
        "notice_messages",
        sa.Column("notice", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("problems", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("made_ms", sa.BigInteger, nullable=False),
        sa.Column("due_ms", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("sent_ms", sa.BigInteger, nullable=True),
        sa.Column("merged_into", sa.BigInteger, nullable=True),
        sa.Column("given_up_ms", sa.BigInteger, nullable=True),
        sa.Column("error", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["notice"], ["notices.name"], name="fk_notice_messages_notice"),
        sa.PrimaryKeyConstraint("notice", "number", name="pk_notice_messages"),
    )
    op.create_table(
        "notice_attempts",
        sa.Column("notice", sa.Text, nullable=False),
        sa.Column("message", sa.BigInteger, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("begun_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger, nullable=True),
        sa.ForeignKeyConstraint(
            ["notice", "message"],
            ["notice_messages.notice", "notice_messages.number"],
            name="fk_notice_attempts_notice_message",
        ),
        sa.PrimaryKeyConstraint("notice", "message", "number", name="pk_notice_attempts"),
    )
    op.create_table(
        "service_readings",
        sa.Column("service", sa.Text, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("readings", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("service", name="pk_service_readings"),
    )
    op.create_table(
        "notice_leader",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        sa.Column("length_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_notice_leader"),
    )


def downgrade() -> None:
    for table in reversed(_TABLES):
        op.drop_table(table)
