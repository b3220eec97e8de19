"""Rows of a lookup from the records of a stream: the latest record of each key. A deleted key has no row. Pure.

All records of a key are in one partition, where offsets order them. So partitions may be read in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from strandline.core.lookups.lookup import LookupSpec
from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.lookups.rows import Key, KeyedRows, Row, encode_rows
from strandline.processing.formats.record_fields import RecordField, record_fields
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchemas
from strandline.processing.operators.evaluation import ColumnExpression
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.processing.pipelines.lookups.followed_streams import deletion_of

Change = tuple[int, Key, Row | None]
"""The place of a record, its key, and the row that it leaves; None: it deletes it."""


@dataclass(frozen=True)
class LoggedRecords:
    """Records of one partition in their order, column by column."""

    partition: int
    offsets: Sequence[int]
    values: Sequence[bytes | None]
    """None: a tombstone."""
    keys: Sequence[bytes | None]
    sources: Sequence[bytes | None]
    """Packed headers of each record on which rows depend, as `RowReader` reads them."""


class StreamRows:
    """Changes the rows of one lookup by the records of one stream, and counts the records that can't be rows."""

    def __init__(self, lookup: LookupSpec, stream: StreamSpec, schemas: RegisteredSchemas | None = None) -> None:
        """`lookup`: has been checked against `stream`. `schemas`: None if the stream's records name no schemas of a registry."""
        self._key = lookup.key
        self._names = list(lookup.fields)
        self.skipped = 0
        self.skipped_last = ""
        self.reader = RowReader(record_format(stream), schemas)
        deletion = deletion_of(lookup, stream)
        types = {name: field.type for name, field in stream.fields.items()}
        self._deletes = None if deletion is None else ColumnExpression(deletion, types)
        read = dict.fromkeys((*self._names, *(self._deletes.columns if self._deletes else ())))
        self._decoder = _decoder(record_format(stream).fields, list(read))
        fields = record_fields(lookup)
        self._row_decoder = _decoder(fields, self._names)
        self._key_field: RecordField | None = None
        """What the key of a tombstone says; None: nothing."""
        if lookup.key == [stream.key] and not record_format(stream).explodes:
            self._key_field = next(field for field in fields if field.name == stream.key)
        self._are_tombstones_told = stream.form.skips_tombstones

    def take_in(self, rows: KeyedRows, records: LoggedRecords) -> None:
        """Change `rows` by the records. A record that can't be a row changes nothing and is counted as skipped."""
        changes = [*self._changes(records), *self._deletions(records)]
        for _, key, row in sorted(changes, key=lambda change: change[0]):
            if row is None:
                rows.pop(key, None)
            else:
                rows[key] = row

    def _changes(self, records: LoggedRecords) -> Iterator[Change]:
        places = [at for at, value in enumerate(records.values) if value is not None]
        sources = [records.sources[at] for at in places]
        values = [records.values[at] for at in places]
        for part in self.reader.parts(values, sources if any(one is not None for one in sources) else []):
            of_rows = part.of_each(places)
            decoded = self._decoder.decode(part.texts, [0] * len(part.texts), None)
            rejected = {one.index: one.message for one in decoded.rejects}
            for at, message in rejected.items():
                self._skip(records, of_rows[at], message)
            accepted = [place for at, place in enumerate(of_rows) if at not in rejected]
            found = [decoded.arrays[name].to_pylist() for name in self._names]
            rows = [dict(zip(self._names, values, strict=True)) for values in zip(*found, strict=True)]
            deleted = [False] * len(rows)
            if self._deletes is not None:
                deleted = self._deletes(decoded.arrays, len(rows)).to_pylist()
            kept = []
            for place, row, is_deleted in zip(accepted, rows, deleted, strict=True):
                if not is_deleted:
                    kept.append((place, row))
                elif None in (key := self._key_of(row)):
                    self._skip(records, place, "it deletes a row, and has no key")
                else:
                    yield place, key, None
            yield from self._accepted(records, kept)

    def _accepted(self, records: LoggedRecords, rows: Sequence[tuple[int, Row]]) -> Iterator[Change]:
        """Yield the rows that the lookup's schema accepts."""
        decoded = self._row_decoder.decode(encode_rows([row for _, row in rows]), [0] * len(rows), None)
        rejected = {one.index: one.message for one in decoded.rejects}
        for at, (place, row) in enumerate(rows):
            if at in rejected:
                self._skip(records, place, rejected[at])
            else:
                yield place, self._key_of(row), row

    def _deletions(self, records: LoggedRecords) -> Iterator[Change]:
        """Yield the deletions of tombstones. In a change stream of a table, a tombstone follows a deletion and adds nothing."""
        places = [at for at, value in enumerate(records.values) if value is None]
        if not places or self._are_tombstones_told:
            return
        field = self._key_field
        if field is None:
            for place in places:
                self._skip(records, place, "it has no value, and its key is not the lookup's")
            return
        texts = [_key_object(field, records.keys[place]) for place in places]
        decoded = _decoder([field], [field.name]).decode(texts, [0] * len(texts), None)
        rejected = {one.index: one.message for one in decoded.rejects}
        keys = iter(decoded.arrays[field.name].to_pylist())
        for at, place in enumerate(places):
            if at in rejected:
                self._skip(records, place, f"it has no value, and its key says nothing: {rejected[at]}")
            else:
                yield place, (next(keys),), None

    def _key_of(self, row: Row) -> Key:
        return tuple(row[name] for name in self._key)

    def _skip(self, records: LoggedRecords, place: int, message: str) -> None:
        self.skipped += 1
        self.skipped_last = f"partition {records.partition}, offset {records.offsets[place]}: {message}"


def _decoder(fields: Sequence[RecordField], columns: Sequence[str]) -> Decoder:
    return Decoder(fields, EventTimeSource(None), columns)


def _key_object(field: RecordField, key: bytes | None) -> bytes:
    """Return a JSON object with only the key field. `key`: key of a record, as gateways write it: a string, or a JSON number."""
    if key is None:
        return b"{}"
    if field.type != "string":
        return b"{" + msgspec.json.encode(field.name) + b":" + key + b"}"
    text: Any = key.decode("utf-8", "replace")
    return msgspec.json.encode({field.name: text})
