"""Lines of values with a delimiter between them (RFC 4180, one line a record) to JSON objects.

A value may stand in double quotes; a quote inside them is written twice. An empty value is a missing one. A line may not have
more or fewer values than columns.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence

import msgspec

from strandline.core.record_headers import REASON_DECODE
from strandline.processing.formats.record_fields import JsonText, RecordField, Rejection, not_utf8
from strandline.processing.formats.text_values import json_of_text


class DelimitedLines:
    """Reads the lines of one stream. `columns`: the names of the values, in order; not all need be fields."""

    def __init__(self, fields: Sequence[RecordField], columns: Sequence[str], delimiter: str) -> None:
        types = {field.name: field.type for field in fields}
        self._columns = [(msgspec.json.encode(name) + b":", types[name]) for name in columns]
        self._delimiter = delimiter

    def objects(self, values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> list[JsonText]:
        """Each line as a JSON object of texts and numbers."""
        return [None if value is None else self._object(value) for value in values]

    def _object(self, value: bytes) -> JsonText:
        try:
            line = value.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            return Rejection(REASON_DECODE, not_utf8(error))
        cells = line.split(self._delimiter)
        if '"' in line or "\n" in line or "\r" in line:
            try:
                lines = list(csv.reader(line.splitlines(keepends=True), delimiter=self._delimiter, strict=True))
            except csv.Error as error:
                return Rejection(REASON_DECODE, f"not a line of values: {error}")
            if len(lines) != 1:
                return Rejection(REASON_DECODE, f"{len(lines)} lines of values; expected one a record")
            (cells,) = lines
        if len(cells) != len(self._columns):
            return Rejection(REASON_DECODE, f"{len(cells)} values in the line; expected {len(self._columns)}")
        members = [
            name + json_of_text(cell, field_type)
            for (name, field_type), cell in zip(self._columns, cells, strict=True)
            if cell
        ]
        return b"{" + b",".join(members) + b"}"
