"""Config of a source task. Light to import: the planner only passes it on, and starts sooner without the computing modules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strandline.ledger.states import SliceRow
from strandline.log.reader import OffsetRange
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.processing.pipelines.stages import RecordStage, Stage

if TYPE_CHECKING:
    from strandline.processing.formats.record_rows import RecordFormat
    from strandline.processing.operators.cascade import Cascade
    from strandline.processing.operators.record_chain import RecordChain
    from strandline.processing.source.kept_lookups import LookupRef
    from strandline.processing.source.stream_formats import StreamFormats


@dataclass(frozen=True)
class StreamDecoding:
    """Decoding of the records of one stream."""

    stream: str
    format: RecordFormat
    columns: tuple[str, ...]
    """Fields that the pipeline uses, in the order of the schema."""
    event_time_source: EventTimeSource
    late_limit: str = "the watermark"
    """Name, in the message of a dead letter, of the time before which a record is late. Empty if no record is."""
    key: str | None = None
    """Key field of the stream. None if it has none."""


@dataclass(frozen=True)
class DecodingConfig:
    """Settings with which a task reads and decodes records. Pickled by Spark, so it contains no secret."""

    kafka_bootstrap: str
    inputs: tuple[StreamDecoding, ...]
    """The streams that the pipeline reads, in the order of the document."""
    ledger_url: str = ""
    """URL without its password. The ledger keeps the schemas of a registry that records name, and the rows of lookups."""
    lookups: tuple[tuple[str, int], ...] = ()
    """Lookups that the pipeline uses, each with the version for slices that record none."""

    def of(self, stream: str) -> StreamDecoding:
        """Return how the records of this stream are decoded."""
        return self.inputs[self.index_of(stream)]

    def index_of(self, stream: str) -> int:
        """Return the index of this stream among the inputs. Raises KeyError if the pipeline doesn't read it."""
        return {one.stream: at for at, one in enumerate(self.inputs)}[stream]

    @property
    def formats(self) -> dict[str, RecordFormat]:
        """Stream -> format."""
        return {one.stream: one.format for one in self.inputs}


@dataclass(frozen=True)
class TaskConfig:
    """Settings of a source task. Pickled by Spark, so it contains no secret."""

    decoding: DecodingConfig
    stages: tuple[Stage, ...]
    types: tuple[tuple[tuple[str, str], ...], ...]
    """For each input stream, its fields with their types."""
    bucket_keys: tuple[int, ...]
    """Spark's key of each bucket."""
    late_is_dropped: bool
    """True if a late record is only counted; False if it also becomes a dead letter."""
    crashes: bool
    """True if a rejected record of a new slice ends the run."""
    events_ms: tuple[int, int] | None = None
    """Only records with an event time from the first to before the second are computed. None for all."""
    record_stages: tuple[RecordStage, ...] = ()
    """The emissions of records."""

    def record_chain(self, stream: int = 0) -> RecordChain:
        """Return all steps that records of an input stream pass. `stream`: index of the stream."""
        from strandline.processing.operators.record_chain import record_chain_of

        return record_chain_of(self.record_stages, self.stages, self.types[stream], stream)

    @property
    def cascade(self) -> Cascade:
        """The operators of all stages."""
        from strandline.processing.operators.cascade import cascade_of

        return cascade_of(self.stages, len(self.bucket_keys), self.record_stages)


@dataclass(frozen=True)
class Piece:
    """A range of offsets of one partition and one slice, with the rules of the slice for its records."""

    offsets: OffsetRange
    late_below_ms: int | None
    """Records with an earlier event time are rejected as late: below the watermark, or too old to revise a result."""
    max_ahead_ms: int | None
    format: RecordFormat | None = None
    """Format of its records, by another version of the stream's document. None for the format of the reader's pipeline."""
    sessions: str = ""
    """Declarations of the partition's records before the slice, packed. Only if the piece begins with its slice."""
    lookups: tuple[LookupRef, ...] = ()
    """Versions of the lookups that enrich its records."""
    revised_below_ms: int | None = None
    """Watermark of the slice, if results are revised: an accepted record below it is late. Otherwise None."""
    job: str = ""
    slice: int = 0
    """Number of the job's slice. 0 for a piece outside a slice, which has no job either."""

    @staticmethod
    def of_slice(row: SliceRow, offsets: OffsetRange, formats: StreamFormats | None = None) -> Piece:
        """Return the piece with these offsets of the slice, and the slice's rules: limits, formats, and lookup versions.

        If the offsets end with the slice, they include the recorded checksum, so the reader fails if the last record is another
        one. `formats`: None if the reader's pipeline has the formats of the slice, and no lookups."""
        stream, partition = offsets.stream, offsets.partition
        if offsets.offset_next == row.offsets.get(stream, {}).get(partition):
            offsets = replace(offsets, checksum=row.checksums.get(stream, {}).get(partition))
        other, lookups = (None, ()) if formats is None else (formats.of(row, stream), formats.lookups_of(row))
        sessions = row.sessions.get(stream, {}).get(partition, "")
        revised_below_ms = row.watermark_ms if row.rule.revise_ms else None
        max_ahead_ms = row.rule.of(stream).max_ahead_ms
        return Piece(
            offsets, row.late_below_ms, max_ahead_ms, other, sessions, lookups, revised_below_ms, row.job, row.number
        )
