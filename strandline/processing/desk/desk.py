"""A local run of a pipeline over records, from their bytes to documents and dead letters. It does the work of a job in one
process, without a log, a ledger, or a store.

The decoder, the record steps, and the operators are those of a job (`source_task.py`, `cascade.py`). Records are read as they
arrive and aren't kept; only the content of open windows is kept. Emitted records become documents immediately.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import PermanentError
from strandline.core.record_headers import REASON_DUPLICATE, REASON_EXPRESSION, REASON_RESULT
from strandline.processing.desk.asked_schemas import asked_schemas
from strandline.processing.desk.event_clock import EventClock
from strandline.processing.desk.log_times import EarlyTimes, LogTimes
from strandline.processing.desk.records import DeskRecords, Offsets
from strandline.processing.emission.result_shapes import document_shape, letter_shape, refusal_message, unusable_results
from strandline.processing.formats.decoder import NEVER_LATE, Decoded, RejectedRecord
from strandline.processing.formats.json_rows import Rows
from strandline.processing.formats.record_fields import JsonText
from strandline.processing.formats.record_rows import RowReader
from strandline.processing.operators.blobs import unpack
from strandline.processing.operators.cascade import Chunk, StageResults, StepResult
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.dedupe.candidates import DuplicateRecords
from strandline.processing.operators.lookups.lookup_table import LookupTable
from strandline.processing.operators.record_rows import unpack_record_rows, without_duplicates
from strandline.processing.operators.segments import MemorySegments
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.event_time import earliest_event, open_until
from strandline.processing.pipelines.stages import RecordStage, Stage
from strandline.processing.slices.watermark import emitted_up_to
from strandline.processing.source.decoding import DecodedChunk, decoder_of, decoding_of
from strandline.processing.source.slice_rows import FACTS, RECORD_ROWS, REJECTED, decode_facts, entry_of
from strandline.processing.source.source_config import StreamDecoding, TaskConfig
from strandline.processing.source.source_task import SourceTask
from strandline.results.document import Document, DocumentShape
from strandline.results.open_windows.documents import OPEN_WINDOWS_MAX, OpenShape
from strandline.results.records.partition_labels import label_of
from strandline.results.sinks.registry import sink_of
from strandline.results.writer import PROBLEM, WINDOW_END, Refused

VERSION = EPOCH = 1
"""Version of the pipeline and epoch of the run, in each document."""
_BUCKET = 0
_HELD_ROWS = 1_000
"""Number of rows that are processed together if they end no slice: a step costs milliseconds, and several streams often supply
only one or two rows."""


@dataclass(frozen=True)
class DeskResult:
    """A result as a job would emit it."""

    stage: str
    document: Document


@dataclass(frozen=True)
class LocalDeadLetter:
    """A record or a result that could not be processed."""

    reason: str
    message: str
    step: str
    value: bytes | None
    """The record, or the document that the result would have been."""
    place: dict[str, str | int]
    """Record: stream, partition, offset, and element if the record has several rows. Result: index and document."""


def letter_fields(letter: LocalDeadLetter) -> dict[str, str | int | None]:
    """Return a dead letter as one JSON object."""
    value = None if letter.value is None else letter.value.decode("utf-8", "backslashreplace")
    return {"reason": letter.reason, "message": letter.message, "step": letter.step, **letter.place, "value": value}


Outcome = DeskResult | LocalDeadLetter


@dataclass
class DeskCounts:
    """Counts of the processed records."""

    records: int = 0
    """Records, or rows if a record has several."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Reason -> rows, including late ones."""
    late_by_ms: dict[str, int] = field(default_factory=dict)
    """Stream -> how much longer its delay must be so that no row is late."""
    results: Counter[str] = field(default_factory=Counter)
    """Stage -> emitted results."""
    slices: int = 0

    @property
    def accepted(self) -> int:
        return self.records - self.rejected.total()


@dataclass(frozen=True)
class _Part:
    """Rows of one slice, decoded and classified."""

    chunks: list[DecodedChunk]
    ends_slice: bool
    watermark_ms: int | None
    """Watermark after its last row."""


@dataclass(frozen=True)
class _EarlierBatch:
    """A part that a restart can read again, and the event time reached after it."""

    part: _Part
    latest_event_ms: int | None


class _DeskStream:
    """Everything for one stream that the pipeline reads."""

    def __init__(self, pipeline: CheckedPipeline, place: int, decoding: StreamDecoding, log_time: str | None) -> None:
        self.name = decoding.stream
        self.place = place
        self.decoder = decoder_of(decoding)
        self.reader = RowReader(decoding.format, asked_schemas(decoding.format))
        self.log_times = LogTimes(decoding.format.fields, decoding.event_time_source, log_time)
        self.early_times = EarlyTimes(self.name, decoding.format.fields, decoding.event_time_source)
        self.max_ahead_ms = pipeline.inputs[place].event_time_rule.max_ahead_ms
        self.offsets = Offsets()

    def late(
        self, texts: Sequence[JsonText], log_ms: np.ndarray, places: np.ndarray, marks: np.ndarray
    ) -> dict[int, RejectedRecord]:
        """Return index -> the rejection of a late row, by the decoder."""
        if not len(places):
            return {}
        chosen = [texts[at] for at in places.tolist()]
        rejects = self.decoder.decode(chosen, log_ms[places].tolist(), marks).rejects
        return {int(places[one.index]): one for one in rejects}


class Desk:
    """One run of a pipeline. Feed records to it, then call `drain`."""

    def __init__(
        self,
        pipeline: CheckedPipeline,
        slice_records: int | None = None,
        *,
        log_time: str | None = None,
        restarts: bool = False,
    ) -> None:
        """Args:
        slice_records: Records in a slice. None for one slice, whose windows close at the end. Results don't depend on it.
        log_time: Field of the stream with the log time of a record. None if its event time is its log time.
        restarts: True to keep the records that `restart` can read again.
        """
        for name, _ in pipeline.lookups:
            if name not in pipeline.tables:
                raise PermanentError(
                    f"lookup {name} has no rows here, because it follows a stream or a database; pass a file of rows: --lookup "
                    f"{name}=FILE, or in a test 'lookups: {{{name}: FILE}}'"
                )
        self._pipeline = pipeline
        self._tables: Mapping[str, LookupTable] = pipeline.tables
        self._slice_records = slice_records
        self._in_slice = 0
        decoding = decoding_of(pipeline, "")
        self._streams = [_DeskStream(pipeline, place, one, log_time) for place, one in enumerate(decoding.inputs)]
        config = TaskConfig(
            decoding=decoding,
            stages=pipeline.stages,
            types=tuple(tuple(one.stream.types.items()) for one in pipeline.inputs),
            bucket_keys=(_BUCKET,),
            late_is_dropped=pipeline.spec.late == "drop",
            crashes=pipeline.spec.on_error == "crash",
            record_stages=pipeline.record_stages,
        )
        self._task, self._cascade = SourceTask(config), config.cascade
        self._emissions = [_Emission(pipeline, stage) for stage in pipeline.stages]
        self._record_emissions = [_Emission(pipeline, stage) for stage in pipeline.record_stages]
        self._clock = EventClock(pipeline.event_time_rule, list(pipeline.streams))
        self._state: bytes | None = None
        self._segments: defaultdict[int, MemorySegments] = defaultdict(MemorySegments)
        self._held: list[Chunk] = []
        self._held_rows = 0
        self._holds = self._cascade.duplicates is None and not pipeline.spec.revise_ms
        """True if rows can wait: no emission and no count before the end of the slice depends on state."""
        self._closed_ms: int | None = None
        self._emitted: dict[str, int] = {}
        self._earlier_batches: list[_EarlierBatch] | None = [] if restarts else None
        self.counts = DeskCounts()

    def headers_of(self, stream: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return two lists of headers on which the rows of a record of this stream depend. From the first list, only the first
        header that the record has counts. From the second list, all headers count."""
        reader = next(one.reader for one in self._streams if one.name == stream)
        return reader.headers, reader.headers_beside

    def feed(self, records: DeskRecords) -> Iterator[Outcome]:
        """Process records, and yield the outcomes: rejected records, emitted records, and results of windows that close.

        1. Decode the records, and classify each by the watermark of the records before it.
        2. Divide them into slices.
        3. For each slice, emit its records, if the pipeline emits records. Then step the operators, and close the windows that
           end at or before the watermark after the slice.

        Raises BadRecord if the pipeline stops at a bad record.
        """
        stream = next((one for one in self._streams if one.name == records.stream), self._streams[0])
        offsets = stream.offsets.of_each(records.partitions) if records.offsets is None else records.offsets
        for rows in stream.reader.parts(records.values, records.sources):
            for part in self._evaluated(stream, records, offsets, rows):
                yield from self._taken(part)

    @property
    def warnings(self) -> list[str]:
        """Warnings that don't stop the run: streams whose event times are probably wrong."""
        return [warning for one in self._streams if (warning := one.early_times.warning) is not None]

    def wait(self, ms: int) -> Iterator[Outcome]:
        """Let log time pass without records, and close windows accordingly."""
        self._clock.wait(ms)
        yield from self.end_slice()

    def drain(self) -> Iterator[Outcome]:
        """Close every open window."""
        self._clock.close(open_until(self._pipeline.windows, self._clock.latest_event_ms))
        yield from self.end_slice()

    def change_lookups(self, tables: Mapping[str, LookupTable]) -> None:
        """Enrich the following records with these rows, as a job does after a change of a lookup was applied.

        Earlier records stay enriched as they are, even after a `restart`. `tables`: lookups that the pipeline uses. A table
        whose rows differ from the current ones gets the next version.
        """
        for name, table in tables.items():
            before = self._tables[name]
            if not table.rows.equals(before.rows):
                self._tables = {**self._tables, name: table.as_version(before.version + 1)}

    def open_windows(self) -> Iterator[DeskResult]:
        """Yield the content of the open windows, for each stage whose emission shows it."""
        if self._held:
            self._operated(None)
        for at, emission in enumerate(self._emissions):
            if emission.open_shape is not None and self._state is not None:
                stage = self._cascade.open_stage(at, self._state, self._segments.__getitem__)
                rows = self._cascade.open_results(stage, self._closed_ms, OPEN_WINDOWS_MAX)
                yield from emission.open_windows(rows, self.counts.slices)

    def restart(self) -> None:
        """Forget all state, and rebuild it from the records in one step, as a run does after a kill. Emit nothing.

        Reading begins with the first part that can contain a record of a window that isn't emitted.
        """
        assert self._earlier_batches is not None, "records were not kept"
        self._state, self._held, self._held_rows = None, [], 0
        self._segments.clear()
        if self._emitted:
            kept, latest_event_ms = self._pipeline.kept, self._clock.latest_event_ms
            needed_ms = earliest_event(list(kept.values()), [self._emitted[name] for name in kept], latest_event_ms)
            self._earlier_batches = [
                one for one in self._earlier_batches if one.latest_event_ms is None or one.latest_event_ms >= needed_ms
            ]
        chunks = [chunk for one in self._earlier_batches for chunk in self._accepted(one.part.chunks)]
        closing = Closing(None, self._closed_ms)
        self._state = self._cascade.step(None, chunks, closing, self._segments.__getitem__, emits=False).state

    def state_bytes(self) -> int:
        """Return the size of the content of open windows and of the records that are kept for deduplication."""
        if self._held:
            self._operated(None)
        return len(self._state or b"") + sum(one.bytes_kept for one in self._segments.values())

    def end_slice(self) -> Iterator[Outcome]:
        """End the slice without another record: close the windows that event time has passed, and leave the others open."""
        self._in_slice = 0
        yield from self._taken(_Part([], True, self._clock.watermark_ms))

    def _taken(self, part: _Part) -> Iterator[Outcome]:
        """Keep the part if a restart can need it, and process it."""
        if self._earlier_batches is not None and self._pipeline.kept:
            self._earlier_batches.append(_EarlierBatch(part, self._clock.latest_event_ms))
        yield from self._step(part)

    def _evaluated(
        self, stream: _DeskStream, records: DeskRecords, offsets: Sequence[int], rows: Rows
    ) -> Iterator[_Part]:
        """Decode rows and classify each by event time. Yield them divided at the ends of slices."""
        partitions, of_row = rows.of_each(records.partitions), rows.of_each(offsets)
        given_ms = None if records.log_times_ms is None else rows.of_each(records.log_times_ms)
        log_ms = stream.log_times.of_rows(rows.texts, given_ms)
        decoded = stream.decoder.decode(rows.texts, log_ms.tolist(), None, stream.max_ahead_ms)
        is_usable = np.ones(len(rows.texts), np.bool_)
        is_usable[[one.index for one in decoded.rejects]] = False
        events_ms = np.zeros(len(rows.texts), np.int64)
        micros = decoded.event_time.cast(pa.int64()).to_numpy()
        stream.early_times.watch(micros)
        events_ms[is_usable] = micros // 1_000
        places = np.arange(len(rows.texts)) if rows.places is None else np.asarray(rows.places)
        value_at = partial(stream.reader.dead_letter_value, records.values, rows)
        evaluated = _EvaluatedRows(
            stream.name,
            stream.place,
            decoded,
            is_usable,
            events_ms,
            of_row,
            log_ms,
            value_at,
            rows.elements,
            self._tables,
        )
        first = 0
        for end, ends_slice in self._cuts(int(places[0]), int(places[-1]) + 1):
            stop = int(np.searchsorted(places, end))
            here = slice(first, stop)
            clock_ms = None if given_ms is None and stream.log_times.are_event_times else log_ms[here]
            labels = [label_of(stream.place, partition) for partition in partitions[here]]
            marks = self._clock.watermarks(labels, events_ms[here], is_usable[here], clock_ms)
            limits = np.where(marks == NEVER_LATE, NEVER_LATE, marks - self._pipeline.spec.revise_ms)
            is_late = is_usable[here] & (events_ms[here] < limits)
            if is_late.any():
                late_by_ms = int((limits - events_ms[here])[is_late].max())
                self.counts.late_by_ms[stream.name] = max(late_by_ms, self.counts.late_by_ms.get(stream.name, 0))
            evaluated.late |= stream.late(rows.texts, log_ms, first + np.flatnonzero(is_late), limits[is_late])
            if self._pipeline.spec.revise_ms:
                evaluated.marks_ms[here] = marks
            chunks = [evaluated.chunk(partition, at) for partition, at in _by_partition(partitions, first, stop)]
            yield _Part(chunks, ends_slice, self._clock.watermark_ms)
            first = stop

    def _cuts(self, first: int, end: int) -> Iterator[tuple[int, bool]]:
        """Yield the ends of the parts of the records [`first`, `end`), each with True if its slice ends there."""
        while first < end:
            left = end - first if self._slice_records is None else self._slice_records - self._in_slice
            taken = min(left, end - first)
            first += taken
            self._in_slice += taken
            ends_slice = self._in_slice == self._slice_records
            if ends_slice:
                self._in_slice = 0
            yield first, ends_slice

    def _step(self, part: _Part) -> Iterator[Outcome]:
        """Process a part, and emit its records. If its slice ends, close windows and emit their results."""
        chunks: list[Chunk] = []
        record_rows: list[tuple[int, int, bytes]] = []
        for _, kind, partition, sequence, blob in self._task.rows(part.chunks, is_new=True, work=None):
            if (entry := entry_of(kind)) is not None:
                chunks.append(Chunk(partition, sequence, blob, entry))
            elif kind == RECORD_ROWS:
                record_rows.append((partition, sequence, blob))
            elif kind == REJECTED:
                yield from _letters(blob)
            elif kind == FACTS:
                facts = decode_facts(blob)
                self.counts.records += facts.records
                self.counts.rejected.update(facts.rejected)
        number = self.counts.slices + 1
        self._held += chunks
        self._held_rows += sum(len(one.offsets) for one in part.chunks)
        if self._holds and not part.ends_slice and self._held_rows < _HELD_ROWS:
            yield from self._records(record_rows, None, number)
            return
        closes_ms = part.watermark_ms if part.ends_slice else None
        stepped = self._operated(closes_ms)
        if stepped.duplicates:
            self.counts.rejected[REASON_DUPLICATE] += stepped.duplicates
        yield from self._records(record_rows, stepped.repeated_records, number)
        for one, results in zip(self._emissions, stepped.results, strict=True):
            if results.revised is not None:
                yield from one.outcomes(results.revised, self.counts, number)
        if not part.ends_slice:
            return
        self.counts.slices = number
        for emission, results in zip(self._emissions, stepped.results, strict=True):
            yield from emission.of_windows(results, self._emitted.get(results.stage), self.counts, number)
        self._closed_ms = closes_ms
        self._emitted = emitted_up_to(self._pipeline.kept.items(), closes_ms, self._emitted)

    def _records(
        self, record_rows: Sequence[tuple[int, int, bytes]], repeated: DuplicateRecords | None, number: int
    ) -> Iterator[Outcome]:
        """Yield the outcomes of emitted records in the slice with this number."""
        rows_of_stage = without_duplicates(unpack_record_rows(record_rows), self._pipeline.record_stages, repeated)
        for emission in self._record_emissions:
            for rows in rows_of_stage.get(emission.stage, ()):
                yield from emission.outcomes(rows, self.counts, number)

    def _operated(self, closes_ms: int | None) -> StepResult:
        """Run the operators over the buffered rows, and close the windows that end up to this time."""
        closing = Closing(self._closed_ms, closes_ms, self._closed_ms)
        stepped = self._cascade.step(self._state, self._held, closing, self._segments.__getitem__)
        self._state, self._held, self._held_rows = stepped.state, [], 0
        return stepped

    def _accepted(self, chunks: Iterable[DecodedChunk]) -> Iterator[Chunk]:
        for _, kind, partition, sequence, blob in self._task.rows(chunks, is_new=False, work=None):
            if (entry := entry_of(kind)) is not None:
                yield Chunk(partition, sequence, blob, entry)


@dataclass
class _EvaluatedRows:
    """Decoded rows of several partitions, with marks for late rows."""

    stream: str
    place: int
    """Index of the stream."""
    decoded: Decoded
    is_usable: np.ndarray
    events_ms: np.ndarray
    offsets: Sequence[int]
    log_times_ms: np.ndarray
    value_at: partial[bytes | None]
    elements: Sequence[int | None] | None
    tables: Mapping[str, LookupTable]
    late: dict[int, RejectedRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.marks_ms = np.full(len(self.is_usable), NEVER_LATE)
        """Effective watermark for each row, if late rows revise results."""
        self._rejects = {one.index: one for one in self.decoded.rejects}
        self._accepted_before = np.concatenate([[0], np.cumsum(self.is_usable)])

    def chunk(self, partition: int, places: np.ndarray) -> DecodedChunk:
        """Return the rows with these indices, which belong to one partition, without late rows."""
        rejects = [
            RejectedRecord(at, one.reason, one.message)
            for at, place in enumerate(places.tolist())
            if (one := self._rejects.get(place) or self.late.get(place)) is not None
        ]
        is_good = self.is_usable[places]
        if self.late:
            is_good &= ~np.isin(places, list(self.late))
        good = places[is_good]
        taken = pa.array(self._accepted_before[good])
        decoded = Decoded(
            arrays={name: column.take(taken) for name, column in self.decoded.arrays.items()},
            event_time=self.decoded.event_time.take(taken),
            rejects=rejects,
            latest_event_ms=int(self.events_ms[good].max()) if len(good) else None,
        )
        chosen = places.tolist()
        chunk = DecodedChunk(
            self.stream,
            partition,
            [self.offsets[at] for at in chosen],
            self.log_times_ms[places].tolist(),
            decoded,
            lambda at: self.value_at(chosen[at]),
            None if self.elements is None else [self.elements[at] for at in chosen],
            tables=self.tables,
            place=self.place,
        )
        marks_ms = self.marks_ms[places]
        return chunk if (marks_ms == NEVER_LATE).all() else chunk.with_late(marks_ms)


class _Emission:
    """Makes the documents of one stage."""

    def __init__(self, pipeline: CheckedPipeline, stage: Stage | RecordStage) -> None:
        self.stage = stage.name
        places = sorted(stage.emits, key=lambda emit: not sink_of(emit).has_generations)
        self._shape: DocumentShape | None = document_shape(pipeline, stage, places[0], VERSION) if places else None
        """Shape of the first index of the stage, or of its first other sink if it has no index."""
        self._letter_shape = letter_shape(pipeline, stage, VERSION)
        self.open_shape: OpenShape | None = None
        """Shape of documents of open windows. None if they aren't shown."""
        shown = [emit for emit in stage.emits if emit.index.updates_ms is not None]
        if shown and isinstance(stage, Stage):
            shape = document_shape(pipeline, stage, shown[0], VERSION)
            self.open_shape = OpenShape.of(shape, ends_move=stage.shape.ends_move)

    def open_windows(self, rows: pa.RecordBatch, number: int) -> Iterator[DeskResult]:
        """Yield the documents of open windows after the slice with this number."""
        assert self.open_shape is not None, "only called if open windows are shown"
        good = rows.filter(pc.is_null(rows.column(PROBLEM))).slice(0, OPEN_WINDOWS_MAX)
        for one in self.open_shape.documents(good, EPOCH, number):
            if isinstance(one, Document):
                yield DeskResult(self.stage, one)

    def of_windows(
        self, results: StageResults, emitted_ms: int | None, counts: DeskCounts, number: int
    ) -> Iterator[Outcome]:
        """Yield the results of windows that weren't emitted yet, and dead letters of unusable results."""
        yield from self.outcomes(_later(results.rows, emitted_ms), counts, number)
        yield from self._unusable(_later(results.failed, emitted_ms), number)

    def outcomes(self, new: pa.RecordBatch, counts: DeskCounts, number: int) -> Iterator[Outcome]:
        """Yield the results of rows in the slice with this number, and dead letters of unusable rows."""
        good = new.filter(pc.is_null(new.column(PROBLEM)))
        if self._shape is not None and good.num_rows:
            for one in self._shape.documents(good, EPOCH, number):
                counts.results[self.stage] += 1
                if isinstance(one, Refused):
                    yield _letter(one, REASON_RESULT, refusal_message(one), f"emit {self.stage}")
                else:
                    yield DeskResult(self.stage, one)
        yield from self._unusable(new, number)

    def _unusable(self, rows: pa.RecordBatch, number: int) -> Iterator[LocalDeadLetter]:
        for document, message, step in unusable_results(self._letter_shape, rows, EPOCH, number):
            yield _letter(document, REASON_EXPRESSION, message, step)


def _later(rows: pa.RecordBatch, than_ms: int | None) -> pa.RecordBatch:
    return rows if than_ms is None else rows.filter(pc.greater(rows.column(WINDOW_END), than_ms))


def _letter(one: Document | Refused, reason: str, message: str, step: str) -> LocalDeadLetter:
    return LocalDeadLetter(reason, message, step, one.source, {"index": one.index or "", "document": one.id})


def _letters(blob: bytes) -> Iterator[LocalDeadLetter]:
    """Yield the dead letters of rejected records."""
    (batch,) = unpack(blob)
    for row in batch.to_pylist():
        place = {name: row[name] for name in ("stream", "partition", "offset", "element") if row[name] is not None}
        yield LocalDeadLetter(row["reason"], row["message"], row["step"], row["value"], place)


def _by_partition(partitions: Sequence[int], first: int, end: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each partition with rows in [`first`, `end`), and the indices of these rows."""
    of_row = np.asarray(partitions[first:end])
    for partition in np.unique(of_row).tolist():
        yield partition, first + np.flatnonzero(of_row == partition)
