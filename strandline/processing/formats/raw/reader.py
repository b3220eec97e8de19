"""Converts records of any text or bytes to JSON objects with one string field, and the fields of the topic or the URL."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from strandline.processing.formats.columns.byte_walk import ByteScanner
from strandline.processing.formats.columns.read_columns import ColumnsAndMarks
from strandline.processing.formats.record_fields import RecordField
from strandline.processing.formats.source_fields import SourceFields
from strandline.processing.formats.value.reader import BareValues


class RawValues(BareValues):
    """Reads whole records into one string field. The field is chosen as for a bare value, among those of type string. No part
    of the record is left out."""

    def __init__(self, fields: Sequence[RecordField], source_fields: SourceFields, *, is_base64: bool) -> None:
        super().__init__([field for field in fields if field.type == "string"], source_fields)
        self._is_base64 = is_base64

    def at_once(self, _values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> None:
        return None

    def columns(
        self, values: Sequence[bytes | None], sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """Return the records as a column of strings."""
        field = self.field_for_all(sources)
        if field is None or self._is_base64:
            return None
        walk = ByteScanner(values)
        return {field.name: walk.text(walk.ends - walk.at)}, walk.fits

    def content(self, value: bytes, field: RecordField) -> bytes:
        return msgspec.json.encode(value if self._is_base64 else value.decode())
