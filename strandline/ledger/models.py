"""The ledger's tables. Other programs may read them with any SQL client: docs/ledger.md describes each column.

Every rule that the schema can express is a constraint here. A change needs a revision in
`strandline/migrations/versions`; a test compares both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec
import sqlalchemy as sa

from strandline.ledger.states import (
    OPEN_BACKFILLS,
    BackfillState,
    Desired,
    EventTimeRule,
    JobState,
    Offsets,
    PackedSessions,
    Role,
    SenderFaults,
    SliceKind,
    SliceStatus,
    WindowRange,
)

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class PlainText(sa.types.TypeDecorator[str]):
    """Text that any database can store: NUL and lone surrogates, which occur in bad records, are escaped."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None:
            return None
        return value.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")


class ChoiceText(sa.types.TypeDecorator[StrEnum]):
    """A member of an enum, stored as its value."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, choices: type[StrEnum]) -> None:
        super().__init__()
        self.choices = choices

    def process_bind_param(self, value: StrEnum | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else self.choices(value).value

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> StrEnum | None:
        return None if value is None else self.choices(value)


class JsonText(sa.types.TypeDecorator[dict[Any, Any]]):
    """A JSON object as ASCII text. `restore` converts keys back to numbers, which JSON can't have as keys."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, restore: Callable[[dict[str, Any]], dict[Any, Any]] | None = None) -> None:
        super().__init__()
        self.restore = restore

    def process_bind_param(self, value: dict[Any, Any] | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else json.dumps(value, separators=(",", ":"), allow_nan=False)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> dict[Any, Any] | None:
        if value is None:
            return None
        found: dict[str, Any] = json.loads(value)
        return self.restore(found) if self.restore else found


class NumberMap(sa.types.TypeDecorator[dict[Any, Any]]):
    """A JSON object whose innermost keys are partitions, and so numbers: a map of offsets, or the partitions of one
    stream.

    A rewind reads hundreds of thousands of them.
    """

    impl = sa.Text
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        """`kind`: the type of the map."""
        super().__init__()
        self.kind = kind
        self._decode = msgspec.json.Decoder(kind).decode

    def process_bind_param(self, value: dict[Any, Any] | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> dict[Any, Any] | None:
        return None if value is None else self._decode(value)


_OFFSETS = NumberMap(Offsets)
_VERSIONS = NumberMap(dict[str, int])
_SESSIONS = NumberMap(PackedSessions)
_OF_PARTITIONS = NumberMap(dict[int, int])


@lru_cache(maxsize=64)
def _rule(text: str) -> EventTimeRule:
    found = json.loads(text)
    by_stream = tuple((stream, EventTimeRule(**rule)) for stream, rule in found.pop("by_stream", {}).items())
    return EventTimeRule(**found, by_stream=by_stream)


class RuleText(sa.types.TypeDecorator[EventTimeRule]):
    """The event-time rule as a JSON object."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: EventTimeRule | None, dialect: sa.Dialect) -> str | None:
        if value is None:
            return None
        return json.dumps(value.written, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> EventTimeRule | None:
        return None if value is None else _rule(value)


class FaultsText(sa.types.TypeDecorator[SenderFaults]):
    """Faults of senders as a JSON object. `{}` if there are none."""

    impl = sa.Text
    cache_ok = True
    _decode = msgspec.json.Decoder(SenderFaults).decode

    def process_bind_param(self, value: SenderFaults | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else json.dumps({k: v for k, v in msgspec.to_builtins(value).items() if v})

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> SenderFaults | None:
        return None if value is None else type(self)._decode(value)


def _ranges(value: dict[str, Any]) -> dict[str, WindowRange]:
    return {stage: WindowRange(*ends) for stage, ends in value.items()}


class JsonList(sa.types.TypeDecorator[list[str]]):
    """A JSON list of strings as ASCII text."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: list[str] | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> list[str] | None:
        return None if value is None else list(json.loads(value))


def _one_of(column: str, choices: type[StrEnum]) -> sa.CheckConstraint:
    values = ", ".join(f"'{choice.value}'" for choice in choices)
    return sa.CheckConstraint(f"{column} IN ({values})", name=column)


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, PlainText, nullable=nullable)


def _number(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _json(name: str, restore: Callable[[dict[str, Any]], dict[Any, Any]] | None = None) -> sa.Column[dict[Any, Any]]:
    return sa.Column(name, JsonText(restore), nullable=False)


streams = sa.Table(
    "streams",
    metadata,
    sa.Column("name", PlainText, primary_key=True),
    _json("document"),
    _number("version"),
    _text("topic_id", nullable=True),
    _number("created_ms"),
    sa.CheckConstraint("version >= 1", name="version"),
)

stream_versions = sa.Table(
    "stream_versions",
    metadata,
    sa.Column("stream", PlainText, sa.ForeignKey("streams.name"), primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    _json("document"),
    _number("applied_ms"),
    sa.CheckConstraint("version >= 1", name="version"),
)

lookups = sa.Table(
    "lookups",
    metadata,
    sa.Column("name", PlainText, primary_key=True),
    _number("version"),
    _number("created_ms"),
    sa.CheckConstraint("version >= 1", name="version"),
)

lookup_versions = sa.Table(
    "lookup_versions",
    metadata,
    sa.Column("lookup", PlainText, sa.ForeignKey("lookups.name"), primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    _text("digest"),
    _json("document"),
    _number("rows"),
    _number("applied_ms"),
    sa.CheckConstraint("version >= 1", name="version"),
)

lookup_tables = sa.Table(
    "lookup_tables",
    metadata,
    sa.Column("digest", PlainText, primary_key=True),
    _text("packed"),
    _number("kept_ms"),
)

lookup_sources = sa.Table(
    "lookup_sources",
    metadata,
    sa.Column("lookup", PlainText, sa.ForeignKey("lookups.name"), primary_key=True),
    _number("claim"),
    _text("reader"),
    _number("due_ms"),
    _number("wait_ms"),
    sa.Column("position", _OFFSETS, nullable=True),
    _number("current_ms"),
    sa.Column("failing_since_ms", sa.BigInteger, nullable=True),
    _text("error"),
    _number("skipped"),
    _text("skipped_last"),
    sa.CheckConstraint("claim >= 1", name="claim"),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("name", PlainText, primary_key=True),
    _number("version"),
    sa.Column("desired", ChoiceText(Desired), nullable=False),
    sa.Column("state", ChoiceText(JobState), nullable=False),
    _text("message"),
    _number("epoch"),
    _number("created_ms"),
    _number("updated_ms"),
    _number("restarts"),
    _number("generation"),
    _number("letters_first"),
    _number("deleted_ms", nullable=True),
    sa.Column("ends", _OFFSETS, nullable=True),
    _number("version_first"),
    sa.Column("restores", sa.Boolean, nullable=False),
    sa.CheckConstraint("version >= 1", name="version"),
    sa.CheckConstraint("epoch >= 0", name="epoch"),
    _one_of("desired", Desired),
    _one_of("state", JobState),
)

job_versions = sa.Table(
    "job_versions",
    metadata,
    sa.Column("job", PlainText, sa.ForeignKey("jobs.name"), primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    _text("text"),
    _json("document"),
    _number("created_ms"),
    sa.Column("lookup_versions", _VERSIONS, nullable=False),
    sa.CheckConstraint("version >= 1", name="version"),
)

inputs = sa.Table(
    "inputs",
    metadata,
    sa.Column("job", PlainText, sa.ForeignKey("jobs.name"), primary_key=True),
    sa.Column("stream", PlainText, sa.ForeignKey("streams.name"), primary_key=True),
    _json("document"),
    _number("recorded_ms"),
)

places = sa.Table(
    "places",
    metadata,
    sa.Column("kind", PlainText, primary_key=True),
    sa.Column("name", PlainText, primary_key=True),
    sa.Column("job", PlainText, sa.ForeignKey("jobs.name"), nullable=False),
    _text("stage"),
)

control_services = sa.Table(
    "control_services",
    metadata,
    sa.Column("name", PlainText, primary_key=True),
    _text("address"),
    _text("data_dir"),
    _number("until_ms"),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("job", PlainText, sa.ForeignKey("jobs.name"), primary_key=True),
    _text("holder"),
    _number("epoch"),
    _number("granted_ms"),
    _number("until_ms"),
    _number("length_ms"),
    sa.CheckConstraint("epoch >= 1", name="epoch"),
    sa.CheckConstraint("length_ms > 0", name="length"),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("job", PlainText, primary_key=True),
    sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    _number("version"),
    _number("pid"),
    _number("started_ms"),
    _number("ended_ms", nullable=True),
    _text("outcome", nullable=True),
    _text("message"),
    _number("slots"),
    sa.Column("stream_versions", _VERSIONS, nullable=False),
    sa.ForeignKeyConstraint(["job", "version"], ["job_versions.job", "job_versions.version"]),
    sa.CheckConstraint("epoch >= 1", name="epoch"),
    sa.CheckConstraint("(ended_ms IS NULL) = (outcome IS NULL)", name="ended"),
)
one_open_run = sa.Index(
    "uq_runs_open",
    runs.c.job,
    unique=True,
    sqlite_where=runs.c.ended_ms.is_(None),
    postgresql_where=runs.c.ended_ms.is_(None),
)

slices = sa.Table(
    "slices",
    metadata,
    sa.Column("job", PlainText, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    _number("epoch"),
    _number("version"),
    sa.Column("offsets_first", _OFFSETS, nullable=False),
    sa.Column("offsets", _OFFSETS, nullable=False),
    _number("cut_time_ms"),
    _number("watermark_ms", nullable=True),
    sa.Column("rule", RuleText, nullable=False),
    sa.Column("reached", _OFFSETS, nullable=False),
    sa.Column("silence_ms", _OFFSETS, nullable=False),
    sa.Column("kind", ChoiceText(SliceKind), nullable=False),
    sa.Column("status", ChoiceText(SliceStatus), nullable=False),
    _number("planned_ms"),
    sa.Column("checksums", _OFFSETS, nullable=False),
    sa.Column("stream_versions", _VERSIONS, nullable=False),
    sa.Column("sessions", _SESSIONS, nullable=False),
    sa.Column("lookup_versions", _VERSIONS, nullable=False),
    sa.ForeignKeyConstraint(["job", "epoch"], ["runs.job", "runs.epoch"]),
    sa.ForeignKeyConstraint(["job", "version"], ["job_versions.job", "job_versions.version"]),
    sa.CheckConstraint("number >= 1", name="number"),
    _one_of("kind", SliceKind),
    _one_of("status", SliceStatus),
    # Used to check whether a run that is removed is the run of a slice.
    sa.Index(None, "job", "epoch"),
)
one_planned_slice = sa.Index(
    "uq_slices_planned",
    slices.c.job,
    unique=True,
    sqlite_where=sa.text("status = 'planned'"),
    postgresql_where=sa.text("status = 'planned'"),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("job", PlainText, primary_key=True),
    sa.Column("slice", sa.BigInteger, primary_key=True, autoincrement=False),
    _number("epoch"),
    _number("version"),
    _json("emitted"),
    _number("latest_event_ms", nullable=True),
    _number("latest_log_ms", nullable=True),
    _number("records"),
    _number("accepted"),
    _json("rejected"),
    _json("results"),
    sa.Column("dead_letter_offsets", _OF_PARTITIONS, nullable=False),
    _number("committed_ms"),
    _number("records_total"),
    _number("accepted_total"),
    _json("rejected_total"),
    _json("results_total"),
    sa.Column("result_offsets", _OFFSETS, nullable=False),
    _number("closes_ms", nullable=True),
    sa.Column("reached", _OFFSETS, nullable=False),
    _json("refused"),
    _json("refused_total"),
    sa.Column("sessions", _SESSIONS, nullable=False),
    sa.Column("accepted_in", _OFFSETS, nullable=False),
    sa.Column("ahead_ms", _OFFSETS, nullable=False),
    _json("stored"),
    sa.Column("sender_faults", FaultsText, nullable=False),
    sa.ForeignKeyConstraint(["job", "slice"], ["slices.job", "slices.number"]),
    sa.ForeignKeyConstraint(["job", "epoch"], ["runs.job", "runs.epoch"]),
    sa.ForeignKeyConstraint(["job", "version"], ["job_versions.job", "job_versions.version"]),
    sa.CheckConstraint("records >= 0 AND accepted >= 0", name="counts"),
    sa.Index(None, "job", "latest_event_ms", "slice"),
    sa.Index(None, "job", "epoch"),
)

job_costs = sa.Table(
    "job_costs",
    metadata,
    sa.Column("job", PlainText, sa.ForeignKey("jobs.name"), primary_key=True),
    _number("epoch"),
    _number("cpu_us"),
    _number("bytes"),
    _number("state_bytes"),
    _number("cpu_us_recent"),
    _number("cpu_us_before"),
    _number("bytes_before"),
    _number("noted_ms"),
)

backfills = sa.Table(
    "backfills",
    metadata,
    sa.Column("job", PlainText, sa.ForeignKey("jobs.name"), primary_key=True),
    sa.Column("generation", sa.BigInteger, primary_key=True, autoincrement=False),
    _number("version"),
    _number("from_ms"),
    _number("to_ms", nullable=True),
    _json("windows", _ranges),
    _number("slice"),
    sa.Column("state", ChoiceText(BackfillState), nullable=False),
    _number("epoch"),
    _number("done_ms", nullable=True),
    _number("records"),
    _number("records_done"),
    _json("results"),
    _json("refused"),
    sa.Column("sample", JsonList, nullable=False),
    _text("message"),
    _number("requested_ms"),
    _number("updated_ms"),
    _number("ended_ms", nullable=True),
    sa.Column("stream_versions", _VERSIONS, nullable=False),
    sa.ForeignKeyConstraint(["job", "version"], ["job_versions.job", "job_versions.version"]),
    sa.CheckConstraint("generation >= 2", name="generation"),
    sa.CheckConstraint("epoch >= 0", name="epoch"),
    sa.CheckConstraint("records >= 0 AND records_done >= 0", name="counts"),
    _one_of("state", BackfillState),
)
_is_open = f"state IN ({', '.join(repr(state.value) for state in OPEN_BACKFILLS)})"
one_open_backfill = sa.Index(
    "uq_backfills_open",
    backfills.c.job,
    unique=True,
    sqlite_where=sa.text(_is_open),
    postgresql_where=sa.text(_is_open),
)

result_indices = sa.Table(
    "result_indices",
    metadata,
    sa.Column("job", PlainText, sa.ForeignKey("jobs.name"), primary_key=True),
    sa.Column("name", PlainText, primary_key=True),
    _number("made_ms"),
)

decoder_contents = sa.Table(
    "decoder_contents",
    metadata,
    sa.Column("hash", PlainText, primary_key=True),
    _text("document"),
    _number("kept_ms"),
)

registered_schemas = sa.Table(
    "registered_schemas",
    metadata,
    sa.Column("kind", PlainText, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    _text("document"),
    _number("kept_ms"),
)

schema_uses = sa.Table(
    "schema_uses",
    metadata,
    sa.Column("job", PlainText, primary_key=True),
    sa.Column("stream", PlainText, primary_key=True),
    sa.Column("kind", PlainText, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    _number("slice"),
)

unknown_schemas = sa.Table(
    "unknown_schemas",
    metadata,
    sa.Column("job", PlainText, primary_key=True),
    sa.Column("stream", PlainText, primary_key=True),
    sa.Column("slice", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", PlainText, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
)

replay_attempts = sa.Table(
    "replay_attempts",
    metadata,
    sa.Column("stream", PlainText, primary_key=True),
    _number("number"),
    sa.Column("since", _OF_PARTITIONS, nullable=False),
)

replays = sa.Table(
    "replays",
    metadata,
    sa.Column("stream", PlainText, primary_key=True),
    sa.Column("identity", PlainText, primary_key=True),
    _text("job"),
    _number("letter"),
    _number("repaired"),
    _number("intended_ms"),
    _number("sent_ms", nullable=True),
    sa.CheckConstraint("repaired IN (0, 1)", name="repaired"),
)

events = sa.Table(
    "events",
    metadata,
    # SQLite numbers rows automatically only in a column of the type INTEGER.
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("job", PlainText, sa.ForeignKey("jobs.name"), nullable=True),
    _number("epoch", nullable=True),
    _number("at_ms"),
    _text("kind"),
    _text("message"),
    _json("facts"),
    _text("principal", nullable=True),
    sa.Index(None, "job", "id"),
    sqlite_autoincrement=True,
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", PlainText, primary_key=True),
    _text("name"),
    _text("digest"),
    sa.Column("role", ChoiceText(Role), nullable=True),
    sa.Column("writes", JsonList, nullable=False),
    _number("created_ms"),
    _text("created_by"),
    _number("expires_ms", nullable=True),
    _number("revoked_ms", nullable=True),
    _text("revoked_by", nullable=True),
    _number("used_ms", nullable=True),
    _one_of("role", Role),
)
one_live_token = sa.Index(
    "uq_tokens_live",
    tokens.c.name,
    unique=True,
    sqlite_where=tokens.c.revoked_ms.is_(None),
    postgresql_where=tokens.c.revoked_ms.is_(None),
)

notices = sa.Table(
    "notices",
    metadata,
    sa.Column("name", PlainText, primary_key=True),
    _number("version"),
    _json("document"),
    _number("created_ms"),
    _number("applied_ms"),
    _number("event_seen"),
    _json("memory"),
    _number("revision"),
    _number("muted_until_ms", nullable=True),
    _text("muted_by", nullable=True),
    sa.CheckConstraint("version >= 1", name="version"),
)

notice_problems = sa.Table(
    "notice_problems",
    metadata,
    sa.Column("notice", PlainText, sa.ForeignKey("notices.name"), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    _text("condition"),
    _text("subject"),
    _text("job", nullable=True),
    _number("cause"),
    _number("since_ms"),
    _number("opened_ms"),
    _text("title"),
    _text("reason"),
    _text("affected"),
    _text("action"),
    _number("reported_ms", nullable=True),
    _number("reminded_ms", nullable=True),
    _number("ended_ms", nullable=True),
    _number("end_reported_ms", nullable=True),
    _text("end_reason"),
)
one_open_problem = sa.Index(
    "uq_notice_problems_open",
    notice_problems.c.notice,
    notice_problems.c.condition,
    notice_problems.c.subject,
    unique=True,
    sqlite_where=notice_problems.c.ended_ms.is_(None),
    postgresql_where=notice_problems.c.ended_ms.is_(None),
)

notice_messages = sa.Table(
    "notice_messages",
    metadata,
    sa.Column("notice", PlainText, sa.ForeignKey("notices.name"), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    _text("channel"),
    _text("kind"),
    sa.Column("problems", JsonList, nullable=False),
    _json("content"),
    _number("made_ms"),
    _number("due_ms"),
    _number("attempts"),
    _number("sent_ms", nullable=True),
    _number("merged_into", nullable=True),
    _number("given_up_ms", nullable=True),
    _text("error"),
)

notice_attempts = sa.Table(
    "notice_attempts",
    metadata,
    sa.Column("notice", PlainText, primary_key=True),
    sa.Column("message", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    _text("channel"),
    _number("begun_ms"),
    _number("ended_ms", nullable=True),
    sa.ForeignKeyConstraint(["notice", "message"], ["notice_messages.notice", "notice_messages.number"]),
)

service_readings = sa.Table(
    "service_readings",
    metadata,
    sa.Column("service", PlainText, primary_key=True),
    _number("at_ms"),
    _json("readings"),
)

notice_leader = sa.Table(
    "notice_leader",
    metadata,
    sa.Column("name", PlainText, primary_key=True),
    _text("holder"),
    _number("epoch"),
    _number("until_ms"),
    _number("length_ms"),
)
