"""One version of a lookup's rows, and the hash join of records with them. Pure, and by columns."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from itertools import repeat

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.operators.keys import without_times

RowIndices = npt.NDArray[np.int64]

_NONE = -1
"""Replaces the index of a row: there is no row."""


class LookupTable:
    """The rows of one version. Immutable, except for indices that make searches faster."""

    def __init__(self, name: str, version: int, rows: pa.RecordBatch, key: Sequence[str]) -> None:
        """`key`: columns of the key. Keys must be unique and without nulls."""
        self.name = name
        self.version = version
        self.rows = rows
        self._parts = [_KeyPart(_comparable(rows.column(one))) for one in key]
        codes = [part.places_of(part.values) for part in self._parts]
        self._steps: list[RowIndices] = []
        """For each part except the first: existing combinations of it with the parts before it, ascending."""
        whole = codes[0]
        for part, more in zip(self._parts[1:], codes[1:], strict=True):
            whole, found = whole * len(part) + more, None
            found = np.unique(whole)
            self._steps.append(found)
            whole = np.searchsorted(found, whole)
        self._row_of = np.empty(rows.num_rows, np.int64)
        self._row_of[whole] = np.arange(rows.num_rows)

    @property
    def bytes_held(self) -> int:
        """Approximate memory in bytes: the rows, and the same size again for the search."""
        return 2 * int(self.rows.nbytes)

    def as_version(self, version: int) -> LookupTable:
        """Return the same rows as a version with this number."""
        found = copy(self)
        found.version = version
        return found

    def find(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the index of the row for each record, null if there is none. `columns`: values of the key in the records, in
        the order of the key. A null matches no key."""
        whole = self._parts[0].places_of(columns[0])
        for part, column, found in zip(self._parts[1:], columns[1:], self._steps, strict=True):
            more = part.places_of(column)
            combined = np.where((whole >= 0) & (more >= 0), whole * len(part) + more, _NONE)
            at = np.minimum(np.searchsorted(found, combined), max(0, len(found) - 1))
            whole = np.where(found[at] == combined, at, _NONE) if len(found) else np.full(len(combined), _NONE)
        if not len(self._row_of):
            return pa.nulls(len(whole), pa.int64())
        rows = self._row_of[np.maximum(whole, 0)]
        return pa.array(rows, mask=whole < 0)

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return one column of the rows; null if this version doesn't declare it."""
        at = self.rows.schema.get_field_index(name)
        return pa.nulls(self.rows.num_rows, kind) if at < 0 else self.rows.column(at)


class _KeyPart:
    """One field of the key: its distinct values, numbered."""

    def __init__(self, column: pa.Array) -> None:
        self.values = column
        self.distinct = column.unique()

    def __len__(self) -> int:
        return len(self.distinct)

    @cached_property
    def _number_of(self) -> dict[object, int]:
        return {value: number for number, value in enumerate(self.distinct.to_pylist())}

    def places_of(self, column: pa.Array) -> RowIndices:
        """Return the number of each value among the distinct values; negative if it isn't one of them.

        Arrow builds its hash table at each call. So if there are more distinct values in the lookup than records, each distinct
        value of the records is searched in a permanent table.
        """
        column = _comparable(column)
        if len(self.distinct) <= len(column):
            found = pc.index_in(column, value_set=self.distinct, skip_nulls=True)
            return np.asarray(found.fill_null(_NONE).to_numpy(zero_copy_only=False), np.int64)
        encoded = column.dictionary_encode()
        values = encoded.dictionary.to_pylist()
        numbers = np.fromiter(map(self._number_of.get, values, repeat(_NONE)), np.int64, len(values))
        if not len(numbers):
            return np.full(len(column), _NONE, np.int64)
        at = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return np.where(encoded.indices.is_valid().to_numpy(zero_copy_only=False), numbers[at], _NONE)


def _comparable(column: pa.Array) -> pa.Array:
    """Return integers and times as integers of 64 bits, so that they can be compared. Other columns are returned unchanged."""
    return column.cast(pa.int64()) if pa.types.is_int32(column.type) else without_times(column)
