"""One stage's emission as it runs in an executor's Python worker. Imports little: every worker that emits loads it first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from strandline.core.failpoints import failpoint
from strandline.core.record import REASON_RESULT
from strandline.processing.emission.dead_letters import DeadLetter, DeadLetterWriter, slot_of_results
from strandline.processing.emission.present_run import require_present, require_present_attempt
from strandline.processing.emission.result_stream_writer import Place, ResultStream, ResultStreamWriter
from strandline.results.writer import Refused, ResultWriter

SLICE_PROPERTY = "strandline.slice"
"""Spark local property: the number of the slice at work, which is the emission's number."""
DEAD_LETTERS_PROPERTY = "strandline.dead_letters"
"""Spark local property: where the dead-letter stream ended at the last checkpoint, as JSON."""
RESULT_OFFSETS_PROPERTY = "strandline.result_offsets"
"""Spark local property: where the streams of results ended at the last checkpoint, as JSON."""
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
    """Windows that end at or before it were emitted by an earlier run."""
    kafka_bootstrap: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write each batch's new results and pass all of them on; returns from a batch when the store has confirmed it."""
        context = TaskContext.get()
        assert context is not None
        emission = int(context.getLocalProperty(SLICE_PROPERTY) or 0)
        writers = [*self.writers, *(self._stream_writer(stream, context) for stream in self.streams)]
        for batch in batches:
            refused = self._emit(writers, batch, context, emission)
            counts = pa.array([len(refused)] + [0] * (batch.num_rows - 1) if batch.num_rows else [], pa.int64())
            yield batch.append_column(REFUSED_RESULTS, counts)

    def _emit(
        self, writers: Sequence[ResultWriter], batch: pa.RecordBatch, context: TaskContext, emission: int
    ) -> list[Refused]:
        """Write what is new of the batch, and dead letters for what is refused; return the latter."""
        new = self._new(batch)
        refused: list[Refused] = []
        if new.num_rows:
            failpoint("emit.before_write")
            for writer in writers:
                refused += writer.write_batches([new], self.epoch, emission).refused
            failpoint("emit.written")
        if refused:
            self._bury(refused, context)
        return refused

    def _stream_writer(self, stream: ResultStream, context: TaskContext) -> ResultStreamWriter:
        ends = json.loads(context.getLocalProperty(RESULT_OFFSETS_PROPERTY) or "{}").get(stream.shape.emit_name, {})
        place = Place(
            slot=context.partitionId(),
            written_before={int(partition): offset for partition, offset in ends.items()},
        )
        return ResultStreamWriter(stream, place, self._require_present)

    def _require_present(self, epoch: int) -> None:
        """Raises Fenced when a newer run of the job has begun."""
        require_present(self.job, epoch)

    def _dead_letter_slot(self, task: int) -> str:
        return slot_of_results(self.stage, task)

    def _new(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.emitted_ms is None:
            return batch
        ends_us = pc.struct_field(batch.column("window"), "end").cast(pa.int64())
        return batch.filter(pc.greater(ends_us, self.emitted_ms * 1000))

    def _bury(self, refused: list[Refused], context: TaskContext) -> None:
        written_before = {
            int(p): o for p, o in json.loads(context.getLocalProperty(DEAD_LETTERS_PROPERTY) or "{}").items()
        }
        slot = self._dead_letter_slot(context.partitionId())
        letters = (
            DeadLetter.of_document(
                one.index or "", one.id, one.source, REASON_RESULT, f"{one.type}: {one.reason}", f"emit {self.stage}"
            )
            for one in refused
        )
        writer = DeadLetterWriter(self.kafka_bootstrap, self.job, slot, self.epoch, self._require_present)
        writer.write(letters, written_before)


@dataclass(frozen=True)
class BackfillEmission(StageEmission):
    """Emits the windows of one chunk, and says of one refused result a batch why."""

    up_to_ms: int = 0
    generation: int = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        emission = int(context.getLocalProperty(SLICE_PROPERTY) or 0)
        for batch in batches:
            refused = self._emit(self.writers, batch, context, emission)
            sample = [_describe(self.stage, refused[0])] if refused else [None]
            nothing = [None] * (batch.num_rows - 1)
            counts = [len(refused)] + [0] * (batch.num_rows - 1)
            yield batch.append_column(
                REFUSED_RESULTS, pa.array(counts if batch.num_rows else [], pa.int64())
            ).append_column(REFUSED_SAMPLE, pa.array(sample + nothing if batch.num_rows else [], pa.string()))

    def _require_present(self, epoch: int) -> None:
        """Raises Fenced when a newer attempt at the backfill has begun, or it has ended."""
        require_present_attempt(self.job, self.generation, epoch)

    def _dead_letter_slot(self, task: int) -> str:
        # Whichever attempt writes a letter, it does so from the same slot: all have as many tasks.
        return f"backfill-{self.generation}-{self.stage}-{task}"

    def _new(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        new = super()._new(batch)
        ends_us = pc.struct_field(new.column("window"), "end").cast(pa.int64())
        return new.filter(pc.less_equal(ends_us, self.up_to_ms * 1000))


def _describe(stage: str, refused: Refused) -> str:
    return f"{stage} {refused.index or ''}/{refused.id}: {refused.type}: {refused.reason}"
