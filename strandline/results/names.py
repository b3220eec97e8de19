"""The names that results go by: what an emit, a field and an index may be called, and which index holds which window."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from strandline.core.times.durations import TIME_MS_MAX

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EMIT_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_LIKE_AN_INDEX = re.compile(r".*-\d{4}\.\d{2}")
_LIKE_A_WRITE_ALIAS = re.compile(r".*-\d{4}\.\d{2}\.write")
_LIKE_A_GENERATION = re.compile(r".*\.g\d+")
_LIKE_DEAD_LETTERS = re.compile(r".*\.dead-letters(\.write)?")
_EMIT_NAME_LENGTH_MAX = 200
"""Elasticsearch allows an index name 255 bytes; the month and the template's name need some of them."""
RESERVED_NAMES = frozenset({"@timestamp", "window", "strandline"})
WINDOW_FIELDS = ("window_start", "window_end")
"""Where a document in a stream holds the window's times once more: a stream's schema is flat."""
OWN_PREFIX = "strandline_"
"""Before the names of the platform's own columns in files and tables."""
COLUMN_NAME_LENGTH_MAX = 63
"""Of a field in a table: PostgreSQL cuts longer names. Field names are ASCII, so characters are bytes."""
EVENT_TIME_FIELD = "event_time"
"""The same of a record's event time."""
ROWS_JOINED = "@rows_joined"
"""A column of joined rows: where the two rows of each stand in the log, as `orders/2/1207|shipments/0/88`, with `-` for one that
there is not."""
WINDOW_NUMBER = "@window_number"
"""A column of windows that count records: of several with one key and the same times, which it is."""
REVISION = "revision"
"""The field of a result that may be revised: how many late records it holds. Of two documents of one window the one with more is
the later one."""
KEYS_BESIDE = {ROWS_JOINED: "string", WINDOW_NUMBER: "long"}
"""The types of such columns, which tell results of one window and key apart."""
METADATA_NAMES = frozenset(
    [
        "_id",
        "_index",
        "_source",
        "_routing",
        "_ignored",
        "_ignored_source",
        "_field_names",
        "_nested_path",
        "_seq_no",
        "_version",
        "_doc_count",
        "_tier",
    ]
)
"""What Elasticsearch keeps for itself. Were one missing here, it would refuse the template."""


def check_emit_name(emit_name: str) -> None:
    """Raise ValueError, with what is expected, unless the name can be an alias and the stem of monthly indices."""
    if not _EMIT_NAME.fullmatch(emit_name) or len(emit_name) > _EMIT_NAME_LENGTH_MAX:
        raise ValueError(
            f"{emit_name!r} cannot name an index; use lower-case letters, digits, '.', '_' and '-', a letter or digit "
            f"first, at most {_EMIT_NAME_LENGTH_MAX} characters"
        )
    if _LIKE_AN_INDEX.fullmatch(emit_name):
        raise ValueError(f"{emit_name!r} ends like a monthly index (-yyyy.MM), with which it could collide; rename it")
    if _LIKE_A_WRITE_ALIAS.fullmatch(emit_name):
        raise ValueError(
            f"{emit_name!r} ends like the alias of a monthly index (-yyyy.MM.write), with which it could collide; rename it"
        )
    if _LIKE_A_GENERATION.fullmatch(emit_name):
        raise ValueError(
            f"{emit_name!r} ends like a generation of a backfill (.gN), with which it could collide; rename it"
        )
    if _LIKE_DEAD_LETTERS.fullmatch(emit_name):
        raise ValueError(f"{emit_name!r} ends like an index of dead letters (JOB.dead-letters); rename it")


def check_field_name(name: str) -> None:
    """Raise ValueError unless a by field or an aggregate may have this name in a document."""
    if name in RESERVED_NAMES or name in METADATA_NAMES or "." in name or not name:
        raise ValueError(
            f"{name!r} cannot name a result: @timestamp, window and strandline are the platform's own, names such as _id "
            f"are Elasticsearch's, and a dot would make an object; rename the field"
        )


def index_stem(emit_name: str, generation: int) -> str:
    """Return what the indices of a generation have in common: the emit name, from the second generation on with `.gN`."""
    return emit_name if generation == 1 else f"{emit_name}.g{generation}"


def generation_of(emit_name: str, index: str) -> int | None:
    """Return the generation to which an index of this emit belongs; None for an index of something else."""
    if not index.startswith(emit_name):
        return None  # without the price of an expression: this is asked for each alias about all indices
    found = re.fullmatch(rf"{re.escape(emit_name)}(?:\.g(\d+))?-\d{{4}}\.\d{{2}}", index)
    return None if found is None else int(found[1] or 1)


def index_name(stem: str, window_end_ms: int) -> str:
    """Return the index of a window: `{stem}-{yyyy.MM}`, the UTC month of its (exclusive) end.

    An id is unique only within an index, so the index follows from the window, never from the time of writing.
    Raises OverflowError for a window end outside the years 1 to 9999.
    """
    end = _EPOCH + timedelta(milliseconds=window_end_ms)
    return f"{stem}-{end.year:04d}.{end.month:02d}"


def first_index(stem: str, window_end_ms: int) -> str:
    """Return the first index that a window may be in that ends at this time or later. Event time may have come to the end of the
    year 9999, which many senders mean as "never": no index is named after it, so the last one that is."""
    return index_name(stem, min(window_end_ms, TIME_MS_MAX))


def write_alias(index: str) -> str:
    """Return the alias under which documents are written to an index. Only the index has it: no write to it makes one."""
    return f"{index}.write"


def open_index(emit_name: str) -> str:
    """Return the index that shows an emission's windows while they are open."""
    return f"{emit_name}.open"


def emit_of_open_index(index: str) -> str | None:
    """Return the emission whose open windows an index shows; None for an index of something else."""
    return index.removesuffix(".open") if index.endswith(".open") else None


def dead_letter_index(job: str) -> str:
    """Return the index of a job's dead letters. No result goes to an alias that ends like it."""
    return f"{job}.dead-letters"
