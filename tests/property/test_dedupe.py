"""Repeats are left out as a plain reading of the whole log says, in whatever slices, chunks and buckets it is read, and behind a
rewind: to the last bit."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.streams.stream import StreamSpec
from strandline.processing.kinds.dedupe.step import Dedupe
from strandline.processing.operators.cascade import Chunk
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.dedupe import dedupe_state
from strandline.processing.operators.dedupe.dedupe_state import SPANS, DedupeState, RecordHashes
from strandline.processing.operators.dedupe.duplicates import DuplicatesOperator
from strandline.processing.operators.record_rows import unpack_record_rows, without_duplicates
from strandline.processing.operators.segments import MemorySegments
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.event_time import earliest_event
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.slices.watermark import emitted_up_to
from strandline.processing.source.decoding import DecodedChunk, decoder_of, decoding_of
from strandline.processing.source.slice_rows import FACTS, RECORD_ROWS, decode_facts, entry_of
from strandline.processing.source.source_config import TaskConfig
from strandline.processing.source.source_task import SourceTask
from strandline.results.writer import ELEMENT, OFFSET, PARTITION, WINDOW_END
from tests.support.examples import examples

PARTITIONS = 3
END_MS = 10**9
STREAM = StreamSpec.from_document(
    {
        "stream": "pumps",
        "partitions": PARTITIONS,
        "format": "json",
        "schema": {
            "pump": "string",
            "site": "string",
            "id": "string?",
            "number": "long?",
            "ts": {"type": "timestamp", "unit": "ms"},
            "flow": "double?",
            "count": "long",
        },
        "key": "pump",
        "retention": "7d",
    }
)
AGGREGATE = {
    "n": "count(*)",
    "total": "sum(count)",
    "flow": "sum(flow)",
    "opened": "first(count)",
    "last": "last(count)",
}
MORE = {"n": "sum(n)", "total": "sum(total)", "flow": "sum(flow)"}


def window(name: str, size: str, by: list[str], aggregate: dict[str, str] | None = None, **step: Any) -> dict[str, Any]:
    spec = {"name": name, "tumbling": size, "by": by, "aggregate": AGGREGATE if aggregate is None else aggregate}
    return {"window": spec, "emit": [{"elasticsearch": name}], **step}


def dedupe(by: list[str], **step: Any) -> dict[str, Any]:
    return {"dedupe": {"by": by, "within": "10s"}, **step}


ID = ["pump", "id"]
PIPELINES: dict[str, list[dict[str, Any]]] = {
    "by the key of the windows": [
        dedupe(ID),
        window("a", "5s", ["pump", "site"]),
        window("b", "10s", ["pump"], MORE),
    ],
    "two fields, and a regrouping": [
        {"where": "count <> 5"},
        dedupe(["pump", "id", "number"]),
        window("a", "5s", ["pump"]),
        window("b", "20s", [], MORE),
    ],
    "windows of another key": [dedupe(ID), window("a", "5s", ["site"])],
    "windows of other keys, in one bucket": [
        dedupe(ID),
        window("a", "5s", ["site"]),
        window("b", "15s", ["site"], MORE),
    ],
    "no key": [dedupe(["pump", "number"]), window("a", "5s", [])],
    "sliding, behind steps that leave records out": [
        dedupe(ID, name="once"),
        {"derive": {"each": "100 / (count - 3)"}},
        {"where": "each < 50"},
        {"window": {"name": "a", "sliding": {"size": "15s", "every": "5s"}, "by": ["pump"], "aggregate": AGGREGATE}},
        {"emit": [{"elasticsearch": "a"}]},
    ],
    "branches and records": [
        {"emit": [{"elasticsearch": "all"}], "name": "all"},
        dedupe(ID, name="once"),
        {"emit": [{"elasticsearch": "some"}], "name": "some"},
        window("a", "5s", ["pump"]),
        window("b", "5s", ["site"], **{"from": "once"}),
        window("c", "5s", ["pump"], **{"from": "pumps"}),
        {"where": "count > 2", "from": "once"},
        {"emit": [{"elasticsearch": "few"}], "name": "few"},
    ],
    "records alone": [dedupe(["pump", "number"]), {"emit": [{"elasticsearch": "some"}], "name": "some"}],
}


def checked(steps: Sequence[dict[str, Any]], stream: StreamSpec = STREAM) -> CheckedPipeline:
    document = {
        "pipeline": "pumping",
        "input": {"stream": stream.stream},
        "event_time": {"field": "ts", "delay": "0s", "max_ahead": None, "idle_timeout": None},
        "steps": list(steps),
    }
    return check(PipelineSpec.from_document(document), stream)


@dataclass(frozen=True)
class Record:
    partition: int
    offset: int
    value: dict[str, Any]

    @property
    def line(self) -> bytes:
        return json.dumps(self.value).encode()


@dataclass(frozen=True)
class Slice:
    records: list[Record]
    watermark_ms: int | None
    closes_ms: int

    @property
    def accepted(self) -> list[Record]:
        low = -1 if self.watermark_ms is None else self.watermark_ms
        return [one for one in self.records if one.value["ts"] >= low]


def some_slices(random: Random) -> list[Slice]:
    """Records of some pumps, some of them again: at the same time, or a bit off, in their partition; some of them late."""
    ends: dict[int, int] = defaultdict(int)
    sent: list[dict[str, Any]] = []
    slices: list[Slice] = []
    watermark_ms: int | None = None
    for number in range(random.randint(1, 6)):
        base_ms = number * random.choice([0, 4_000, 12_000])
        records = []
        for _ in range(random.choice([0, 5, 30])):
            value = {
                "pump": random.choice(["p1", "p2", "p3", "p4"]),
                "site": random.choice(["north", "south"]),
                "id": random.choice(["a", "b", "c", "d", "", None]),
                "number": random.choice([None, 1, 2, 3, -1]),
                "ts": base_ms + random.randrange(25_000),
                "flow": random.uniform(-1_000, 1_000),
                "count": random.randrange(9),
            }
            if sent and random.random() < 0.4:
                value = {**random.choice(sent), "count": random.randrange(9)}
                value["ts"] += random.choice([0, 0, 0, 1, -1, 9_999, 10_000, -9_999, -10_000])
                value["ts"] = max(0, value["ts"])
            sent.append(value)
            partition = zlib.crc32(value["pump"].encode()) % PARTITIONS
            records.append(Record(partition, ends[partition], value))
            ends[partition] += 1
        closes_ms = max(watermark_ms or 0, base_ms)
        slices.append(Slice(records, watermark_ms, closes_ms))
        watermark_ms = closes_ms
    return [*slices, Slice([], watermark_ms, END_MS)]


@dataclass
class Found:
    results: dict[str, list[str]]
    """Stage -> its results, as text with every bit."""
    records: dict[str, set[tuple[int, int, int | None]]]
    """Stage of records -> positions of the records that it emits."""
    duplicates: int


def run(
    pipeline: CheckedPipeline,
    slices: Sequence[Slice],
    random: Random,
    before_ms: int | None = None,
    replayed: int = 0,
) -> Found:
    """Return what a job with some number of buckets computes, in chunks of some size.

    The first `replayed` slices emit no records.
    """
    buckets = random.randint(1, 4)
    config = TaskConfig(
        decoding=decoding_of(pipeline, ""),
        stages=pipeline.stages,
        types=(tuple(pipeline.inputs[0].stream.types.items()),),
        bucket_keys=tuple(range(buckets)),
        late_is_dropped=False,
        crashes=False,
        record_stages=pipeline.record_stages,
    )
    task, cascade = SourceTask(config), config.cascade
    states: list[bytes | None] = [None] * buckets
    stores: dict[tuple[int, int], MemorySegments] = defaultdict(MemorySegments)
    found = Found(defaultdict(list), defaultdict(set), 0)
    after_ms = before_ms
    for number, one in enumerate(slices):
        chunks: dict[int, list[Chunk]] = defaultdict(list)
        record_rows: dict[int, list[tuple[int, int, bytes]]] = defaultdict(list)
        for bucket, kind, partition, sequence, blob in task.rows(
            chunks_of(pipeline, one, random), is_new=number >= replayed, work=None
        ):
            if (entry := entry_of(kind)) is not None:
                chunks[bucket].append(Chunk(partition, sequence, blob, entry))
            elif kind == RECORD_ROWS:
                record_rows[bucket].append((partition, sequence, blob))
        parts: dict[int, list[bytes]] = defaultdict(list)
        for bucket in range(buckets):
            random.shuffle(chunks[bucket])
            closing, stores_of = Closing(after_ms, one.closes_ms), partial(_store, stores, bucket)
            with patch.object(dedupe_state, "INLINE_ROWS_MAX", random.choice([0, 2, 1_000])):
                stepped = cascade.step(states[bucket], chunks[bucket], closing, stores_of)
            states[bucket] = stepped.state
            found.duplicates += stepped.duplicates
            for results in stepped.results:
                if pipeline_at(pipeline, results.stage) not in cascade.split_stages:
                    found.results[results.stage] += texts_of(results.rows)
            for _, stage, part in stepped.parts:
                parts[stage].append(part)
            rows = unpack_record_rows(record_rows[bucket])
            for name, batches in without_duplicates(rows, pipeline.record_stages, stepped.repeated_records).items():
                rows_of_all = (row for batch in batches for row in batch.to_pylist())
                new = [(row[PARTITION], row[OFFSET], row[ELEMENT]) for row in rows_of_all]
                assert not found.records.get(name, set()) & set(new) and len(set(new)) == len(new)
                if new:
                    found.records[name] |= set(new)
        for stage, given_parts in parts.items():
            found.results[pipeline.stages[stage].name] += texts_of(cascade.merge(stage, given_parts).rows)
        after_ms = one.closes_ms
    found.results = defaultdict(list, {name: sorted(rows) for name, rows in found.results.items() if rows})
    return found


def _store(stores: dict[tuple[int, int], MemorySegments], bucket: int, number: int) -> MemorySegments:
    return stores[bucket, number]


def pipeline_at(pipeline: CheckedPipeline, stage: str) -> int:
    return [one.name for one in pipeline.stages].index(stage)


def texts_of(rows: pa.RecordBatch) -> list[str]:
    return [
        json.dumps({name: value.hex() if isinstance(value, float) else value for name, value in row.items()})
        for row in rows.to_pylist()
    ]


def chunks_of(pipeline: CheckedPipeline, one: Slice, random: Random) -> Iterator[DecodedChunk]:
    decoder = decoder_of(decoding_of(pipeline, "").inputs[0])
    rows_max = random.choice([1, 3, 1_000])
    for partition in random.sample(range(PARTITIONS), PARTITIONS):
        records = [record for record in one.records if record.partition == partition]
        for first in range(0, len(records), rows_max):
            part = records[first : first + rows_max]
            marks = np.full(len(part), -1 if one.watermark_ms is None else one.watermark_ms)
            decoded = decoder.decode([record.line for record in part], [0] * len(part), marks, None)
            yield DecodedChunk(
                "pumps", partition, [record.offset for record in part], [0] * len(part), decoded, lambda at: b""
            )


def repeats_in(records: Sequence[Record], by: Sequence[str]) -> list[Record]:
    """Return the records with an earlier one in their partition that is less than ten seconds away: the definition."""
    return [
        later
        for later in records
        for values in [[later.value[name] for name in by]]
        if None not in values
        and any(
            before.partition == later.partition
            and before.offset < later.offset
            and [before.value[name] for name in by] == values
            and abs(before.value["ts"] - later.value["ts"]) < 10_000
            for before in records
        )
    ]


def without(records: Sequence[Record], left_out: Sequence[Record]) -> list[Record]:
    places = {(one.partition, one.offset) for one in left_out}
    return [one for one in records if (one.partition, one.offset) not in places]


def in_slices(slices: Sequence[Slice], kept: Sequence[Record]) -> list[Slice]:
    """The slices with these records alone."""
    places = {(one.partition, one.offset) for one in kept}
    return [
        replace(one, records=[record for record in one.records if (record.partition, record.offset) in places])
        for one in slices
    ]


def merged(slices: Sequence[Slice], random: Random) -> list[Slice]:
    """Return the same log, cut into other slices. Each record is accepted or rejected as before."""
    found: list[Slice] = []
    for one in slices:
        if found and random.random() < 0.5:
            found[-1] = Slice([*found[-1].records, *one.accepted], None, one.closes_ms)
        else:
            found.append(Slice(one.accepted, None, one.closes_ms))
    return found


def accepted(slices: Sequence[Slice]) -> list[Record]:
    return [record for one in slices for record in one.accepted]


def steps_of(name: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """The steps; the same without the dedupe; and the fields that it compares."""
    steps = PIPELINES[name]
    (at,) = [number for number, step in enumerate(steps) if "dedupe" in step]
    plain = [dict(step) for step in steps if "dedupe" not in step]
    for step in plain:
        if step.get("from") == "once":
            step["from"] = "pumps"
    return steps, plain, steps[at]["dedupe"]["by"]


COMES: dict[str, Callable[[Record], bool]] = {"two fields, and a regrouping": lambda record: record.value["count"] != 5}
"""The records that reach the dedupe, if not all do."""


@pytest.mark.guarantee(
    "G470",
    "With a `dedupe`, results and emitted records equal those of the log without its duplicates, to the last bit, in "
    "windows of any key, in branches, and without a window. Slices, chunks, and buckets change nothing.",
    promise="operators-compute-what-the-reference-describes",
)
@pytest.mark.parametrize("name", PIPELINES)
@examples(6)
@given(st.integers(0, 2**32))
def test_results_are_those_of_the_log_without_its_repeats(name: str, seed: int) -> None:
    """The pipeline without the dedupe, over the log from which a plain loop removed the repeats, gives the same bits.

    Sums that are merged from parts of one key are added in the order of other buckets if there is no dedupe. For these,
    only the rest is compared.
    """
    random = Random(seed)
    steps, plain, by = steps_of(name)
    pipeline, slices = checked(steps), some_slices(random)
    came = [one for one in accepted(slices) if COMES.get(name, lambda _: True)(one)]
    duplicates = repeats_in(came, by)
    found = run(pipeline, slices, random)
    wanted = run(checked(plain), in_slices(slices, without(accepted(slices), duplicates)), random)
    everything = run(checked(plain), slices, random)
    for stage in pipeline.stages:
        of_stage = wanted if stage.dedupe is not None or pipeline.taken_by(stage.name) else everything
        assert found.results[stage.name] == of_stage.results[stage.name]
    for record_stage in pipeline.record_stages:
        of_stage = wanted if record_stage.dedupe is not None else everything
        assert found.records[record_stage.name] == of_stage.records[record_stage.name]
    fails = [one for one in duplicates if "behind steps" in name and one.value["count"] == 3]
    assert found.duplicates == len(duplicates) - len(fails), "a dead letter is counted as such alone"


@pytest.mark.guarantee("G470")
@pytest.mark.parametrize("name", PIPELINES)
@examples(4)
@given(st.integers(0, 2**32))
def test_other_slices_chunks_and_buckets_change_no_bit(name: str, seed: int) -> None:
    random = Random(seed)
    pipeline, slices = checked(PIPELINES[name]), some_slices(random)
    found, again = run(pipeline, slices, random), run(pipeline, merged(slices, random), random)
    assert (again.results, again.duplicates) == (found.results, found.duplicates)
    assert again.records == found.records


@pytest.mark.guarantee(
    "G471",
    "Duplicates are found among records less than `within` apart. A rewind that reads the windows and `within` again "
    "drops exactly the same records, and the memory is bounded by `within`.",
    promise="operators-compute-what-the-reference-describes",
)
@pytest.mark.parametrize("name", PIPELINES)
@examples(6)
@given(st.integers(0, 2**32))
def test_a_rewind_needs_no_more_than_the_reach(name: str, seed: int) -> None:
    """From the first slice that brought an event in reach of what is not emitted, everything else is as it was."""
    random = Random(seed)
    pipeline, slices = checked(PIPELINES[name]), some_slices(random)
    assert_the_same_behind_a_rewind(pipeline, slices, random.randint(0, len(slices) - 1), random)


@pytest.mark.guarantee("G471")
@pytest.mark.parametrize("apart_ms", [9_999, 10_000])
def test_a_rewind_reads_what_is_just_in_the_horizon(apart_ms: int) -> None:
    """The window of the first one is emitted, and nothing else would need it."""
    first = {"pump": "p1", "site": "north", "id": "a", "number": 1, "ts": 4_000, "flow": 1.0, "count": 1}
    later = [Record(0, at, {**first, "ts": 4_000 + at * apart_ms}) for at in range(2)]
    slices = [Slice(later[:1], None, 13_000), Slice(later[1:], 13_000, END_MS)]
    for name in ("windows of another key", "records alone"):
        pipeline = checked(PIPELINES[name])
        assert_the_same_behind_a_rewind(pipeline, slices, 1, Random(1))
        assert run(pipeline, slices, Random(1)).duplicates == (apart_ms < 10_000)


def assert_the_same_behind_a_rewind(
    pipeline: CheckedPipeline, slices: Sequence[Slice], committed: int, random: Random
) -> None:
    whole = run(pipeline, slices, random)
    closes_ms = slices[committed - 1].closes_ms if committed else None
    emitted = emitted_up_to(pipeline.kept.items(), closes_ms)
    first = 0
    if emitted:
        latest_ms = max((one.value["ts"] for one in accepted(slices[:committed])), default=None)
        back_to_ms = earliest_event(list(pipeline.kept.values()), list(emitted.values()), latest_ms)
        reaching = (
            number
            for number in range(committed)
            if max((one.value["ts"] for one in accepted(slices[: number + 1])), default=-1) >= back_to_ms
        )
        first = next(reaching, committed)
    again = run(pipeline, slices[first:], random, replayed=committed - first)
    for stage in pipeline.stages:
        left = [
            text for text in whole.results[stage.name] if json.loads(text)[WINDOW_END] > emitted.get(stage.name, -1)
        ]
        found = [
            text for text in again.results[stage.name] if json.loads(text)[WINDOW_END] > emitted.get(stage.name, -1)
        ]
        assert found == left
    later = {(one.partition, one.offset, None) for piece in slices[committed:] for one in piece.records}
    for record_stage in pipeline.record_stages:
        assert again.records[record_stage.name] == whole.records[record_stage.name] & later


@pytest.mark.guarantee("G471")
@examples(60)
@given(st.integers(0, 2**32))
def test_the_operator_judges_as_the_definition_says_and_forgets_what_it_may(seed: int) -> None:
    """The operator finds repeats by the definition, and forgets all that it can forget.

    Also if two values have a common hash, and if rows are far out of order. Also if segments exist next to the state,
    and if an older state is loaded again, as Spark can do.
    """
    random = Random(seed)
    count = 120
    ids = [random.randrange(8) for _ in range(count)]
    times = [at * random.choice([100, 3_000]) + random.randrange(15_000) for at in range(count)]
    wanted = [
        any(ids[at] == ids[before] and abs(times[at] - times[before]) < 10_000 for before in range(at))
        for at in range(count)
    ]
    operator, store = DuplicatesOperator(Dedupe(0, ("id",), 10)), MemorySegments()
    states, found, ends, closed = [DedupeState()], list[bool](), [0], list[int | None]([None])
    while ends[-1] < count:
        if random.random() < 0.1:  # neither the last state nor the one before it is committed
            back = random.randint(1, 2)
            states, ends, closed = states[: max(1, len(states) - back)], ends[: len(states)], closed[: len(states)]
            states, ends, closed = (one[: min(map(len, (states, ends, closed)))] for one in (states, ends, closed))
            found = found[: ends[-1]]
        at = ends[-1]
        end = at + random.randint(0, 9)
        part = [np.array(column[at:end], np.int64) for column in ([one % 3 for one in ids], ids, times)]
        up_to_ms = min(times[end:], default=10**6) // 1000 if random.random() < 0.7 else None
        with patch.object(dedupe_state, "INLINE_ROWS_MAX", 2):
            state, duplicates = operator.step(states[-1], RecordHashes(*part), Closing(closed[-1], up_to_ms), store)
        state = DedupeState.unpacked(*state.packed())
        states, ends, found = [*states, state], [*ends, min(end, count)], [*found, *duplicates.tolist()]
        closed.append(closed[-1] if up_to_ms is None else up_to_ms)
        assert_remembers_what_it_must(state, store, ids[:end], times[:end], closed[-1])
    assert found == wanted


def assert_remembers_what_it_must(
    state: DedupeState, store: MemorySegments, ids: list[int], times: list[int], closed_ms: int | None
) -> None:
    """Each record that may have a repeat once, and none in a segment that has nothing of these."""
    segments = state.read(store).segments
    forgotten_us = -(10**9) if closed_ms is None else closed_ms * 1000 - 10_000
    kept = [row for one in segments for row in zip(one.rows.low.tolist(), one.rows.event_us.tolist(), strict=True)]
    needed = [one for one in kept if one[1] > forgotten_us]
    assert sorted(needed) == sorted({one for one in zip(ids, times, strict=True) if one[1] > forgotten_us})
    assert len(set(kept)) == len(kept)
    for one in segments:
        assert (one.count, one.newest_us) == (len(one.rows), int(one.rows.event_us.max()))
        assert one.newest_us > forgotten_us
        assert (np.diff(one.rows.high) >= 0).all()


@pytest.mark.guarantee(
    "G602",
    "The cost of a slice with a `dedupe` depends on its records, not on the remembered ones. At most an eighth of "
    "`within` is kept too long, and expired entries are removed from the disk.",
    promise="no-client-can-exhaust-a-service",
)
def test_a_slice_writes_what_it_brings_however_much_is_remembered() -> None:
    """Three horizons in small slices: of all that is remembered, a slice writes little, and an eighth of it is kept too long."""
    slice_rows, slices_in_horizon = 20, 160
    operator, store = DuplicatesOperator(Dedupe(0, ("id",), slices_in_horizon * 1_000)), MemorySegments()
    random = np.random.default_rng(1)
    state, written, most, widest = DedupeState(), 0, 0, 0
    closed_ms: int | None = None
    for number in range(3 * slices_in_horizon):
        ids = random.integers(0, 1 << 62, slice_rows)
        rows = RecordHashes(ids, ids, number * 1_000_000 + np.arange(slice_rows))
        before = {one.name for one in state.segments}
        with patch.object(dedupe_state, "INLINE_ROWS_MAX", 100):
            state, duplicates = operator.step(state, rows, Closing(closed_ms, number * 1_000), store)
        assert not duplicates.any()
        closed_ms = number * 1_000
        written += sum(one.count for one in state.segments if one.name is None or one.name not in before)
        most = max(most, sum(one.count for one in state.segments))
        widest = max(widest, len(state.segments))
    horizon_rows = slice_rows * slices_in_horizon
    assert most <= horizon_rows * (1 + 1 / SPANS) + slice_rows
    assert written / number < 12 * slice_rows, "all of it would be the rows of 160 slices"
    assert widest <= SPANS + 12
    assert store.bytes_kept < 3 * 24 * horizon_rows, "what is unused is removed"


def test_facts_know_nothing_of_repeats() -> None:
    """Repeats are counted when they are found: a replay compares what its source tasks read, not what it remembers."""
    pipeline, slices = checked(PIPELINES["records alone"]), some_slices(Random(1))
    config = TaskConfig(
        decoding_of(pipeline, ""), (), (tuple(STREAM.types.items()),), (0,), False, False, None, pipeline.record_stages
    )
    rows = SourceTask(config).rows(chunks_of(pipeline, slices[0], Random(1)), is_new=True, work=None)
    (facts,) = [decode_facts(blob) for _, kind, _, _, blob in rows if kind == FACTS]
    assert "duplicate" not in facts.rejected
