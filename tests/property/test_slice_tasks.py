"""Both shapes of the tasks of a slice give the same: tasks that exchange records by key, and one task for the whole slice.

Both process the same slices of drawn pipelines, with windows, cascades, joins, dedupe, lookups, emissions of records, and records
that can't be used. The documents, the dead letters, and the facts of each checkpoint are equal to the byte.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from strandline.log.reader import OffsetRange
from strandline.processing.emission import keyed_task, pool_task, stage_emission
from strandline.processing.emission.dead_letters import DeadLetter
from strandline.processing.emission.keyed_task import BucketOutcome, DeadLetterTarget, KeyedTask
from strandline.processing.emission.member_configs import MemberConfig
from strandline.processing.emission.pool_task import PoolDirectory, PoolTask
from strandline.processing.emission.result_shapes import letter_shape
from strandline.processing.emission.stage_emission import RecordEmission, StageEmission
from strandline.processing.operators.dedupe import dedupe_state
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.source import kept_lookups
from strandline.processing.source.decoding import task_config
from strandline.processing.source.kept_lookups import LookupRef
from strandline.processing.source.member_slices import MemberSlice
from strandline.processing.source.slice_rows import SliceWork, add_facts, bucket_keys, encode
from strandline.processing.source.source_config import Piece
from strandline.processing.source.source_task import SourceTask
from strandline.results.writer import WriteReport
from tests.property.test_whole_pipelines import a_pipeline, functions  # noqa: F401  # the fixture of its functions
from tests.support.examples import examples
from tests.support.oracle import Sent
from tests.support.recorded_jobs import RecordedLog
from tests.support.some_pipelines import some_log

JOB = "whole"
RECORDS, SLICE_RECORDS, BUCKETS = 150, 25, 3
SPREAD, ONE = "spread", "one"
WRITTEN: defaultdict[str, set[tuple[object, ...]]] = defaultdict(set)
"""Shape -> rows and dead letters. A repeated task writes the same ones again."""


@dataclass(frozen=True)
class KeptWriter:
    """A writer that keeps its rows. The rows stay in WRITTEN, because the writer is pickled."""

    shape: str
    stage: str

    def prepare(self, next_end_ms: int | None) -> None:
        raise AssertionError("a worker writes")

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        rows = [str(row) for batch in batches for row in batch.to_pylist()]
        counted = Counter(rows)
        WRITTEN[self.shape] |= {(emission, self.stage, row, count) for row, count in counted.items()}
        return WriteReport(created=len(rows))


class KeptLetters:
    """A DeadLetterWriter that keeps its letters. The job's name contains the shape."""

    def __init__(self, _bootstrap: str, job: str, *_others: object, **_more: object) -> None:
        self._shape = job.partition(":")[2]

    def write(self, letters: Iterable[DeadLetter], _before: object) -> int:
        found = list(letters)
        WRITTEN[self._shape] |= {(one.identity, one.value, one.headers) for one in found}
        return len(found)


class Log(RecordedLog):
    """The records of all partitions, for tasks that close their reader."""

    def close(self) -> None:
        """Do nothing, see `SharedRecords.close`."""


@dataclass(frozen=True)
class Slice:
    """A recorded slice: its pieces, and the work of the keyed tasks."""

    pieces: list[Piece]
    work: SliceWork


def slices_of(random: Random, pipeline: CheckedPipeline, sent: Sequence[Sent], streams: Sequence[str]) -> list[Slice]:
    """Cut the log. Event time reaches the latest record so far, minus a delay; the last slice closes every window."""
    lookups = tuple(LookupRef(name, version, "") for name, version in pipeline.lookups)
    revise_ms = pipeline.spec.revise_ms or 0
    ends: Counter[tuple[str, int]] = Counter()
    found: list[Slice] = []
    closed_ms, delay_ms = None, random.choice([0, 500, 5_000])
    for first in range(0, len(sent), SLICE_RECORDS):
        part = sent[first : first + SLICE_RECORDS]
        pieces = []
        for place, count in sorted(Counter((streams[one.stream], one.partition) for one in part).items()):
            offsets = OffsetRange(*place, ends[place], ends[place] + count)
            late_ms = None if closed_ms is None else closed_ms - revise_ms
            pieces.append(
                Piece(offsets, late_ms, None, lookups=lookups, revised_below_ms=closed_ms if revise_ms else None)
            )
            ends[place] += count
        reached_ms = max(one.at_ms for one in sent[: first + len(part)]) - delay_ms
        is_last = first + SLICE_RECORDS >= len(sent)
        to_ms = max(reached_ms, closed_ms or 0) if not is_last else reached_ms + 400 * 86_400_000
        work = SliceWork(len(found) + 1, True, closed_ms, to_ms, {}, {}, emitted_ms=closed_ms, digest="digest")
        found.append(Slice(pieces, work))
        closed_ms = to_ms
    return found


def keyed_of(pipeline: CheckedPipeline, shape: str, keys: tuple[int, ...], checkpoint: Path) -> KeyedTask:
    source = task_config(pipeline, "nowhere", keys)
    job = f"{JOB}:{shape}"

    def parts(stage: str) -> tuple[object, ...]:
        of_stage = next(one for one in (*pipeline.stages, *pipeline.record_stages) if one.name == stage)
        letters = letter_shape(pipeline, of_stage, 1)
        return (KeptWriter(shape, stage),), (), letters, job, stage, 1, None, "", "", 0

    return KeyedTask(
        source.stages,
        keys,
        tuple(StageEmission(*parts(stage.name)) for stage in pipeline.stages),  # type: ignore[arg-type]
        DeadLetterTarget("nowhere", "none", job, 1, 0),
        tuple(RecordEmission(*parts(stage.name)) for stage in pipeline.record_stages),  # type: ignore[arg-type]
        source.record_stages,
        checkpoint,
    )


def facts_of(outcomes: Sequence[BucketOutcome]) -> tuple[object, ...]:
    """All that a checkpoint records of the outcomes of a slice."""
    facts = add_facts(one for outcome in outcomes for one in outcome.facts)
    facts.bytes = facts.cpu_us = 0  # costs, on which no result depends
    results, refused = Counter[str](), Counter[str]()
    for outcome in outcomes:
        results.update(outcome.results)
        refused.update(outcome.refused)
    letters, duplicates = (sum(getattr(one, name) for one in outcomes) for name in ("letters", "duplicates"))
    return facts, results, refused, letters, duplicates


def spread(pipeline: CheckedPipeline, log: Log, slices: Sequence[Slice], directory: Path) -> list[tuple[object, ...]]:
    """Process the slices with one source task for each partition and several buckets. Return the facts of each slice."""
    keys = bucket_keys(BUCKETS, 2)
    source, keyed = task_config(pipeline, "nowhere", keys), keyed_of(pipeline, SPREAD, keys, directory)
    states: dict[int, bytes] = {}
    found = []
    for one in slices:
        rows = defaultdict(list)
        for number, piece in enumerate(one.pieces):
            work = encode(one.work) if number == 0 else None
            for key, *row in SourceTask(source).blobs([piece], is_new=True, work=work, reader=log):
                rows[key].append(tuple(row))
        outcomes, parts = [], []
        for bucket, key in enumerate(keys):
            done = keyed.process(bucket, rows[key], states.get(bucket))  # type: ignore[arg-type]
            states[bucket] = done.state
            outcomes.append(done.outcome)
            parts += done.parts
        for bucket, stage in sorted({(target, stage) for target, stage, _ in parts}):
            of_bucket = [part for target, of, part in parts if (target, of) == (bucket, stage)]
            outcomes.append(keyed.emit_merged(bucket, stage, of_bucket, one.work))
        found.append(facts_of(outcomes))
    return found


def in_one_task(
    random: Random, pipeline: CheckedPipeline, log: Log, slices: Sequence[Slice], directory: PoolDirectory
) -> list[tuple[object, ...]]:
    """Process the slices with one task for each. Some tasks are repeated, as Spark does it if a worker is lost."""
    keyed = keyed_of(pipeline, ONE, (0,), directory.of_member(JOB, 1))
    config = directory.configs.add(MemberConfig(task_config(pipeline, "nowhere", (0,)), keyed))
    task = PoolTask(directory, "nowhere")
    found = []
    for one in slices:
        number = one.work.number
        before = number - 1 or None
        member = MemberSlice(JOB, 1, config, number, before, tuple(one.pieces), True, False, encode(one.work))
        for _ in range(random.choice([1, 1, 2])):
            (outcome,) = task.outcomes([member])
        assert outcome.failure is None, outcome.failure
        assert outcome.done is not None
        found.append(facts_of([outcome.done]))
    return found


def differences(seed: int, directory: Path) -> Iterator[str]:
    """Differences between both shapes for one drawn pipeline."""
    random = Random(seed)
    drawn, pipeline = a_pipeline(random)
    sent = [one for one in some_log(random, drawn, RECORDS) if isinstance(one, Sent)]
    log, slices = Log(sent, drawn.streams), slices_of(random, pipeline, sent, drawn.streams)
    WRITTEN.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            kept_lookups, "tables_of_process", lambda _, refs: {one.name: pipeline.tables[one.name] for one in refs}
        )
        patch.setattr(keyed_task, "DeadLetterWriter", KeptLetters)
        patch.setattr(stage_emission, "DeadLetterWriter", KeptLetters)
        patch.setattr(dedupe_state, "INLINE_ROWS_MAX", 5)
        patch.setattr(pool_task, "SharedRecords", lambda _reader, _announced: log)
        wanted = spread(pipeline, log, slices, directory / SPREAD)
        found = in_one_task(random, pipeline, log, slices, PoolDirectory(directory / ONE))
    for number, (ours, theirs) in enumerate(zip(found, wanted, strict=True), 1):
        if ours != theirs:
            yield f"facts of slice {number}: {ours} instead of {theirs}"
    missing, extra = WRITTEN[SPREAD] - WRITTEN[ONE], WRITTEN[ONE] - WRITTEN[SPREAD]
    yield from (f"missing: {one}" for one in sorted(missing, key=str)[:3])
    yield from (f"too much: {one}" for one in sorted(extra, key=str)[:3])
    if not WRITTEN[SPREAD]:
        yield "nothing was written"


@pytest.mark.guarantee(
    "G905",
    "A slice that one task computes gives the same documents, dead letters, and checkpoints as a slice whose tasks exchange "
    "records.",
    promise="results-depend-only-on-the-log",
)
@examples(12, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 2**32))
def test_one_task_for_a_slice_writes_the_same_as_tasks_that_exchange_records(seed: int) -> None:
    with TemporaryDirectory() as directory:
        assert list(differences(seed, Path(directory))) == []
