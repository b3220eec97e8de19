"""One stage's emission as it runs in an executor's Python worker. Imports little: every worker that emits loads it first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from strandline.core.failpoints import failpoint
from strandline.core.record_headers import REASON_RESULT
from strandline.processing.emission.dead_letters import DeadLetter, DeadLetterWriter
from strandline.processing.emission.fencing import require_current_attempt, require_current_epoch
from strandline.processing.emission.result_stream_writer import Place, ResultStream, ResultStreamWriter
from strandline.processing.emission.slice_context import SliceContext, read
from strandline.processing.emission.transactional_ids import id_of_backfilled_results, id_of_refused_results
from strandline.results.writer import Refused, ResultWriter

REFUSED_RESULTS = "_strandline_refused_results"
REFUSED_SAMPLE = "_strandline_refused_sample"


@dataclass(frozen=True)
class StageEmission:
    """Emits one stage from an executor's Python worker; travels there pickled."""

    writers: tuple[ResultWriter, ...]
    streams: tuple[ResultStream, ...]
    job: str
    stage: str
    epoch: int
    emitted_ms: int | None
    """An earlier run emitted the windows that end at or before it."""
    kafka_bootstrap: str
    ledger_url: str
    """Without its password."""
    record_bytes_max: int
    """The largest record that gateways take."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called by Spark in a task: emit for the slice that the driver has published."""
        task = TaskContext.get()
        assert task is not None
        yield from self.emit(batches, read(task), task.partitionId())

    def emit(self, batches: Iterator[pa.RecordBatch], context: SliceContext, task: int) -> Iterator[pa.RecordBatch]:
        """Write each batch's new results and pass the whole batch on, once the store has confirmed the results."""
        writers = [*self.writers, *(self._stream_writer(stream, context, task) for stream in self.streams)]
        for batch in batches:
            yield self._counted(batch, self._write(writers, batch, context, task))

    def _write(
        self, writers: Sequence[ResultWriter], batch: pa.RecordBatch, context: SliceContext, task: int
    ) -> list[Refused]:
        """Write the batch's new results, and dead letters for those that are refused; return the latter."""
        new = self._new(batch)
        refused: list[Refused] = []
        if new.num_rows:
            failpoint("emit.before_write")
            for writer in writers:
                refused += writer.write_batches([new], self.epoch, context.number).refused
            failpoint("emit.written")
        if refused:
            self._write_dead_letters(refused, context, task)
        return refused

    def _stream_writer(self, stream: ResultStream, context: SliceContext, task: int) -> ResultStreamWriter:
        place = Place(task, context.result_offsets.get(stream.shape.emit_name, {}))
        return ResultStreamWriter(stream, place, self._require_current)

    def _require_current(self, epoch: int) -> None:
        """Raise Fenced when a newer run of the job has begun."""
        require_current_epoch(self.ledger_url, self.job, epoch)

    def _transactional_id(self, task: int) -> str:
        """For the dead letters of this task."""
        return id_of_refused_results(self.job, self.stage, task)

    def _new(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.emitted_ms is None:
            return batch
        ends_us = pc.struct_field(batch.column("window"), "end").cast(pa.int64())
        return batch.filter(pc.greater(ends_us, self.emitted_ms * 1000))

    def _write_dead_letters(self, refused: list[Refused], context: SliceContext, task: int) -> None:
        letters = (
            DeadLetter.of_document(
                one.index or "", one.id, one.source, REASON_RESULT, f"{one.type}: {one.reason}", f"emit {self.stage}"
            )
            for one in refused
        )
        writer = DeadLetterWriter(
            self.kafka_bootstrap,
            self.job,
            self._transactional_id(task),
            self.epoch,
            self._require_current,
            record_bytes_max=self.record_bytes_max,
        )
        writer.write(letters, context.dead_letter_offsets)

    def _counted(self, batch: pa.RecordBatch, refused: list[Refused]) -> pa.RecordBatch:
        """The batch with the number of its refused results, in its first row."""
        return batch.append_column(REFUSED_RESULTS, _in_first_row(batch, len(refused), 0, pa.int64()))


@dataclass(frozen=True)
class BackfillEmission(StageEmission):
    """Emits the windows of one chunk, and tells of one refused result a batch why it was refused."""

    context: SliceContext
    up_to_ms: int
    generation: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called by Spark in a task. Each chunk has a plan of its own, which brought the context along."""
        task = TaskContext.get()
        assert task is not None
        yield from self.emit(batches, self.context, task.partitionId())

    def _require_current(self, epoch: int) -> None:
        """Raise Fenced when a newer attempt at the backfill has begun, or it has ended."""
        require_current_attempt(self.ledger_url, self.job, self.generation, epoch)

    def _transactional_id(self, task: int) -> str:
        return id_of_backfilled_results(self.job, self.generation, self.stage, task)

    def _new(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        new = super()._new(batch)
        ends_us = pc.struct_field(new.column("window"), "end").cast(pa.int64())
        return new.filter(pc.less_equal(ends_us, self.up_to_ms * 1000))

    def _counted(self, batch: pa.RecordBatch, refused: list[Refused]) -> pa.RecordBatch:
        sample = _describe(self.stage, refused[0]) if refused else None
        counted = super()._counted(batch, refused)
        return counted.append_column(REFUSED_SAMPLE, _in_first_row(batch, sample, None, pa.string()))


def _in_first_row(batch: pa.RecordBatch, value: object, elsewhere: object, kind: pa.DataType) -> pa.Array:
    return pa.array([value, *[elsewhere] * (batch.num_rows - 1)] if batch.num_rows else [], kind)


def _describe(stage: str, refused: Refused) -> str:
    return f"{stage} {refused.index or ''}/{refused.id}: {refused.type}: {refused.reason}"
