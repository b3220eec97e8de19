"""The rows of a lookup, from JSON objects to columns: by the decoder that reads records, so that types mean the same."""

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
"""The values of the key's fields, in their order."""
Row = dict[str, Any]
"""Field -> value, of all fields in the order of the schema."""
KeyedRows = dict[Key, Row]


@dataclass(frozen=True)
class RowProblem:
    """What is wrong with a row."""

    row: int
    """Its place, from 0."""
    message: str
    before: int | None = None
    """The place of another row, with which it can't stand together."""

    def told(self, place_of: Callable[[int], str]) -> str:
        """The sentence behind the row's own place. `place_of`: how the place of a row is called."""
        return self.message if self.before is None else f"{self.message} {place_of(self.before)}; a key stands once"


def encode_rows(rows: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Each row as a JSON object."""
    return [msgspec.json.encode(row) for row in rows]


def lines_of(text: bytes) -> list[bytes]:
    """The rows of a text with one a line."""
    return text.split(b"\n") if text else []


def digest_of(spec: LookupSpec, text: bytes) -> str:
    """What tells a version's content from all others: types, key and rows. `text`: the rows as JSON, one a line."""
    head = msgspec.json.encode([spec.without_rows(), len(text)], order="deterministic")
    return hashlib.sha256(head + b"\n" + text).hexdigest()


def read_rows(spec: LookupSpec, rows: Sequence[bytes]) -> pa.RecordBatch | list[RowProblem]:
    """The rows as columns of the declared fields, in their order; or what is wrong with them: values that don't fit, members that
    are not declared, and keys that stand twice."""
    if len(rows) > ROWS_MAX:
        return [RowProblem(ROWS_MAX, f"is one more than the {ROWS_MAX:,} rows that a lookup may have")]
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
    """A member that is no field is a misspelt one as likely as not."""
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
            problems.append(RowProblem(at, f"has the key {shown}, as has", before))
    return problems


def keyed_rows(spec: LookupSpec, rows: pa.RecordBatch) -> KeyedRows:
    """The rows by their keys."""
    return {tuple(row[name] for name in spec.key): row for row in rows.to_pylist()}


def canonical_text(rows: KeyedRows) -> bytes:
    """The rows as JSON, one a line, in the order of their keys: the same rows are the same text, however they came."""
    return b"\n".join(encode_rows([rows[key] for key in sorted(rows)]))


def kept_rows(row: LookupRow, packed: str) -> pa.RecordBatch:
    """The rows of a version, from what the ledger keeps of it. Raises PermanentError where they can't be read."""
    rows = read_rows(LookupSpec.described(row.document), lines_of(unpack_rows(packed)))
    if isinstance(rows, list):
        raise PermanentError(
            f"Lookup {row.name} can't be read as it was kept (version {row.version}): row {rows[0].row + 1}: {rows[0].message}. "
            "Was it kept by a newer release?"
        )
    return rows


def kept_table(row: LookupRow, packed: str) -> LookupTable:
    """The table of a version, from what the ledger keeps of it. Raises PermanentError where it can't be read."""
    return LookupTable(row.name, row.version, kept_rows(row, packed), LookupSpec.described(row.document).key)
