"""The emission of one stage, as it runs in the keyed task of a bucket. Imports little: every worker that emits loads it first.

Ids come from the data and documents are only ever created, so a repeated slice finds its own results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.failpoints import failpoint
from strandline.core.record_headers import REASON_EXPRESSION, REASON_RESULT
from strandline.processing.emission.dead_letters import DeadLetter, DeadLetterWriter
from strandline.processing.emission.fencing import require_current_attempt, require_current_epoch
from strandline.processing.emission.result_shapes import refusal_message, unusable_results
from strandline.processing.emission.result_stream_writer import ResultStream, ResultStreamWriter, StreamWriteContext
from strandline.processing.emission.transactional_ids import id_of_backfilled_results, id_of_refused_results
from strandline.processing.operators.cascade import StageResults
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.source.slice_rows import SliceWork
from strandline.results.document import Document, DocumentShape
from strandline.results.elasticsearch_writer import ElasticsearchWriter
from strandline.results.shared_bulk import PreparedWrite
from strandline.results.writer import PROBLEM, WINDOW_END, CommittedWriter, Refused, ResultWriter, StoreWriter

_ROWS_A_WRITE = 10_000
"""Maximum number of results that are written together."""

MadeDocuments = Mapping[int, Sequence[PreparedWrite]]
"""Index of a writer of the stage -> its documents, if they can be sent together with those of other emissions."""


@dataclass
class Emitted:
    """Outcome of the results of one stage in one bucket."""

    results: int = 0
    """Number of results, including refused ones."""
    refused: int = 0
    """Number of results that a store refused."""
    letters: int = 0
    """Dead letters of refused results, and of results that lack a required value."""
    sample: str = ""
    """Reason for one of these dead letters."""
    parts: dict[str, list[str]] = field(default_factory=dict)
    """Sink key of a CommittedWriter -> arguments of its `commit`."""
    stored: dict[str, int] = field(default_factory=dict)
    """Store -> number of results that it contains now, as in WriteReport."""


@dataclass(frozen=True)
class StageEmission:
    """Writes the results of one stage to its sinks, and dead letters. Spark pickles it for the executors."""

    writers: tuple[StoreWriter, ...]
    streams: tuple[ResultStream, ...]
    shape: DocumentShape
    """Makes the documents of results that can't be used, for their dead letters."""
    job: str
    stage: str
    epoch: int
    emitted_ms: int | None
    """Windows that end at or before it were emitted by an earlier run. None if there are none."""
    kafka_bootstrap: str
    ledger_url: str
    """Without its password."""
    record_bytes_max: int
    """The largest record that gateways take."""

    def prepare(self, windows: WindowShape) -> None:
        """Create the indices, topics, or tables of the stage's sinks, in the driver. `windows`: windows of the stage. Raises
        StrandlineError."""
        next_end_ms = None if self.emitted_ms is None else windows.first_end(self.emitted_ms - windows.revise_ms)
        for writer in self.writers:
            writer.prepare(next_end_ms)

    def make(self, results: StageResults, work: SliceWork) -> MadeDocuments:
        """Make the documents of a few results, for `emit`. Send none of them: several emissions send theirs together."""
        rows = self._rows_to_write(results)
        if rows.num_rows > _ROWS_A_WRITE:
            return {}
        good = _without_problems(rows)
        return {
            number: writer.prepared([good], self.epoch, work.number, work.digest)
            for number, writer in enumerate(self.writers)
            if good.num_rows and isinstance(writer, ElasticsearchWriter)
        }

    def emit(
        self, results: StageResults, work: SliceWork, slot: int, made: MadeDocuments = MappingProxyType({})
    ) -> Emitted:
        """Write the new and revised results of a stage, and dead letters for results that can't be used. Return the counts, after
        the stores have confirmed all of them.

        `slot`: the bucket; no other task writes under its transactional ids. `made`: the documents of these results, if `make`
        made them. Raises StrandlineError.
        """
        emitted = Emitted()
        new = self._rows_to_write(results)
        whole = [one for one in self.writers if getattr(one, "takes_whole", False)]
        writers: list[ResultWriter] = [one for one in self.writers if one not in whole]
        if not work.restores:  # the records of a stream can't be restored under their offsets
            writers += [self._stream_writer(stream, work, slot) for stream in self.streams]
        if whole:
            refused = self._write(whole, new, work, emitted, {})
            self._write_letters(refused, work, slot, emitted)
            emitted.refused += len(refused)
        for first in range(0, new.num_rows, _ROWS_A_WRITE):
            part = new.slice(first, _ROWS_A_WRITE)
            unusable = self._letters_of_unusable(part, work)
            refused = self._write(writers, part, work, emitted, made)
            self._write_letters([*unusable, *refused], work, slot, emitted)
            emitted.refused += len(refused)
        self._write_letters(self._letters_of_unusable(self._new(results.failed), work), work, slot, emitted)
        if writers or whole:
            emitted.results = new.num_rows
        return emitted

    def _rows_to_write(self, results: StageResults) -> pa.RecordBatch:
        new = self._new(results.rows)
        return new if results.revised is None else pa.concat_batches([new, results.revised])

    def _write(
        self,
        writers: Sequence[ResultWriter],
        rows: pa.RecordBatch,
        work: SliceWork,
        emitted: Emitted,
        made: MadeDocuments,
    ) -> list[DeadLetter]:
        """Write the results, and return the dead letters of those that a store refused."""
        good = _without_problems(rows)
        refused: list[Refused] = []
        if good.num_rows and writers:
            reach_write()
            prepared = {id(self.writers[number]): writes for number, writes in made.items()}
            for writer in writers:
                if isinstance(writer, ElasticsearchWriter) and id(writer) in prepared:
                    report = writer.write_prepared(prepared[id(writer)])
                else:
                    report = writer.write_batches([good], self.epoch, work.number, work.digest)
                refused += report.refused
                for store, count in report.stored.items():
                    emitted.stored[store] = emitted.stored.get(store, 0) + count
                if report.parts and isinstance(writer, CommittedWriter):
                    emitted.parts.setdefault(writer.place, []).extend(report.parts)
            failpoint("emit.written")
        return [_letter(one, REASON_RESULT, refusal_message(one), f"emit {self.stage}") for one in refused]

    def _letters_of_unusable(self, rows: pa.RecordBatch, work: SliceWork) -> list[DeadLetter]:
        """Return the dead letters of results that lack a required value, such as a sum that is too large for its type."""
        return [
            _letter(one, REASON_EXPRESSION, message, step)
            for one, message, step in unusable_results(self.shape, rows, self.epoch, work.number)
        ]

    def _stream_writer(self, stream: ResultStream, work: SliceWork, slot: int) -> ResultStreamWriter:
        place = StreamWriteContext(slot, work.result_offsets.get(stream.shape.emit_name, {}))
        return ResultStreamWriter(stream, place, self._require_current)

    def _require_current(self, epoch: int) -> None:
        """Raise Fenced if a newer run of the job has begun."""
        require_current_epoch(self.ledger_url, self.job, epoch)

    def _transactional_id(self, slot: int) -> str:
        """Return the transactional id for the dead letters of this bucket."""
        return id_of_refused_results(self.job, self.stage, slot)

    def _new(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.emitted_ms is None:
            return rows
        return rows.filter(pc.greater(rows.column(WINDOW_END), self.emitted_ms))

    def _write_letters(self, letters: Sequence[DeadLetter], work: SliceWork, slot: int, emitted: Emitted) -> None:
        if not letters or work.restores:  # the dead letters of a committed slice are in their stream
            return
        writer = DeadLetterWriter(
            self.kafka_bootstrap,
            self.job,
            self._transactional_id(slot),
            self.epoch,
            self._require_current,
            record_bytes_max=self.record_bytes_max,
        )
        writer.write(letters, work.dead_letter_offsets)
        emitted.letters += len(letters)
        emitted.sample = emitted.sample or f"{self.stage} {letters[0].identity}: {letters[0].message}"


@dataclass(frozen=True)
class RecordEmission(StageEmission):
    """Emits all records of one stage that a new slice contains. A replayed slice emits none, because each record is in one slice.
    `emitted_ms`: no later record has an earlier event time."""

    def prepare_for_records(self) -> None:
        """Create the indices, topics, or tables of the stage's sinks, in the driver. Raises StrandlineError."""
        for writer in self.writers:
            writer.prepare(self.emitted_ms)

    def _new(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows


@dataclass(frozen=True)
class BackfillEmission(StageEmission):
    """Emits the windows of one chunk of a backfill."""

    up_to_ms: int = field(kw_only=True)
    generation: int = field(kw_only=True)

    def _require_current(self, epoch: int) -> None:
        """Raise Fenced if a newer attempt of the backfill has begun, or the backfill has ended."""
        require_current_attempt(self.ledger_url, self.job, self.generation, epoch)

    def _transactional_id(self, slot: int) -> str:
        return id_of_backfilled_results(self.job, self.generation, self.stage, slot)

    def _new(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        new = super()._new(rows)
        return new.filter(pc.less_equal(new.column(WINDOW_END), self.up_to_ms))


def reach_write() -> None:
    """Reach the failpoint before the first result of a slice is written."""
    failpoint("emit.before_write")


def _without_problems(rows: pa.RecordBatch) -> pa.RecordBatch:
    problems = rows.column(PROBLEM)
    return rows if problems.null_count == len(problems) else rows.filter(problems.is_null())


def _letter(one: Document | Refused, reason: str, message: str, step: str) -> DeadLetter:
    return DeadLetter.of_document(one.index or "", one.id, one.source, reason, message, step)
