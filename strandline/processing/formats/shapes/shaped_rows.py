"""Rows of records of a shape, one record at a time, which defines the outcome. `shaped_columns.py` reads plain records faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from strandline.core.json_paths import path_text
from strandline.processing.formats.json_rows import (
    EXPLODED_BYTES_MAX,
    FieldPaths,
    Rows,
    resolve,
    rows_in_parts,
    too_large,
    with_value,
)
from strandline.processing.formats.record_fields import (
    JsonText,
    RecordField,
    Rejection,
)
from strandline.processing.formats.shapes.shape import Shape, ShapeConfig
from strandline.processing.formats.shapes.table import SHAPES
from strandline.processing.formats.timestamps import format_timestamp, parse_timestamp_column

_object_of = msgspec.json.Decoder(dict[str, Raw]).decode
_value_of = msgspec.json.decode


class ShapedRows:
    """Makes the rows of the records of one stream."""

    def __init__(self, fields: Sequence[RecordField], config: ShapeConfig) -> None:
        self._fields = paths_of(fields, config)
        self.shape: Shape = SHAPES[config.kind](config, fields, self._fields.paths)
        self._name = path_text(config.containers[-1])
        self._clock = clock_of(fields, config)

    def parts(self, values: Iterable[JsonText]) -> Iterator[Rows]:
        """Yield the rows of the records, in parts of whole records."""
        return rows_in_parts(map(self._rows, values))

    def letters(self, value: bytes) -> Callable[[int], bytes]:
        """Return a function: index of a row -> the record with only this row."""
        value = self._fields.readable(value)
        containers = [resolve(value, path) for path in self.shape.containers]

        def letter(row: int) -> bytes:
            given = {
                path: text for path, text in zip(self.shape.containers, containers, strict=True) if text is not None
            }
            cut = self.shape.letters_of([given.get(path, b"null") for path in self.shape.containers], row)
            whole = value
            for path, text in zip(self.shape.containers, cut, strict=True):
                if path in given:
                    whole = with_value(whole, path, text)
            return whole if self._clock is None else self._with_time(whole, row)

        return letter

    def _with_time(self, value: bytes, row: int) -> bytes:
        """Return a record of one row with the time of this row as the first time."""
        assert self._clock is not None, "called if rows have no times of their own"
        path = self._fields.paths[self._clock.at]
        first = resolve(value, path)
        return value if first is None else with_value(value, path, self._clock.times(first, range(row, row + 1))[0])

    def _rows(self, value: JsonText) -> list[bytes] | JsonText:
        if not isinstance(value, bytes):
            return value
        value = self._fields.readable(value)
        beside = self._fields.read(value)
        if not isinstance(beside, list):
            return beside
        containers = [resolve(value, path) for path in self.shape.containers]
        found = self.shape.rows_of(containers)
        if isinstance(found, Rejection):
            return found
        beside = [UNSET if at in self.shape.own_only else one for at, one in enumerate(beside)]
        size = sum(len(bytes(one)) for one in beside if one is not UNSET)
        size = max(len(value) - sum(len(text or b"") for text in containers), size)
        if len(found) * size > EXPLODED_BYTES_MAX:
            return too_large(self.shape.containers[-1])
        rows = [[own if own is not UNSET else one for own, one in zip(row, beside, strict=True)] for row in found]
        if self._clock is not None:
            self._clock.advance(rows)
        return [self._fields.written(row) for row in rows]


@dataclass(frozen=True)
class _RowClock:
    """The times of rows that have none of their own. Each is one step after the time of the row before."""

    at: int
    """Position of the timestamp field, which has the time of the first row."""
    field: RecordField
    step_us: int

    def advance(self, rows: Sequence[list[Any]]) -> None:
        """Set the times. If the first time can't be read, the others are null."""
        if not rows or rows[0][self.at] is UNSET:
            return
        for row, time in zip(rows, self.times(bytes(rows[0][self.at]), range(len(rows))), strict=True):
            row[self.at] = Raw(time)

    def times(self, first: bytes, numbers: range) -> list[bytes]:
        """Return the times of rows with these numbers in JSON. `first`: the first time in JSON."""
        value = _value_of(first)
        is_number = isinstance(value, int | float)
        if value is None or (is_number and not self.field.is_in_time(value)):
            return [first if number == 0 else b"null" for number in numbers]
        micros, valid = parse_timestamp_column([value], self.field.time_unit, {type(value)}, self.field.tz)
        if not valid[0]:
            return [first if number == 0 else b"null" for number in numbers]
        return [b'"%b"' % format_timestamp(int(micros[0]) + number * self.step_us).encode() for number in numbers]


def clock_of(fields: Sequence[RecordField], config: ShapeConfig) -> _RowClock | None:
    if config.time is None:
        return None
    at = next(at for at, field in enumerate(fields) if field.name == config.time)
    return _RowClock(at, fields[at], 1000 * config.step_ms)


def paths_of(fields: Sequence[RecordField], config: ShapeConfig) -> FieldPaths:
    starts = b"{[" if () in config.containers else b"{"
    return FieldPaths(fields, config.containers, starts, config.filled)
