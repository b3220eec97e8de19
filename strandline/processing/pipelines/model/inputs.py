"""What a pipeline reads, and what says when it happened."""

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
    """Where records come from."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "files": "files are read by way of a stream: strandline batch run FILE --input DATA puts them into it, or strandline "
        "ingest; name the stream, with 'end: latest'",
        "query": "a query over several streams is not supported; name them in 'inputs', and unite them with 'from: [a, b]'",
    }
    stream: Name
    """The stream to read."""
    start: LogPlace = "earliest"
    """Where a new job begins: `earliest`, at the oldest record of the log; `latest`, after the newest; or at the first record
    with this log time or a later one."""
    end: LogPlace | None = None
    """Where a batch ends, which closes all windows there: `latest`, after the record that is the newest when it begins; or before
    the first record with this log time or a later one. Null: the job has no end."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if self.end is None:
            return
        if self.end == "earliest":
            yield ("end",), "expected latest, or a time: a batch that ends at the oldest record reads nothing"
        elif self.start == "latest":
            yield ("start",), "a batch that begins after the newest record reads nothing; expected earliest, or a time"
        elif isinstance(self.start, int) and isinstance(self.end, int) and self.start >= self.end:
            yield ("end",), f"expected a time after the start, {format_place(self.start)}"


class EventTimeSpec(DocumentModel):
    """What says when it happened, and how much disorder is allowed."""

    field: str | None = None
    """A timestamp field of the stream. It is required there, unless `else` says what holds without it."""
    from_log: Literal["log"] | None = Field(default=None, alias="from")
    """Instead of `field`: event time is log time, that of arrival."""
    else_log: Literal["log"] | None = Field(default=None, alias="else")
    """Beside `field`: event time of a record that lacks it is its log time."""
    delay: Duration = 0
    """How far the watermark stays behind the event time reached. A record below the watermark is late. Needed with `field`."""
    watermark: WatermarkPolicy = "partitions"
    """Whose event time counts: `partitions`, that of the partition furthest behind; or `newest`, the latest of all; or
    `emissions`, of a stream of results: as far as the job that emits them has closed its windows."""
    idle_timeout: Duration | None = Field(default=60_000, json_schema_extra={"default": "1m"})
    """A partition that is silent this long no longer holds the others back; when all are, event time runs on by itself. Null is
    never."""
    max_ahead: Duration | None = Field(default=300_000, json_schema_extra={"default": "5m"})
    """A record more than this ahead of its arrival is a dead letter; null is never."""

    @property
    def source(self) -> EventTimeSource:
        """Where the event time of a record stands."""
        return EventTimeSource(self.field, or_log=self.else_log is not None)

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if (self.field is None) == (self.from_log is None):
            yield (), "expected one of 'field: NAME', a timestamp field, and 'from: log', the time of arrival"
        if self.else_log is not None and self.field is None:
            yield ("else",), "is for records that lack the field, and there is no 'field'; remove it"
        if self.field is not None and "delay" not in self.model_fields_set:
            yield (
                ("delay",),
                "is missing; expected: how far the watermark stays behind the event time reached, as '10s'",
            )
        if self.idle_timeout == 0:
            yield (
                ("idle_timeout",),
                "expected at least 1ms, or null for never; event time would always run on by itself",
            )


class StreamInputSpec(InputSpec):
    """One of several streams, with an event time of its own."""

    event_time: EventTimeSpec
    """When it happened: {field, delay}."""
