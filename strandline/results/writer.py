"""The contract of a result writer: it writes rows of a stage and reports the outcome of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast, runtime_checkable

import pyarrow as pa

WINDOW_START, WINDOW_END = "@window_start_ms", "@window_end_ms"
PROBLEM = "@problem"
"""Reason why a result can't be used. Null for a good result."""
EVENT_US, PARTITION, OFFSET, ELEMENT = "@event_us", "@partition", "@offset", "@element"
"""Columns of a record: its event time in microseconds since 1970 UTC, and its position in the log."""
LATE = "@late"
"""Column of a record for a window whose results are revised: true if it arrived after the watermark, else null."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A result that the store will never accept. The caller writes a dead letter for it (reason `result`)."""

    id: str
    index: str | None
    """Index, or the name of the emission if the results go elsewhere: `USE:NAME` for the sink of a package. See
    `Document.index`. None if the window end is outside the years 1 to 9999, so that it has no index."""
    status: int | None
    """HTTP status of the store's answer. None if the row was refused before it was sent."""
    type: str
    """Error type of the store, for example `document_parsing_exception`, or `non_finite_number` or
    `timestamp_out_of_range`. A package chooses its own. The dead letter's message is `type: reason`."""
    reason: str
    source: bytes
    """The document as JSON. Values that JSON doesn't have (NaN, infinity) are strings."""


@dataclass(slots=True)
class WriteReport:
    """Outcome of the rows of one write: created + already + len(refused) is their number."""

    created: int = 0
    already: int = 0
    """Results that are already in the store with the same content: an earlier, unfinished attempt wrote them."""
    refused: list[Refused] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    """Argument for `commit` of a CommittedWriter."""
    stored: dict[str, int] = field(default_factory=dict)
    """Store -> number of rows that it contains now, created or already present. The key is `Sink.stored_word`, a space, and the
    argument `stored` of `Sink.counts`, for example `table NAME`; in a package, `sink USE:` and this argument. Empty if a later
    start can't count the rows."""

    def add_stored(self, store: str, rows: int) -> None:
        if rows:
            self.stored[store] = self.stored.get(store, 0) + rows

    @property
    def rows(self) -> int:
        return self.created + self.already + len(self.refused)


class ResultWriter(Protocol):
    """Runs inside Spark's Python workers, so it must pickle, and may open its connections only when it writes."""

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        """Return when every row is durable in the store or refused by it. Idempotent.

        `emission` is the number of the slice, and `slice_digest` is the digest of the slice (`SliceRow.digest`). A
        store that keeps the number should keep the digest too: a start compares both with the ledger.

        A batch has the columns `@window_start_ms` and `@window_end_ms` (int64: milliseconds since 1970 UTC), the by
        fields, and the aggregates by their names. Other columns are ignored. A row with a string in a column `@problem`
        has no result: remove it before the call.

        A batch of records has these columns instead of the window's times: `@event_us` (int64: microseconds),
        `@partition` (int32), `@offset` (int64), and `@element` (int32, null if the row is the complete record).

        Raises IndexUnavailable, or SinkUnavailable for another store than an index, if the store did not confirm in time.
        The written rows stay and are found by the next attempt. Raises Divergence if the store contains another value under
        the same id. A class that is derived from one of `core.errors` has the effect of that class.
        """
        ...


@runtime_checkable
class CommittedWriter(Protocol):
    """A StoreWriter whose rows count only after a commit by the driver, when all rows of a slice are durable."""

    @property
    def place(self) -> str:
        """Any string that distinguishes the writer from the other writers of the job. It needn't be a key of
        `WriteReport.stored`."""
        ...

    def commit(self, emission: int, epoch: int, parts: Sequence[str], slice_digest: str = "") -> None:
        """Commit the rows of a slice. Idempotent, also for a later run that splits the same rows differently.

        Called in the driver when every task of the slice has succeeded, before the slice's checkpoint. Not called
        without parts.

        Args: parts: Parts of all reports, in any order.

        Raises SinkUnavailable, and Divergence if other rows are committed for this emission.
        """
        ...


class StoreWriter(ResultWriter, Protocol):
    """A ResultWriter over a store that must be set up."""

    def prepare(self, next_end_ms: int | None) -> None:
        """Set the store up, or raise the error that every write would raise. Called in the driver before a run's first
        write.

        Args: next_end_ms: End of the first window that may still have a result; for records, their first possible event
        time. None for any.

        Raises Conflict if the store contains other fields or data of another program; IndexUnavailable,
        IndexMisconfigured, SinkUnavailable, InvalidSettings.
        """
        ...


def with_deadline(writer: StoreWriter, seconds: float) -> StoreWriter:
    """Return the writer with this limit for its attempts. A writer without the field `deadline_s`, as that of a package, is
    returned as it is."""
    if "deadline_s" not in getattr(writer, "__dataclass_fields__", {}):
        return writer
    limited: StoreWriter = replace(cast(Any, writer), deadline_s=seconds)
    return limited
