"""JSON records of one shape as columns: those whose text is that of a model but for its values.

Without escapes a quote always begins or ends a text. So where the quotes of a record stand, and how many there are, tells where
each value would stand if the record had the shape; then what stands between the values is compared, byte by byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.json_paths import JsonPath
from strandline.processing.formats.columns.byte_walk import Places
from strandline.processing.formats.columns.cell_walk import CellWalk
from strandline.processing.formats.columns.json_shape import Cell, Shape, shape_of
from strandline.processing.formats.columns.read_columns import Column, ColumnsAndMarks, holds_values
from strandline.processing.formats.record_fields import RecordField

_MODELS_TRIED = 4
_NULL, _WORDS = (b"null",), (b"null", b"true", b"false")

Paths = Mapping[JsonPath, RecordField]
"""The fields by the places where they stand."""


def model_of(values: Sequence[bytes | None]) -> Shape | None:
    """The shape of the first record that has one."""
    shapes = (shape_of(value) for value in values[:_MODELS_TRIED] if value is not None)
    return next((shape for shape in shapes if shape is not None), None)


def fields_at(fields: Sequence[RecordField]) -> Paths | None:
    """Where the fields stand in a record; None if columns can't hold one, or two stand at one place."""
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
        """As QuickReader has it."""
        shape = model_of(values)
        if self._paths is None or shape is None or not can_hold(shape, self._paths):
            return None
        records = ShapedRecords(values, shape)
        return records.columns(self._paths), records.cells.walk.fits


class ChangeColumns:
    """Reads the change events of one stream, as `change_events.py` has them: creations, updates and what a snapshot read, or
    deletions."""

    def __init__(self, fields: Sequence[RecordField], row: str) -> None:
        """`row`: the first step of the paths into the changed row."""
        self._paths = fields_at(fields)
        self._row = row

    def columns(
        self, values: Sequence[bytes | None], _sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """As QuickReader has it."""
        shape = model_of(values)
        if self._paths is None or shape is None:
            return None
        event: JsonPath = ("payload",) if ("payload",) in shape.containers else ()
        where, operations = ("after", ["c", "r", "u"]) if (*event, "after") in shape.objects else ("before", ["d"])
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
        records = ShapedRecords(values, shape)
        columns = records.columns(paths)
        found = records.cells.texts(*records.places(records.cells, records.first, operation)).values
        records.cells.walk.fits &= np.array(pc.is_in(found, pa.array(operations)))
        return columns, records.cells.walk.fits


def can_hold(shape: Shape, paths: Paths) -> bool:
    """Whether all that stands at the paths may be values of the fields."""
    return not paths.keys() & shape.containers and all(
        field.type == "string" or field.text for cell in shape.cells if cell.is_text and (field := paths.get(cell.path))
    )


class ShapedRecords:
    """Records, and where the cells of the shape stand in them; those that haven't the shape are marked."""

    def __init__(self, values: Sequence[bytes | None], shape: Shape) -> None:
        self.shape = shape
        self.cells = CellWalk(values, b"\\")
        self.cells.require_utf8()
        self.cells.refuse_controls()
        self._quotes: Places = np.flatnonzero(self.cells.data == ord('"'))
        self.first, self.counts = self.cells.first_and_count(self._quotes, shape.quotes)
        """The first of each record's quotes, and how many they are."""
        if len(self._quotes) == 0:
            self.cells.walk.fits[:] = False
            self._quotes = np.zeros(1, np.int64)
        self.cells.require(self.cells.starts, shape.begin)

    def columns(self, paths: Paths) -> dict[str, Column]:
        """The columns of the fields, where each record has the cells of the shape once."""
        self.cells.walk.fits &= self.counts == self.shape.quotes
        return self.read(self.cells, self.first, self.shape.cells, paths)

    def read(self, lines: CellWalk, first: Places, cells: Sequence[Cell], paths: Paths) -> dict[str, Column]:
        """The columns of the fields among these cells. `first`: of each line the place of the quote that has number 0."""
        columns: dict[str, Column] = {}
        for cell in cells:
            starts, ends = self.places(lines, first, cell)
            lines.walk.fits &= starts <= ends
            lines.require(ends, cell.literal)
            field = paths.get(cell.path)
            column = read_cell(lines, cell, field, starts, ends)
            if field is not None and column is not None:
                columns[field.name] = column
            if cell is self.shape.cells[-1]:
                lines.walk.fits &= ends + len(cell.literal) == lines.ends
        return columns

    def places(self, lines: CellWalk, first: Places, cell: Cell) -> tuple[Places, Places]:
        """Where the cell begins and ends in each line of the shape."""
        starts = self._quotes_at(first, cell.quote) + cell.after_quote
        is_followed = cell.quote + 1 < self.shape.quotes
        return starts, (self._quotes_at(first, cell.quote + 1) if is_followed else lines.ends) - cell.before_next

    def _quotes_at(self, first: Places, number: int) -> Places:
        if first is self.first and isinstance(self.counts, int):  # one behind the other, which is read sooner
            return self._quotes[number :: self.counts]
        return self._quotes[np.clip(first + number, 0, len(self._quotes) - 1)]


def read_cell(cells: CellWalk, cell: Cell, field: RecordField | None, starts: Places, ends: Places) -> Column | None:
    """The values of the field, which the cell may hold; records in which no value of JSON stands there are marked."""
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
