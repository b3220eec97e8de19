"""Lines of InfluxDB's protocol as columns. Lines must have no quotes and escapes, and the parts of the first line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.core.field_types import WHOLE_RANGES
from strandline.processing.formats.columns.byte_walk import Int64Array
from strandline.processing.formats.columns.cell_walk import PATTERNS, CellScanner, NumberForm
from strandline.processing.formats.columns.line_cells import cut
from strandline.processing.formats.columns.read_columns import Column, ColumnsAndMarks, Marks, can_be_read
from strandline.processing.formats.record_fields import RecordField


@dataclass(frozen=True)
class _Form:
    """The form of a cell of a line of InfluxDB's protocol, and the types of fields that can read it."""

    number: NumberForm | None
    suffix: bytes
    types: tuple[str, ...]


_WHOLE_TYPES = ("timestamp", *WHOLE_RANGES)
_TEXT = _Form(None, b"", ("string",))
_TIME = _Form("whole", b"", _WHOLE_TYPES)
_VALUES = {
    rf"{PATTERNS['short']}": _Form("short", b"", ("double",)),
    rf"{PATTERNS['whole']}i": _Form("whole", b"i", ("double", *_WHOLE_TYPES)),
}
"""Forms of numbers, by their patterns. Strings and booleans are left to other readers."""
_KEY_BYTES_MAX = 32_768
"""Maximum length of a measurement and its tags. Longer ones are read by their text; those of InfluxDB have at most 65,535
bytes."""
_INFLUX_LINE = re.compile(rb"[^,= ]+(?:,[^,= ]+=[^,= ]+)* [^,= ]+=[^,= ]+(?:,[^,= ]+=[^,= ]+)*(?: [^,= ]+)?")


class InfluxColumns:
    """Reads the lines of one stream that have the measurement and the names of the first line."""

    def __init__(self, fields: Sequence[RecordField]) -> None:
        self._fields = fields
        self._names = {field.name for field in fields}
        self._can_read = all(map(can_be_read, fields))

    def columns(
        self, values: Sequence[bytes | None], _sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """See `ColumnReader`. Times must be nanoseconds."""
        model = next((value for value in values if value is not None and _INFLUX_LINE.fullmatch(value)), None)
        if not self._can_read or model is None:
            return None
        cells = CellScanner(values, b'"\\\r\0#\t')  # a tab before the measurement isn't a part of it
        cells.require_utf8()
        separators = [bytes([byte]) for byte in model if byte in b",= "]
        starts = cut(cells, b",= ", len(separators) + 1, separators)
        parts = re.split(rb"[,= ]", model)
        if starts is None:
            return None
        has_time = separators[-1] == b" "
        values_at = [at + 1 for at, one in enumerate(separators) if one == b"="]
        for at, part in enumerate(parts):
            is_name = at not in values_at and not (has_time and at == len(parts) - 1)
            if is_name:
                cells.walk.fits &= _are(cells, starts[at], starts[at + 1] - 1, part)
            else:
                cells.walk.fits &= starts[at + 1] - 1 > starts[at]
        names = [parts[at - 1].decode(errors="replace") for at in values_at]
        if len(set(names)) < len(names):
            return None
        space = separators.index(b" ")
        cells.walk.fits &= starts[space + 1] - cells.starts <= _KEY_BYTES_MAX
        forms = {"measurement": (0, _TEXT)} | ({"time": (len(parts) - 1, _TIME)} if has_time else {})
        forms |= {name: (at, _TEXT) for name, at in zip(names, values_at, strict=True) if at <= space}
        for name, at in zip(names, values_at, strict=True):
            if at > space:
                form = next(
                    (one for pattern, one in _VALUES.items() if re.fullmatch(pattern.encode(), parts[at])), None
                )
                if form is None or form.number is None:
                    return None
                forms[name] = (at, form)
                if name not in self._names:
                    cells.numbers(starts[at], starts[at + 1] - 1, form.number, form.suffix)
        if has_time and ("time" not in self._names or "time" in names):  # the field reads no timestamp, or another cell
            cells.numbers(starts[-2], starts[-1] - 1, "whole")
        return self._columns(cells, starts, forms)

    def _columns(
        self, cells: CellScanner, starts: Sequence[Int64Array], forms: Mapping[str, tuple[int, _Form]]
    ) -> ColumnsAndMarks | None:
        """Return the columns of the fields. `forms`: name -> index of the cell and its form. None if a field has another type."""
        columns: dict[str, Column] = {}
        for field in self._fields:
            if field.name in forms:
                at, form = forms[field.name]
                if field.type not in form.types:
                    return None
                columns[field.name] = cells.column(field, starts[at], starts[at + 1] - 1, form.number, form.suffix)
        return columns, cells.walk.fits


def _are(cells: CellScanner, begin: Int64Array, end: Int64Array, expected: bytes) -> Marks:
    """Return a mask of the lines in which exactly these bytes are at this position."""
    cells.walk.at = begin
    marks: Marks = (end - begin == len(expected)) & cells.walk.is_next(expected)
    return marks
