"""Windows whose results late records revise agree with a plain computation.

In any slices, the last document of each window contains all records that arrived in time for it, and no two of its
documents are equal. Restarts change nothing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.streams.stream import StreamSpec
from strandline.ledger.states import CheckpointRow, SliceRow
from strandline.log.reader import OffsetRange
from strandline.processing.audit import recomputation
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.audit.parts import run_parts
from strandline.processing.audit.plan import VersionSpan
from strandline.processing.audit.recomputation import Recomputation
from strandline.processing.audit.stores import ROWS_SCHEMA
from strandline.processing.audit_queries.table import Database, Table
from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter, Outcome
from strandline.processing.desk.records import DeskRecords
from strandline.processing.emission.result_shapes import document_shape
from strandline.processing.emission.stage_emission import StageEmission
from strandline.processing.formats.decoder import NEVER_LATE
from strandline.processing.operators.cascade import Cascade, Chunk, StageResults
from strandline.processing.operators.closing import Closing
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.slices.rewind import RewindPlan, plan_rewind
from strandline.processing.slices.watermark import (
    accepted_partitions,
    closes_after,
    emitted_up_to,
    first_records,
    greatest,
    reached_after,
    rule_after,
    watermark_after,
)
from strandline.processing.source.decoding import DecodedChunk, decoder_of, decoding_of
from strandline.processing.source.recorded_slices import LogTask
from strandline.processing.source.slice_rows import entry_of
from strandline.processing.source.source_config import Piece, TaskConfig
from strandline.processing.source.source_task import SourceTask
from strandline.results.document import Document
from tests.support.examples import examples
from tests.support.ledgers import a_checkpoint, a_slice

STREAM = StreamSpec.from_document(
    {
        "stream": "turbines",
        "format": "json",
        "partitions": 2,
        "schema": {"turbine": "string", "ts": {"type": "timestamp", "unit": "ms"}, "power": "double"},
        "key": "turbine",
        "retention": "7d",
    }
)
SHAPES: list[tuple[dict[str, Any], int, int]] = [
    ({"tumbling": "10s"}, 10_000, 10_000),
    ({"tumbling": "15s", "offset": "7s"}, 15_000, 15_000),
    ({"sliding": {"size": "20s", "every": "5s"}}, 20_000, 5_000),
    ({"sliding": {"size": "25s", "every": "10s"}}, 25_000, 10_000),
    ({"cumulative": {"size": "30s", "step": "10s"}}, 30_000, 10_000),
]


class Record(NamedTuple):
    partition: int
    turbine: str
    ts_ms: int
    power: float


class Case(NamedTuple):
    shape: dict[str, Any]
    size_ms: int
    every_ms: int
    delay_ms: int
    revise_ms: int
    by: list[str]
    records: list[Record]
    more: bool = False
    """True if the job computes another value, as a later version can."""

    @property
    def pipeline(self) -> CheckedPipeline:
        return check(PipelineSpec.from_document(self.document), STREAM)

    @property
    def document(self) -> dict[str, Any]:
        aggregate = {"n": "count(*)", "power": "sum(power)", "first": "first(power)", "most": "max(power)"}
        aggregate |= {"least": "min(power)"} if self.more else {}
        return {
            "pipeline": "health",
            "input": {"stream": "turbines"},
            "event_time": {"field": "ts", "delay": f"{self.delay_ms}ms", "idle_timeout": None},
            "late": {"revise": f"{self.revise_ms}ms"},
            "steps": [
                {"where": "power < 900"},
                {
                    "window": {"name": "some", **self.shape, "by": self.by, "aggregate": aggregate},
                    "emit": [{"elasticsearch": "some"}],
                },
            ],
        }


def a_case(seed: int) -> Case:
    random = Random(seed)
    shape, size_ms, every_ms = random.choice(SHAPES)
    partitions = random.choice([1, 2])
    now_ms, records = 0, list[Record]()
    for _ in range(random.choice([3, 12, 40])):
        now_ms += random.choice([0, 100, 1_000, 9_000, 30_000])
        back_ms = random.choice([0, 0, 500, 7_000, 25_000, 60_000, 200_000])
        at_ms = max(0, now_ms - back_ms)
        power = random.choice([0.1, 0.2, 1e16, -1e16, 3.5, 1000.0])
        records.append(Record(random.randrange(partitions), random.choice("ab"), at_ms, power))
    revise_ms = random.choice([1, 5_000, 40_000, 300_000])
    return Case(
        shape, size_ms, every_ms, random.choice([0, 4_000]), revise_ms, random.choice([["turbine"], []]), records
    )


def at_the_desk(
    case: Case, slice_records: int | None, edges: Sequence[int] = (), *, restarts: bool = False
) -> list[Outcome]:
    """`edges`: where the records are cut into pieces, between which the desk may restart."""
    desk = Desk(case.pipeline, slice_records, restarts=restarts)
    found: list[Outcome] = []
    for first, end in pairwise([0, *edges, len(case.records)]):
        if first and restarts:
            desk.restart()
        part = case.records[first:end]
        lines = [json.dumps({"turbine": one.turbine, "ts": one.ts_ms, "power": one.power}).encode() for one in part]
        found += desk.feed(DeskRecords(lines, [one.partition for one in part]))
    return [*found, *desk.drain()]


def expected(case: Case) -> tuple[dict[tuple[Any, ...], dict[str, Any]], int]:
    """(end, key) -> the last document; and how many records are left out as late. Sums are left folds by partition."""
    reached: dict[int, int] = {}
    watermark_ms: int | None = None
    held: dict[tuple[Any, ...], dict[int, list[tuple[Record, bool]]]] = defaultdict(lambda: defaultdict(list))
    left_out = 0
    for one in case.records:
        in_force = watermark_ms
        if one.partition in reached:
            new_ms = min(reached.values()) - case.delay_ms
            in_force = new_ms if in_force is None else max(in_force, new_ms)
        if in_force is not None and one.ts_ms < in_force - case.revise_ms:
            left_out += 1
            continue
        reached[one.partition] = max(one.ts_ms, reached.get(one.partition, one.ts_ms))
        after_ms = min(reached.values()) - case.delay_ms
        watermark_ms = after_ms if in_force is None else max(in_force, after_ms)
        if one.power >= 900:
            continue
        is_late = in_force is not None and one.ts_ms < in_force
        offset_ms = 7_000 if "offset" in case.shape else 0
        last_ms = (one.ts_ms - offset_ms) // case.every_ms * case.every_ms + offset_ms + case.size_ms
        first_ms = one.ts_ms + 1
        if "cumulative" in case.shape:
            last_ms = one.ts_ms // case.size_ms * case.size_ms + case.size_ms
        for end_ms in range(last_ms, first_ms - 1, -case.every_ms):
            key = tuple(getattr(one, name) for name in case.by)
            held[(end_ms, *key)][one.partition].append((one, is_late))
    found = {}
    for window, by_partition in held.items():
        rows = [row for partition in sorted(by_partition) for row in by_partition[partition]]
        found[window] = {
            "n": len(rows),
            "most": max(one.power for one, _ in rows),
            "revision": sum(is_late for _, is_late in rows),
        }
    return found, left_out


def last_documents(outcomes: list[Outcome]) -> dict[str, dict[str, Any]]:
    """Id -> the last document, without the number of its slice."""
    found = {}
    for one in outcomes:
        if isinstance(one, DeskResult):
            document = json.loads(one.document.source)
            del document["strandline"]
            found[one.document.id] = document
    return found


def by_window(documents: dict[str, dict[str, Any]], case: Case) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {
        (round(datetime.fromisoformat(one["@timestamp"]).timestamp() * 1000), *(one[name] for name in case.by)): {
            name: one[name] for name in ("n", "most", "revision")
        }
        for one in documents.values()
    }


@pytest.mark.guarantee(
    "G585",
    "With `late: {revise: ...}`, the last document of a window contains all its records except those later than the "
    "revision time allows. It is the same to the last bit in any slices, and its `revision` counts the late ones.",
    promise="late-records-revise-one-document",
)
@examples(40)
@given(st.integers(0, 10**9))
def test_the_last_revision_holds_all_records_whatever_the_slices(seed: int) -> None:
    case = a_case(seed)
    random = Random(seed)
    wanted, left_out = expected(case)
    whole = at_the_desk(case, None)
    last = last_documents(whole)
    assert by_window(last, case) == wanted
    assert sum(isinstance(one, LocalDeadLetter) and one.reason == "late" for one in whole) == left_out
    slices = random.choice([1, 2, 5])
    cut = at_the_desk(case, slices)
    assert last_documents(cut) == last, "to the last bit"
    revisions: dict[str, list[int]] = defaultdict(list)
    for one in cut:
        if isinstance(one, DeskResult):
            revisions[one.document.id].append(json.loads(one.document.source)["revision"])
    assert all(sorted(set(one)) == one for one in revisions.values()), (
        "each document of a window holds more late records"
    )
    edges = sorted(random.sample(range(1, len(case.records)), 2))
    restarted = at_the_desk(case, slices, edges, restarts=True)
    assert restarted == at_the_desk(case, slices, edges), "each revision, to the last bit"
    assert last_documents(restarted) == last


# What a job does: slices that are recorded, kills, replays, a store that takes higher versions only, and the audit.


@dataclass
class Store:
    """Elasticsearch, as the writer uses it."""

    documents: dict[str, Document] = field(default_factory=dict)
    overwritten: int = 0

    def write(self, one: Document) -> None:
        assert one.version is not None
        held = self.documents.get(one.id)
        if held is not None and held.version == one.version:
            assert body(held) == body(one), "what is found again is equal"
            return
        assert held is None or held.version < one.version, "nothing older comes later"
        self.overwritten += held is not None
        self.documents[one.id] = one

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        return {identity: body(one) for identity, one in self.documents.items()}


def body(one: Document) -> dict[str, Any]:
    return without_origin(json.loads(one.source))


class Job:
    """A job over slices of the case's records, with some number of buckets."""

    def __init__(self, case: Case, cuts: list[int]) -> None:
        self.cuts, self.pipeline = cuts, case.pipeline
        stage = self.pipeline.stages[0]
        self.stage, self.kept = stage, self.pipeline.kept
        self.store, self.rejected = Store(), 0
        self.config = TaskConfig(
            decoding=decoding_of(self.pipeline, ""),
            stages=self.pipeline.stages,
            types=(tuple(STREAM.types.items()),),
            bucket_keys=(0, 1),
            late_is_dropped=False,
            crashes=False,
        )
        self.lines: dict[Piece, tuple[list[bytes], list[int]]] = {}
        self.slices: list[tuple[SliceRow, list[Piece]]] = []
        self.checkpoints: list[CheckpointRow] = []
        self.shape = document_shape(self.pipeline, stage, stage.emits[0], 1)
        self.decoder = decoder_of(self.config.decoding.inputs[0])
        self.parts = [case.records[first:end] for first, end in pairwise([0, *cuts, len(case.records)])]

    def upgraded(self, case: Case) -> Job:
        """The job as another version of it goes on."""
        later = Job(case, self.cuts)
        later.lines, later.slices, later.checkpoints, later.store = (
            self.lines,
            self.slices,
            self.checkpoints,
            self.store,
        )
        return later

    def plan(self, number: int) -> None:
        """Record the slice; the one behind the last part closes all."""
        before = self.slices[-1][0] if self.slices else None
        checkpoint = self.checkpoints[-1] if self.checkpoints else None
        firsts = before.offsets["turbines"] if before else {0: 0, 1: 0}
        part = self.parts[number - 1] if number <= len(self.parts) else []
        ends = {at: firsts[at] + sum(one.partition == at for one in part) for at in firsts}
        row = a_slice(
            number,
            rule=rule_after(self.pipeline.event_time_rule, before, checkpoint),
            offsets_first={"turbines": firsts},
            offsets={"turbines": ends},
            reached=checkpoint.reached if checkpoint else {},
        )
        first = first_records(row.reached, row.offsets_first, row.offsets)
        watermark_ms = watermark_after(row.rule, checkpoint, {}, first_records=first)
        if number > len(self.parts):
            watermark_ms = END_MS
        row = replace(row, watermark_ms=watermark_ms)
        pieces = []
        for at, offset in firsts.items():
            some = [one for one in part if one.partition == at]
            if some:
                piece = Piece.of_slice(row, OffsetRange("turbines", at, offset, ends[at]))
                lines = [
                    json.dumps({"turbine": one.turbine, "ts": one.ts_ms, "power": one.power}).encode() for one in some
                ]
                self.lines[piece] = lines, list(range(offset, ends[at]))
                pieces.append(piece)
        self.slices.append((row, pieces))

    def decoded(self, piece: Piece) -> DecodedChunk:
        lines, offsets = self.lines[piece]
        found = self.decoder.decode(lines, [0] * len(lines), piece.late_below_ms)
        chunk = DecodedChunk("turbines", piece.offsets.partition, offsets, [0] * len(lines), found, lines.__getitem__)
        limit_ms = NEVER_LATE if piece.revised_below_ms is None else piece.revised_below_ms
        return chunk.with_late(np.full(len(lines), limit_ms))

    def step(
        self, states: dict[int, bytes], numbers: Sequence[int], closing: Closing, cascade: Cascade
    ) -> list[StageResults]:
        """One batch in all buckets."""
        task = SourceTask(replace(self.config, bucket_keys=tuple(range(cascade.buckets))))
        chunks: dict[int, list[Chunk]] = defaultdict(list)
        for number in numbers:
            for chunk in map(self.decoded, self.slices[number - 1][1]):
                for bucket, kind, partition, sequence, blob in task.rows([chunk], is_new=False, work=None):
                    if (entry := entry_of(kind)) is not None:
                        chunks[bucket].append(Chunk(partition, sequence, blob, entry))
        found = []
        for bucket in range(cascade.buckets):
            stepped = cascade.step(states.get(bucket), chunks[bucket], closing)
            states[bucket] = stepped.state
            assert not stepped.parts
            found += stepped.results
        return found

    def run(self, *, until: int, dies: bool, buckets: int, batch: int) -> None:
        """One run: rewind, finish the slice that is planned, and go on up to a slice; `dies` before that one's checkpoint."""
        cascade = Cascade(self.pipeline.stages, buckets)
        checkpoint = self.checkpoints[-1] if self.checkpoints else None
        plan = plan_rewind(checkpoint, self.first_slice_reaching, self.kept)
        states: dict[int, bytes] = {}
        emission = StageEmission(
            (), (), self.shape, "", self.stage.name, 1, plan.emitted.get(self.stage.name), "", "", 0
        )
        committed = plan.slice_committed
        for first in range(plan.slice_first, committed + 1, batch):
            last = min(first + batch - 1, committed)
            closes_ms = plan.closed_ms(self.checkpoints[last - 1])
            self.step(states, range(first, last + 1), Closing(self.from_ms(plan, first), closes_ms), cascade)
        for number in range(committed + 1, until + 1):
            if len(self.slices) < number:
                self.plan(number)
            row, pieces = self.slices[number - 1]
            before = self.checkpoints[-1] if self.checkpoints else None
            latest = {
                piece.offsets.partition: ms
                for piece in pieces
                if (ms := self.decoded(piece).decoded.latest_event_ms) is not None
            }
            reached = reached_after(row.reached, {"turbines": latest} if latest else {})
            closes_ms = closes_after(row, reached, accepted_partitions(row, {"turbines": latest}))
            emitted_ms = plan.closed_ms(before) if before else None
            closing = Closing(self.from_ms(plan, number), closes_ms, emitted_ms)
            for results in self.step(states, [number], closing, cascade):
                rows = emission._new(results.rows)
                if results.revised is not None:
                    rows = pa.concat_batches([rows, results.revised])
                for one in self.shape.documents(rows.filter(rows.column("@problem").is_null()), 1, number):
                    assert isinstance(one, Document)
                    self.store.write(one)
            if dies and number == until:
                return
            emitted = emitted_up_to([(self.stage.name, self.stage.shape)], closes_ms, before.emitted if before else {})
            latest_ms = greatest(before.latest_event_ms if before else None, *latest.values())
            self.checkpoints.append(
                a_checkpoint(number, closes_ms=closes_ms, emitted=emitted, latest_event_ms=latest_ms, reached=reached)
            )

    def from_ms(self, plan: RewindPlan, first: int) -> int | None:
        before = self.checkpoints[first - 2] if first > 1 else None
        begins_empty = first == plan.slice_first and plan.reaches_back_to_ms is not None
        return plan.closed_ms(before) if before and not begins_empty else None

    def first_slice_reaching(self, event_ms: int) -> int | None:
        return next((row.slice for row in self.checkpoints if (row.latest_event_ms or 0) >= event_ms), None)

    def computed_anew(self, numbers: Sequence[int]) -> dict[str, dict[str, Any]]:
        """Compute as a backfill does: all slices at once, without a state."""
        closing = Closing(None, END_MS)
        results = self.step({}, numbers, closing, Cascade(self.pipeline.stages, 1))
        documents = [one for some in results for one in self.shape.documents(some.rows, 1, 1)]
        return {one.id: body(one) for one in documents if isinstance(one, Document)}

    def audited(self, last: int, ends: EndRange) -> dict[str, dict[str, Any]]:
        """Return what the audit computes of these windows from the slices up to the last one, without sums."""
        with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
            patch.setattr(recomputation, "decode_pieces", lambda _, pieces: map(self.decoded, pieces))
            span = VersionSpan(1, self.pipeline, 1, 1, last, {self.stage.name: ends})
            compared = Table(Path(directory) / "compared", ROWS_SCHEMA)
            compared.create()
            tasks = [LogTask([piece], own=True) for _, pieces in self.slices[:last] for piece in pieces]
            again = Recomputation(span, self.config.decoding, tasks, Path(directory) / "span", compared)
            list(run_parts(again.parts))
            database = Database(Path(directory) / "spilled", 256)
            try:
                again.compute(database)
            finally:
                database.close()
            rows = pq.read_table(Path(directory) / "compared").to_pylist()
        found = {row["id"]: json.loads(row["body"]) for row in rows if row["store"] == "some"}
        return without_sums({identity: without_origin(one) for identity, one in found.items()})


def without_sums(documents: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For the audit, which adds in another order."""
    return {identity: {**one, "power": 0} for identity, one in documents.items()}


def without_origin(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "strandline"}


END_MS = 10**9


@pytest.mark.guarantee(
    "G586",
    "A window has one document. A revision replaces earlier revisions and never a later one. After a kill between "
    "emission and checkpoint, the same revisions are written, each once.",
    promise="late-records-revise-one-document",
)
@pytest.mark.guarantee(
    "G588",
    "An audit computes revised windows by a query over the log, with the same records and `revision`. A revision by a "
    "slice outside the audited range isn't reported as a difference.",
    promise="late-records-revise-one-document",
)
@pytest.mark.guarantee("G589")
@examples(40)
@given(st.integers(0, 10**9))
def test_kills_change_nothing_and_audit_and_backfill_agree(seed: int) -> None:
    """Jobs are killed before a checkpoint, after the slice's documents are written.

    They start again with other buckets and batches.
    """
    case, random = a_case(seed), Random(seed)
    cuts = some_cuts(case, random)
    job, killed = Job(case, cuts), Job(case, cuts)
    last = len(job.parts) + 1
    job.run(until=last, dies=False, buckets=1, batch=1)
    for number in range(1, last + 1):
        if random.random() < 0.5 or number == last:
            killed.run(until=number, dies=True, buckets=random.choice([1, 2, 3]), batch=random.choice([1, 2, 100]))
    killed.run(until=last, dies=False, buckets=2, batch=3)
    assert killed.slices == job.slices
    assert killed.checkpoints == job.checkpoints
    assert killed.store == job.store, "to the last bit, and each as often revised"
    assert job.computed_anew(range(1, last + 1)) == job.store.results
    assert job.audited(last, EndRange(None, END_MS)) == without_sums(job.store.results)


def some_cuts(case: Case, random: Random) -> list[int]:
    return sorted(random.sample(range(1, len(case.records)), min(random.choice([1, 4, 9]), len(case.records) - 1)))


@examples(20)
@given(st.integers(0, 10**9))
def test_no_version_revises_what_another_has_closed(seed: int) -> None:
    """A later version takes over, and is killed once: each document is of one of them, with all records that it took in."""
    case, random = a_case(seed), Random(seed)
    job = Job(case, some_cuts(case, random))
    last = len(job.parts) + 1
    at = random.randint(1, last - 1)
    job.run(until=at, dies=False, buckets=1, batch=1)
    ends_ms = job.checkpoints[-1].emitted.get("some", 0)
    first = dict(job.store.results)
    longer = case._replace(more=True, revise_ms=random.choice([case.revise_ms, 300_000]))
    later = job.upgraded(longer)
    later.run(until=random.randint(at + 1, last), dies=True, buckets=2, batch=2)
    later.run(until=last, dies=False, buckets=3, batch=100)
    results = later.store.results
    assert {identity: results[identity] for identity in first} == first
    theirs = {identity: one for identity, one in results.items() if identity not in first}
    assert all("least" in one for one in theirs.values())
    assert job.audited(at, EndRange(None, ends_ms)) == without_sums(first)
    assert later.audited(last, EndRange(ends_ms, END_MS)) == without_sums(theirs)
