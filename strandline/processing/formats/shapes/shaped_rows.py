"""Rows of records of a shape: one by one, which defines the outcome, or as columns, if the values are as declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, Raw

from strandline.core.json_paths import path_text
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.formats.columns.exploded_columns import ElementColumns
from strandline.processing.formats.columns.read_columns import Column
from strandline.processing.formats.json_rows import (
    EXPLODED_BYTES_MAX,
    FastReader,
    FieldPaths,
    Rows,
    can_be_read_fast,
    resolve,
    rows_in_parts,
    too_large,
    with_value,
)
from strandline.processing.formats.record_fields import (
    NESTING_MAX,
    JsonText,
    RecordField,
    Rejection,
    may_nest_deep,
)
from strandline.processing.formats.shapes.shape import Shape, ShapeConfig
from strandline.processing.formats.shapes.table import SHAPES
from strandline.processing.formats.shapes.typed_elements import can_be_typed, typed
from strandline.processing.formats.timestamps import format_timestamp, parse_timestamp_column

_object_of = msgspec.json.Decoder(dict[str, Raw]).decode
_value_of = msgspec.json.decode
_encode = msgspec.json.encode


class ShapedRows:
    """Makes the rows of the records of one stream."""

    def __init__(self, fields: Sequence[RecordField], config: ShapeConfig) -> None:
        self._fields = _paths_of(fields, config)
        self.shape: Shape = SHAPES[config.kind](config, fields, self._fields.paths)
        self._name = path_text(config.containers[-1])
        self._clock = _clock_of(fields, config)

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


def _clock_of(fields: Sequence[RecordField], config: ShapeConfig) -> _RowClock | None:
    if config.time is None:
        return None
    at = next(at for at, field in enumerate(fields) if field.name == config.time)
    return _RowClock(at, fields[at], 1000 * config.step_ms)


def _paths_of(fields: Sequence[RecordField], config: ShapeConfig) -> FieldPaths:
    starts = b"{[" if () in config.containers else b"{"
    return FieldPaths(fields, config.containers, starts, config.filled)


class ShapedColumns:
    """Reads the records of one stream as columns, a row for each row of the shape."""

    def __init__(self, fields: Sequence[RecordField], config: ShapeConfig, bytes_max: int) -> None:
        """`bytes_max`: records whose rows can have more bytes together are read one by one."""
        self._all = list(fields)
        self._clock = _clock_of(fields, config)
        self._bytes_max = bytes_max
        self._fields = _paths_of(fields, config)
        self._shape = SHAPES[config.kind](config, fields, self._fields.paths)
        self._containers = [path for path in self._shape.containers if path]
        self._beside = [
            (at, path)
            for at, path in enumerate(self._fields.paths)
            if at not in self._shape.own_only and () not in self._shape.containers
        ]
        if config.kind == "members" and () in self._shape.containers:
            self._beside = [(at, path) for at, path in enumerate(self._fields.paths) if at not in self._shape.own_only]
        paths = [*self._containers, *(path for _, path in self._beside)]
        self._can_read = all(map(can_be_typed, fields)) and can_be_read_fast(paths)
        self._read = FastReader(paths) if self._can_read and paths else None
        self._decoders = (
            [(at, msgspec.json.Decoder(typed(fields[at])).decode) for at, _ in self._beside] if self._can_read else []
        )

    def columns(self, values: Sequence[bytes | None]) -> ElementColumns | None:
        """Return the columns of the rows of plain records. None if a field can't be read in this way."""
        if not self._can_read:
            return None
        fits = np.zeros(len(values), np.bool_)
        counts = np.zeros(len(values), np.int64)
        own: dict[int, list[Any]] = {}
        beside: dict[int, list[Any]] = {at: [] for at, _ in self._beside}
        rows = 0
        for record, value in enumerate(values):
            found = None if value is None else self._record(value)
            if found is None:
                continue
            count, columns, others = found
            fits[record], counts[record] = True, count
            for at, own_values in columns.items():
                kept = own.setdefault(at, [UNSET] * rows) if at not in own else own[at]
                kept += [UNSET] * (rows - len(kept))
                kept += own_values
            rows += count
            for at, one in others.items():
                beside[at].append(one)
        if not fits.any():
            return None
        record_of = np.repeat(np.arange(int(fits.sum())), counts[fits])
        made: dict[str, Column] = {}
        good = np.ones(rows, np.bool_)
        for at, field in enumerate(self._all):
            column: list[Any] | None = own.get(at)
            if column is not None:
                column += [UNSET] * (rows - len(column))
            if at in beside and (column is None or msgspec.UnsetType in set(map(type, column))):
                others_of = beside[at]
                spread = [others_of[record] for record in record_of.tolist()]
                column = (
                    spread
                    if column is None
                    else [o if o is not UNSET else b for o, b in zip(column, spread, strict=True)]
                )
            if column is not None and any(value is not UNSET for value in column):
                made[field.name], are_good = _column(field, column)
                good &= are_good
                if self._clock is not None and self._clock.at == at:
                    starts = np.cumsum(counts[fits]) - counts[fits]
                    number = np.arange(rows) - starts[record_of]
                    made[field.name] = replace(
                        made[field.name], values=made[field.name].values + number * self._clock.step_us
                    )
        if not good.all():
            return self._without(fits, counts, record_of[~good], made, record_of)
        return ElementColumns(made, fits, np.where(fits, counts, 0))

    def _without(
        self, fits: Any, counts: Any, wrong: Any, made: Mapping[str, Column], record_of: Any
    ) -> ElementColumns:
        """Return the columns without the rows of records with a wrong value."""
        places = np.flatnonzero(fits)
        fits[places[np.unique(wrong)]] = False
        keep = np.flatnonzero(fits[places[record_of]])
        return ElementColumns({name: one.of(keep) for name, one in made.items()}, fits, np.where(fits, counts, 0))

    def _record(self, value: bytes) -> tuple[int, Mapping[int, list[Any]], dict[int, Any]] | None:
        if not value.isascii() or b"\\" in value or (may_nest_deep(value) and _nests_deep(value)):
            return None
        raws = [] if self._read is None else self._read(value)
        texts = [bytes(raw) for raw in (raws or ())[: len(self._containers)] if raw is not UNSET]
        if raws is None or len(texts) < len(self._containers):
            return None
        opened = dict(zip(self._containers, texts, strict=True))
        containers = [opened.get(path, value.strip()) for path in self._shape.containers]
        if texts and not self._fields.are_once(value, texts):
            return None
        found = self._shape.quick_rows_of(containers)
        if found is None or found.size * (len(value) - sum(map(len, texts))) > self._bytes_max:
            return None
        try:
            others = {
                at: UNSET if raw is UNSET else decode(raw)
                for (at, decode), raw in zip(self._decoders, raws[len(self._containers) :], strict=True)
            }
        except msgspec.DecodeError:
            return None
        return found.size, found.columns, others


def _nests_deep(value: bytes) -> bool:
    """Return True if a JSON text without escapes is nested deeper than NESTING_MAX."""
    data = np.frombuffer(value, np.uint8)
    is_outside = np.cumsum(data == ord('"'), dtype=np.uint8) % 2 == 0
    steps = np.zeros(len(data), np.int32)
    steps[is_outside & ((data == ord("{")) | (data == ord("[")))] = 1
    steps[is_outside & ((data == ord("}")) | (data == ord("]")))] = -1
    return bool(steps.cumsum().max() > NESTING_MAX)


def _column(field: RecordField, values: list[Any]) -> tuple[Column, Any]:
    """Return the column of typed values, and a mask of the values that it can hold."""
    kinds = set(map(type, values))
    if msgspec.UnsetType in kinds:
        values = [None if value is UNSET else value for value in values]
        kinds = kinds - {msgspec.UnsetType} | {type(None)}
    good = np.ones(len(values), np.bool_)
    if field.type == "timestamp":
        micros, valid = parse_timestamp_column(values, field.time_unit, kinds, field.tz)
        present = np.array([value is not None for value in values], np.bool_) if type(None) in kinds else good
        return Column(micros, present & valid, in_micros=True), valid | ~present
    array = pa.array(values, arrow_type(field.type))
    present = np.array(array.is_valid())
    if field.type == "string":
        return Column(array, present), good
    blank = False if field.type == "boolean" else 0
    numbers = array.fill_null(blank) if array.null_count else array
    if field.type == "integer":
        numbers = numbers.cast(pa.int64())
    return Column(numbers.to_numpy(zero_copy_only=False), present), good
