"""A row of a stage becomes a document: its id, its index, and its JSON depend only on the row.

A document:

    {"@timestamp": "2024-05-01T12:01:00.000Z",                     the window's end
     "window": {"start": "2024-05-01T12:00:00.000Z", "end": "2024-05-01T12:01:00.000Z"},
     "device": "t-17", "n": 60, "load": 0.83,                      by fields, then aggregates, by their names
     "strandline": {"job": "turbine-health", "stage": "per_minute", "version": 1, "epoch": 4, "emission": 1234,
                    "slice_digest": "9f86d081884c7d65"}}

- A timestamp is ISO 8601 in UTC, with milliseconds, or with microseconds if it has any.
- A decimal is a string with all its digits, because most JSON readers would round a number. The mapping makes the index
  store an additional double for sorting and aggregation. Only that copy is rounded.
- NaN and infinity do not exist in JSON: a row with such a value is refused, never converted to null.
- An array is a JSON array, a struct is an object. Their contents are encoded like single values.

In a stream the document also has `window_start` and `window_end` after `window`, because a stream's schema is flat.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import InvalidDocument, PermanentError, Problem
from strandline.core.field_types import is_nested, normal_type
from strandline.results.names import (
    KEYS_BESIDE,
    REVISION,
    WINDOW_FIELDS,
    check_emit_name,
    check_field_name,
    index_name,
    index_stem,
)
from strandline.results.text_columns import TIME_OUT_OF_RANGE, decimal_text, id_parts, join_texts, read_column
from strandline.results.writer import PROBLEM, WINDOW_END, WINDOW_START, Refused

KeyValue = str | int | float | bool | Decimal | datetime | None

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ROWS_AT_ONCE = 5_000
"""Rows per call. With fewer, the cost of each call dominates; with more, they leave the processor's cache."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Document:
    id: str
    index: str
    """The index, or the stream if the documents go to a stream."""
    source: bytes
    """The JSON, on one line."""
    version: int | None = None
    """Version of a document that can be revised: it replaces a lower version. None if there is at most one version."""


def document_id(job: str, stage: str, window_start_ms: int, window_end_ms: int, key: tuple[KeyValue, ...]) -> str:
    """Return the 22-character id of a result. Equal inputs have equal ids in every run, process, and version.

    The id is the URL-safe base64, without padding, of the first 16 bytes of a SHA-256. It hashes these concatenated parts:
    `s` job, `s` stage, `i` window start, `i` window end, `i` number of key values, and the key values in the order of
    `by`. Window times are milliseconds since 1970 UTC.

    A part is a letter for its type, the length of its text in bytes, a colon, and the text:

    - `s4:t-17`: a string
    - `i2:42`: an integer
    - `n0:`: null
    - `b1:1`: a boolean
    - `f16:` and 16 hexadecimal digits: the big-endian IEEE 754 double, zero without sign
    - `d4:12.5`: a decimal, without trailing zeros
    - `t16:` and microseconds since 1970 UTC
    """
    return id_of_digest(digest_of((job, stage, window_start_ms, window_end_ms, len(key), *key)))


def digest_of(parts: Sequence[KeyValue]) -> hashlib._Hash:
    """Return the hash of these concatenated parts."""
    return hashlib.sha256(b"".join(_part(part) for part in parts))


def id_of_digest(digest: hashlib._Hash) -> str:
    """Return the 22 characters of an id."""
    return base64.urlsafe_b64encode(digest.digest()[:16])[:22].decode("ascii")


def _part(value: KeyValue) -> bytes:
    match value:
        case str():
            tag, text = b"s", value.encode("utf-8")
        case None:
            tag, text = b"n", b""
        case bool():  # before int, which is its base class
            tag, text = b"b", b"1" if value else b"0"
        case int():
            tag, text = b"i", b"%d" % value
        case float():
            tag, text = b"f", struct.pack(">d", value or 0.0).hex().encode("ascii")
        case Decimal():
            tag, text = b"d", decimal_text(value).encode("ascii")
        case datetime():
            tag, text = b"t", b"%d" % ((value - _EPOCH) // timedelta(microseconds=1))
    return b"%s%d:%s" % (tag, len(text), text)


@dataclass(frozen=True)
class DocumentShape:
    """Properties that all documents of one emission share. Pickles; is sent to the executors.

    Raises InvalidDocument for a name or a type that a document can't have.
    """

    emit_name: str
    job: str
    stage: str
    version: int
    by: tuple[tuple[str, str], ...]
    """(name, type) of each key field. Types as in a stream's schema: string, long, integer, double, boolean, timestamp,
    decimal(p,s)."""
    aggregates: tuple[tuple[str, str], ...]
    is_stream: bool = False
    """True if the documents go to a stream, not to an index."""
    is_elsewhere: bool = False
    """True if the results go to another kind of store, which `emit_name` names: files, a table."""
    is_once: bool = True
    """True if a result has the same id in every run. If False, the id contains the run's epoch, `ID.EPOCH`, and results
    that two runs emit are stored twice."""
    generation: int = 1
    """1 for the results of the job in its first incarnation. A backfill and a later incarnation write to their own
    indices."""
    is_shown: bool = True
    """True if the alias shows an index from its creation. False for a backfill: its indices are shown when it is
    complete."""
    beside_by: tuple[str, ...] = ()
    """Columns of KEYS_BESIDE that distinguish results of one window and key: additional key values of their ids, and no
    fields."""
    is_revised: bool = False
    """True if late records revise results. Then the aggregate REVISION determines which document of a window is the
    later one."""

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise InvalidDocument([Problem(message, source=self.job) for message in problems])

    def _problems(self) -> Iterator[str]:
        names = [name for name, _ in self.fields]
        if not names:
            yield f"stage {self.stage!r} has neither by fields nor aggregates; its documents would be empty"
        try:
            if not self.is_stream and not self.is_elsewhere:
                check_emit_name(self.emit_name)
            for name in names:
                check_field_name(name)
        except ValueError as error:
            yield str(error)
        for name, type_name in self.fields:
            if names.count(name) > 1:
                yield f"{name!r} names two results of stage {self.stage!r}; rename one"
            if self.is_stream and self.has_window and name in WINDOW_FIELDS:
                yield f"{name!r} is the name of a window time in a stream; rename the field"
            if not _has_mapping(type_name):
                yield f"{name!r} has type {type_name!r}, which has no mapping"
            elif is_nested(type_name) and name in dict(self.by):
                yield f"{name!r} has type {type_name!r}, which can't be a key"

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        return self.by + self.aggregates

    @property
    def _key(self) -> tuple[tuple[str, str], ...]:
        """(column, type) of the key values in an id."""
        return (*self.by, *((name, KEYS_BESIDE[name]) for name in self.beside_by))

    @property
    def has_window(self) -> bool:
        """True if its documents describe windows, False if they describe records."""
        return True

    @property
    def is_open(self) -> bool:
        """True if its documents describe open windows."""
        return False

    def documents(
        self, batch: pa.RecordBatch, epoch: int, emission: int, slice_digest: str = ""
    ) -> Iterator[Document | Refused]:
        """Yield one document, or one refusal, for each row, in the rows' order.

        For the columns of the batch see ResultWriter.
        """
        for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
            yield from self.columns(batch.slice(first, _ROWS_AT_ONCE), epoch, emission, slice_digest).rows()

    def columns(self, batch: pa.RecordBatch, epoch: int, emission: int, slice_digest: str = "") -> DocumentColumns:
        """Return the documents of all rows. The caller limits the size of the batch. For its columns see ResultWriter.

        1. Find the runs of rows of one window, and compute the common part of their documents once.
        2. Encode each field's column as JSON.
        3. Hash each row's key for its id.

        Args: slice_digest: Digest of the slice `emission`. Empty if there is no such slice: then the documents don't
        contain it.

        Raises PermanentError for a batch that ResultWriter doesn't allow.
        """
        if PROBLEM not in dict(self.fields):
            _refuse_problems(batch)
        windows = self._windows(batch)
        columns = [read_column(name, batch.column(name), type_name) for name, type_name in self.fields]
        pieces: list[pa.BinaryArray | bytes] = [windows.of_each_row([head.source for head in windows.heads])]
        for (name, _), column in zip(self.fields, columns, strict=True):
            pieces += [_encode(name) + b":", column.texts]
        pieces.append(b'"strandline":' + _encode(self._origin(epoch, emission, slice_digest)) + b"}")
        parts = [id_parts(batch.column(name), type_name) for name, type_name in self._key]
        keys = join_texts(parts).to_pylist() if parts else [b""] * batch.num_rows
        ids = self._of_run(hashed_ids([head.digest for head in windows.heads], windows.codes, keys), epoch)
        problems = windows.problems()
        for column in columns:
            problems = column.problems | problems  # if several columns have a problem, the first one is reported
        versions = pc.add(batch.column(REVISION), 1) if self.is_revised else None
        return DocumentColumns(ids, pieces, problems, [head.index for head in windows.heads], windows.codes, versions)

    def _of_run(self, ids: pa.StringArray, epoch: int) -> pa.StringArray:
        return ids if self.is_once else pc.binary_join_element_wise(ids, f".{epoch}", "")

    def _windows(self, batch: pa.RecordBatch) -> _Windows:
        starts_ms, ends_ms = (_window_times(batch, name) for name in (WINDOW_START, WINDOW_END))
        # Rows of one window are adjacent: a window is looked up once for each run of them.
        changes = np.flatnonzero((np.diff(starts_ms) != 0) | (np.diff(ends_ms) != 0)) + 1
        firsts = np.concatenate([np.zeros(min(1, batch.num_rows), np.int64), changes])
        numbers: dict[tuple[int, int], int] = {}
        times = zip(starts_ms[firsts].tolist(), ends_ms[firsts].tolist(), strict=True)
        codes = np.array([numbers.setdefault(one, len(numbers)) for one in times], np.int64)
        return _Windows(
            [self._window_head(*one) for one in numbers], np.repeat(codes, np.diff(firsts, append=batch.num_rows))
        )

    def _origin(self, epoch: int, emission: int, slice_digest: str) -> dict[str, str | int]:
        origin: dict[str, str | int] = {
            "job": self.job,
            "stage": self.stage,
            "version": self.version,
            "epoch": epoch,
            "emission": emission,
        }
        return {**origin, "slice_digest": slice_digest} if slice_digest else origin

    def _window_head(self, start_ms: int, end_ms: int) -> WindowHead:
        digest = digest_of((self.job, self.stage, start_ms, end_ms, len(self._key)))
        index: str | None = None
        problem = None
        try:
            stem = index_stem(self.emit_name, self.generation)
            index = self.emit_name if self.is_stream or self.is_elsewhere else index_name(stem, end_ms)
            start, end = format_timestamp(start_ms * 1000), format_timestamp(end_ms * 1000)
        except OverflowError:
            start, end = str(start_ms), str(end_ms)
            problem = (
                TIME_OUT_OF_RANGE,
                f"the window {start_ms} to {end_ms} ms lies outside the years 1 to 9999",
            )
        times: dict[str, object] = {"@timestamp": end, "window": {"start": start, "end": end}}
        if self.is_stream:
            times |= zip(WINDOW_FIELDS, (start, end), strict=True)
        source = _encode(times)
        return WindowHead(digest, index, source[:-1] + b",", problem)


@dataclass(frozen=True, slots=True)
class WindowHead:
    """Common part of all documents of one window."""

    digest: hashlib._Hash
    index: str | None
    source: bytes
    problem: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of some rows."""

    heads: list[WindowHead]
    codes: npt.NDArray[np.int64]
    """Index in `heads` for each row."""

    def of_each_row(self, values: list[bytes]) -> pa.BinaryArray:
        """Return for each row the value of its window."""
        return pa.array(values, pa.binary()).take(pa.array(self.codes))

    def problems(self) -> dict[int, tuple[str, str]]:
        found: dict[int, tuple[str, str]] = {}
        for code, head in enumerate(self.heads):
            if head.problem is not None:
                found |= dict.fromkeys(np.flatnonzero(self.codes == code).tolist(), head.problem)
        return found


@dataclass(frozen=True, slots=True)
class DocumentColumns:
    """The documents of the rows of a batch, as columns."""

    ids: pa.StringArray
    pieces: list[pa.BinaryArray | bytes]
    """Parts of each row's document, which is their concatenation."""
    problems: dict[int, tuple[str, str]]
    """Row -> (type, reason) of a refusal."""
    index_names: list[str | None]
    """None for a window that has no index."""
    index_codes: npt.NDArray[np.int64]
    """Index in `index_names` for each row."""
    versions: pa.Int64Array | None = None
    """Version of each row's document. See `Document.version`."""

    def __len__(self) -> int:
        return len(self.ids)

    def taken(self, rows: Sequence[int]) -> DocumentColumns:
        """Return only these rows, in this order."""
        places = pa.array(rows, pa.int64())
        return DocumentColumns(
            self.ids.take(places),
            [piece if isinstance(piece, bytes) else piece.take(places) for piece in self.pieces],
            {place: self.problems[row] for place, row in enumerate(rows) if row in self.problems},
            self.index_names,
            self.index_codes[places.to_numpy()],
            None if self.versions is None else self.versions.take(places),
        )

    def indices(self) -> pa.BinaryArray:
        """Return each row's index. Empty for a row that has no index."""
        names = [(name or "").encode("ascii") for name in self.index_names]
        return pa.array(names, pa.binary()).take(pa.array(self.index_codes))

    def sorted_out(self) -> tuple[DocumentColumns, list[Refused]]:
        """Return the rows without a problem, and the refusals of the others."""
        if not self.problems:
            return self, []
        good = [row for row in range(len(self)) if row not in self.problems]
        refused = self.taken(sorted(self.problems)).rows()
        return self.taken(good), [one for one in refused if isinstance(one, Refused)]

    def rows(self) -> Iterator[Document | Refused]:
        """Yield each row's document or refusal."""
        codes, sources = self.index_codes.tolist(), join_texts(self.pieces).to_pylist()
        versions = [None] * len(codes) if self.versions is None else self.versions.to_pylist()
        for row, (identity, code, source) in enumerate(zip(self.ids.to_pylist(), codes, sources, strict=True)):
            index, problem = self.index_names[code], self.problems.get(row)
            if problem is not None:
                yield Refused(identity, index, None, *problem, source)
            else:
                assert index is not None
                yield Document(identity, index, source, versions[row])


def _has_mapping(type_name: str) -> bool:
    try:
        return normal_type(type_name) == type_name
    except ValueError:
        return False


def _window_times(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    column = batch.column(name)
    if column.type != pa.int64() or column.null_count:
        raise PermanentError(f"column {name} arrived as {column.type} with {column.null_count} nulls; this is a bug")
    times: npt.NDArray[np.int64] = column.to_numpy()
    return times


def _refuse_problems(batch: pa.RecordBatch) -> None:
    """Raise PermanentError if a row has no result: the caller must write a dead letter for it."""
    problems = batch.column(PROBLEM).drop_null().to_pylist() if PROBLEM in batch.schema.names else []
    if problems:
        raise PermanentError(f"{len(problems)} rows have no result but a problem ({problems[0]}); this is a bug")


def hashed_ids(begun: Sequence[hashlib._Hash], codes: npt.NDArray[np.int64], keys: list[bytes]) -> pa.StringArray:
    """Return the id of each row from the parts of its key.

    Args: begun: Hashes of the parts before the keys. codes: Index in `begun` for each row.
    """
    starts = [one.copy for one in begun]
    digests = []
    for code, key in zip(codes.tolist(), keys, strict=True):
        digest = starts[code]()
        digest.update(key)
        digests.append(digest.digest())
    # With two zero bytes appended, 16 bytes have 24 characters. The first 22 characters are the same as without
    # padding.
    padded = np.zeros((len(keys), 18), np.uint8)
    padded[:, :16] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)[:, :16]
    characters = np.frombuffer(base64.urlsafe_b64encode(padded.tobytes()), np.uint8).reshape(-1, 24)
    buffer = pa.py_buffer(characters[:, :22].tobytes())
    return (
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(22), len(keys), [None, buffer])
        .cast(pa.binary())
        .cast(pa.string())
    )


def format_timestamp(time_us: int) -> str:
    """Return ISO 8601 in UTC with milliseconds, or with microseconds if there are any.

    Raises OverflowError outside the years 1 to 9999.
    """
    moment = _EPOCH + timedelta(microseconds=time_us)
    timespec = "microseconds" if time_us % 1000 else "milliseconds"
    return moment.isoformat(timespec=timespec).removesuffix("+00:00") + "Z"
