"""The inputs of a pipeline, and its event time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration, LogPlace, Name
from strandline.core.documents import Path
from strandline.core.times.durations import format_place
from strandline.ledger.states import WatermarkPolicy
from strandline.processing.pipelines.event_time import EventTimeSource


class InputSpec(DocumentModel):
    """The stream that a pipeline reads, and the range."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "files": "files are read through a stream: strandline batch run FILE --input DATA puts them into it, as strandline "
        "ingest does; name the stream, with 'end: latest'",
        "query": "a query over several streams is not supported; list them in 'inputs', and unite them with 'from: [a, b]'",
    }
    stream: Name
    """The stream to read."""
    start: LogPlace = "earliest"
    """Position where a new job starts. `earliest`: the oldest record of the log. `latest`: after the newest record. A time: the
    first record with this log time or a later one."""
    end: LogPlace | None = None
    """Position where a batch ends and closes all windows. `latest`: after the record that is newest when the batch starts. A
    time: before the first record with this log time or a later one. Null for a job without an end."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.end is None:
            return
        if self.end == "earliest":
            yield ("end",), "a batch that ends at the oldest record reads nothing; expected latest, or a time"
        elif self.start == "latest":
            yield ("start",), "a batch that begins after the newest record reads nothing; expected earliest, or a time"
        elif isinstance(self.start, int) and isinstance(self.end, int) and self.start >= self.end:
            yield ("end",), f"expected a time after the start, {format_place(self.start)}"


class EventTimeSpec(DocumentModel):
    """The source of event time, and the allowed disorder."""

    field: str | None = None
    """A timestamp field of the stream. It must be required there, or `else` must specify the event time of records without it."""
    from_log: Literal["log"] | None = Field(default=None, alias="from")
    """Instead of `field`: event time is log time, that is, the arrival time."""
    else_log: Literal["log"] | None = Field(default=None, alias="else")
    """With `field`: the event time of a record without the field is its log time."""
    delay: Duration = 0
    """Time by which the watermark lags behind the event time reached. A record below the watermark is late. Required with
    `field`."""
    watermark: WatermarkPolicy = "partitions"
    """Source of the watermark. `partitions`: the event time of the partition that lags furthest behind. `newest`: the latest
    event time of all partitions. `emissions`, for a stream of results: the time up to which the emitting job has closed its
    windows."""
    idle_timeout: Duration | None = Field(default=60_000, json_schema_extra={"default": "1m"})
    """A partition that is silent for this time no longer holds the others back. If all partitions are silent, event time advances
    automatically. Null for never."""
    max_ahead: Duration | None = Field(default=300_000, json_schema_extra={"default": "5m"})
    """A record whose event time is more than this ahead of its arrival is a dead letter. Null for no limit."""

    @property
    def source(self) -> EventTimeSource:
        """Source of the event time of a record."""
        return EventTimeSource(self.field, or_log=self.else_log is not None)

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if (self.field is None) == (self.from_log is None):
            yield (), "expected either 'field: NAME', a timestamp field, or 'from: log', the arrival time"
        if self.else_log is not None and self.field is None:
            yield ("else",), "is for records without the field, but 'field' is missing; remove it"
        if self.field is not None and "delay" not in self.model_fields_set:
            yield (
                ("delay",),
                "is missing; expected the time by which the watermark lags behind the event time reached, as '10s'",
            )
        if self.idle_timeout == 0:
            yield (
                ("idle_timeout",),
                "expected at least 1ms, or null for never; event time would always advance automatically",
            )


class StreamInputSpec(InputSpec):
    """One of several streams, with its own event time."""

    event_time: EventTimeSpec
    """Source of event time: {field, delay}."""
