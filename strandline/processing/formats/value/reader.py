"""Converts records that are one value, a number or a string, to JSON objects with its field and the fields of the topic or the
URL."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import lru_cache, partial

import msgspec

from strandline.core.record_headers import REASON_DECODE, REASON_SCHEMA
from strandline.processing.formats.columns.cell_walk import CellScanner
from strandline.processing.formats.columns.read_columns import ColumnsAndMarks, is_whole
from strandline.processing.formats.record_fields import JsonText, RecordField, Rejection, in_blocks, not_utf8
from strandline.processing.formats.source_fields import SOURCES_REMEMBERED_MAX, Members, SourceFields
from strandline.processing.formats.text_values import NUMBER_LINES, json_of_text

_text_of = msgspec.json.Decoder(str).decode


class BareValues:
    """Reads the values of one stream.

    A value fills the field with `from: $`, or the single field that neither topic nor query fills. If there are several such
    fields, it fills the single one that is required. The value of a JSON string is its content.
    """

    def __init__(self, fields: Sequence[RecordField], source_fields: SourceFields) -> None:
        self._source_fields = source_fields
        self._field_for = lru_cache(maxsize=SOURCES_REMEMBERED_MAX)(partial(_field_for, tuple(fields)))

    def objects(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return each value as a JSON object with the fields of its source. `sources`: a header of each record."""
        return in_blocks(self.at_once, self._object, values, sources)

    def at_once(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> list[bytes] | None:
        """Return the objects of values that are all numbers for a field of numbers or times. None if one needs a closer check."""
        begins: dict[Members, bytes] = {}
        members = list(map(self._source_fields.members_of, sources))
        for one in set(members):
            field = self._field_for(one)
            if isinstance(field, Rejection) or field.type in ("string", "boolean"):
                return None
            given = b"".join([name + b":" + content + b"," for name, content in one])
            begins[one] = b"{" + given + msgspec.json.encode(field.name) + b":"
        try:
            numbers = [value.strip() for value in values]  # type: ignore[union-attr]
        except AttributeError:  # a tombstone
            return None
        text = b"\n".join([*numbers, b""])
        if text.count(b"\n") != len(numbers) or NUMBER_LINES.fullmatch(text) is None:
            return None
        return [begins[one] + number + b"}" for one, number in zip(members, numbers, strict=True)]

    def columns(
        self, values: Sequence[bytes | None], sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """Return the values as a column of numbers."""
        field = self.field_for_all(sources)
        if field is None or (field.type != "double" and not is_whole(field)):
            return None
        cells = CellScanner(values, b"")
        cells.walk.fits &= cells.ends > cells.starts
        return {field.name: cells.column(field, cells.starts, cells.ends)}, cells.walk.fits

    def field_for_all(self, sources: Sequence[bytes | None]) -> RecordField | None:
        """Return the field that the bare value of a record fills, if it is the same for all these sources. Otherwise None.

        `sources`: packed headers of the records, from which other fields are read. The value fills the field that they don't."""
        found = {self._field_for(self._source_fields.members_of(source)) for source in sources}
        field = found.pop()
        return None if found or isinstance(field, Rejection) else field

    def _object(self, value: bytes | None, source: bytes | None) -> JsonText:
        if value is None:
            return None
        members = self._source_fields.members_of(source)
        field = self._field_for(members)
        if isinstance(field, Rejection):
            return field
        try:
            content = self.content(value, field)
        except UnicodeDecodeError as error:
            return Rejection(REASON_DECODE, not_utf8(error))
        given = [name + b":" + content for name, content in members]
        return b"{" + b",".join([*given, msgspec.json.encode(field.name) + b":" + content]) + b"}"

    def content(self, value: bytes, field: RecordField) -> bytes:
        """Return the value as JSON of the field. Raises UnicodeDecodeError."""
        text = value.decode().removeprefix("\ufeff")  # a byte order mark
        if text[:1] == '"':
            with contextlib.suppress(msgspec.DecodeError):  # otherwise it is a string that begins with a quote
                text = _text_of(value)
        if field.type != "string":
            text = text.strip()
        return json_of_text(text, field.type)


def _field_for(fields: Sequence[RecordField], members: Members) -> RecordField | Rejection:
    given = {msgspec.json.decode(name) for name, _ in members}
    left = [field for field in fields if field.name not in given]
    for candidates in ([f for f in fields if f.path == ()], left, [field for field in left if field.required]):
        if len(candidates) == 1:
            return candidates[0]
    if not left:
        return Rejection(REASON_SCHEMA, "topic and query fill every field, so no field can contain the value")
    names = ", ".join(field.name for field in left)
    return Rejection(
        REASON_SCHEMA, f"it is unknown which of the fields {names} contains the value; mark one with 'from: $'"
    )
