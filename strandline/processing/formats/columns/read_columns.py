"""What a quick reader has read of many records: columns of the fields, and which records it is sure of.

A quick reader only reads what it is sure of: a record with exactly the parts that it expects. Of each of these the columns hold
what the record's text as JSON says. All others are read by their texts, as if there were no columns.
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
"""Of fewer records the texts are read sooner."""
SURE_WHOLE_MAX = 2**53
"""Up to here each whole number is a double."""


@dataclass(frozen=True)
class Column:
    """One field of each record. Where a record is not sure of, it means nothing."""

    values: Any
    """Of strings an Arrow array; else numbers or marks in numpy, of a timestamp in the unit of its field."""
    present: Marks
    """Where the record has the field, and it is not null."""
    in_micros: bool = False
    """True if the values of a timestamp are microseconds, whatever the unit of its field is."""

    def of(self, rows: npt.NDArray[np.int64]) -> Column:
        """The values at these places."""
        values = self.values.take(pa.array(rows)) if isinstance(self.values, pa.Array) else self.values[rows]
        return Column(values, self.present[rows], self.in_micros)

    def with_rows(self, rows: npt.NDArray[np.int64], other: Column) -> Column:
        """With the values of the other column at these places."""
        origin = np.arange(len(self.present))
        origin[rows] = len(origin) + np.arange(len(rows))
        is_array = isinstance(self.values, pa.Array)
        both = (pa.concat_arrays if is_array else np.concatenate)([self.values, other.values])
        return Column(both, np.concatenate([self.present, other.present])).of(origin)

    @classmethod
    def without(cls, like: Column, count: int) -> Column:
        """So many records without the field whose values these are."""
        is_array = isinstance(like.values, pa.Array)
        values = pa.nulls(count, like.values.type) if is_array else np.zeros(count, like.values.dtype)
        return cls(values, np.zeros(count, np.bool_))


class ReadColumns(Sequence[JsonText]):
    """The texts of records, each made when it is asked for, and the columns that stand for them."""

    def __init__(
        self,
        columns: Mapping[str, Column],
        fits: Marks,
        of: Callable[[Sequence[int]], Sequence[JsonText]],
    ) -> None:
        self.columns = columns
        """By the field's name; a field that no record has is not among them."""
        self.fits = fits
        """Which records the columns stand for."""
        self.of = of
        """Makes the texts of the records at some places."""
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
"""The columns by their fields' names, and which records they stand for."""


@runtime_checkable
class QuickReader(Protocol):
    """Reads the records of one stream as columns."""

    def columns(
        self, values: Sequence[bytes | None], sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """The columns, and which of the records they stand for; None if it can't tell anything of them. `sources`: each that a
        record has, once."""


def can_be_read(field: RecordField) -> bool:
    """Whether a column can hold the field as it is declared, in a member of its own name."""
    return field.path is None and not field.text and holds_values(field)


def holds_values(field: RecordField) -> bool:
    """Whether a column can hold the field's values."""
    is_plain = field.type in ("string", "double", "boolean", "timestamp") or field.type in WHOLE_RANGES
    return is_plain and not field.rest and not field.joined and not field.has_parser


def is_whole(field: RecordField) -> bool:
    """Whether it is read as a whole number."""
    return field.type == "timestamp" or field.type in WHOLE_RANGES


def as_doubles(numbers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float64], Marks]:
    """Whole numbers as doubles, and where that changes none."""
    return numbers.astype(np.float64), (numbers >= -SURE_WHOLE_MAX) & (numbers <= SURE_WHOLE_MAX)
