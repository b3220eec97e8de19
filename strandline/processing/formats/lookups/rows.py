"""Converts the rows of a lookup from JSON objects to columns. The decoder of records reads them, so types have the same
meaning."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from strandline.core.errors import PROBLEMS_MAX, PermanentError
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.lookups.packed_rows import ROWS_MAX, unpack_rows
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.record_fields import record_fields
from strandline.processing.operators.lookups.lookup_table import LookupTable
from strandline.processing.pipelines.event_time import EventTimeSource

if TYPE_CHECKING:
    from strandline.ledger.states import LookupRow


Key = tuple[Any, ...]
"""Values of the key's fields, in their order."""
Row = dict[str, Any]
"""Field -> value, for all fields in the order of the schema."""
KeyedRows = dict[Key, Row]


@dataclass(frozen=True)
class RowProblem:
    """The problem of a row."""

    row: int
    """Index of the row."""
    message: str
    before: int | None = None
    """Index of another row with the same key. None if the problem has no other row."""

    def message_at(self, place_of: Callable[[int], str]) -> str:
        """Return the message without the row's own position. `place_of`: returns the position of a row in words."""
        return (
            self.message if self.before is None else f"{self.message} {place_of(self.before)}; each key must be unique"
        )


def encode_rows(rows: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Return each row as a JSON object."""
    return [msgspec.json.encode(row) for row in rows]


def lines_of(text: bytes) -> list[bytes]:
    """Return the rows of a text with one per line."""
    return text.split(b"\n") if text else []


def digest_of(spec: LookupSpec, text: bytes) -> str:
    """Return the hash of a version's content: types, key, and rows. `text`: the rows as JSON, one per line."""
    head = msgspec.json.encode([spec.without_rows(), len(text)], order="deterministic")
    return hashlib.sha256(head + b"\n" + text).hexdigest()


def read_rows(spec: LookupSpec, rows: Sequence[bytes]) -> pa.RecordBatch | list[RowProblem]:
    """Return the rows as columns of the declared fields, in their order, or their problems. Problems are values that don't fit,
    members that aren't declared, and repeated keys."""
    if len(rows) > ROWS_MAX:
        return [RowProblem(ROWS_MAX, f"is beyond the limit of {ROWS_MAX:,} rows of a lookup")]
    decoder = Decoder(record_fields(spec), EventTimeSource(None), list(spec.fields))
    decoded = decoder.decode(rows, [0] * len(rows), None)
    if decoded.rejects:
        return [RowProblem(one.index, one.message) for one in decoded.rejects[:PROBLEMS_MAX]]
    if unknown := list(_undeclared(spec, rows)):
        return unknown[:PROBLEMS_MAX]
    names = list(spec.fields)
    batch = pa.RecordBatch.from_arrays([decoded.arrays[name] for name in names], names)
    return _repeated(spec, batch) or batch


def _undeclared(spec: LookupSpec, rows: Sequence[bytes]) -> Iterator[RowProblem]:
    """Yield members that aren't fields, which are often misspelt."""
    members = msgspec.json.Decoder(dict[str, msgspec.Raw])
    for at, row in enumerate(rows):
        if extra := members.decode(row).keys() - spec.fields.keys():
            yield RowProblem(at, f"{', '.join(sorted(extra))} is not in the lookup's schema")


def _repeated(spec: LookupSpec, batch: pa.RecordBatch) -> list[RowProblem]:
    first: dict[tuple[object, ...], int] = {}
    problems: list[RowProblem] = []
    for at, key in enumerate(zip(*(batch.column(name).to_pylist() for name in spec.key), strict=True)):
        before = first.setdefault(key, at)
        if before != at and len(problems) < PROBLEMS_MAX:
            shown = ", ".join(f"{name} {value!r}" for name, value in zip(spec.key, key, strict=True))
            problems.append(RowProblem(at, f"has the same key {shown} as", before))
    return problems


def keyed_rows(spec: LookupSpec, rows: pa.RecordBatch) -> KeyedRows:
    """Return the rows by their keys."""
    return {tuple(row[name] for name in spec.key): row for row in rows.to_pylist()}


def canonical_text(rows: KeyedRows) -> bytes:
    """Return the rows as JSON, one per line, in the order of their keys. So equal rows have equal text, whatever their order."""
    return b"\n".join(encode_rows([rows[key] for key in sorted(rows)]))


def kept_rows(row: LookupRow, packed: str) -> pa.RecordBatch:
    """Return the rows of a version in the ledger. Raises PermanentError if they can't be read."""
    rows = read_rows(LookupSpec.described(row.document), lines_of(unpack_rows(packed)))
    if isinstance(rows, list):
        raise PermanentError(
            f"lookup {row.name}: version {row.version} in the ledger can't be read: row {rows[0].row + 1}: {rows[0].message}; "
            "check whether a newer release stored it"
        )
    return rows


def kept_table(row: LookupRow, packed: str) -> LookupTable:
    """Return the table of a version in the ledger. Raises PermanentError if it can't be read."""
    return LookupTable(row.name, row.version, kept_rows(row, packed), LookupSpec.described(row.document).key)
