"""The life of a record: a replay of recorded slices in which the operators report each result that contains the record.

The results of a record are in the slices from its own one to the slice that closes its last window. A version of the pipeline
that began in between has rebuilt the open windows from the log, and emitted them. So the slices of each such version are replayed
with this version, as its run did it: rebuild the state as a rewind, then process the slices.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import Conflict, NotFound
from strandline.ledger.states import SliceRow, SliceStatus, StreamVersions
from strandline.processing.backfill.plan import Backfilled, complete_backfills
from strandline.processing.emission.result_shapes import letter_shape
from strandline.processing.lineage.open_windows import chosen_windows
from strandline.processing.lineage.record_rows import FoundRecord, find_record, with_duplicate
from strandline.processing.lineage.replays import Replayed, plan_after, slice_with
from strandline.processing.lineage.tracing import Traced, TracedResults, Tracer
from strandline.processing.lineage.views import (
    UPDATES_REMEDY,
    OpenWindows,
    RecordLife,
    RecordResultView,
    ResultSources,
    SourceRecord,
)
from strandline.processing.operators.closing import Closing
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.event_time import first_event, last_ends, open_until
from strandline.processing.pipelines.stages import RecordStage, Stage
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.source.decoding import DecodedChunk, RecordReader
from strandline.results.records.partition_labels import label_of
from strandline.results.writer import OFFSET, PARTITION, PROBLEM, WINDOW_END, WINDOW_START, Refused

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.roles import LedgerReader

SOURCES_MAX = 10_000
_TRACED = 0


@dataclass(frozen=True)
class _Span:
    """Committed slices of one version of the pipeline."""

    version: int
    pipeline: CheckedPipeline
    first: int
    last: int


class Lives:
    """Traces records and results of one job."""

    def __init__(
        self,
        ledger: LedgerReader,
        job: str,
        kafka_bootstrap: str,
        ledger_url: str,
        reader: RecordReader | None = None,
    ) -> None:
        """`ledger_url`: without its password. `reader`: reads the log. None for the reader of this process."""
        self._ledger, self._job = ledger, job
        self._bootstrap, self._ledger_url, self._reader = kafka_bootstrap, ledger_url, reader
        self._replayed = Replayed(ledger, job)
        self._pipelines: dict[tuple[int, tuple[tuple[str, int], ...]], CheckedPipeline] = {}

    def of_record(self, stream: str, partition: int, offset: int) -> RecordLife:
        """Return the life of the record at this position.

        1. Find its slice, and evaluate each step for its rows.
        2. For each version of the pipeline since then, replay the slices until no window can contain it any more.
        3. Do the same for each complete backfill.

        Raises NotFound; Conflict for a job that can write a result twice; TooExpensive; errors of the log and the ledger.
        """
        self._require_exactly_once()
        row = slice_with(self._ledger, self._job, stream, partition, offset)
        life = RecordLife(self._job, stream, partition, offset, "waiting")
        if row is None:
            return life
        life = replace(
            life,
            state="in_progress",
            slice=row.number,
            version=row.version,
            stream_version=row.stream_versions.get(stream),
            late_below_ms=row.late_below_ms,
            lookups={name: version for name, version in row.lookup_versions.items()},
        )
        if row.status is SliceStatus.PLANNED:
            return life
        own_row = self._ledger.checkpoint(self._job, row.number)
        spans = list(self._spans(row.number, self._last_committed))
        own = spans[0]
        pieces = self._replayed.prefix(own.pipeline, row, stream, partition, offset + 1)
        found = find_record(own.pipeline, self._bootstrap, self._ledger_url, pieces, offset, self._reader)
        if found is None:
            raise NotFound(
                f"stream {stream}, partition {partition}: there is no record at offset {offset}; choose another offset. "
                "Markers of transactions use offsets, and compaction removes records"
            )
        life = replace(
            life,
            state="read",
            closed_ms=own_row.closes_ms,
            late_below_ms=row.late_below_ms if own.pipeline.has_late_records else None,
            version=own.version,
            log_time_ms=found.log_time_ms,
            key=found.key,
            value=found.value,
            rows=found.rows,
            row_count=found.row_count,
        )
        one = _Position(stream, partition, offset, row)
        results: dict[tuple[int, str, str], RecordResultView] = {}
        open_until_ms = None
        for span in spans:
            if span is not own and not self._may_hold(span, found):
                continue
            duplicates, open_until_ms = self._trace(span, one, found, span is own, results)
            life = replace(life, duplicates=duplicates if span is own else life.duplicates)
        for backfill in self._backfills:
            self._trace_backfill(backfill, one, found, results)
        if life.duplicates:
            rows = (
                [with_duplicate(each, own.pipeline) for each in life.rows]
                if life.duplicates == life.row_count
                else life.rows
            )
            life = replace(life, rows=rows)
        return replace(
            life, results=list(results.values()), open_until_ms=open_until_ms, records_read=self._replayed.records
        )

    def of_result(self, stage: str, document: str, version: int, slice_: int) -> ResultSources:
        """Return the records of the result that this slice emitted. `stage`, `version`: as in its document.

        Raises NotFound if the replay doesn't compute such a result; otherwise as `of_record`.
        """
        self._require_exactly_once()
        numbering = RecordNumbering()
        span = next((one for one in self._spans(slice_, slice_) if one.version == version), None)
        if span is None:
            raise NotFound(f"job {self._job}: version {version} didn't commit slice {slice_}; find the result again")
        tracer = self._tracer(span.pipeline, numbering)
        plan = plan_after(self._ledger, span.pipeline, slice_ - 1)
        closes_ms = self._ledger.checkpoint(self._job, slice_).closes_ms
        first = min(plan.slice_first, slice_)
        traced = tracer.advance(self._replayed.pieces(span.pipeline, first, slice_), Closing(None, closes_ms))
        stages = {one.name: one for one in span.pipeline.stages}
        for one in traced.results:
            if one.stage != stage or one.are_failed:
                continue
            for shown, numbers in zip(
                self._views(span, stages[stage], one, slice_, self._generation), one.records, strict=True
            ):
                if shown.document == document:
                    return self._sources(shown, version, slice_, [numbering.place_of(number) for number in numbers])
        raise NotFound(
            f"job {self._job}: slice {slice_} has no result {document} of stage {stage}; find the result again"
        )

    def open_windows(self, stage: str | None, key: str) -> OpenWindows:
        """Return the open windows after the last committed slice: a rewind to this slice, and the state that it rebuilds.

        Args: stage: Only windows of this stage. None for all. key: Only windows with a value in `by` that contains this text.
        Raises as `of_record`.
        """
        self._require_exactly_once()
        last = self._last_committed
        if not last:
            return OpenWindows(self._job, None, None, None, None, {}, 0, [], 0)
        row = self._ledger.checkpoint(self._job, last)
        (span,) = self._spans(last, last)
        plan = plan_after(self._ledger, span.pipeline, last)
        closed_ms = plan.closed_ms(row)
        self._replayed.remedy = UPDATES_REMEDY
        tracer = self._tracer(span.pipeline, RecordNumbering())
        tracer.rebuild(self._replayed.pieces(span.pipeline, plan.slice_first, last), closed_ms)
        found = chosen_windows(tracer.open_counts(closed_ms), plan.emitted, stage, key)
        facts = self._job, last, span.version, closed_ms, row.committed_ms
        return OpenWindows(*facts, found.stages, found.matches, found.windows, self._replayed.records)

    def _sources(
        self, shown: RecordResultView, version: int, slice_: int, places: list[tuple[str, int, int]]
    ) -> ResultSources:
        ordered = sorted(places)
        return ResultSources(
            self._job,
            shown.stage,
            shown.document,
            version,
            slice_,
            [SourceRecord(*place) for place in ordered[:SOURCES_MAX]],
            len(ordered),
            self._replayed.records,
        )

    def _require_exactly_once(self) -> None:
        guarantee = self._ledger.job_version(self._job).document.get("guarantee", "exactly_once")
        if guarantee != "exactly_once":
            raise Conflict(
                f"can't trace records of job {self._job} with the guarantee {guarantee}: its results can lack records. Only "
                "jobs with exactly_once can be traced"
            )

    @cached_property
    def _generation(self) -> int:
        return self._ledger.job(self._job).generation

    @cached_property
    def _last_committed(self) -> int:
        """Last committed slice when the trace began."""
        last = self._ledger.last_checkpoint(self._job)
        return 0 if last is None else last.slice

    def _load(self, version: int, streams: StreamVersions | None = None) -> CheckedPipeline:
        key = version, tuple((streams or {}).items())
        if key not in self._pipelines:
            self._pipelines[key] = load_pipeline(self._ledger, self._job, version, streams)
        return self._pipelines[key]

    def _spans(self, first: int, last: int) -> Iterator[_Span]:
        """Yield the spans that contain a slice from `first` to `last`, in order."""
        changes = self._ledger.compiled_changes(self._job, last)
        ends = [*(one.slice_first - 1 for one in changes[1:]), last]
        for (begin, version, streams), end in zip(changes, ends, strict=True):
            if end >= first:
                yield _Span(version, self._load(version, streams), begin, end)

    def _until(
        self, pipeline: CheckedPipeline, found: FoundRecord, known_ends: Mapping[int, int] = MappingProxyType({})
    ) -> int | None:
        """Return the event time up to which results can contain the record. None if no window contains it.

        `known_ends`: index of a stage -> the last end of its windows that contain the record."""
        if not found.event_times_ms or not pipeline.stages:
            return None
        until_ms = open_until(pipeline.windows, max(found.event_times_ms), known_ends)
        return None if until_ms is None else until_ms + pipeline.spec.revise_ms

    def _may_hold(self, span: _Span, found: FoundRecord) -> bool:
        """Return True if a window that contains the record can be open when the span begins."""
        if not found.event_times_ms or not span.pipeline.stages:
            return False
        before_ms = self._ledger.checkpoint(self._job, span.first - 1).closes_ms
        until_ms = max(last_ends(span.pipeline.windows, max(found.event_times_ms))) + span.pipeline.spec.revise_ms
        return before_ms is None or before_ms < until_ms

    def _trace(
        self,
        span: _Span,
        one: _Position,
        found: FoundRecord,
        is_own: bool,
        results: dict[tuple[int, str, str], RecordResultView],
    ) -> tuple[int, int | None]:
        """Add the results of a span. Return the number of duplicates, and the event time up to which more results can follow
        after the last committed slice. It is None if none can.

        1. Rebuild the state before the first slice.
        2. Process the slice of the record, or the first slice of the version.
        3. Process slices in larger steps, until all windows that contain the record are closed.
        """
        begin = max(span.first, one.row.number)
        plan = plan_after(self._ledger, span.pipeline, begin - 1)
        closed_ms = plan.closed_ms(self._ledger.checkpoint(self._job, begin - 1)) if begin > 1 else None
        tracer = self._tracer(span.pipeline, one.numbers)
        tracer.rebuild(self._replayed.pieces(span.pipeline, plan.slice_first, begin - 1), closed_ms)
        duplicates = self._duplicates(tracer, span.pipeline, one) if is_own else 0
        places = {stage.name: at for at, stage in enumerate(span.pipeline.stages)}
        known_ends: dict[int, int] = {}
        first = last = begin
        while True:
            closes_ms = self._ledger.checkpoint(self._job, last).closes_ms
            closing = Closing(closed_ms, closes_ms, closed_ms)
            traced = tracer.advance(self._replayed.pieces(span.pipeline, first, last), closing)
            self._add(
                span, plan.emitted, traced, one, last if first == last else None, is_own and first == begin, results
            )
            closed_ms = closes_ms
            opened = tracer.open_windows(closed_ms)
            for some in (*traced.results, *opened):
                end_ms = pc.max(some.rows.column(WINDOW_END)).as_py()
                known_ends[places[some.stage]] = max(end_ms, known_ends.get(places[some.stage], end_ms))
            until_ms = self._until(span.pipeline, found, known_ends)
            if until_ms is None or (closed_ms is not None and closed_ms >= until_ms):
                return duplicates, None
            if last == span.last:
                break
            final = self._ledger.first_slice_closing(self._job, until_ms)
            first, last = last + 1, min(span.last, span.last if final is None else max(final, last + 1))
        if last < self._last_committed:
            return duplicates, None
        for windows in opened:
            stage = span.pipeline.stages[places[windows.stage]]
            for shown in self._views(span, stage, windows, None, self._generation, state="open"):
                results[self._generation, shown.stage, shown.document] = shown
        return duplicates, until_ms

    def _duplicates(self, tracer: Tracer, pipeline: CheckedPipeline, one: _Position) -> int:
        if pipeline.dedupe is None:
            return 0
        place = one.stream, one.partition
        with_it = self._replayed.prefix(pipeline, one.row, *place, one.offset + 1)
        before = self._replayed.prefix(pipeline, one.row, *place, one.offset)
        return tracer.duplicates(with_it) - (tracer.duplicates(before) if before else 0)

    def _add(
        self,
        span: _Span,
        emitted: Mapping[str, int],
        traced: Traced,
        one: _Position,
        number: int | None,
        emits_records: bool,
        results: dict[tuple[int, str, str], RecordResultView],
    ) -> None:
        """Add the results of one step. `number`: its slice, None for several slices. `emitted`: stage -> the end of the last
        window that an earlier run emitted."""
        generation = self._generation
        stages = {stage.name: stage for stage in span.pipeline.stages}
        if emits_records:
            for shown in self._record_views(span, traced, one):
                results[generation, shown.stage, shown.document] = shown
        for some in traced.results:
            new = some if some.is_revision else _later(some, emitted.get(some.stage))
            for shown in self._views(span, stages[some.stage], new, number, generation):
                results[generation, shown.stage, shown.document] = shown

    def _record_views(self, span: _Span, traced: Traced, one: _Position) -> Iterator[RecordResultView]:
        label = label_of([each.name for each in span.pipeline.inputs].index(one.stream), one.partition)
        for stage in span.pipeline.record_stages:
            for batch in traced.records.get(stage.name, ()):
                mine = pc.and_(pc.equal(batch.column(PARTITION), label), pc.equal(batch.column(OFFSET), one.offset))
                yield from self._views(
                    span, stage, TracedResults(stage.name, batch.filter(mine), []), one.row.number, self._generation
                )

    def _views(
        self,
        span: _Span,
        stage: Stage | RecordStage,
        some: TracedResults,
        number: int | None,
        generation: int,
        *,
        state: str = "emitted",
        is_backfill: bool = False,
    ) -> Iterator[RecordResultView]:
        """Yield the results of these rows. `number`: slice that emitted them. None if it follows from the window's end."""
        if not some.rows.num_rows:
            return
        shape = letter_shape(span.pipeline, stage, span.version, generation, is_backfill=is_backfill)
        sinks = [f"{emit.kind} {emit.name}" for emit in stage.emits]
        problems = some.rows.column(PROBLEM).to_pylist()
        is_window = WINDOW_END in some.rows.schema.names
        times = (
            zip(some.rows.column(WINDOW_START).to_pylist(), some.rows.column(WINDOW_END).to_pylist(), strict=True)
            if is_window
            else [(None, None)] * some.rows.num_rows
        )
        plain = some.rows.drop_columns([PROBLEM])
        documents = shape.documents(plain, 0, number or 0)
        for document, problem, (start_ms, end_ms) in zip(documents, problems, times, strict=True):
            values = json.loads(document.source) if document.source else {}
            for name in ("strandline", "window", "@timestamp"):
                values.pop(name, None)
            is_letter = problem is not None or isinstance(document, Refused)
            message = problem or (document.reason if isinstance(document, Refused) else "")
            emitted_in = number
            if emitted_in is None and state == "emitted" and not is_backfill:
                emitted_in = self._ledger.first_slice_closing(self._job, end_ms)
            yield RecordResultView(
                stage.name,
                "dead_letter" if is_letter and state == "emitted" else state,  # type: ignore[arg-type]
                start_ms,
                end_ms,
                document.id,
                sinks,
                span.version,
                generation,
                emitted_in,
                self._replaced_by(stage.name, end_ms, generation),
                values,
                message,
            )

    def _replaced_by(self, stage: str, end_ms: int | None, generation: int) -> int | None:
        """Return the generation of the newest backfill that replaced a result. None if none did."""
        if end_ms is None:
            return None
        return max(
            (
                one.generation
                for one in self._backfills
                if one.generation > generation
                and stage in one.windows
                and one.windows[stage].after_ms < end_ms <= one.windows[stage].up_to_ms
            ),
            default=None,
        )

    @cached_property
    def _backfills(self) -> list[Backfilled]:
        return complete_backfills(self._ledger, self._job, self._load)

    def _trace_backfill(
        self,
        backfill: Backfilled,
        one: _Position,
        found: FoundRecord,
        results: dict[tuple[int, str, str], RecordResultView],
    ) -> None:
        """Add the results of a complete backfill that contain the record."""
        pipeline, until_ms = backfill.pipeline, self._until(backfill.pipeline, found)
        if until_ms is None:
            return
        names = [stage.name for stage in pipeline.stages]
        from_ms = min(
            first_event(pipeline.windows[: names.index(name) + 1], window.after_ms)
            for name, window in backfill.windows.items()
        )
        up_to_ms = min(until_ms, max(window.up_to_ms for window in backfill.windows.values()))
        if max(found.event_times_ms) < from_ms or min(found.event_times_ms) >= up_to_ms:
            return
        first = self._ledger.first_slice_reaching(self._job, from_ms)
        last = self._ledger.first_slice_final(self._job, up_to_ms)
        if first is None or last is None or last < one.row.number:
            return
        tracer = self._tracer(pipeline, one.numbers)
        traced = tracer.advance(self._replayed.pieces(pipeline, first, last), Closing(None, up_to_ms))
        span = _Span(backfill.version, pipeline, first, last)
        for some in traced.results:
            window = backfill.windows.get(some.stage)
            if window is None:
                continue
            stage = pipeline.stages[names.index(some.stage)]
            inside = _up_to(_later(some, window.after_ms), window.up_to_ms)
            for shown in self._views(span, stage, inside, None, backfill.generation, is_backfill=True):
                results[backfill.generation, shown.stage, shown.document] = shown

    def _tracer(self, pipeline: CheckedPipeline, numbers: Any) -> Tracer:
        return Tracer(pipeline, self._bootstrap, self._ledger_url, numbers=numbers, reader=self._reader)


@dataclass(frozen=True)
class _Position:
    """A record in the log, and its slice."""

    stream: str
    partition: int
    offset: int
    row: SliceRow

    def numbers(self, chunk: DecodedChunk) -> pa.Array:
        """Return _TRACED for the rows of the record, and null for all others."""
        is_here = np.asarray(chunk.offsets, np.int64)[chunk.accepted_indices()] == self.offset
        is_here &= (chunk.stream, chunk.partition) == (self.stream, self.partition)
        return pa.array(np.full(len(is_here), _TRACED), mask=~is_here)


class RecordNumbering:
    """Numbers all records in the order in which they are read."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._chunks: list[tuple[str, int, np.ndarray]] = []
        self._next = 0

    def __call__(self, chunk: DecodedChunk) -> pa.Array:
        offsets = np.asarray(chunk.offsets, np.int64)[chunk.accepted_indices()]
        distinct, codes = np.unique(offsets, return_inverse=True)
        self._firsts.append(self._next)
        self._chunks.append((chunk.stream, chunk.partition, distinct))
        numbers = self._next + codes.astype(np.int64)
        self._next += len(distinct)
        return pa.array(numbers, pa.int64())

    def place_of(self, number: int) -> tuple[str, int, int]:
        """Return the position of the record with this number."""
        at = int(np.searchsorted(self._firsts, number, "right")) - 1
        while number - self._firsts[at] >= len(
            self._chunks[at][2]
        ):  # chunks without accepted rows begin at the same number
            at -= 1
        stream, partition, offsets = self._chunks[at]
        return stream, partition, int(offsets[number - self._firsts[at]])


def _later(some: TracedResults, than_ms: int | None) -> TracedResults:
    return some if than_ms is None else _chosen(some, pc.greater(some.rows.column(WINDOW_END), than_ms))


def _up_to(some: TracedResults, end_ms: int) -> TracedResults:
    return _chosen(some, pc.less_equal(some.rows.column(WINDOW_END), end_ms))


def _chosen(some: TracedResults, mask: pa.Array) -> TracedResults:
    kept = mask.to_pylist()
    records = [one for one, is_kept in zip(some.records, kept, strict=True) if is_kept]
    return replace(some, rows=some.rows.filter(mask), records=records)
