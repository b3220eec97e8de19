"""Records that are arrays of values by position, as `[1793534400, 21.5, 40]`, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, Raw, UnsetType

from strandline.processing.formats.columns.read_columns import Column, ColumnsAndMarks, Marks
from strandline.processing.formats.record_fields import NESTING_MAX, RecordField, is_utf8, may_nest_deep
from strandline.processing.formats.shapes.typed_column import typed_column
from strandline.processing.formats.shapes.typed_elements import can_be_typed, decoder_of, extract_of, typed

_POSITIONS_MAX = 1_000
"""Maximum number of values of a record that are read in this way."""


class PositionColumns:
    """Reads the records of one stream, if the path of each field is one index. See `ColumnReader`."""

    def __init__(self, fields: Sequence[RecordField]) -> None:
        read = {field.path[0]: field for field in fields if field.path is not None and len(field.path) == 1}
        indices = [index for index in read if isinstance(index, int)]
        size = max(indices, default=0) + 1
        self._can_read = len(indices) == len(fields) and size <= _POSITIONS_MAX and all(map(can_be_typed, fields))
        if not self._can_read:
            return
        kinds = [typed(read[at]) if at in read else Raw for at in range(size)]
        members: list[Any] = [(f"f{at}", kind | UnsetType, UNSET) for at, kind in enumerate(kinds)]
        row = msgspec.defstruct("Positions", members, array_like=True, gc=False)
        self._decode = decoder_of(row)
        self._empty = row()
        self._extracts = [(read[index], extract_of(f"f{index}")) for index in indices]

    def columns(
        self, values: Sequence[bytes | None], _sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """Return the columns of the records that are as declared, and a mask of these records."""
        if not self._can_read:
            return None
        fits = np.ones(len(values), np.bool_)
        rows: list[Any] = []
        unread = iter(values)
        while len(rows) < len(values):
            try:
                # Stops at the first record that can't be read, and keeps the rows before it.
                rows.extend(map(self._decode, unread))  # type: ignore[arg-type]  # None raises TypeError
            except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
                fits[len(rows)] = False
                rows.append(self._empty)
        self._check_bytes(values, fits)
        columns: dict[str, Column] = {}
        for field, extract in self._extracts:
            found = extract(rows)
            columns[field.name], are_good = typed_column(field, found, set(map(type, found)))
            fits &= are_good
        return columns, fits

    def _check_bytes(self, values: Sequence[bytes | None], fits: Marks) -> None:
        """Mark the records that aren't UTF-8, and those that are nested too deep."""
        text = b"".join([value or b"" for value in values])
        brackets = text.count(b"[") + text.count(b"{") - int(np.count_nonzero(fits))
        if is_utf8(text) and brackets < NESTING_MAX:  # apart from the bracket that begins each record
            return
        for at in np.flatnonzero(fits).tolist():
            value = values[at] or b""
            fits[at] = is_utf8(value) and not may_nest_deep(value)
