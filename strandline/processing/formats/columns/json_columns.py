"""JSON records of one shape as columns: records whose text is that of a model, except for the values.

All records are read in parallel, from one value to the next. After each value, the bytes must be those of the model. Some
values fill no field and are equal in most records, for example the schema and the table name of an event. They are compared
like the bytes between values. All other values are checked, so that each record is known to be JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.json_paths import JsonPath
from strandline.processing.formats.columns.byte_walk import Int64Array
from strandline.processing.formats.columns.cell_walk import CellScanner
from strandline.processing.formats.columns.json_shape import Cell, Shape, shape_of
from strandline.processing.formats.columns.read_columns import Column, ColumnsAndMarks, Marks, holds_values
from strandline.processing.formats.record_fields import RecordField

_MODELS_TRIED = 4
_REST_MIN = 64
"""Minimum number of remaining records. It is faster to read fewer records one by one."""
_SAMPLES, _SAMPLES_MIN = 16, 3
"""Number of records that determine which values are constant, and the minimum number of them that have as many quotes as the
shape."""
_BEGIN_BYTES_MAX = 256
"""Maximum length of a common beginning. A longer one is compared in each record before the records are joined."""
_OPERATION = RecordField("$.op", "string")
"""Field for the operation of an event, if no field reads it. No declared field has this name."""
_NULL, _WORDS = (b"null",), (b"null", b"true", b"false")

Constants = frozenset[JsonPath]
"""Paths whose values are equal in most records."""
Paths = Mapping[JsonPath, RecordField]
"""Fields by their paths."""


def model_of(values: Sequence[bytes | None]) -> Shape | None:
    """Return the shape of the first record that has one. None if no record has one."""
    shapes = (shape_of(value) for value in values[:_MODELS_TRIED] if value is not None)
    return next((shape for shape in shapes if shape is not None), None)


def fields_at(fields: Sequence[RecordField]) -> Paths | None:
    """Return the fields by their paths. None if columns can't hold one of them, or if two have the same path."""
    found = {(field.name,) if field.path is None else field.path: field for field in fields}
    can_hold = all(holds_values(field) and not (field.text and field.type == "string") for field in fields)
    return found if can_hold and len(found) == len(fields) else None


class JsonColumns:
    """Reads the objects of one stream."""

    def __init__(self, fields: Sequence[RecordField]) -> None:
        self._paths = fields_at(fields)

    def columns(
        self, values: Sequence[bytes | None], _sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """Return the columns of the records that have the usual form, and a mask of these records. See `ColumnReader`."""
        return read_by_shapes(values, self._of_one_shape)

    def _of_one_shape(self, values: Sequence[bytes | None]) -> ColumnsAndMarks | None:
        shape = model_of(values)
        if self._paths is None or shape is None or not can_hold(shape, self._paths):
            return None
        return read_shaped(values, shape, self._paths, constants_of(shape, values))


class ChangeColumns:
    """Reads the change events of one stream (`change_events.py`): creations, updates, and rows of a snapshot; or deletions."""

    def __init__(self, fields: Sequence[RecordField], row: str) -> None:
        """`row`: first step of the paths into the changed row."""
        self._paths = fields_at(fields)
        self._row = row

    def columns(
        self, values: Sequence[bytes | None], _sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """Return the columns of the records that have the usual form, and a mask of these records. See `ColumnReader`."""
        return read_by_shapes(values, self._of_one_shape)

    def _of_one_shape(self, values: Sequence[bytes | None]) -> ColumnsAndMarks | None:
        shape = model_of(values)
        if self._paths is None or shape is None:
            return None
        event: JsonPath = ("payload",) if ("payload",) in shape.containers else ()
        where, operations = ("after", [b"c", b"r", b"u"]) if (*event, "after") in shape.objects else ("before", [b"d"])
        operation = next((cell for cell in shape.cells if cell.path == (*event, "op") and cell.is_text), None)
        if (
            operation is None
            or (*event, where) not in shape.objects
            or ("payload",) in {cell.path for cell in shape.cells}
        ):
            return None
        paths = {
            (*event, where, *path[1:]) if path[:1] == (self._row,) else (*event, *path): field
            for path, field in self._paths.items()
        }
        if len(paths) < len(self._paths) or not can_hold(shape, paths):
            return None
        constants = constants_of(shape, values)
        if operation.path in constants and operation.path not in paths:
            return read_shaped(values, shape, paths, constants) if operation.value in operations else None
        name = paths.setdefault(operation.path, _OPERATION).name
        columns, fits = read_shaped(values, shape, paths, constants)
        fits &= np.array(pc.is_in(columns[name].values, pa.array(operations, pa.string())))
        return columns, fits


def read_by_shapes(
    values: Sequence[bytes | None], read: Callable[[Sequence[bytes | None]], ColumnsAndMarks | None]
) -> ColumnsAndMarks | None:
    """Read records of several shapes. `read` reads the records with the shape of the first one, and is called again for the
    others.

    Ends if few records are left, or if few had the shape twice, for example because each record has its own shape.
    """
    if (found := read(values)) is None:
        return None
    columns, fits = found
    poor = int(4 * np.count_nonzero(fits) < len(values))
    while poor < 2 and len(rest := np.flatnonzero(~fits)) >= _REST_MIN:
        if (found := read([values[at] for at in rest.tolist()])) is None:
            break
        others, are_found = found
        for name in columns.keys() | others.keys():
            like = columns.get(name) or others[name]
            one = columns.get(name) or Column.without(like, len(values))
            columns[name] = one.with_rows(rest, others.get(name) or Column.without(like, len(rest)))
        fits[rest] = are_found
        poor += int(4 * np.count_nonzero(are_found) < len(rest))
    return columns, fits


def can_hold(shape: Shape, paths: Paths) -> bool:
    """Return True if all values at the paths can be values of the fields."""
    return not paths.keys() & shape.containers and all(
        field.type == "string" or field.text for cell in shape.cells if cell.is_text and (field := paths.get(cell.path))
    )


def constants_of(shape: Shape, values: Sequence[bytes | None]) -> Constants:
    """Return the cells whose values are equal to the model's in some other records that can have the shape."""
    some = [
        one for one in values[:: len(values) // _SAMPLES + 1] if one is not None and one.count(b'"') == shape.quotes
    ]
    if len(some) < _SAMPLES_MIN:
        return frozenset()
    found, before, place = set(), shape.begin, 0
    for cell in shape.cells:
        text = before + cell.value + cell.literal
        if all(value.startswith(text, place) or text in value for value in some):
            found.add(cell.path)
        place += len(before) + len(cell.value)
        before = cell.literal
    return frozenset(found)


def read_shaped(
    values: Sequence[bytes | None], shape: Shape, paths: Paths, constants: Constants
) -> tuple[dict[str, Column], Marks]:
    """Return the columns of the fields, and a mask of the records with the shape. `constants`: cells whose values are equal to
    the model's, if no field reads them."""
    literals, read = [shape.begin], list[Cell]()
    for cell in shape.cells:
        if cell.path in constants and cell.path not in paths:
            literals[-1] += cell.value + cell.literal
        else:
            read.append(cell)
            literals.append(cell.literal)
    begin = literals[0]
    if len(begin) > _BEGIN_BYTES_MAX:  # for example a schema: each byte of it is only read once
        size = len(begin)
        values = [value[size:] if value is not None and value.startswith(begin) else None for value in values]
        begin = b""
    cells = CellScanner(values, None)
    cells.require(cells.starts, begin)
    columns: dict[str, Column] = {}
    at = np.minimum(cells.starts + len(begin), cells.ends)
    for cell, literal in zip(read, literals[1:], strict=True):
        field = paths.get(cell.path)
        if field is None and (plain := _plain_ends(cells, cell, at, literal)) is not None:
            at = np.minimum(plain + len(literal), cells.ends)
            continue
        ends = cells.next_of(literal[0], at)
        cells.require(ends, literal)
        column = None
        if not cell.is_text or (field is not None and field.type != "string"):
            column = read_cell(cells, cell, field, at, ends)
        elif field is not None or not cells.are_plain:
            column = cells.plain_texts(at, ends)
        if field is not None and column is not None:
            columns[field.name] = column
        at = np.minimum(ends + len(literal), cells.ends)
    cells.walk.fits &= at == cells.ends
    return columns, cells.walk.fits


def _plain_ends(cells: CellScanner, cell: Cell, starts: Int64Array, literal: bytes) -> Int64Array | None:
    """Return the end of the cell, if no record needs a closer check. Otherwise return None."""
    ends = cells.plain_text_ends(starts) if cell.is_text else cells.plain_number_ends(starts)
    marks = cells.are(ends, literal) & (cell.is_text | (ends > starts))
    return ends if (marks | ~cells.walk.fits).all() else None


def read_cell(
    cells: CellScanner, cell: Cell, field: RecordField | None, starts: Int64Array, ends: Int64Array
) -> Column | None:
    """Return the values of the field that reads the cell. Mark the records in which the cell isn't a JSON value."""
    if cell.is_text:
        if field is None or field.type == "string":
            return None if field is None else cells.texts(starts, ends)
        cells.walk.fits &= ends > starts
        return cells.column(field, starts, ends)
    cells.walk.fits &= ends > starts
    ends = cells.without(starts, ends, _WORDS if field is None else _NULL)
    if field is None:
        cells.require_numbers(starts, ends)
        return None
    if field.type == "string":
        cells.walk.fits &= ends == starts
        return Column(pa.nulls(len(starts), pa.string()), np.zeros(len(starts), np.bool_))
    return cells.column(field, starts, ends)
