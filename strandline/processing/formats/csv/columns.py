"""Lines of delimited values as columns. Lines must have no quotes, and as many values as there are columns."""

from __future__ import annotations

import re
from collections.abc import Sequence

from strandline.processing.formats.columns.byte_walk import Int64Array
from strandline.processing.formats.columns.cell_walk import PATTERNS, CellScanner
from strandline.processing.formats.columns.line_cells import cut
from strandline.processing.formats.columns.read_columns import ColumnsAndMarks, can_be_read
from strandline.processing.formats.record_fields import RecordField


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
        """Return the columns of the records that have the usual form, and a mask of these records. See `ColumnReader`."""
        if not self._can_read:
            return None
        cells = CellScanner(values, b'"\r\xef')  # a byte order mark begins with the last byte
        cells.require_utf8()
        starts = cut(cells, self._delimiter, len(self._fields))
        if starts is None or self._has_time_texts(cells, starts):
            return None
        return {
            field.name: cells.column(field, starts[at], starts[at + 1] - 1) for at, field in enumerate(self._fields)
        }, cells.walk.fits

    def _has_time_texts(self, cells: CellScanner, starts: Sequence[Int64Array]) -> bool:
        """Return True if the first line has a time that isn't a number."""
        model = cells.walk.first_fit()
        if model is None:
            return True
        found = [
            cells.walk.bytes_at(int(starts[at][model]), int(starts[at + 1][model] - starts[at][model]) - 1)
            for at, field in enumerate(self._fields)
            if field.type == "timestamp"
        ]
        return any(re.fullmatch(PATTERNS["whole"].encode(), one) is None for one in found if one)
