"""The results of a pipeline that reads several streams equal those of an independent computation, to the last bit.

This is so for any slices, chunks and buckets, and after a restart. A branch over one stream gives the results of a job
that reads this stream alone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.streams.stream import StreamSpec
from strandline.ledger.states import EventTimeRule
from strandline.processing.audit import event_times, recomputation
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.audit.parts import Account, run_parts
from strandline.processing.audit.plan import VersionSpan
from strandline.processing.audit.recomputation import Recomputation
from strandline.processing.audit.stores import ROWS_SCHEMA
from strandline.processing.audit_queries.table import Database, Table
from strandline.processing.desk.desk import Desk, DeskResult, Outcome
from strandline.processing.desk.records import DeskRecords
from strandline.processing.operators.cascade import Cascade, Chunk
from strandline.processing.operators.closing import Closing
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.slices.watermark import watermark_by
from strandline.processing.source.decoding import DecodedChunk, decoder_of, decoding_of, task_config
from strandline.processing.source.recorded_slices import LogTask
from strandline.processing.source.slice_rows import entry_of
from strandline.processing.source.source_config import OffsetRange, Piece
from strandline.processing.source.source_task import SourceTask
from strandline.results.records.partition_labels import label_of, partition_of, stream_index_of
from tests.support.examples import examples

START_MS = 1_700_000_000_000
WINDOW_MS = 10_000
PARTITIONS = 3
DELAYS_MS = {"a": 2_000, "b": 5_000}
SCHEMAS: dict[str, dict[str, object]] = {
    "a": {"k": "string", "site": "string", "ts": {"type": "timestamp", "unit": "ms"}, "v": "double", "own": "long?"},
    "b": {"k": "string", "site": "string", "at": {"type": "timestamp", "unit": "ms"}, "w": "double"},
}
STREAMS = {name: StreamSpec.from_document({"stream": name, "schema": schema}) for name, schema in SCHEMAS.items()}
INPUTS = [
    {"stream": "a", "event_time": {"field": "ts", "delay": "2s", "idle_timeout": None}},
    {"stream": "b", "event_time": {"field": "at", "delay": "5s", "idle_timeout": None}},
]
AGGREGATES = {"n": "count(*)", "s": "sum(v)", "peak": "max(v)"}
STEPS: list[dict[str, Any]] = [
    {"name": "bb", "from": "b", "derive": {"v": "w * 0.5"}},
    {"name": "all", "from": ["a", "bb"], "where": "v > -40"},
    {"emit": [{"elasticsearch": "raw"}], "name": "raw"},
    {"window": {"name": "by_key", "tumbling": "10s", "by": ["k"], "aggregate": AGGREGATES}},
    {"emit": [{"elasticsearch": "by-key"}]},
    {"window": {"name": "of_all", "tumbling": "20s", "aggregate": {"n": "sum(n)", "s": "sum(s)"}}},
    {"emit": [{"elasticsearch": "of-all"}]},
    {"from": "all", "window": {"name": "by_site", "tumbling": "10s", "by": ["site"], "aggregate": AGGREGATES}},
    {"emit": [{"elasticsearch": "by-site"}]},
    {"from": "b", "window": {"name": "of_b", "tumbling": "10s", "by": ["k"], "aggregate": {"s": "sum(w)"}}},
    {"emit": [{"elasticsearch": "of-b"}]},
]


def checked(inputs: list[dict[str, Any]] = INPUTS, steps: list[dict[str, Any]] = STEPS) -> CheckedPipeline:
    spec = PipelineSpec.from_document({"pipeline": "p", "inputs": inputs, "steps": steps})
    return check(spec, [STREAMS[name] for name in spec.streams])


PIPELINE = checked()


@dataclass(frozen=True)
class Sent:
    """A record, in the order of the log."""

    stream: str
    partition: int
    event_ms: int
    key: str
    site: str
    value: float

    @property
    def bytes(self) -> bytes:
        time, value = ("ts", "v") if self.stream == "a" else ("at", "w")
        return json.dumps({"k": self.key, "site": self.site, time: self.event_ms, value: self.value}).encode()

    @property
    def v(self) -> float:
        return self.value if self.stream == "a" else self.value * 0.5


def some_records(random: Random, count: int) -> list[Sent]:
    """Each stream runs at a pace of its own, with disorder."""
    paces = {"a": random.choice([50, 300]), "b": random.choice([50, 300])}
    at_ms, found = {"a": START_MS, "b": START_MS + random.choice([0, 4_000])}, []
    for _ in range(count):
        stream = random.choice("ab")
        at_ms[stream] += random.randrange(2 * paces[stream])
        event_ms = at_ms[stream] - random.choice([0, 0, random.randrange(9_000)])
        found.append(
            Sent(
                stream,
                random.randrange(PARTITIONS),
                event_ms,
                f"k{random.randrange(3)}",
                f"s{random.randrange(2)}",
                random.choice([0.1, 1e16, -1.0, random.uniform(-100, 100)]),
            )
        )
    return found


class Oracle:
    """In plain Python: which records are late, and the windows of the others."""

    def __init__(self, records: Sequence[Sent]) -> None:
        self.late = 0
        reached: dict[tuple[str, int], int] = {}
        watermark_ms: int | None = None
        accepted: list[Sent] = []
        for one in records:
            place = one.stream, one.partition
            if watermark_ms is not None and one.event_ms < watermark_ms:
                self.late += 1
                continue
            reached[place] = max(one.event_ms, reached.get(place, one.event_ms))
            accepted.append(one)
            least_ms = min(ms - DELAYS_MS[stream] for (stream, _), ms in reached.items())
            watermark_ms = least_ms if watermark_ms is None else max(watermark_ms, least_ms)
        self.kept = [one for one in accepted if one.v > -40]
        self.accepted = accepted

    def windows(self, by: str, records: Sequence[Sent], value: str = "v") -> dict[tuple[int, str], tuple[int, float]]:
        """(end, key) -> (records, sum): added by offset within a partition, then partition by partition, stream by stream."""
        parts: dict[tuple[int, str], dict[tuple[str, int], list[float]]] = defaultdict(lambda: defaultdict(list))
        for one in records:
            end_ms = one.event_ms // WINDOW_MS * WINDOW_MS + WINDOW_MS
            parts[end_ms, getattr(one, by)][one.stream, one.partition].append(getattr(one, value))
        found = {}
        for window, of_window in parts.items():
            total: float | None = None
            for place in sorted(of_window):
                part = of_window[place][0]
                for number in of_window[place][1:]:
                    part += number
                total = part if total is None else total + part
            assert total is not None
            found[window] = sum(map(len, of_window.values())), total
        return found


def in_pieces(records: Sequence[Sent], random: Random) -> Iterator[DeskRecords]:
    """The records in their order, those that follow each other in one stream together, in pieces of any length."""
    offsets: dict[tuple[str, int], int] = defaultdict(int)
    held: list[Sent] = []

    def fed() -> DeskRecords:
        numbers = []
        for one in held:
            numbers.append(offsets[one.stream, one.partition])
            offsets[one.stream, one.partition] += 1
        return DeskRecords(
            [one.bytes for one in held], [one.partition for one in held], None, (), numbers, held[0].stream
        )

    for one in records:
        if held and (held[0].stream != one.stream or random.random() < 0.2):
            yield fed()
            held = []
        held.append(one)
    if held:
        yield fed()


def by_desk(
    pipeline: CheckedPipeline, records: Sequence[Sent], random: Random, slice_records: int | None
) -> tuple[list[Outcome], Desk]:
    desk = Desk(pipeline, slice_records, restarts=True)
    found: list[Outcome] = []
    for piece in in_pieces(records, random):
        found += desk.feed(piece)
        if random.random() < 0.05:
            desk.restart()
    found += desk.drain()
    return found, desk


def documents(outcomes: Sequence[Outcome], stage: str | None = None) -> list[dict[str, Any]]:
    found = []
    for one in outcomes:
        if isinstance(one, DeskResult) and stage in (None, one.stage):
            source = json.loads(one.document.source)
            source["strandline"] = {name: value for name, value in source["strandline"].items() if name != "emission"}
            found.append({"_id": one.document.id, **source})
    return sorted(found, key=lambda one: json.dumps(one, sort_keys=True))


def end_ms(document: dict[str, Any]) -> int:
    from datetime import datetime

    return round(datetime.fromisoformat(document["@timestamp"]).timestamp() * 1000)


@pytest.mark.guarantee(
    "G450",
    "A pipeline over several streams equals an independent computation, to the last bit, in any slices, pieces, and "
    "buckets, and after restarts. Rows are added in the order of the streams in the document, then partition, then "
    "offset.",
    promise="operators-compute-what-the-reference-describes",
)
@examples(5, deadline=None)
@given(seed=st.integers(0, 10**9), slices=st.sampled_from([1, 2, 7, 30, None]))
def test_results_are_those_of_an_independent_computation_to_the_last_bit(seed: int, slices: int | None) -> None:
    random = Random(seed)
    records = some_records(random, 80)
    oracle = Oracle(records)
    found, desk = by_desk(PIPELINE, records, random, slices)
    assert desk.counts.rejected["late"] == oracle.late
    for stage, by in (("by_key", "key"), ("by_site", "site")):
        shown = {
            (end_ms(one), one["k" if by == "key" else "site"]): (one["n"], one["s"]) for one in documents(found, stage)
        }
        assert shown == oracle.windows(by, oracle.kept)
    of_b = {(end_ms(one), one["k"]): one["s"] for one in documents(found, "of_b")}
    only_b = [one for one in oracle.accepted if one.stream == "b"]
    assert of_b == {window: total for window, (_, total) in oracle.windows("key", only_b, "value").items()}
    raw = documents(found, "raw")
    assert len({one["_id"] for one in raw}) == len(raw) == len(oracle.kept), "of no two streams the same id"
    assert sorted(one["v"] for one in raw) == sorted(one.v for one in oracle.kept)
    other, _ = by_desk(PIPELINE, records, random, random.choice([1, 5, 40, None]))
    assert documents(other) == documents(found)


@dataclass(frozen=True)
class Slice:
    """A part of the log as a source task reads it: by stream and partition."""

    chunks: list[DecodedChunk]
    closes_ms: int | None


def chunks_of(
    pipeline: CheckedPipeline, records: Sequence[Sent], firsts: dict[tuple[str, int], int]
) -> list[DecodedChunk]:
    """The records of a slice, decoded; none is late. `firsts` moves on."""
    decoding = decoding_of(pipeline, "")
    places = {one: at for at, one in enumerate(pipeline.streams)}
    found = []
    for stream, partition in sorted({(one.stream, one.partition) for one in records}):
        own = [one for one in records if (one.stream, one.partition) == (stream, partition)]
        values, times_ms = [one.bytes for one in own], [one.event_ms for one in own]
        first = firsts.get((stream, partition), 0)
        firsts[stream, partition] = first + len(values)
        decoded = decoder_of(decoding.of(stream)).decode(values, times_ms, None)
        offsets = range(first, first + len(values))
        found.append(
            DecodedChunk(stream, partition, offsets, times_ms, decoded, values.__getitem__, place=places[stream])
        )
    return found


def by_buckets(
    pipeline: CheckedPipeline, records: Sequence[Sent], random: Random, buckets: int
) -> dict[str, list[Any]]:
    """Return stage -> results of windows, computed in `buckets` buckets and in slices of any length.

    No record is late.
    """
    task = SourceTask(task_config(pipeline, "", tuple(range(buckets))))
    cascade = Cascade(pipeline.stages, buckets)
    states: list[bytes | None] = [None] * buckets
    firsts: dict[tuple[str, int], int] = {}
    found: dict[str, list[Any]] = defaultdict(list)
    at, closed_ms, last_ms = 0, None, max(one.event_ms for one in records) + 60_000
    while at < len(records):
        taken = records[at : at + random.choice([1, 10, 60, 200])]
        at += len(taken)
        left = [one.event_ms for one in records[at:]]
        closes_ms = min(left) if left else last_ms
        of_bucket: dict[int, list[Chunk]] = defaultdict(list)
        chunks = chunks_of(pipeline, taken, firsts)
        random.shuffle(chunks)
        for bucket, kind, label, sequence, blob in task.rows(chunks, is_new=True, work=None):
            if (entry := entry_of(kind)) is not None:
                of_bucket[bucket].append(Chunk(label, sequence, blob, entry))
        parts: dict[int, list[bytes]] = defaultdict(list)
        for bucket in range(buckets):
            random.shuffle(of_bucket[bucket])
            done = cascade.step(states[bucket], of_bucket[bucket], Closing(closed_ms, closes_ms))
            states[bucket] = done.state
            for results in done.results:
                found[results.stage] += results.rows.to_pylist()
            for _, stage, part in done.parts:
                parts[stage].append(part)
        for stage, some in parts.items():
            random.shuffle(some)
            merged = cascade.merge(stage, some)
            found[merged.stage] += merged.rows.to_pylist()
        closed_ms = closes_ms
    return {stage: sorted(rows, key=repr) for stage, rows in found.items()}


@pytest.mark.guarantee("G450")
@examples(5, deadline=None)
@given(seed=st.integers(0, 10**9), buckets=st.sampled_from([1, 2, 5]))
def test_slices_buckets_and_the_order_of_chunks_change_no_bit(seed: int, buckets: int) -> None:
    random = Random(seed)
    records = some_records(random, 120)
    whole = by_buckets(PIPELINE, records, Random(seed), 1)
    assert {stage for stage, rows in whole.items() if rows} == {"by_key", "of_all", "by_site", "of_b"}
    assert by_buckets(PIPELINE, records, random, buckets) == whole


@pytest.mark.guarantee(
    "G451",
    "A branch over one of several streams computes the same as a job over this stream alone, to the last bit.",
    promise="results-depend-only-on-the-log",
)
@examples(3, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_branch_over_one_stream_computes_what_a_job_over_it_alone_computes(seed: int) -> None:
    random = Random(seed)
    records = some_records(random, 120)
    both = by_buckets(PIPELINE, records, random, 3)
    of_b = [step for step in STEPS if "of_b" in str(step) or "of-b" in str(step)]
    alone = checked([INPUTS[1]], of_b)
    own = by_buckets(alone, [one for one in records if one.stream == "b"], random, 2)
    assert own["of_b"] == both["of_b"]


@pytest.mark.guarantee(
    "G452",
    "An audit of a pipeline over several streams computes the same by its own queries, and computes the watermark "
    "over the streams by a different implementation.",
    promise="the-audit-finds-every-difference",
)
def test_an_audit_computes_the_same_by_its_own_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No record is late, and the pieces of the audit are of another length than the slices. Sums are exact in any order, which is
    not the same by the audit's queries."""
    random = Random(5)
    records = exact_records(random, 300)
    found, accounts = by_audit(PIPELINE, records, random, tmp_path, monkeypatch)
    assert sum(one.results["raw"] for one in accounts) == sum(one.v > -40 for one in records)
    assert found == by_buckets(PIPELINE, records, random, 2)


def exact_records(random: Random, count: int) -> list[Sent]:
    """Such that their sums are exact."""
    return [replace(one, value=random.randrange(-200, 200) / 4) for one in some_records(random, count)]


def by_audit(
    pipeline: CheckedPipeline, records: Sequence[Sent], random: Random, directory: Path, patch: pytest.MonkeyPatch
) -> tuple[dict[str, list[Any]], list[Account]]:
    """Stage -> results of windows, by the audit's tables and queries, and what its parts counted; nothing is late."""
    decoding = decoding_of(pipeline, "")
    pieces: dict[Piece, list[Sent]] = {}
    for stream, partition in sorted({(one.stream, one.partition) for one in records}):
        own = [one for one in records if (one.stream, one.partition) == (stream, partition)]
        for first in range(0, len(own), 17):
            some = own[first : first + 17]
            pieces[Piece(OffsetRange(stream, partition, first, first + len(some)), None, None)] = some

    def decode_pieces(config: Any, wanted: Sequence[Piece]) -> Iterator[DecodedChunk]:
        assert config == decoding
        for piece in wanted:
            place = {(piece.offsets.stream, piece.offsets.partition): piece.offsets.offset_first}
            yield from chunks_of(pipeline, pieces[piece], place)

    patch.setattr(recomputation, "decode_pieces", decode_pieces)
    last_ms = max(one.event_ms for one in records) + 60_000
    windows = {stage.name: EndRange(None, last_ms) for stage in pipeline.stages}
    compared = Table(directory / "compared", ROWS_SCHEMA)
    compared.create()
    tasks = [LogTask([piece], own=True) for piece in pieces]
    random.shuffle(tasks)
    again = Recomputation(VersionSpan(1, pipeline, 1, 1, 1, windows), decoding, tasks, directory / "span", compared)
    accounts = list(run_parts(again.parts))
    assert sum(one.records for one in accounts) == len(records)
    database = Database(directory / "spilled", 512)
    try:
        if again._duplicates_query is not None:
            again._duplicates_query.compute(database)
        found = {
            stage.name: sorted((row for some in again.results(database, at) for row in some.rows.to_pylist()), key=repr)
            for at, stage in enumerate(pipeline.stages)
        }
    finally:
        database.close()
    return found, accounts


RULES = [
    EventTimeRule(1_000, None),
    EventTimeRule(5_000, 30_000),
    EventTimeRule(0, 10_000, watermark="newest"),
    EventTimeRule(2_000, None, watermark="newest"),
]


@pytest.mark.guarantee("G452")
@examples(200, deadline=None)
@given(st.data())
def test_the_audit_finds_the_watermark_of_several_streams_by_another_way(data: st.DataObject) -> None:
    of_streams = tuple((name, data.draw(st.sampled_from(RULES))) for name in "ab")
    rule = replace(of_streams[0][1], by_stream=of_streams)
    times = st.dictionaries(st.integers(0, 2), st.integers(0, 50).map(lambda s: s * 1_000), max_size=3)
    reached = {name: data.draw(times) for name in "ab"}
    reached = {name: one for name, one in reached.items() if one}
    silence_ms = {name: data.draw(times) for name in "ab"}
    first_records = data.draw(st.sets(st.sampled_from("ab")))
    places = {(name, partition): ms for name, one in reached.items() for partition, ms in one.items()}
    silent = {(name, partition): ms for name, one in silence_ms.items() for partition, ms in one.items()}
    expected = event_times._watermark(rule, places, silent, first_records)
    assert watermark_by(rule, reached, silence_ms, first_records=first_records) == expected


@given(st.integers(0, 15), st.integers(0, 4_095))
def test_a_label_says_stream_and_partition_and_keeps_their_order(place: int, partition: int) -> None:
    label = label_of(place, partition)
    assert (stream_index_of(label), partition_of(label)) == (place, partition)
    assert label_of(0, partition) == partition
    assert label < label_of(place, partition + 1) <= label_of(place + 1, 0)
    assert pa.scalar(label, pa.int32()).as_py() == label
