"""The keyed task: one bucket of one slice, from its rows and its state to results in the stores.

Spark calls it in a Python worker, once for each bucket and batch, with the rows of `source.slice_rows` and the bucket's state
from Spark's state store: one blob. What it did goes back to the driver as one small row.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa

from strandline.core.failpoints import failpoint
from strandline.core.portable_errors import typed_for_driver
from strandline.processing.emission.dead_letters import DeadLetter, DeadLetterWriter
from strandline.processing.emission.fencing import require_current_epoch
from strandline.processing.emission.open_windows import OpenEmission, open_emissions, open_windows
from strandline.processing.emission.segment_files import SegmentFiles
from strandline.processing.emission.stage_emission import MadeDocuments, RecordEmission, StageEmission
from strandline.processing.emission.transactional_ids import id_of_rejected_records
from strandline.processing.operators.blobs import unpack
from strandline.processing.operators.cascade import (
    Cascade,
    Chunk,
    SegmentStores,
    StageResults,
    StepResult,
    cascade_of,
)
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.record_rows import unpack_record_rows, without_duplicates
from strandline.processing.pipelines.stages import RecordStage, Stage
from strandline.processing.source.slice_rows import (
    FACTS,
    RECORD_ROWS,
    REJECTED,
    WORK,
    SliceWork,
    SourceFacts,
    decode_facts,
    decode_work,
    encode,
    entry_of,
)
from strandline.results.open_windows.documents import OPEN_WINDOWS_MAX
from strandline.results.shared_bulk import PreparedWrite
from strandline.results.writer import CommittedWriter

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

OUTCOME_DDL = "bucket int, outcome binary, part binary, rows binary"
"""The fields of `TaskRow`."""
STATE_DDL = "blob binary"
_LETTERS_BYTES = 16 << 20
"""Maximum number of bytes of rejected records that are buffered before they are written."""

_OPEN_PARTS_BYTES = 16 << 20
"""Maximum size of the open windows of a split stage. More aren't shown: the parts cross the exchange with every slice."""

_MADE_BYTES_MAX = 1 << 20
"""Maximum size of packed records in bytes whose documents are made before they are sent."""

BucketRow = tuple[int, int, int, bytes]
"""Kind, partition, sequence, blob."""


class TaskRow(NamedTuple):
    """Row that a bucket returns to Spark: its outcome, or a part of windows for the bucket that merges them."""

    bucket: int
    """Spark's key of the bucket that receives the row."""
    outcome: bytes | None
    """Encoded `BucketOutcome`. None if the row is a part."""
    part: bytes | None
    """Encoded `StagePart`. None if the row is an outcome."""
    rows: bytes | None
    """Partial results of the part, empty if the bucket has too many open windows to show. None if the row is an outcome."""


class StagePart(msgspec.Struct, frozen=True, array_like=True):
    """Describes one bucket's part of the windows of a split stage. The row contains the part itself."""

    is_final: bool
    """True for windows that became final. False for open windows, whose current values are written to `NAME.open`."""
    stage: int
    """Index of the stage."""
    work: bytes
    """Encoded `SliceWork` of the slice."""


class BucketOutcome(msgspec.Struct):
    """Outcome that one bucket returns to the driver."""

    results: dict[str, int] = {}
    """Stage -> number of results. Without stages that have none."""
    refused: dict[str, int] = {}
    """Stage -> number of results that a store refused. Without stages that have none."""
    samples: dict[str, str] = {}
    """Stage -> reason for the dead letter of one of its results."""
    letters: int = 0
    """Number of dead letters that the bucket wrote, or that were in the stream already."""
    parts: dict[str, list[str]] = {}
    """Sink key of a CommittedWriter -> arguments of its `commit`."""
    stored: dict[str, int] = {}
    """Store -> number of results that it contains now, as in WriteReport."""
    facts: list[SourceFacts] = []
    """Facts of every source task. Every bucket has them, and the first bucket passes them on."""
    duplicates: int = 0
    """Records that a `dedupe` has left out."""
    updates: int = 0
    """Documents of open windows that its process has written since its last report."""
    updates_dropped: int = 0
    """Documents of open windows that its process could not write since its last report."""
    why_dropped: str = ""
    cpu_us: int = 0
    """CPU time of the task's thread in microseconds, if Spark called it. No result depends on it."""
    state_bytes: int = 0
    """Size of the bucket's state after the slice, if Spark called the task."""


@dataclass(frozen=True)
class DeadLetterTarget:
    """Target of the dead letters of rejected records."""

    bootstrap: str
    ledger_url: str
    """Without its password."""
    job: str
    epoch: int
    record_bytes_max: int

    def writer(self, bucket: int) -> DeadLetterWriter:
        """Return a writer of dead letters under the transactional id of this bucket."""
        return DeadLetterWriter(
            self.bootstrap,
            self.job,
            id_of_rejected_records(self.job, bucket),
            self.epoch,
            partial(require_current_epoch, self.ledger_url, self.job),
            record_bytes_max=self.record_bytes_max,
        )


@dataclass(frozen=True)
class BegunBucket:
    """Computed slice of one bucket whose results are not emitted yet."""

    bucket: int
    work: SliceWork
    stepped: StepResult
    stores: SegmentStores | None
    """Stores of the large segments of the state. None if the state contains all segments."""
    closes_ms: int | None
    """Event time up to which the slice makes windows final. None if there is no such time yet."""
    record_rows: list[tuple[int, int, bytes]]
    """Packed rows of emissions of records: partition label, sequence, blob."""
    outcome: BucketOutcome
    made: list[tuple[StageEmission, StageResults, MadeDocuments]] = field(default_factory=list)
    """Results with the documents that `make_documents` made. Empty if it made none."""


@dataclass(frozen=True)
class BucketDone:
    """Outcome of one slice in one bucket."""

    state: bytes
    outcome: BucketOutcome
    parts: list[tuple[int, int, bytes]]
    """Parts of windows that several buckets share: (bucket that merges the parts, index of the stage, this bucket's part)."""
    work: SliceWork
    """Work of the slice, from its rows."""
    open_parts: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Parts of open windows, in the form of `parts`."""


@dataclass(frozen=True)
class KeyedTask:
    """Computes and emits the buckets of one run. Spark pickles it for the executors."""

    stages: tuple[Stage, ...]
    bucket_keys: tuple[int, ...]
    """Spark's key of each bucket."""
    emissions: tuple[StageEmission, ...]
    """One for each stage."""
    letters: DeadLetterTarget
    record_emissions: tuple[RecordEmission, ...] = ()
    """One for each emission of records."""
    record_stages: tuple[RecordStage, ...] = ()
    """The emissions of records that the source knows of."""
    checkpoint: Path | None = None
    """Spark's checkpoint directory, for large segments of the state as files. None if the state contains all segments."""

    @property
    def committed_writers(self) -> dict[str, CommittedWriter]:
        """Sink key -> the writer that is notified of each committed slice."""
        writers = [one for emission in (*self.emissions, *self.record_emissions) for one in emission.writers]
        return {one.place: one for one in writers if isinstance(one, CommittedWriter)}

    @cached_property
    def cascade(self) -> Cascade:
        """The operators of all stages. Not pickled: each process compiles them."""
        return cascade_of(self.stages, len(self.bucket_keys), self.record_stages)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "cascade"}

    @property
    def open_emissions(self) -> list[tuple[int, OpenEmission]]:
        """Emissions that show open windows, each with the index of its stage."""
        pairs = enumerate(zip(self.emissions, self.stages, strict=True))
        return [(at, found) for at, (one, stage) in pairs for found in open_emissions(one.writers, stage.shape)]

    def __call__(self, key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        """Process one slice of one bucket, and yield its outcome and parts as task rows. Spark calls it with rows and state."""
        began_ns = time.thread_time_ns()
        before: bytes | None = state.get[0] if state.exists else None
        with typed_for_driver():
            done = self.process(self.bucket_keys.index(key[0]), rows_of(frames), before)
        if done.state != before:
            state.update((done.state,))
        work = encode(done.work)
        done.outcome.state_bytes = len(done.state)
        done.outcome.cpu_us = (time.thread_time_ns() - began_ns) // 1_000
        yield frame_of(
            [
                outcome_row(key[0], done.outcome),
                *self._part_rows(done.parts, work, is_final=True),
                *self._part_rows(done.open_parts, work, is_final=False),
            ]
        )

    def _part_rows(self, parts: Iterable[tuple[int, int, bytes]], work: bytes, is_final: bool) -> Iterator[TaskRow]:
        for bucket, stage, rows in parts:
            part = msgspec.msgpack.encode(StagePart(is_final, stage, work))
            yield TaskRow(self.bucket_keys[bucket], None, part, rows)

    def merge(self, key: tuple[int], frame: pd.DataFrame) -> pd.DataFrame:
        """Emit the windows of split stages whose parts are in these rows, and update the documents of open windows. Return the
        outcomes. Spark calls it for one bucket, with the rows that all buckets returned for it. Keeps no state."""
        bucket, began_ns = self.bucket_keys.index(key[0]), time.thread_time_ns()
        passed_on = [TaskRow(key[0], blob, None, None) for blob in frame["outcome"].tolist() if blob is not None]
        rows_of_part: dict[tuple[bool, int], list[bytes]] = {}
        work_of_part: dict[tuple[bool, int], bytes] = {}
        for blob, rows in zip(frame["part"].tolist(), frame["rows"].tolist(), strict=True):
            if blob is not None:
                part = _PART_DECODER.decode(blob)
                rows_of_part.setdefault((part.is_final, part.stage), []).append(rows)
                work_of_part[part.is_final, part.stage] = part.work
        for (is_final, stage), parts in sorted(rows_of_part.items()):
            work = decode_work(work_of_part[is_final, stage])
            with typed_for_driver():
                if is_final:
                    passed_on.append(outcome_row(key[0], self.emit_merged(bucket, stage, parts, work)))
                else:
                    self.show_merged(bucket, stage, parts, work)
        if rows_of_part:
            cost = BucketOutcome(cpu_us=(time.thread_time_ns() - began_ns) // 1_000)
            passed_on.append(outcome_row(key[0], cost))
        return frame_of(passed_on)

    def emit_merged(self, bucket: int, stage: int, parts: Sequence[bytes], work: SliceWork) -> BucketOutcome:
        """Emit final windows of a split stage, merged from the parts of all buckets. `bucket`: the bucket that merges them.
        `stage`: index of the stage. Raises StrandlineError."""
        outcome = BucketOutcome()
        self._emit(self.emissions[stage], self.cascade.merge(stage, parts), work, bucket, outcome)
        return outcome

    def show_merged(self, bucket: int, stage: int, parts: Sequence[bytes], work: SliceWork) -> None:
        """Hand over the open windows of a split stage to the thread that writes them to `NAME.open`. Nothing if a part is empty,
        because a bucket has too many open windows. `stage`: index of the stage. `parts`: one of each bucket that has some."""
        for at, emission in self.open_emissions:
            if at == stage and all(parts):
                rows = partial(_merged_rows, self.cascade, at, parts)
                open_windows().submit(self.letters.job, bucket, emission, self.letters.epoch, work.number, rows)

    def _show_open(
        self,
        bucket: int,
        state: bytes,
        stores: SegmentStores | None,
        work: SliceWork,
        closes_ms: int | None,
        outcome: BucketOutcome,
    ) -> list[tuple[int, int, bytes]]:
        """Hand over the open windows to the thread that writes them to `NAME.open`. Add the counts of earlier updates to
        `outcome`. Return this bucket's parts of split stages, as `BucketDone.open_parts`."""
        parts: list[tuple[int, int, bytes]] = []
        cascade, emissions = self.cascade, self.open_emissions
        if not emissions or work.restores:  # windows that were open then are closed
            return parts
        for at in dict.fromkeys(at for at, _ in emissions if at in cascade.split_stages):
            own = cascade.open_parts(cascade.open_stage(at, state, stores), closes_ms, OPEN_WINDOWS_MAX)
            too_many = sum(len(part) for _, part in own) > _OPEN_PARTS_BYTES
            own = [(target, b"") for target in range(len(self.bucket_keys))] if too_many else own
            parts += [(target, at, part) for target, part in own]
        for at, emission in emissions:
            if at not in cascade.split_stages:
                # Segments are read now: the thread that shows the rows may run when a later state has let go of some.
                stage = cascade.open_stage(at, state, stores)
                rows = partial(cascade.open_results, stage, closes_ms, OPEN_WINDOWS_MAX)
                open_windows().submit(self.letters.job, bucket, emission, self.letters.epoch, work.number, rows)
        counts = open_windows().take_counts()
        outcome.updates, outcome.updates_dropped, outcome.why_dropped = counts.written, counts.dropped, counts.why
        return parts

    def process(self, bucket: int, rows: Iterable[BucketRow], state: bytes | None) -> BucketDone:
        """Process one slice in one bucket: step the operators (`begin`), then emit (`finish`). Raises StrandlineError."""
        return self.finish(self.begin(bucket, rows, state))

    def begin(self, bucket: int, rows: Iterable[BucketRow], state: bytes | None) -> BegunBucket:
        """Compute the results of one slice in one bucket, and emit none of them.

        1. Read the rows, in any order.
        2. Step the operators, and write rejected records as dead letters at the same time.

        Raises StrandlineError.
        """
        chunks: list[Chunk] = []
        facts: list[SourceFacts] = []
        rejected = _RejectedRecords(self.letters, bucket)
        record_rows: list[tuple[int, int, bytes]] = []
        work: SliceWork | None = None
        for kind, partition, sequence, blob in rows:
            if (entry := entry_of(kind)) is not None:
                chunks.append(Chunk(partition, sequence, blob, entry))
            elif kind == RECORD_ROWS:
                record_rows.append((partition, sequence, blob))
            elif kind == WORK:
                work = decode_work(blob)
            elif kind == FACTS:
                facts.append(decode_facts(blob))
            elif kind == REJECTED:
                rejected.hold(blob)
            if work is not None and rejected.held_bytes >= _LETTERS_BYTES:
                rejected.write(work)
        assert work is not None, "the source tells every bucket what to do"
        with rejected.written_meanwhile(work):
            closes_ms = work.closes_ms(facts)
            stores = None if self.checkpoint is None else partial(SegmentFiles.of, self.checkpoint, bucket)
            closing = Closing(work.from_ms, closes_ms, work.emitted_ms)
            stepped = self.cascade.step(state, chunks, closing, stores, emits=work.emits)
        outcome = BucketOutcome(
            letters=rejected.written, facts=facts if bucket == 0 else [], duplicates=stepped.duplicates
        )
        return BegunBucket(bucket, work, stepped, stores, closes_ms, record_rows, outcome)

    def make_documents(self, begun: BegunBucket) -> list[PreparedWrite]:
        """Make the documents of a bucket with few results, for `finish`, and send none of them. Return those that can be sent
        together with documents of other buckets."""
        if not begun.work.emits or sum(len(blob) for _, _, blob in begun.record_rows) > _MADE_BYTES_MAX:
            return []
        begun.made.extend(
            (emission, results, emission.make(results, begun.work)) for emission, results in self._to_emit(begun)
        )
        return [one for _, _, made in begun.made for writes in made.values() for one in writes]

    def finish(self, begun: BegunBucket) -> BucketDone:
        """Emit the results of a bucket, if the slice is new: records, then the windows that the slice closes. Hand over the open
        windows for an update of `NAME.open`. Return the state, the outcome, and parts. Raises StrandlineError."""
        bucket, work, stepped, outcome = begun.bucket, begun.work, begun.stepped, begun.outcome
        if not work.emits:
            return BucketDone(stepped.state, outcome, [], work)
        for emission, results, made in begun.made or ((*one, {}) for one in self._to_emit(begun)):
            self._emit(emission, results, work, bucket, outcome, made)
        open_parts = self._show_open(bucket, stepped.state, begun.stores, work, begun.closes_ms, outcome)
        return BucketDone(stepped.state, outcome, stepped.parts, work, open_parts)

    def _to_emit(self, begun: BegunBucket) -> Iterator[tuple[StageEmission, StageResults]]:
        """Yield the results of each emission: records, then windows."""
        if begun.record_rows:
            rows_of_stage = without_duplicates(
                unpack_record_rows(begun.record_rows), self.record_stages, begun.stepped.repeated_records
            )
            begun.record_rows.clear()
            for one in self.record_emissions:
                for found in rows_of_stage.pop(one.stage, ()):
                    yield one, StageResults(one.stage, found, found.slice(0, 0))
        # A stage that is split has no results yet: `merge` emits them.
        results_of = {results.stage: results for results in begun.stepped.results}
        for emission in self.emissions:
            if (results := results_of.get(emission.stage)) is not None:
                yield emission, results

    def _emit(
        self,
        emission: StageEmission,
        results: StageResults,
        work: SliceWork,
        bucket: int,
        outcome: BucketOutcome,
        made: MadeDocuments = MappingProxyType({}),
    ) -> None:
        emitted = emission.emit(results, work, bucket, made)
        if emitted.results:
            outcome.results[emission.stage] = outcome.results.get(emission.stage, 0) + emitted.results
        for place, parts in emitted.parts.items():
            outcome.parts.setdefault(place, []).extend(parts)
        for store, count in emitted.stored.items():
            outcome.stored[store] = outcome.stored.get(store, 0) + count
        if emitted.refused:
            outcome.refused[emission.stage] = outcome.refused.get(emission.stage, 0) + emitted.refused
        if emitted.letters:
            outcome.letters += emitted.letters
            outcome.samples[emission.stage] = emitted.sample


def _merged_rows(cascade: Cascade, stage: int, parts: Sequence[bytes]) -> pa.RecordBatch:
    return cascade.merge(stage, parts).rows


_PART_DECODER = msgspec.msgpack.Decoder(StagePart)


def outcome_row(key: int, outcome: BucketOutcome) -> TaskRow:
    """Return the row with the outcome of the bucket that has this key."""
    return TaskRow(key, msgspec.json.encode(outcome), None, None)


def outcomes_of(rows: DataFrame) -> list[BucketOutcome]:
    """Run the keyed tasks that compute this DataFrame of task rows, and return the outcomes of all buckets."""
    return [msgspec.json.decode(row["outcome"], type=BucketOutcome) for row in rows.collect()]


def frame_of(rows: Sequence[TaskRow]) -> pd.DataFrame:
    """Return the rows in the form that Spark accepts; see OUTCOME_DDL."""
    import pandas

    return pandas.DataFrame(rows, columns=TaskRow._fields)


def rows_of(frames: Iterable[pd.DataFrame]) -> Iterator[BucketRow]:
    """Yield the rows of Spark's DataFrames as tuples."""
    for frame in frames:
        yield from zip(
            frame["kind"].tolist(),
            frame["partition"].tolist(),
            frame["sequence"].tolist(),
            frame["blob"].tolist(),
            strict=True,
        )


class _RejectedRecords:
    """Collects rejected records of one bucket and slice, and writes them to the dead-letter stream."""

    def __init__(self, letters: DeadLetterTarget, bucket: int) -> None:
        self._letters = letters
        self._bucket = bucket
        self._writer: DeadLetterWriter | None = None
        self._blobs: list[bytes] = []
        self.held_bytes = 0
        """Size of the blobs that aren't written yet."""
        self.written = 0
        """Number of dead letters that are written."""

    def hold(self, blob: bytes) -> None:
        self._blobs.append(blob)
        self.held_bytes += len(blob)

    @contextmanager
    def written_meanwhile(self, work: SliceWork) -> Iterator[None]:
        """Write the collected records in another thread while the body runs. Raises StrandlineError if that fails."""
        if not self._blobs:
            yield
            return
        with ThreadPoolExecutor(max_workers=1) as writer:
            written = writer.submit(self.write, work)
            yield
            written.result()

    def write(self, work: SliceWork) -> None:
        """Write the collected records as dead letters. Raises StrandlineError."""
        if not self._blobs:
            return
        failpoint("commit.before_dead_letters")
        self._writer = self._writer or self._letters.writer(self._bucket)
        self.written += self._writer.write(_letters(self._blobs), work.dead_letter_offsets)
        self._blobs, self.held_bytes = [], 0


def _letters(blobs: list[bytes]) -> Iterator[DeadLetter]:
    for blob in blobs:
        (batch,) = unpack(blob)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield DeadLetter.of_record(*row)
