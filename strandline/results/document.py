"""A row of a stage becomes a document: its id, its index and its JSON are functions of the row and nothing else.

A document:

    {"@timestamp": "2024-05-01T12:01:00.000Z",                     the window's end
     "window": {"start": "2024-05-01T12:00:00.000Z", "end": "2024-05-01T12:01:00.000Z"},
     "device": "t-17", "n": 60, "load": 0.83,                      by fields, then aggregates, by their names
     "strandline": {"job": "turbine-health", "stage": "per_minute", "version": 1, "epoch": 4, "emission": 1234}}

- A timestamp is ISO 8601 in UTC: milliseconds, or microseconds where it has them.
- A decimal is a string with all its digits, because most JSON readers would round a number. Its mapping makes the index
  keep it as a double beside, so it sorts and aggregates; only that copy is rounded.
- NaN and infinity do not exist in JSON: such a row is refused, never turned into null.

In a stream the same document also has `window_start` and `window_end`, behind `window`: a stream's schema is flat.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import InvalidDocument, PermanentError, Problem
from strandline.core.field_types import SIMPLE_TYPES, digits_of, kind_of
from strandline.results.writer import Refused

KeyValue = str | int | float | bool | Decimal | datetime | None

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EMIT_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_LIKE_AN_INDEX = re.compile(r".*-\d{4}\.\d{2}")
_LIKE_A_GENERATION = re.compile(r".*\.g\d+")
_ARROW_TYPES: dict[str, Callable[[pa.DataType], bool]] = {
    "string": lambda arrow: pa.types.is_string(arrow) or pa.types.is_large_string(arrow),
    "long": pa.types.is_integer,
    "integer": pa.types.is_integer,
    "double": pa.types.is_floating,
    "boolean": pa.types.is_boolean,
    "timestamp": pa.types.is_timestamp,
    "decimal": pa.types.is_decimal,
}
_EMIT_NAME_LENGTH_MAX = 200
"""Elasticsearch allows an index name 255 bytes; the month and the template's name need some of them."""
RESERVED_NAMES = frozenset({"@timestamp", "window", "strandline"})
WINDOW_FIELDS = ("window_start", "window_end")
"""Where a document in a stream holds the window's times once more: a stream's schema is flat."""
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
_DECIMAL_CONTEXT = Context(prec=80)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Document:
    id: str
    index: str
    """The index; in a stream, the stream."""
    source: bytes
    """The JSON, on one line."""


def check_emit_name(emit_name: str) -> None:
    """Raise ValueError, with what is expected, unless the name can be an alias and the stem of monthly indices."""
    if not _EMIT_NAME.fullmatch(emit_name) or len(emit_name) > _EMIT_NAME_LENGTH_MAX:
        raise ValueError(
            f"{emit_name!r} cannot name an index; use lower-case letters, digits, '.', '_' and '-', a letter or digit "
            f"first, at most {_EMIT_NAME_LENGTH_MAX} characters"
        )
    if _LIKE_AN_INDEX.fullmatch(emit_name):
        raise ValueError(f"{emit_name!r} ends like a monthly index (-yyyy.MM), with which it could collide; rename it")
    if _LIKE_A_GENERATION.fullmatch(emit_name):
        raise ValueError(
            f"{emit_name!r} ends like a generation of a backfill (.gN), with which it could collide; rename it"
        )


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
    found = re.fullmatch(rf"{re.escape(emit_name)}(?:\.g(\d+))?-\d{{4}}\.\d{{2}}", index)
    return None if found is None else int(found[1] or 1)


def index_name(stem: str, window_end_ms: int) -> str:
    """Return the index of a window: `{stem}-{yyyy.MM}`, the UTC month of its (exclusive) end.

    An id is unique only within an index, so the index follows from the window, never from the time of writing.
    Raises OverflowError for a window end outside the years 1 to 9999.
    """
    end = _EPOCH + timedelta(milliseconds=window_end_ms)
    return f"{stem}-{end.year:04d}.{end.month:02d}"


def document_id(job: str, stage: str, window_start_ms: int, window_end_ms: int, key: tuple[KeyValue, ...]) -> str:
    """Return the 22-character id of a result; equal inputs give equal ids in every run, process and version.

    It is the URL-safe base64, without padding, of the first 16 bytes of the SHA-256 over these parts in a row: `s` job,
    `s` stage, `i` window start, `i` window end, `i` number of key values, and the key values in the order of `by`.
    Window times are milliseconds since 1970 UTC. A part is a letter for its type, the length of its text in bytes, a
    colon and the text: `s4:t-17`, `i2:42`, `n0:` (null), `b1:1` (boolean), `f16:` and 16 hexadecimal digits (the
    big-endian IEEE 754 double, zero without sign), `d4:12.5` (decimal, without trailing zeros), `t16:` and microseconds
    since 1970 UTC.
    """
    digest = _window_digest(job, stage, window_start_ms, window_end_ms, len(key))
    return _finish_id(digest, key)


def _window_digest(job: str, stage: str, window_start_ms: int, window_end_ms: int, key_length: int) -> hashlib._Hash:
    parts: tuple[KeyValue, ...] = (job, stage, window_start_ms, window_end_ms, key_length)
    return hashlib.sha256(b"".join(_part(part) for part in parts))


def _finish_id(digest: hashlib._Hash, key: Iterable[KeyValue]) -> str:
    digest.update(b"".join(_part(value) for value in key))
    return base64.urlsafe_b64encode(digest.digest()[:16])[:22].decode("ascii")


def _part(value: KeyValue) -> bytes:
    match value:
        case str():
            tag, text = b"s", value.encode("utf-8")
        case None:
            tag, text = b"n", b""
        case bool():  # before int, of which it is a kind
            tag, text = b"b", b"1" if value else b"0"
        case int():
            tag, text = b"i", b"%d" % value
        case float():
            tag, text = b"f", struct.pack(">d", value or 0.0).hex().encode("ascii")
        case Decimal():
            tag, text = b"d", format(value.normalize(_DECIMAL_CONTEXT) or Decimal(0), "f").encode("ascii")
        case datetime():
            tag, text = b"t", b"%d" % ((value - _EPOCH) // timedelta(microseconds=1))
    return b"%s%d:%s" % (tag, len(text), text)


@dataclass(frozen=True)
class DocumentShape:
    """What the documents of one emit have in common. Pickles; goes to the executors.

    Raises InvalidDocument for a name or a type that no document can have.
    """

    emit_name: str
    job: str
    stage: str
    version: int
    by: tuple[tuple[str, str], ...]
    """(name, type) of each key field; types as in a stream's schema: string, long, integer, double, boolean, timestamp,
    decimal(p,s)."""
    aggregates: tuple[tuple[str, str], ...]
    is_stream: bool = False
    """Whether the documents go to a stream, not to an index."""
    is_once: bool = True
    """Whether a result has one id, whichever run writes it. Else the run's epoch is a part of it, `ID.EPOCH`, and what two
    runs emit is there twice."""
    generation: int = 1
    """1 is what the job itself writes; a backfill writes into indices of its own."""

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise InvalidDocument([Problem(message, source=self.job) for message in problems])

    def _problems(self) -> Iterator[str]:
        names = [name for name, _ in self.fields]
        if not names:
            yield f"stage {self.stage!r} has neither by fields nor aggregates; its documents would be empty"
        try:
            if not self.is_stream:
                check_emit_name(self.emit_name)
            for name in names:
                check_field_name(name)
        except ValueError as error:
            yield str(error)
        for name, type_name in self.fields:
            if names.count(name) > 1:
                yield f"{name!r} names two results of stage {self.stage!r}; rename one"
            if self.is_stream and name in WINDOW_FIELDS:
                yield f"{name!r} is what the window's times are called in a stream; rename the field"
            if type_name not in SIMPLE_TYPES and digits_of(type_name) is None:
                yield f"{name!r} has type {type_name!r}, for which there is no mapping"

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        return self.by + self.aggregates

    def documents(self, batch: pa.RecordBatch, epoch: int, emission: int) -> Iterator[Document | Refused]:
        """Yield one document, or one refusal, for each row, in the rows' order. The batch is as ResultWriter tells."""
        suffix = "" if self.is_once else f".{epoch}"
        windows = batch.column("window")
        starts_us = _microseconds(pc.struct_field(windows, "start"))
        ends_us = _microseconds(pc.struct_field(windows, "end"))
        columns = [_Column.read(name, batch.column(name), type_name) for name, type_name in self.fields]
        names = [column.name for column in columns]
        rows = zip(*(column.values for column in columns), strict=True)
        keys: Iterable[tuple[KeyValue, ...]] = itertools.repeat(())
        if self.by:
            keys = zip(*(column.key_values for column in columns[: len(self.by)]), strict=True)
        problems = _problems_by_row(columns)
        heads: dict[tuple[int, int], _WindowHead] = {}
        tail = b',"strandline":' + _encode(self._origin(epoch, emission)) + b"}"
        for row, (start_us, end_us, key, values) in enumerate(zip(starts_us, ends_us, keys, rows, strict=False)):
            head = heads.get((start_us, end_us))
            if head is None:
                head = heads[start_us, end_us] = self._window_head(start_us // 1000, end_us // 1000)
            # The fields' own braces go: head and tail bring theirs.
            source = head.source + _encode(dict(zip(names, values, strict=True)))[1:-1] + tail
            identity = _finish_id(head.digest.copy(), key) + suffix
            problem = head.problem or problems.get(row)
            if problem is None and head.index is not None:
                yield Document(identity, head.index, source)
            elif problem is not None:
                yield Refused(identity, head.index, None, problem[0], problem[1], source)

    def _origin(self, epoch: int, emission: int) -> dict[str, str | int]:
        return {
            "job": self.job,
            "stage": self.stage,
            "version": self.version,
            "epoch": epoch,
            "emission": emission,
        }

    def _window_head(self, start_ms: int, end_ms: int) -> _WindowHead:
        digest = _window_digest(self.job, self.stage, start_ms, end_ms, len(self.by))
        index: str | None = None
        problem = None
        try:
            stem = index_stem(self.emit_name, self.generation)
            index = self.emit_name if self.is_stream else index_name(stem, end_ms)
            start, end = format_timestamp(start_ms * 1000), format_timestamp(end_ms * 1000)
        except OverflowError:
            start, end = str(start_ms), str(end_ms)
            problem = (
                "timestamp_out_of_range",
                f"the window {start_ms} to {end_ms} ms lies outside the years 1 to 9999",
            )
        times: dict[str, object] = {"@timestamp": end, "window": {"start": start, "end": end}}
        if self.is_stream:
            times |= zip(WINDOW_FIELDS, (start, end), strict=True)
        source = _encode(times)
        return _WindowHead(digest, index, source[:-1] + b",", problem)


@dataclass(frozen=True, slots=True)
class _WindowHead:
    """What all rows of one window share, worked out once."""

    digest: hashlib._Hash
    index: str | None
    source: bytes
    problem: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    values: list[Any]
    """Ready for JSON."""
    key_values: list[KeyValue]
    """As `document_id` takes them."""
    problems: dict[int, tuple[str, str]]
    """Row -> (type, reason) of a refusal."""

    @classmethod
    def read(cls, name: str, array: pa.Array, type_name: str) -> _Column:
        if not _ARROW_TYPES[kind_of(type_name)](array.type):
            raise PermanentError(f"column {name} arrived as {array.type} where {type_name} was declared; this is a bug")
        if type_name == "timestamp":
            return _read_timestamps(name, array)
        values = array.to_pylist()
        if type_name == "double":
            return _read_doubles(name, array, values)
        if kind_of(type_name) == "decimal":
            texts = [None if value is None else format(value, "f") for value in values]
            return cls(name, texts, values, {})
        return cls(name, values, values, {})


def _read_timestamps(name: str, array: pa.Array) -> _Column:
    texts: list[str | None] = []
    moments: list[KeyValue] = []
    problems = {}
    for row, value_us in enumerate(_microseconds(array)):
        try:
            texts.append(None if value_us is None else format_timestamp(value_us))
            moments.append(None if value_us is None else _EPOCH + timedelta(microseconds=value_us))
        except OverflowError:
            texts.append(str(value_us))
            moments.append(value_us)
            problems[row] = ("timestamp_out_of_range", f"{name} lies outside the years 1 to 9999 ({value_us} us)")
    return _Column(name, texts, moments, problems)


def _read_doubles(name: str, array: pa.Array, values: list[Any]) -> _Column:
    if pc.all(pc.is_finite(array)).as_py() is not False:
        return _Column(name, values, values, {})
    problems = {}
    shown = list(values)
    for row, value in enumerate(values):
        if value is not None and not math.isfinite(value):
            shown[row] = str(value)
            problems[row] = ("non_finite_number", f"{name} is {value}, which JSON cannot hold; guard the expression")
    return _Column(name, shown, values, problems)


def _problems_by_row(columns: list[_Column]) -> dict[int, tuple[str, str]]:
    problems: dict[int, tuple[str, str]] = {}
    for column in reversed(columns):  # so that the first column's problem is the one told
        problems.update(column.problems)
    return problems


def _microseconds(array: pa.Array) -> list[Any]:
    """Return microseconds since 1970 UTC (or None) for each timestamp; one without a zone is UTC."""
    return list(array.cast(pa.timestamp("us", tz=array.type.tz)).cast(pa.int64()).to_pylist())


def format_timestamp(time_us: int) -> str:
    """Return ISO 8601 in UTC with milliseconds, or with microseconds where there are some.

    Raises OverflowError outside the years 1 to 9999.
    """
    moment = _EPOCH + timedelta(microseconds=time_us)
    timespec = "microseconds" if time_us % 1000 else "milliseconds"
    return moment.isoformat(timespec=timespec).removesuffix("+00:00") + "Z"
