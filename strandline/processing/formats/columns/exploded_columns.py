"""JSON records with an array of objects as columns, one row for each element. All records have one shape, except for their
numbers of elements.

Without escapes, a quote always begins or ends a string. So the number of quotes in a record determines its number of elements,
and where each value would be if the record had the shape. Then the bytes between the values are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from strandline.core.json_paths import JsonPath
from strandline.processing.formats.columns.byte_walk import Int64Array
from strandline.processing.formats.columns.cell_walk import CellScanner
from strandline.processing.formats.columns.json_columns import (
    Paths,
    can_hold,
    fields_at,
    read_cell,
)
from strandline.processing.formats.columns.json_shape import CELLS_MAX, Cell, Shape, shape_of
from strandline.processing.formats.columns.read_columns import Column, DecodedColumns, Marks
from strandline.processing.formats.json_rows import Rows
from strandline.processing.formats.record_fields import JsonText, RecordField

_MODELS_TRIED = 4


@dataclass(frozen=True)
class ElementColumns:
    """The columns of some records."""

    columns: dict[str, Column]
    """Columns of the rows of the records in `fits`, in their order."""
    fits: Marks
    """True for the records that were read."""
    counts: Int64Array
    """Number of rows of each record."""


class _Elements:
    """The elements in a shape, at least two. Raises ValueError if they aren't alike, or if an element and the cells outside the
    array together have more than CELLS_MAX cells."""

    def __init__(self, shape: Shape, array: JsonPath) -> None:
        depth = len(array)
        inside = [at for at, cell in enumerate(shape.cells) if cell.path[:depth] == array and len(cell.path) > depth]
        self.begin, self.end = (inside[0], inside[-1] + 1) if inside else (0, 0)
        within = shape.cells[self.begin : self.end]
        self.count = int(within[-1].path[depth]) + 1 if within else 0
        width, rest = divmod(len(within), self.count) if self.count else (0, 0)
        if self.count < 2 or rest:
            raise ValueError("fewer than two elements, or elements of several shapes")
        if self.begin + width + len(shape.cells) - self.end > CELLS_MAX:
            raise ValueError("too many values")
        self.cells: Sequence[Cell] = within[:width]
        """Cells of the first element."""
        self.last: Cell = within[-1]
        """Last cell of the last element."""
        self.quotes = within[width].quote - within[0].quote
        """Number of quotes of each element."""
        for at, cell in enumerate(within):
            model = within[at % width]
            is_alike = (model.is_text, model.after_quote) == (cell.is_text, cell.after_quote) and (
                cell is self.last or (model.literal, model.before_next) == (cell.literal, cell.before_next)
            )
            if not is_alike or cell.path != (*array, at // width, *model.path[depth + 1 :]):
                raise ValueError("elements of several shapes")


class ExplodedColumns:
    """Reads the records of one stream."""

    def __init__(self, fields: Sequence[RecordField], array: JsonPath, bytes_max: int) -> None:
        """`bytes_max`: records whose rows can have more bytes together are left to other readers."""
        self._array = array
        self._bytes_max = bytes_max
        self._beside = fields_at(fields)
        depth = len(array)
        self._own = {
            (*array, 0, *(path[depth:] if path[:depth] == array else path)): field
            for path, field in (self._beside or {}).items()
        }
        """Field at each path in the first element."""

    def columns(self, values: Sequence[bytes | None]) -> ElementColumns | None:
        """Return the columns of the elements. None if the records can't be read as columns."""
        if self._beside is None or len(self._own) < len(self._beside):
            return None
        for value in values[:_MODELS_TRIED]:
            if value is not None and (shape := shape_of(value, cells_max=len(value))) is not None:
                try:
                    return self._read(values, shape, _Elements(shape, self._array))
                except ValueError:
                    continue
        return None

    def _read(self, values: Sequence[bytes | None], shape: Shape, elements: _Elements) -> ElementColumns | None:
        own = {cell.path for cell in elements.cells}
        named = {field.name for path, field in self._own.items() if path in own}
        beside: Paths = {path: field for path, field in (self._beside or {}).items() if field.name not in named}
        depth = len(self._array)
        if any(path[:depth] == self._array for path in beside) or not (
            can_hold(shape, self._own) and can_hold(shape, beside)
        ):
            return None
        records = ShapedRecords(values, shape)
        lines = records.cells
        more, rest = np.divmod(records.counts - shape.quotes + np.zeros(len(values), np.int64), elements.quotes)
        counts = elements.count + more
        lines.walk.fits &= (rest == 0) & (counts > 0)
        lines.walk.fits &= counts * (lines.ends - lines.starts) <= self._bytes_max
        columns = records.read(lines, records.first, shape.cells[: elements.begin], beside)
        behind = records.first + more * elements.quotes
        columns |= records.read(lines, behind, shape.cells[elements.end :], beside)
        counts = np.where(lines.walk.fits, counts, 0)
        if not counts.any():
            return None
        record_of = np.repeat(np.arange(len(values)), counts)
        number = np.arange(len(record_of)) - np.repeat(counts.cumsum() - counts, counts)
        rows = lines.repeated(record_of)
        first = records.first[record_of] + number * elements.quotes
        own_columns = records.read(rows, first, elements.cells[:-1], self._own)
        own_columns |= self._read_last(records, rows, first, elements, number == counts[record_of] - 1)
        fits = lines.walk.fits.copy()
        fits[record_of[~rows.walk.fits]] = False
        keep = np.flatnonzero(fits[record_of])
        columns = {name: column.of(record_of[keep]) for name, column in columns.items()}
        columns |= {
            name: column.of(keep) if len(keep) < len(number) else column for name, column in own_columns.items()
        }
        return ElementColumns(columns, fits, np.where(fits, counts, 0))

    def _read_last(
        self, records: ShapedRecords, rows: CellScanner, first: Int64Array, elements: _Elements, is_last: Marks
    ) -> dict[str, Column]:
        """Return the column of the last cell of each element, and mark rows that don't have the shape.

        The bytes after this cell are those before the next element, or those after the array if the element is the last one.
        `first`: index of each element's first quote. `is_last`: True for the last element of a record."""
        cell, last = elements.cells[-1], elements.last
        starts, ends = records.places(rows, first, cell)
        shift = (elements.count - 1) * elements.quotes
        ends = np.where(is_last, records.places(rows, first - shift, last)[1], ends)
        rows.walk.fits &= starts <= ends
        rows.walk.fits &= np.where(is_last, rows.are(ends, last.literal), rows.are(ends, cell.literal))
        if last is records.shape.cells[-1]:
            rows.walk.fits &= ~is_last | (ends + len(last.literal) == rows.ends)
        field = self._own.get(cell.path)
        column = read_cell(rows, cell, field, starts, ends)
        return {} if field is None or column is None else {field.name: column}


class ShapedRecords:
    """Records, and the positions of the cells of the shape in them. Records without the shape are marked."""

    def __init__(self, values: Sequence[bytes | None], shape: Shape) -> None:
        self.shape = shape
        self.cells = CellScanner(values, b"\\")
        self.cells.require_utf8()
        self.cells.refuse_controls()
        self._quotes: Int64Array = np.flatnonzero(self.cells.data == ord('"'))
        self.first, self.counts = self.cells.first_and_count(self._quotes, shape.quotes)
        """Index of the first quote of each record, and its number of quotes."""
        if len(self._quotes) == 0:
            self.cells.walk.fits[:] = False
            self._quotes = np.zeros(1, np.int64)
        self.cells.require(self.cells.starts, shape.begin)

    def read(self, lines: CellScanner, first: Int64Array, cells: Sequence[Cell], paths: Paths) -> dict[str, Column]:
        """Return the columns of the fields among these cells. `first`: for each line, the index of its quote with number 0."""
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

    def places(self, lines: CellScanner, first: Int64Array, cell: Cell) -> tuple[Int64Array, Int64Array]:
        """Return the beginning and the end of the cell in each line of the shape."""
        starts = self._quotes_at(first, cell.quote) + cell.after_quote
        is_followed = cell.quote + 1 < self.shape.quotes
        return starts, (self._quotes_at(first, cell.quote + 1) if is_followed else lines.ends) - cell.before_next

    def _quotes_at(self, first: Int64Array, number: int) -> Int64Array:
        if first is self.first and isinstance(self.counts, int):  # at equal distances, which is faster
            return self._quotes[number :: self.counts]
        return self._quotes[np.clip(first + number, 0, len(self._quotes) - 1)]


def rows_of(
    read: ElementColumns, texts: Callable[[Sequence[int]], Iterator[Rows]]
) -> tuple[DecodedColumns, list[int], list[int | None]]:
    """Return all rows in their order, the index of each row's record, and the index of its element. Rows come from columns, or
    from the text of the other records. `texts`: returns the rows of the records with these indices."""
    known: dict[int, list[tuple[JsonText, int | None]]] = {}

    def learn(records: Sequence[int]) -> None:
        for rows in texts(records) if records else ():
            assert rows.places is not None and rows.elements is not None
            for place, text, element in zip(rows.places, rows.texts, rows.elements, strict=True):
                known.setdefault(records[place], []).append((text, element))

    others, counts = np.flatnonzero(~read.fits).tolist(), read.counts.copy()
    learn(others)
    counts[others] = [len(known.get(record, ())) for record in others]
    record_of = np.repeat(np.arange(len(counts)), counts)
    numbers = np.arange(len(record_of)) - np.repeat(counts.cumsum() - counts, counts)
    fits, columns = read.fits[record_of], read.columns
    places: list[int] = record_of.tolist()
    elements: list[int | None] = numbers.tolist()
    if others:
        at = np.maximum(fits.cumsum() - 1, 0)
        columns = {name: column.of(at) for name, column in columns.items()}
        for row in np.flatnonzero(~fits).tolist():
            elements[row] = known[places[row]][numbers[row]][1]

    def texts_of(rows: Sequence[int]) -> Sequence[JsonText]:
        learn(sorted({places[row] for row in rows} - known.keys()))
        return [known[places[row]][numbers[row]][0] for row in rows]

    return DecodedColumns(columns, fits, texts_of), places, elements
