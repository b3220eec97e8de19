"""Records that reached a `dedupe`, in the form in which they cross Spark's exchange, next to the rows of a first window, or of
emitted records. Pure.

A record that a step after the `dedupe` leaves out still counts as an original. So all records that reach the `dedupe` cross, as
two hashes and a time. The rows are those that reach the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from strandline.processing.columns.codes import Codes
from strandline.processing.operators.dedupe.dedupe_state import Flags, RecordHashes

_NO_ELEMENT = -1
NO_ROW = -1


@dataclass(frozen=True)
class Candidates:
    """Records of one partition that reached the `dedupe`, in their order."""

    columns: Mapping[str, pa.Array]
    """The `by` columns of the `dedupe`."""
    seen: RecordHashes
    rows: Codes
    """Index of each record among the rows to deduplicate. NO_ROW if a step after the `dedupe` left it out."""
    is_counted: Flags
    """True if a duplicate is counted as one. False if the record is a dead letter in any case."""
    places: tuple[Codes, Codes] | None = None
    """Offset and element of each record, if duplicates are found by their log positions. None if they are found by `rows`."""

    def __len__(self) -> int:
        return len(self.rows)

    def chosen(self, flags: Flags) -> Candidates:
        """Return the chosen candidates."""
        columns = {name: column.filter(pa.array(flags)) for name, column in self.columns.items()}
        places = self.places and (self.places[0][flags], self.places[1][flags])
        return Candidates(columns, self.seen.taken(flags), self.rows[flags], self.is_counted[flags], places)

    def placed(self, offsets: Codes, elements: Sequence[int | None] | None) -> Candidates:
        """Return the candidates with their log positions. `offsets`, `elements`: of each candidate."""
        distinguished = (
            np.full(len(self), _NO_ELEMENT)
            if elements is None
            else np.array([_NO_ELEMENT if one is None else one for one in elements], np.int64)
        )
        return replace(self, places=(offsets, distinguished))

    def with_rows(self, kept: Codes) -> Candidates:
        """Return the candidates with the indices of rows among those that are `kept`, ascending."""
        if self.places is not None:
            return self
        places = np.searchsorted(kept, self.rows)
        found = np.append(kept, NO_ROW)[places] == self.rows
        return replace(self, rows=np.where(found & (self.rows != NO_ROW), places, NO_ROW))

    def packed(self) -> pa.RecordBatch:
        """Return the candidates in the form in which they cross the exchange."""
        columns = {**vars(self.seen), "is_counted": self.is_counted}
        if self.places is None:
            return pa.RecordBatch.from_pydict({**columns, "row": self.rows.astype(np.int32)})
        return pa.RecordBatch.from_pydict({**columns, "offset": self.places[0], "element": self.places[1]})


def flags_in(batch: pa.RecordBatch) -> Flags:
    found: Flags = batch.column("is_counted").to_numpy(zero_copy_only=False)
    return found


def kept_rows(batch: pa.RecordBatch, duplicates: Flags, count: int) -> Flags:
    """Return a mask of the rows that aren't duplicates. `batch`: candidates of the rows. `count`: number of rows."""
    rows = batch.column("row").to_numpy(zero_copy_only=False)
    kept = np.ones(count, np.bool_)
    kept[rows[duplicates & (rows != NO_ROW)]] = False
    return kept


@dataclass(frozen=True)
class DuplicateRecords:
    """Log positions of duplicates."""

    partitions: Codes
    offsets: Codes
    elements: Codes

    @staticmethod
    def of(parts: Sequence[tuple[int, pa.RecordBatch, Flags]]) -> DuplicateRecords:
        """Return the log positions of the duplicates in `parts`: (partition, packed candidates with log positions, mask)."""
        nothing = np.zeros(0, np.int64)
        found = [
            (
                np.full(int(duplicates.sum()), partition),
                *(_column(batch, name)[duplicates] for name in ("offset", "element")),
            )
            for partition, batch, duplicates in parts
        ]
        return DuplicateRecords(*(np.concatenate(column) for column in zip((nothing,) * 3, *found, strict=True)))

    def without(self, rows: pa.RecordBatch, partition: str, offset: str, element: str) -> pa.RecordBatch:
        """Return rows of records without duplicates. The names are those of the columns with the log position."""
        if not len(self.offsets) or not rows.num_rows:
            return rows
        elements = rows.column(element).fill_null(_NO_ELEMENT)
        columns = [rows.column(partition), rows.column(offset), elements]
        return rows.filter(pa.array(~self.hold(*(one.to_numpy(zero_copy_only=False) for one in columns))))

    def hold(self, partitions: Codes, offsets: Codes, elements: Codes) -> Flags:
        """Return a mask of the log positions that are duplicates."""
        mine = [np.asarray(one, np.int64) for one in (partitions, offsets, elements)]
        theirs = (self.partitions, self.offsets, self.elements)
        places = [np.concatenate(pair) for pair in zip(mine, theirs, strict=True)]
        _, codes = np.unique(np.stack(places, axis=1), axis=0, return_inverse=True)
        return np.isin(codes.ravel()[: len(offsets)], codes.ravel()[len(offsets) :])


def _column(batch: pa.RecordBatch, name: str) -> Codes:
    found: Codes = batch.column(name).to_numpy(zero_copy_only=False)
    return found
