"""Lines of delimited values and of InfluxDB's protocol as columns: those without quotes and escapes, which all stand alike."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from strandline.core.field_types import WHOLE_RANGES
from strandline.processing.formats.columns.byte_walk import Places
from strandline.processing.formats.columns.cell_walk import PATTERNS, CellWalk, NumberForm, is_any
from strandline.processing.formats.columns.read_columns import Column, ColumnsAndMarks, Marks, can_be_read
from strandline.processing.formats.record_fields import RecordField


@dataclass(frozen=True)
class _Form:
    """How a cell of a line of InfluxDB's protocol is written, and the types of fields that it can be."""

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
"""Values that are numbers, by their patterns; texts and booleans are for others to read."""
_KEY_BYTES_MAX = 32_768
"""Of a measurement and its tags. Longer ones are left to the text: InfluxDB has none of more than 65,535 bytes."""
_INFLUX_LINE = re.compile(rb"[^,= ]+(?:,[^,= ]+=[^,= ]+)* [^,= ]+=[^,= ]+(?:,[^,= ]+=[^,= ]+)*(?: [^,= ]+)?")


class DelimitedColumns:
    """Reads the lines of one stream."""

    def __init__(self, fields: Sequence[RecordField], columns: Sequence[str], delimiter: str) -> None:
        named = {field.name: field for field in fields}
        self._fields = [named[name] for name in columns if name in named]
        self._delimiter = delimiter.encode()
        are_fields = len(self._fields) == len(columns)
        self._can_read = are_fields and all(map(can_be_read, fields)) and len(self._delimiter) == 1

    def columns(
        self, values: Sequence[bytes | None], _sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """As QuickReader has it."""
        if not self._can_read:
            return None
        cells = CellWalk(values, b'"\r\xef')  # the last one begins a byte order mark
        cells.require_utf8()
        starts = _cut(cells, self._delimiter, len(self._fields))
        if starts is None or self._has_time_texts(cells, starts):
            return None
        return {
            field.name: cells.column(field, starts[at], starts[at + 1] - 1) for at, field in enumerate(self._fields)
        }, cells.walk.fits

    def _has_time_texts(self, cells: CellWalk, starts: Sequence[Places]) -> bool:
        """Whether the first line has a time that is no number."""
        model = cells.walk.first_fit()
        if model is None:
            return True
        found = [
            cells.walk.bytes_at(int(starts[at][model]), int(starts[at + 1][model] - starts[at][model]) - 1)
            for at, field in enumerate(self._fields)
            if field.type == "timestamp"
        ]
        return any(re.fullmatch(PATTERNS["whole"].encode(), one) is None for one in found if one)


class InfluxColumns:
    """Reads the lines of one stream: those with the measurement and the names of the first one."""

    def __init__(self, fields: Sequence[RecordField]) -> None:
        self._fields = fields
        self._names = {field.name for field in fields}
        self._can_read = all(map(can_be_read, fields))

    def columns(
        self, values: Sequence[bytes | None], _sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """As QuickReader has it, of lines whose times are nanoseconds."""
        model = next((value for value in values if value is not None and _INFLUX_LINE.fullmatch(value)), None)
        if not self._can_read or model is None:
            return None
        cells = CellWalk(values, b'"\\\r\0#\t')  # a tab before the measurement is no part of it
        cells.require_utf8()
        separators = [bytes([byte]) for byte in model if byte in b",= "]
        starts = _cut(cells, b",= ", len(separators) + 1, separators)
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
        self, cells: CellWalk, starts: Sequence[Places], forms: Mapping[str, tuple[int, _Form]]
    ) -> ColumnsAndMarks | None:
        """The columns of the fields. `forms`: by name the place of each cell, and its form; None where a field is of no such
        type."""
        columns: dict[str, Column] = {}
        for field in self._fields:
            if field.name in forms:
                at, form = forms[field.name]
                if field.type not in form.types:
                    return None
                columns[field.name] = cells.column(field, starts[at], starts[at + 1] - 1, form.number, form.suffix)
        return columns, cells.walk.fits


def _are(cells: CellWalk, begin: Places, end: Places, expected: bytes) -> Marks:
    """Where exactly these bytes stand."""
    cells.walk.at = begin
    marks: Marks = (end - begin == len(expected)) & cells.walk.is_next(expected)
    return marks


def _cut(
    cells: CellWalk, separators: bytes, count: int, in_order: Sequence[bytes] | None = None
) -> list[Places] | None:
    """Where each cell begins, and in the end what follows the line; lines with more or fewer cells are marked, and those whose
    separators are others. None if most have more or fewer: then the texts are read, and each cell would cost a
    walk over all lines."""
    places = np.flatnonzero(is_any(cells.data, separators))
    first, found = cells.first_and_count(places, count - 1)
    cells.walk.fits &= found == count - 1
    if not cells.walk.fits.any() or 2 * np.count_nonzero(cells.walk.fits) < len(cells.walk):
        return None
    starts = [cells.starts]
    for at in range(count - 1):
        here = places[np.minimum(first + at, len(places) - 1)]
        if in_order is not None:
            cells.walk.fits &= cells.data[here] == in_order[at][0]
        starts.append(here + 1)
    return [*starts, cells.ends + 1]
