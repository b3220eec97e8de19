"""The keyed task: one bucket of one slice, from its rows and its state to results in the stores.

Spark calls it in a Python worker, once for each bucket and batch, with the rows of `source.slice_rows` and the bucket's state
from Spark's state store: one blob. What it did goes back to the driver as one small row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from strandline.core.failpoints import failpoint
from strandline.processing.emission.dead_letters import DeadLetter, DeadLetterWriter
from strandline.processing.emission.fencing import require_current_epoch
from strandline.processing.emission.stage_emission import StageEmission
from strandline.processing.emission.transactional_ids import id_of_rejected_records
from strandline.processing.operators.blobs import unpack
from strandline.processing.operators.cascade import Cascade, Chunk, StageResults, cascade_of
from strandline.processing.operators.windows import Time
from strandline.processing.pipelines.stages import Stage
from strandline.processing.source.slice_rows import (
    FACTS,
    RECORDS,
    REJECTED,
    WORK,
    SliceWork,
    SourceFacts,
    decode_facts,
    decode_work,
)

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.state import GroupState

OUTCOME, PART = 10, 11
"""What a bucket gives: what it did, and its part of windows that other buckets have parts of, too."""
OUTCOME_DDL = "bucket int, kind int, blob binary"
STATE_DDL = "blob binary"
_LETTERS_BYTES = 16 << 20
"""So many bytes of rejected records are held at most before they are written."""

BucketRow = tuple[int, int, int, bytes]
"""Kind, partition, sequence, blob."""


class BucketOutcome(msgspec.Struct):
    """What one bucket tells the driver."""

    results: dict[str, int] = {}
    """Stage -> results, where there are some."""
    refused: dict[str, int] = {}
    samples: dict[str, str] = {}
    """Stage -> why one of its results was refused."""
    letters: int = 0
    """Dead letters that it wrote or found written."""
    facts: list[SourceFacts] = []
    """Of every source task; the first bucket tells them."""


@dataclass(frozen=True)
class RecordLetters:
    """Where the dead letters of rejected records go."""

    bootstrap: str
    ledger_url: str
    """Without its password."""
    job: str
    epoch: int
    record_bytes_max: int

    def writer(self, bucket: int) -> DeadLetterWriter:
        """A writer under the transactional id of this bucket."""
        return DeadLetterWriter(
            self.bootstrap,
            self.job,
            id_of_rejected_records(self.job, bucket),
            self.epoch,
            partial(require_current_epoch, self.ledger_url, self.job),
            record_bytes_max=self.record_bytes_max,
        )


@dataclass(frozen=True)
class BucketDone:
    """What came of one slice in one bucket."""

    state: bytes
    outcome: BucketOutcome
    parts: list[tuple[int, bytes]]
    """(bucket that merges it, part) of windows of which other buckets have parts, too."""
    work: bytes
    """What was to be done, as it came."""


@dataclass(frozen=True)
class KeyedTask:
    """Computes and emits the buckets of one run; travels pickled to the executors."""

    stages: tuple[Stage, ...]
    types: tuple[tuple[str, str], ...]
    """The fields of the stream with their types."""
    bucket_keys: tuple[int, ...]
    """Spark's key of each bucket."""
    emissions: tuple[StageEmission, ...]
    """One for each stage."""
    letters: RecordLetters

    @property
    def cascade(self) -> Cascade:
        """The operators of all stages."""
        return cascade_of(self.stages, self.types, len(self.bucket_keys))

    def __call__(self, key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        """Called by Spark for one bucket."""
        import pandas

        before: bytes | None = state.get[0] if state.exists else None
        done = self.process(self.bucket_keys.index(key[0]), rows_of(frames), before)
        if done.state != before:
            state.update((done.state,))
        given = [(key[0], OUTCOME, msgspec.json.encode(done.outcome))]
        for bucket, part in done.parts:
            given += [(self.bucket_keys[bucket], WORK, done.work), (self.bucket_keys[bucket], PART, part)]
        yield pandas.DataFrame(given, columns=["bucket", "kind", "blob"])

    def merge(self, key: tuple[int], frame: pd.DataFrame) -> pd.DataFrame:
        """Called by Spark for one bucket with what all buckets give: emit windows of which they hold parts, and hand on what they
        did. Keeps no state."""
        import pandas

        rows = list(zip(frame["kind"].tolist(), frame["blob"].tolist(), strict=True))
        outcomes = [blob for kind, blob in rows if kind == OUTCOME]
        parts = [blob for kind, blob in rows if kind == PART]
        if parts:
            work = decode_work(next(blob for kind, blob in rows if kind == WORK))
            outcome = self.emit_merged(self.bucket_keys.index(key[0]), parts, work)
            outcomes.append(msgspec.json.encode(outcome))
        given = [(key[0], OUTCOME, blob) for blob in outcomes]
        return pandas.DataFrame(given, columns=["bucket", "kind", "blob"])

    def emit_merged(self, bucket: int, parts: Sequence[bytes], work: SliceWork) -> BucketOutcome:
        """Emit the last stage's windows of which these are the parts. Raises StrandlineError."""
        outcome = BucketOutcome()
        self._emit(self.emissions[-1], self.cascade.merge(parts), work, bucket, outcome)
        return outcome

    def process(self, bucket: int, rows: Iterable[BucketRow], state: bytes | None) -> BucketDone:
        """Do one slice's work for one bucket.

        1. Take in the rows, in whatever order they come. Dead letters of rejected records are written as they arrive.
        2. Step the operators.
        3. Emit, if the slice is new.

        Raises StrandlineError.
        """
        chunks: list[Chunk] = []
        outcome = BucketOutcome()
        rejected: list[bytes] = []
        work: SliceWork | None = None
        order = b""
        facts: list[SourceFacts] = []
        held = 0
        writer: DeadLetterWriter | None = None
        for kind, partition, sequence, blob in rows:
            if kind == RECORDS:
                chunks.append(Chunk(partition, sequence, blob))
            elif kind == WORK:
                work, order = decode_work(blob), blob
            elif kind == FACTS:
                facts.append(decode_facts(blob))
            elif kind == REJECTED:
                rejected.append(blob)
                held += len(blob)
            if rejected and work is not None and held >= _LETTERS_BYTES:
                writer = writer or self.letters.writer(bucket)
                outcome.letters += writer.write(_letters(rejected), work.dead_letter_offsets)
                rejected, held = [], 0
        assert work is not None, "the source tells every bucket what to do"
        if bucket == 0:
            outcome.facts = facts
        if rejected:
            failpoint("commit.before_dead_letters")
            writer = writer or self.letters.writer(bucket)
            outcome.letters += writer.write(_letters(rejected), work.dead_letter_offsets)
        stepped = self.cascade.step(state, chunks, Time(work.from_ms, work.closes_ms(facts)))
        if not work.emits:
            return BucketDone(stepped.state, outcome, [], order)
        for emission, results in zip(
            self.emissions, stepped.results, strict=False
        ):  # without a last stage that is split
            self._emit(emission, results, work, bucket, outcome)
        return BucketDone(stepped.state, outcome, stepped.parts, order)

    def _emit(
        self, emission: StageEmission, results: StageResults, work: SliceWork, bucket: int, outcome: BucketOutcome
    ) -> None:
        emitted = emission.emit(results, work, bucket)
        if emitted.results:
            outcome.results[emission.stage] = emitted.results
        if emitted.refused:
            outcome.letters += emitted.refused
            outcome.refused[emission.stage] = emitted.refused
            outcome.samples[emission.stage] = emitted.sample


def rows_of(frames: Iterable[pd.DataFrame]) -> Iterator[BucketRow]:
    """The rows as Spark hands them over."""
    for frame in frames:
        yield from zip(
            frame["kind"].tolist(),
            frame["partition"].tolist(),
            frame["sequence"].tolist(),
            frame["blob"].tolist(),
            strict=True,
        )


def _letters(blobs: list[bytes]) -> Iterator[DeadLetter]:
    for blob in blobs:
        (batch,) = unpack(blob)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield DeadLetter.of_record(*row)
