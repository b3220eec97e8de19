"""One version of a lookup's rows, and the hash join by which records find them. Pure, and by columns."""

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

Places = npt.NDArray[np.int64]

_NONE = -1
"""In place of a row's number: there is none."""


class LookupTable:
    """The rows of one version. Holds nothing that changes, but what it has made to find rows more quickly."""

    def __init__(self, name: str, version: int, rows: pa.RecordBatch, key: Sequence[str]) -> None:
        """`key`: the columns by which a row is found; no two rows have the same key, and none lacks it."""
        self.name = name
        self.version = version
        self.rows = rows
        self._parts = [_KeyPart(_comparable(rows.column(one))) for one in key]
        codes = [part.places_of(part.values) for part in self._parts]
        self._steps: list[Places] = []
        """Behind each part but the first: the combinations of it with those before that rows have, ascending."""
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
        """What it takes of memory, about: the rows, and as much again to find them."""
        return 2 * int(self.rows.nbytes)

    def as_version(self, version: int) -> LookupTable:
        """The same rows as a version of this number."""
        found = copy(self)
        found.version = version
        return found

    def find(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The number of the row for each record, null where there is none. `columns`: of the records, the values of the key, in
        the order of the key. A null is no key."""
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
        """One column of the rows; null where this version does not declare it."""
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

    def places_of(self, column: pa.Array) -> Places:
        """For each value its number among the distinct ones, below 0 where it is none of them.

        Arrow makes its hash table anew at each call. So where there are more values to be found than records that look for them,
        each distinct value of the records is looked for in a table that stays.
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
    """Whole numbers of 32 and of 64 bits are compared as those of 64, and so are times."""
    return column.cast(pa.int64()) if pa.types.is_int32(column.type) else without_times(column)
