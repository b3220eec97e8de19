"""The life of a record, and the records of a result, as JSON values. Light to import: no ledger, no columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from strandline.core.described import Described


@dataclass(frozen=True)
class StepOutcome(Described):
    """One step, for one row of a record."""

    step: str
    """Position of the step in the document, as `steps[0].where`."""
    kind: str
    text: str
    """The step in words, as `where celsius < -20`."""
    outcome: Literal["kept", "left_out", "duplicate", "failed"]
    message: str = ""
    """Reason of a failure. Empty otherwise."""
    values: dict[str, Any] = field(default_factory=dict)
    """Columns that the step adds, with their values."""


@dataclass(frozen=True)
class RecordPathView(Described):
    """The path of one row of a record to a stage."""

    stage: str
    steps: list[StepOutcome]
    """Steps up to the stage, or up to the step that the row doesn't pass."""


@dataclass(frozen=True)
class RecordRowView(Described):
    """One row of a record. A record has several rows if the stream divides it into elements."""

    element: int | None
    """Index of the element. Null if the record is the row."""
    event_time_ms: int | None
    """Null if the row can't be decoded."""
    fields: dict[str, Any]
    """Decoded fields of the stream. Empty if the row was rejected before its steps."""
    outcome: str
    """`accepted`, or the reason for which the row was rejected."""
    message: str = ""
    step: str = ""
    """Step that rejected the row. Empty if it is accepted."""
    paths: list[RecordPathView] = field(default_factory=list)


@dataclass(frozen=True)
class RecordResultView(Described):
    """A result that contains a record."""

    stage: str
    state: Literal["emitted", "open", "dead_letter"]
    """`open`: its window isn't closed yet, and the values are those up to now. `dead_letter`: it couldn't be used."""
    window_start_ms: int | None
    """Null for an emitted record."""
    window_end_ms: int | None
    document: str
    """Id of the result."""
    sinks: list[str]
    """Sinks of the stage, as `elasticsearch turbine-minute`. Empty if only later stages read it."""
    version: int
    """Version of the pipeline that computed it."""
    generation: int
    slice: int | None
    """Slice that emitted it. Null if its window is open, and for results of a backfill."""
    replaced_by: int | None
    """Generation of the backfill that replaced it. Null if none did."""
    values: dict[str, Any]
    """Fields of the result."""
    message: str = ""
    """Reason of the dead letter. Empty otherwise."""


@dataclass(frozen=True)
class RecordLife(Described):
    """The life of one record in one job. It is computed from the log by a replay, with the operators of the job."""

    job: str
    stream: str
    partition: int
    offset: int
    state: Literal["waiting", "in_progress", "read"]
    """`waiting`: the job has not read it yet. `in_progress`: its slice is planned, but not committed."""
    log_time_ms: int | None = None
    key: str | None = None
    """Kafka key of the record."""
    value: str | None = None
    """Bytes of the record as text, at most 64 KiB. Null for a tombstone."""
    slice: int | None = None
    """Slice that contains it. Null while it waits. So are the following facts of the slice."""
    version: int | None = None
    """Version of the pipeline that first read it."""
    stream_version: int | None = None
    """Version of the stream's document that decodes it."""
    late_below_ms: int | None = None
    """Records of the slice with an earlier event time are late. Null if no record can be late."""
    closed_ms: int | None = None
    """Windows that end at or before it were closed when the slice was committed."""
    lookups: dict[str, int] = field(default_factory=dict)
    """Lookup -> version that enriches the record."""
    rows: list[RecordRowView] = field(default_factory=list)
    """At most 100 rows."""
    row_count: int = 0
    duplicates: int = 0
    """Number of its rows that a `dedupe` left out."""
    results: list[RecordResultView] = field(default_factory=list)
    open_until_ms: int | None = None
    """Event time up to which more results can contain it. Null if no more results can."""
    records_read: int = 0
    """Number of records that the replay read."""


@dataclass(frozen=True)
class SourceRecord(Described):
    """Position of a record in the log."""

    stream: str
    partition: int
    offset: int


@dataclass(frozen=True)
class ResultSources(Described):
    """The records that a result contains."""

    job: str
    stage: str
    document: str
    version: int
    slice: int
    """Last slice with records of the result."""
    records: list[SourceRecord]
    """In the order of streams, partitions, and offsets. At most 10,000."""
    record_count: int
    records_read: int
    """Number of records that the replay read."""


WINDOWS_MAX = 10_000
"""Maximum number of open windows of one response."""
UPDATES_REMEDY = "To write open windows to an index as they change, set updates at their emission"
"""What to do if the open windows contain too many records for a replay."""


@dataclass(frozen=True)
class OpenWindow(Described):
    """An open window of one key."""

    stage: str
    key: dict[str, Any]
    """Fields of `by` with their values. Empty if the window has no key."""
    start_ms: int
    end_ms: int
    """The window closes when the watermark reaches it."""
    ends_move: bool
    """True if more records can move the end, as in a session."""
    records: int
    """Number of records that the window contains so far."""
    message: str = ""
    """Reason why its result would be a dead letter now. Empty if it wouldn't be."""


@dataclass(frozen=True)
class OpenWindows(Described):
    """Open windows of a job after its last committed slice. A replay computes them from the log."""

    job: str
    slice: int | None
    """Null if no slice is committed. Then no window is known."""
    version: int | None
    closed_ms: int | None
    """Watermark after the slice: windows that end at or before it are closed. Null if none is."""
    committed_ms: int | None
    stages: dict[str, int]
    """Stage -> number of its open windows."""
    matches: int
    """Number of open windows with the requested stage and key."""
    windows: list[OpenWindow]
    """The windows that end first."""
    records_read: int
    """Number of records that the replay read."""
