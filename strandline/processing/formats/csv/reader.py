"""Converts lines of delimited values (RFC 4180, one record per line) to JSON objects.

A value can be in double quotes; a quote inside them is doubled. An empty value is missing. A line must have as many values as
there are columns.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from io import StringIO

import msgspec

from strandline.core.record_headers import REASON_DECODE
from strandline.processing.formats.csv.columns import DelimitedColumns
from strandline.processing.formats.record_fields import JsonText, RecordField, Rejection, in_blocks, not_utf8
from strandline.processing.formats.text_values import NUMBER, json_of_text

csv.field_size_limit(1 << 30)  # records have their own limit; the library's is 128 KiB per value
_MARK = "\ufeff"
"""A byte order mark, which some senders write at the beginning."""
_NUMBERS = re.compile(rf"(?:{NUMBER}\n)*+", re.ASCII)
_TIMES = re.compile(r"(?:\d{4}-[^\x00-\x1f\\]++\n)*+", re.ASCII)
"""Strings that aren't numbers, and contain nothing that JSON escapes."""
_PLAIN_TEXTS = re.compile(r"(?:[^\x00-\x1f\\]++\n)*+")
"""Strings that aren't empty, and contain nothing that JSON escapes. Quotes are searched before."""


class DelimitedLines:
    """Reads the lines of one stream. `columns`: names of the values in their order. They needn't all be fields."""

    def __init__(self, fields: Sequence[RecordField], columns: Sequence[str], delimiter: str) -> None:
        types = {
            (field.name,) if field.path is None else field.path: field.type
            for field in reversed(fields)
            if not field.joined and not field.is_any
        }
        self._columns = [(msgspec.json.encode(name) + b":", types.get((name,), "string")) for name in columns]
        self._delimiter = delimiter
        self.columns = DelimitedColumns(fields, columns, delimiter).columns

    def objects(self, values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return each line as a JSON object of strings and numbers."""
        return in_blocks(self._at_once, self._object, values)

    def _at_once(self, values: Sequence[bytes | None]) -> list[bytes] | None:
        """Return the objects of simple lines, computed column by column. None if a line needs a closer check, for example
        because of a quote, a missing value, or an invalid number. The result must be that of `_object` for each line."""
        try:
            text = b"\n".join(values).decode()  # type: ignore[arg-type]  # None raises TypeError
        except (TypeError, UnicodeDecodeError):
            return None
        lines = text.split("\n")
        if len(lines) != len(values) or '"' in text or "\r" in text or _MARK in text:
            return None
        rows = [line.split(self._delimiter) for line in lines]
        if set(map(len, rows)) != {len(self._columns)}:
            return None
        members, columns = [], []
        for (name, field_type), column in zip(self._columns, zip(*rows, strict=True), strict=True):
            if any(column):
                if (form := _form_of(column, field_type)) is None:
                    return None
                members.append(name.decode().replace("%", "%%") + form)
                columns.append(column)
        template = "{" + ",".join(members) + "}"
        return (
            "\n".join([template % row for row in zip(*columns, strict=True)]).encode().split(b"\n") if columns else None
        )

    def _object(self, value: bytes | None) -> JsonText:
        if value is None:
            return None
        try:
            line = value.decode().removeprefix(_MARK).removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            return Rejection(REASON_DECODE, not_utf8(error))
        cells = line.split(self._delimiter)
        if '"' in line or "\n" in line or "\r" in line:
            try:
                lines = list(csv.reader(StringIO(line, newline=""), delimiter=self._delimiter, strict=True))
            except csv.Error as error:
                return Rejection(REASON_DECODE, f"not a line of values: {error}")
            if len(lines) != 1:
                return Rejection(REASON_DECODE, f"{len(lines)} lines of values; expected one per record")
            (cells,) = lines
        if len(cells) != len(self._columns):
            return Rejection(REASON_DECODE, f"{len(cells)} values in the line; expected {len(self._columns)}")
        members = [
            name + json_of_text(cell, field_type)
            for (name, field_type), cell in zip(self._columns, cells, strict=True)
            if cell
        ]
        return b"{" + b",".join(members) + b"}"


def _form_of(column: Sequence[str], field_type: str) -> str | None:
    """Return the form of the values of a column in JSON. None if their forms differ, or if a value needs a closer check."""
    cells = "\n".join(column) + "\n"
    if field_type == "string":
        return '"%s"' if _PLAIN_TEXTS.fullmatch(cells) else None
    if field_type == "boolean":
        return "%s" if set(column) <= {"true", "false"} else None
    if _NUMBERS.fullmatch(cells):
        return "%s"
    return '"%s"' if field_type == "timestamp" and _TIMES.fullmatch(cells) else None
