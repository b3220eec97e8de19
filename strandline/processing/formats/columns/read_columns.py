"""Columns that a fast reader has read from many records, and the records that they represent.

A fast reader only reads records that consist of exactly the expected parts. For these, the columns contain the values of the
record's JSON text. All other records are read by their text, as if there were no columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.core.field_types import WHOLE_RANGES
from strandline.processing.formats.record_fields import JsonText, RecordField

Marks = npt.NDArray[np.bool_]

ROWS_MIN = 64
"""Minimum number of records. It is faster to read fewer records one by one."""
SURE_WHOLE_MAX = 2**53
"""Limit up to which doubles represent each integer exactly."""


@dataclass(frozen=True)
class Column:
    """One field of all records. Values of records that weren't read have no meaning."""

    values: Any
    """An Arrow array for strings, otherwise a numpy array. Timestamps have the unit of their field."""
    present: Marks
    """True where the record has the field and it isn't null."""
    in_micros: bool = False
    """True if the values of a timestamp are microseconds, whatever the unit of its field is."""

    def of(self, rows: npt.NDArray[np.int64]) -> Column:
        """Return the values with these indices."""
        values = self.values.take(pa.array(rows)) if isinstance(self.values, pa.Array) else self.values[rows]
        return Column(values, self.present[rows], self.in_micros)

    def with_rows(self, rows: npt.NDArray[np.int64], other: Column) -> Column:
        """Return the column with the values of the other column at these indices."""
        origin = np.arange(len(self.present))
        origin[rows] = len(origin) + np.arange(len(rows))
        is_array = isinstance(self.values, pa.Array)
        both = (pa.concat_arrays if is_array else np.concatenate)([self.values, other.values])
        return Column(both, np.concatenate([self.present, other.present])).of(origin)

    @classmethod
    def without(cls, like: Column, count: int) -> Column:
        """Return a column of `count` records without the field. `like`: a column of the field."""
        is_array = isinstance(like.values, pa.Array)
        values = pa.nulls(count, like.values.type) if is_array else np.zeros(count, like.values.dtype)
        return cls(values, np.zeros(count, np.bool_))


class DecodedColumns(Sequence[JsonText]):
    """The text of each record, made when it is needed, and the columns that represent the records."""

    def __init__(
        self,
        columns: Mapping[str, Column],
        fits: Marks,
        of: Callable[[Sequence[int]], Sequence[JsonText]],
    ) -> None:
        self.columns = columns
        """Columns by field name. A field that no record has is missing."""
        self.fits = fits
        """True for the records that the columns represent."""
        self.of = of
        """Returns the text of each record with these indices."""
        self._texts: Sequence[JsonText] | None = None

    def __len__(self) -> int:
        return len(self.fits)

    @overload
    def __getitem__(self, at: int) -> JsonText: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[JsonText]: ...
    def __getitem__(self, at: int | slice) -> JsonText | Sequence[JsonText]:
        if self._texts is None:
            self._texts = self.of(range(len(self)))
        return self._texts[at]


ColumnsAndMarks = tuple[dict[str, Column], Marks]
"""Columns by field name, and a mask of the records that they represent."""


@runtime_checkable
class ColumnReader(Protocol):
    """Reads the records of one stream as columns."""

    def columns(
        self, values: Sequence[bytes | None], sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """Return the columns, and a mask of the records that they represent. None if no record can be read as columns.
        `sources`: the different packed headers of the records, from which fields are read. None for a record without any."""


def can_be_read(field: RecordField) -> bool:
    """Return True if a column can hold the declared field, in a member with its name."""
    return field.path is None and not field.text and holds_values(field)


def holds_values(field: RecordField) -> bool:
    """Return True if a column can hold the field's values."""
    is_plain = field.type in ("string", "double", "boolean", "timestamp") or field.type in WHOLE_RANGES
    return is_plain and not field.rest and not field.joined and not field.has_parser


def is_whole(field: RecordField) -> bool:
    """Return True if the field is read as an integer."""
    return field.type == "timestamp" or field.type in WHOLE_RANGES


def as_doubles(numbers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float64], Marks]:
    """Return integers as doubles, and a mask of those that don't change."""
    return numbers.astype(np.float64), (numbers >= -SURE_WHOLE_MAX) & (numbers <= SURE_WHOLE_MAX)
