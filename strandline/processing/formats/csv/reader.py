"""Lines of values with a delimiter between them (RFC 4180, one line a record) to JSON objects.

A value may stand in double quotes; a quote inside them is written twice. An empty value is a missing one. A line may not have
more or fewer values than columns.
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

csv.field_size_limit(1 << 30)  # a record has a limit of its own; that of the library is 128 KiB a value
_MARK = "\ufeff"
"""A byte order mark, which some senders write before a text."""
_NUMBERS = re.compile(rf"(?:{NUMBER}\n)*+", re.ASCII)
_TIMES = re.compile(r"(?:\d{4}-[^\x00-\x1f\\]++\n)*+", re.ASCII)
"""Texts that are no numbers, and hold nothing that JSON escapes."""
_PLAIN_TEXTS = re.compile(r"(?:[^\x00-\x1f\\]++\n)*+")
"""Not empty, and with nothing that JSON escapes; quotes are looked for before."""


class DelimitedLines:
    """Reads the lines of one stream. `columns`: the names of the values, in order; not all need be fields."""

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
        """Each line as a JSON object of texts and numbers."""
        return in_blocks(self._at_once, self._object, values)

    def _at_once(self, values: Sequence[bytes | None]) -> list[bytes] | None:
        """The objects of lines that need no second look, column by column; None if any does: a quote, a value that is missing, a
        number that is none. Only what `_object` makes of a line, too, may come out."""
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


def _form_of(column: Sequence[str], field_type: str) -> str | None:
    """How each value of a column stands in JSON; None if they differ in that, or one has to be looked at."""
    cells = "\n".join(column) + "\n"
    if field_type == "string":
        return '"%s"' if _PLAIN_TEXTS.fullmatch(cells) else None
    if field_type == "boolean":
        return "%s" if set(column) <= {"true", "false"} else None
    if _NUMBERS.fullmatch(cells):
        return "%s"
    return '"%s"' if field_type == "timestamp" and _TIMES.fullmatch(cells) else None
