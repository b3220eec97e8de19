"""The contract of a result writer: it writes rows of a stage and reports what became of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import pyarrow as pa

WINDOW_START, WINDOW_END = "@window_start_ms", "@window_end_ms"
PROBLEM = "@problem"
"""Why a result cannot be used; null for a good one."""
EVENT_US, PARTITION, OFFSET, ELEMENT = "@event_us", "@partition", "@offset", "@element"
"""Of a record: its event time in microseconds since 1970 UTC, and where it stands in the log."""
LATE = "@late"
"""Of a record that comes to a window whose results are revised: true if it came behind the watermark, else null."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A result that the store will never accept as it is. The caller writes a dead letter for it (reason `result`)."""

    id: str
    index: str | None
    """None when the window end lies outside the years 1 to 9999, so that no index can be named."""
    status: int | None
    """The HTTP status of the store's answer; None when the row was refused before it was sent."""
    type: str
    """The store's error type, as `document_parsing_exception`, or `non_finite_number` or `timestamp_out_of_range`."""
    reason: str
    source: bytes
    """The document as JSON; what JSON can't hold (NaN, infinity) stands there as a string."""


@dataclass(slots=True)
class WriteReport:
    """What became of the rows of one write: created + already + len(refused) is their number."""

    created: int = 0
    already: int = 0
    """Already in the store with the same content: an earlier, unfinished attempt wrote them."""
    refused: list[Refused] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    """Of a CommittedWriter: what its `commit` must be told."""
    stored: dict[str, int] = field(default_factory=dict)
    """Store -> number of rows that it contains now, created or already present: `index NAME`, `table NAME`, `files STAGE PATH`.
    Empty if a later start can't count them."""

    def add_stored(self, store: str, rows: int) -> None:
        if rows:
            self.stored[store] = self.stored.get(store, 0) + rows

    @property
    def rows(self) -> int:
        return self.created + self.already + len(self.refused)


class ResultWriter(Protocol):
    """Runs inside Spark's Python workers, so it must pickle and may open its connections only when it writes."""

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        """Return only when every row is durable in the store or refused by it; doing it again changes nothing.

        `emission` is the number of the slice, and `slice_digest` is the digest of the slice (`SliceRow.digest`). A store that
        keeps the number should keep the digest too: a start compares both with the ledger.

        A batch has the columns `@window_start_ms` and `@window_end_ms` (int64: milliseconds since 1970 UTC), the by fields and
        the aggregates by their names; others are ignored. A row with a text in a column `@problem` has no result: leave it
        out before. A batch of records has, instead of the window's times, `@event_us` (int64: microseconds), `@partition`
        (int32), `@offset` (int64) and `@element` (int32, null where the whole record is the row).

        Raises IndexUnavailable when the store did not confirm in time (what was written stays and is found again by the
        next attempt), Divergence when it holds another value under the same id.
        """
        ...


@runtime_checkable
class CommittedWriter(Protocol):
    """A StoreWriter whose rows count only when the driver says so, after all of a slice are durable."""

    @property
    def place(self) -> str:
        """Tells it from the others of the job."""
        ...

    def commit(self, emission: int, epoch: int, parts: Sequence[str], slice_digest: str = "") -> None:
        """Called in the driver when every task of the slice has ended well, before the slice's checkpoint; not where there are no
        parts. `parts`: those of all reports, in any order. Doing it again, also by a later run with another split of the same
        rows, changes nothing.

        Raises TransientError, and Divergence when other rows are committed for this emission.
        """
        ...


class StoreWriter(ResultWriter, Protocol):
    """A ResultWriter over a store that has to be set up."""

    def prepare(self, next_end_ms: int | None) -> None:
        """Called in the driver before a run's first write: set the store up, or raise what would make every write fail.

        `next_end_ms`: where the first window ends that may still give a result; of records, the first event time that one may
        have. None: any may.
        Raises IndexUnavailable, IndexMisconfigured, Conflict.
        """
        ...
