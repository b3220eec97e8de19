"""The keyed task: one bucket of one slice, from its rows and its state to results in the stores.

Spark calls it in a Python worker, once for each bucket and batch, with the rows of `source.slice_rows` and the bucket's state
from Spark's state store: one blob. What it did goes back to the driver as one small row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
from strandline.processing.operators.cascade import Cascade, Chunk, cascade_of
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

OUTCOME_DDL = "outcome binary"
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
        after, outcome = self.process(self.bucket_keys.index(key[0]), rows_of(frames), before)
        if after != before:
            state.update((after,))
        yield pandas.DataFrame({"outcome": [msgspec.json.encode(outcome)]})

    def process(self, bucket: int, rows: Iterable[BucketRow], state: bytes | None) -> tuple[bytes, BucketOutcome]:
        """Do one slice's work for one bucket; return its new state and what to tell the driver.

        1. Take in the rows, in whatever order they come. Dead letters of rejected records are written as they arrive.
        2. Step the operators.
        3. Emit, if the slice is new.

        Raises StrandlineError.
        """
        chunks: list[Chunk] = []
        outcome = BucketOutcome()
        rejected: list[bytes] = []
        work: SliceWork | None = None
        facts: list[SourceFacts] = []
        held = 0
        writer: DeadLetterWriter | None = None
        for kind, partition, sequence, blob in rows:
            if kind == RECORDS:
                chunks.append(Chunk(partition, sequence, blob))
            elif kind == WORK:
                work = decode_work(blob)
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
        after, results = self.cascade.step(state, chunks, Time(work.from_ms, work.closes_ms(facts)))
        if work.emits:
            for emission, of_stage in zip(self.emissions, results, strict=True):
                emitted = emission.emit(of_stage, work, bucket)
                if emitted.results:
                    outcome.results[emission.stage] = emitted.results
                if emitted.refused:
                    outcome.letters += emitted.refused
                    outcome.refused[emission.stage] = emitted.refused
                    outcome.samples[emission.stage] = emitted.sample
        return after, outcome


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
