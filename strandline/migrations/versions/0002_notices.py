"""Tables of notices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0002"
down_revision = "r0001"

_TABLES = ("notices", "notice_problems", "notice_messages", "notice_attempts", "notice_leader")
"""In the order of creation: foreign keys refer only to earlier tables."""


def upgrade() -> None:
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
