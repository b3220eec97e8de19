"""Names of results: valid names of emissions, fields, and indices, and the index of a window."""

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
"""Elasticsearch allows 255 bytes for an index name; the month and the template's name need some of them."""
RESERVED_NAMES = frozenset({"@timestamp", "window", "strandline"})
WINDOW_FIELDS = ("window_start", "window_end")
"""Fields that repeat the window's times in a document of a stream, because a stream's schema is flat."""
OWN_PREFIX = "strandline_"
"""Prefix of the platform's own columns in files and tables."""
COLUMN_NAME_LENGTH_MAX = 63
"""Maximum length of a field name in a table: PostgreSQL cuts longer names. Field names are ASCII, so characters are
bytes."""
EVENT_TIME_FIELD = "event_time"
"""Field that repeats a record's event time in a document of a stream."""
ROWS_JOINED = "@rows_joined"
"""Column of joined rows with the log positions of both rows, for example `orders/2/1207|shipments/0/88`, or `-` if a
row is missing."""
WINDOW_NUMBER = "@window_number"
"""Column that numbers the count windows with one key and the same times."""
REVISION = "revision"
"""Field of a result that may be revised: the number of late records in it. The later of two documents of
one window has the higher number."""
KEYS_BESIDE = {ROWS_JOINED: "string", WINDOW_NUMBER: "long"}
"""Types of the columns that distinguish results of one window and key."""
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
"""Fields that Elasticsearch reserves. If one were missing here, Elasticsearch would refuse the template."""


def check_emit_name(emit_name: str) -> None:
    """Raise ValueError, with the expected form, unless the name can be an alias and the stem of monthly indices."""
    if not _EMIT_NAME.fullmatch(emit_name) or len(emit_name) > _EMIT_NAME_LENGTH_MAX:
        raise ValueError(
            f"{emit_name!r} cannot name an index; use lower-case letters, digits, '.', '_' and '-', a letter or digit "
            f"first, at most {_EMIT_NAME_LENGTH_MAX} characters"
        )
    if _LIKE_AN_INDEX.fullmatch(emit_name):
        raise ValueError(f"{emit_name!r} ends like a monthly index (-yyyy.MM), so they could collide; rename it")
    if _LIKE_A_WRITE_ALIAS.fullmatch(emit_name):
        raise ValueError(
            f"{emit_name!r} ends like the alias of a monthly index (-yyyy.MM.write), so they could collide; rename it"
        )
    if _LIKE_A_GENERATION.fullmatch(emit_name):
        raise ValueError(f"{emit_name!r} ends like a generation of a backfill (.gN), so they could collide; rename it")
    if _LIKE_DEAD_LETTERS.fullmatch(emit_name):
        raise ValueError(f"{emit_name!r} ends like an index of dead letters (JOB.dead-letters); rename it")


def check_field_name(name: str) -> None:
    """Raise ValueError unless a by field or an aggregate can have this name in a document."""
    if name in RESERVED_NAMES or name in METADATA_NAMES or "." in name or not name:
        raise ValueError(
            f"{name!r} cannot name a result: @timestamp, window and strandline are the platform's own, names such as _id "
            f"are Elasticsearch's, and a dot would make an object; rename the field"
        )


def index_stem(emit_name: str, generation: int) -> str:
    """Return the common prefix of the indices of a generation: the emit name, from the second generation on with `.gN`."""
    return emit_name if generation == 1 else f"{emit_name}.g{generation}"


def generation_of(emit_name: str, index: str) -> int | None:
    """Return the generation of an index of this emission. None for another index."""
    if not index.startswith(emit_name):
        return None  # without the cost of an expression: this runs for each alias and all indices
    found = re.fullmatch(rf"{re.escape(emit_name)}(?:\.g(\d+))?-\d{{4}}\.\d{{2}}", index)
    return None if found is None else int(found[1] or 1)


def index_name(stem: str, window_end_ms: int) -> str:
    """Return the index of a window: `{stem}-{yyyy.MM}`, the UTC month of its (exclusive) end.

    An id is unique only within an index, so the index depends on the window, never on the time of writing. Raises
    OverflowError for a window end outside the years 1 to 9999.
    """
    end = _EPOCH + timedelta(milliseconds=window_end_ms)
    return f"{stem}-{end.year:04d}.{end.month:02d}"


def first_index(stem: str, window_end_ms: int) -> str:
    """Return the first index of windows that end at this time or later.

    Event time may have reached the end of the year 9999, which many senders use for "never". No index has a later
    month, so then it is the last one.
    """
    return index_name(stem, min(window_end_ms, TIME_MS_MAX))


def write_alias(index: str) -> str:
    """Return the alias under which documents are written to an index.

    Only the index has it, so no write to it creates an index.
    """
    return f"{index}.write"


def open_index(emit_name: str) -> str:
    """Return the index that shows an emission's open windows."""
    return f"{emit_name}.open"


def emit_of_open_index(index: str) -> str | None:
    """Return the emission whose open windows an index shows. None for another index."""
    return index.removesuffix(".open") if index.endswith(".open") else None


def dead_letter_index(job: str) -> str:
    """Return the index of a job's dead letters. No result is written to an alias that ends like it."""
    return f"{job}.dead-letters"
