"""Two engines agree: the audit computes with DuckDB from a log what the operators computed slice by slice.

Random small logs and pipelines. They contain tumbling and sliding windows, cascades, filters, derived values that fail
(also between a window and its emission), emissions of records, decimals, null keys, late records and broken records.

Doubles are equal within a tolerance, because the audit adds them in no order. All else is equal.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from strandline.core.streams.stream import StreamSpec
from strandline.log.reader import OffsetRange
from strandline.processing.audit import recomputation
from strandline.processing.audit.event_times import LatestEvents, LatestTimes
from strandline.processing.audit.index_reader import EndRange, encode_result
from strandline.processing.audit.parts import run_parts
from strandline.processing.audit.plan import VersionSpan
from strandline.processing.audit.recomputation import Recomputation
from strandline.processing.audit.stores import ROWS_SCHEMA
from strandline.processing.audit_queries.table import Database, Table
from strandline.processing.emission.result_shapes import document_shape, letter_shape
from strandline.processing.operators.cascade import Cascade, Chunk
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.record_chain import RecordChain
from strandline.processing.operators.record_rows import pack_record_rows, unpack_record_rows, without_duplicates
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.source.decoding import DecodedChunk, decoder_of, decoding_of
from strandline.processing.source.recorded_slices import LogTask
from strandline.processing.source.slice_rows import RECORD_ROWS, entry_of
from strandline.processing.source.source_config import Piece, TaskConfig
from strandline.processing.source.source_task import SourceTask
from strandline.results.document import Document
from strandline.results.writer import ELEMENT, OFFSET
from tests.support.examples import examples
from tests.support.join_graphs import some_join
from tests.support.result_join_graphs import some_result_join
from tests.support.step_graphs import document_of, some_graph

STREAM = StreamSpec.from_document(
    {
        "stream": "machines",
        "partitions": 2,
        "format": "json",
        "schema": {
            "machine": "string",
            "site": "string?",
            "grade": "long?",
            "price": "decimal(6,2)?",
            "awake": "boolean?",
            "built": {"type": "timestamp", "unit": "s", "required": False},
            "ts": {"type": "timestamp", "unit": "ms"},
            "power": "double?",
            "count": "long?",
            "small": "integer?",
            "cost": "decimal(38,4)?",
        },
        "key": "machine",
        "retention": "7d",
    }
)
KEYS = ["machine", "site", "grade", "price", "awake", "built"]
FIRST = {
    "n": "count(*)",
    "seen": "count(power)",
    "power": "sum(power)",
    "mean": "avg(power)",
    "least": "min(power)",
    "most": "max(power)",
    "spread": "stddev_pop(power)",
    "variance": "var_pop(power)",
    "total": "sum(count)",
    "half": "avg(count)",
    "swing": "stddev_pop(small)",
    "few": "sum(small)",
    "smallest": "min(small)",
    "bill": "sum(cost)",
    "dear": "max(cost)",
    "rate": "avg(cost)",
    "last": "max(site)",
    "newest": "max(built)",
    "any_awake": "max(awake)",
    "span": "max(power) - min(power)",
    "doubled": "sum(power * 2) + count(*)",
    "sampled": "stddev(power)",
    "varied": "variance(small)",
    "opened": "first(power)",
    "closed": "last(site)",
    "at_peak": "max_by(site, power)",
    "at_low": "min_by(cost, awake)",
    "at_price": "max_by(small, price)",
    "sites": "count(distinct site)",
    "powers": "count(distinct power)",
    "days": "count(distinct built)",
    "about_sites": "approx_count_distinct(site)",
    "about_costs": "approx_count_distinct(cost)",
    "middle": "median(small)",
    "high": "percentile(power, 0.95)",
    "about_high": "approx_percentile(power, 0.95)",
    "about_low": "approx_percentile(count, 0.1)",
    "warm": "count(*) filter (where power > 0)",
    "day_power": "sum(power) filter (where awake)",
    "day_opened": "first(power) filter (where awake)",
    "day_peak": "max_by(site, power) filter (where awake is null) || '!'",
    "day_sites": "count(distinct site) filter (where not awake)",
    "some_powers": "collect_list(power, 3)",
    "readings": "collect_list(named_struct('built', built, 'cost', cost, 'site', site), 2) filter (where power > 0)",
    "dearest": "top_n(cost, 2)",
    "earliest": "bottom_n(built, 2)",
    "sites_at_peaks": "top_n_by(site, power, 3)",
    "costs_at_lows": "bottom_n_by(cost, small, 2) filter (where awake)",
    "usual": "most_frequent(site, 2)",
    "usual_costs": "most_frequent(cost, 1)",
    "powers_by_bins": "histogram(power, -500, 500, 4)",
    "smalls_by_bins": "histogram(small, array(0, 3))",
    "second_power": "coalesce(try_element_at(collect_list(power, 3), 2), 0.0e0)",
    "peak_place": "max_by(struct(site, built), power).built",
}
SECOND = {
    "n": "sum(n)",
    "peak": "max(most)",
    "power": "sum(power)",
    "bill": "sum(bill)",
    "mean": "avg(mean)",
    "busy": "count(total)",
    "last": "max(last)",
    "closed": "last(closed)",
    "opened": "first(seen)",
    "at_busiest": "max_by(power, n)",
    "at_least": "min_by(half, sites)",
    "middle": "percentile(middle, 0.5) filter (where n > 1)",
    "parts": "collect_list(n, 3)",
    "busiest": "top_n_by(struct(n, few), n, 2)",
    "kept": "last(dearest)",
}
STEPS: list[dict[str, Any]] = [
    {"derive": {"load": "power / small"}},
    {"where": "power is null or power < 900"},
    {"derive": {"cheap": "price * 2"}},
]
THIRD = {"n": "sum(n)", "peak": "max(peak)", "bill": "sum(bill)"}
BETWEEN: list[dict[str, Any]] = [
    {"where": "n > 1"},
    {"derive": {"each": "most / (n - 2)"}},
    {"where": "most / (n - 3) < 500"},
]
BETWEEN_AGAIN: list[dict[str, Any]] = [{"where": "peak / (n - 4) < 500"}, {"derive": {"each": "n / (n - 5)"}}]
END_MS = 10**9
LOGGED_MS = 50_000
"""When the log took each record: before the event times of some."""


@dataclass(frozen=True)
class Log:
    """Records in slices: of each the records a partition, the watermark in force for it, and the one after it."""

    slices: list[tuple[dict[int, list[bytes]], int | None, int]]

    def pieces(self) -> Iterator[tuple[Piece, list[bytes], list[int]]]:
        """Yield for each slice its records of each partition, and the offsets."""
        reached: dict[int, int] = defaultdict(int)
        for records, watermark_ms, _ in self.slices:
            for partition, lines in sorted(records.items()):
                first = reached[partition]
                reached[partition] += len(lines)
                piece = Piece(OffsetRange("machines", partition, first, reached[partition]), watermark_ms, None)
                yield piece, lines, list(range(first, reached[partition]))


def some_log(random: Random, begins_ms: int = 0, longer: int = 1) -> Log:
    """Return a log that starts at `begins_ms` and lasts `longer` times as long."""
    width_ms = random.choice([15_000, 60_000, 150_000]) * longer
    slices: list[tuple[dict[int, list[bytes]], int | None, int]] = []
    watermark_ms = None
    for number in range(random.randint(1, 5)):
        base_ms = begins_ms + number * random.choice([0, 10_000, 40_000]) * longer
        records: dict[int, list[bytes]] = {0: [], 1: []}
        for _ in range(random.randint(0, 40)):
            records[random.randrange(2)].append(a_record(random, base_ms + random.randrange(width_ms)))
        after_ms = max(watermark_ms or 0, base_ms)
        slices.append((records, watermark_ms, after_ms))
        watermark_ms = after_ms
    return Log([*slices, ({}, watermark_ms, begins_ms + END_MS * longer)])


def a_record(random: Random, ts_ms: int) -> bytes:
    record = {
        "machine": random.choice(["a", "a", "b", "é\u0000"]),
        "site": random.choice(["north", "", None]),
        "grade": random.choice([1, -(2**62), None]),
        "price": random.choice(["1.10", "-99.99", None]),
        "awake": random.choice([True, False, None]),
        "built": random.choice([0, 1_700_000_000, None]),
        "ts": ts_ms,
        "power": random.choice([None, 7.25, random.uniform(-1_000, 1_000)]),
        "count": random.choice([None, random.randrange(-(2**62), 2**62), random.randrange(100)]),
        "small": random.choice([None, 0, 3, 2**31 - 1]),
        "cost": random.choice([None, "0.1234", str(random.randrange(-(10**38), 10**38))[:-4] + ".5", "9" * 34]),
    }
    line = json.dumps(record).encode()
    return line[:-2] if random.random() < 0.03 else line


def some_pipeline(random: Random) -> CheckedPipeline:
    by = random.sample(KEYS, random.randint(0, 3))
    size_s, offset_s = random.choice([5, 10, 20]), random.choice([0, 0, 3])
    some = {name for sql in SECOND.values() for name in FIRST if re.search(rf"\b{name}\b", sql)} | {"few"}
    some |= set(random.sample(list(FIRST), 12))
    first = {name: sql for name, sql in FIRST.items() if name in some}
    windows: list[dict[str, Any]] = [
        {"name": "first", **some_shape(size_s, offset_s, random), "by": by, "aggregate": first}
    ]
    steps: list[dict[str, Any]] = random.sample(STEPS, random.randint(0, len(STEPS)))
    if random.random() < 0.5:
        steps.insert(random.randint(0, len(steps)), {"emit": [{"elasticsearch": RECORDS}], "name": RECORDS})
    more = [("second", SECOND, BETWEEN), ("third", THIRD, BETWEEN_AGAIN)]
    for name, aggregate, between in more[: random.choice([0, 1, 1, 2])]:
        behind = random.sample(between, random.randint(0, len(between)))
        if random.random() < 0.5:
            emission = {"emit": [{"elasticsearch": windows[-1]["name"]}]}
            behind.insert(random.randint(0, len(behind)), emission)
            steps += [{"window": windows[-1]}, *behind]
        else:
            steps += [a_window(windows[-1], random), *behind]
        by = random.sample(by, random.randint(0, len(by)))
        by += ["few" if name == "second" else "busy"] * (random.random() < 0.2)
        size_s *= 3
        windows.append({"name": name, **some_shape(size_s, offset_s, random), "by": by, "aggregate": aggregate})
    document = {
        "pipeline": "health",
        "input": {"stream": "machines"},
        "event_time": {"field": "ts", "delay": "0s", "max_ahead": None, "idle_timeout": None},
        "steps": [*steps, a_window(windows[-1], random, is_last=True)],
    }
    checked = check(PipelineSpec.from_document(document), STREAM)
    every_ms = random.choice([None, None, 1_000, 4_000, 25_000])
    stage = checked.stages[0]
    if every_ms is None or stage.windows.kind != "windows":
        return checked
    first_stage = replace(stage, windows=replace(stage.windows, every_ms=every_ms))
    return replace(checked, stages=(first_stage, *checked.stages[1:]))


def some_shape(size_s: int, offset_s: int, random: Random) -> dict[str, Any]:
    """A tumbling window mostly; or cumulative ones, or sessions, whose gap is longer than what windows before it are apart."""
    if random.random() < 0.3:
        return {"session": {"gap": f"{size_s}s", "max": f"{size_s * random.choice([1, 2, 10])}s"}}
    if random.random() < 0.2:
        return {"cumulative": {"size": f"{size_s * 3}s", "step": f"{size_s}s"}, "offset": f"{offset_s}s"}
    return {"tumbling": f"{size_s}s", "offset": f"{offset_s}s"}


def a_window(window: dict[str, Any], random: Random, *, is_last: bool = False) -> dict[str, Any]:
    """With an emission, or one that emits nothing; the last must."""
    emit = [{"elasticsearch": window["name"]}]
    return {"window": window} | ({"emit": emit} if is_last or random.random() < 0.5 else {})


RECORDS = "all_records"
Results = dict[str, dict[tuple[Any, ...], dict[str, Any]]]
"""Stage -> (window start, end, keys) -> the result."""
Rejected = dict[str, str]
"""Key of a dead letter -> reason."""
RecordDocuments = dict[str, bytes]
"""Id of a record's document -> its content."""


def by_operators(pipeline: CheckedPipeline, log: Log) -> tuple[Results, Rejected, RecordDocuments]:
    """Return what the operators compute slice by slice, the resulting dead letters, and the documents of records."""
    records_emitted: RecordDocuments = {}
    cascade = Cascade(pipeline.stages, 1)
    decoder = decoder_of(decoding_of(pipeline, "").inputs[0])
    found: Results = {stage.name: {} for stage in pipeline.stages}
    rejected: dict[str, str] = {}
    state: bytes | None = None
    pieces = log.pieces()
    for records, watermark_ms, after_ms in log.slices:
        chunks: list[Chunk] = []
        for _ in records:
            piece, lines, offsets = next(pieces)
            decoded = decoder.decode(lines, [0] * len(lines), watermark_ms)
            of_piece = {reject.index: reject.reason for reject in decoded.rejects}
            accepted = [at for at in range(len(lines)) if at not in of_piece]
            chain = RecordChain(pipeline.record_stages, pipeline.stages, STREAM.types)
            came = chain.apply(decoded.arrays, len(accepted))
            partition = piece.offsets.partition
            for records_at in came.at_stages:
                event_us = decoded.event_time.cast(pa.int64())
                places = np.array([offsets[at] for at in accepted], np.int64)
                blob = pack_record_rows(records_at, partition, event_us, places, None)
                shape = document_shape(pipeline, records_at.stage, records_at.stage.emits[0], 1)
                (rows,) = unpack_record_rows([(partition, 0, blob)])[records_at.stage.name]
                documents = [one for one in shape.documents(rows, 1, 1) if isinstance(one, Document)]
                records_emitted |= {one.id: encode_result(json.loads(one.source)) for one in documents}
            of_piece |= {accepted[problem.row]: "expression" for problem in came.problems}
            rejected |= {f"machines/{partition}/{offsets[at]}": reason for at, reason in of_piece.items()}
            for first, stepped, side in came.at_windows:
                event_us = decoded.event_time.take(pa.array(stepped.rows)).cast(pa.int64())
                places = np.array([offsets[at] for at in accepted], np.int64)[stepped.rows]
                stand = {OFFSET: pa.array(places), ELEMENT: pa.nulls(len(places), pa.int32())}
                columns = {**stepped.columns, **stand}
                chunks += [chunk for _, chunk in cascade.cut(partition, 0, event_us, columns, first, side=side)]
        stepped = cascade.step(state, chunks, Closing(watermark_ms, after_ms))
        state, results = stepped.state, stepped.results
        for stage, one in zip(pipeline.stages, results, strict=True):
            keep(pipeline, found, one.stage, one.rows)
            shape = letter_shape(pipeline, stage, 1)
            for rows in (one.rows.filter(one.rows.column("@problem").is_valid()), one.failed):
                letters = [f"{row.index}/{row.id}" for row in shape.documents(rows.drop_columns(["@problem"]), 1, 1)]
                assert not rejected.keys() & set(letters), "each result has one dead letter at most"
                rejected |= dict.fromkeys(letters, "expression")
    return found, rejected, records_emitted


def by_audit(
    pipeline: CheckedPipeline,
    log: Log,
    directory: Path,
    patch: pytest.MonkeyPatch,
    computed: Sequence[Counter[str]] = (),
) -> tuple[Results, Rejected, RecordDocuments]:
    """Return the same from the tables and queries of the audit. `computed`: what `compute` has counted, if known."""

    latest: LatestEvents = {}

    decoder = decoder_of(decoding_of(pipeline, "").inputs[0])

    def decode_pieces(config: Any, pieces: Sequence[Piece]) -> Iterator[Any]:
        lines_of = {piece: (lines, offsets) for piece, lines, offsets in log.pieces()}
        for piece in pieces:
            lines, offsets = lines_of[piece]
            decoded = decoder.decode(lines, [0] * len(lines), piece.late_below_ms)
            logged_ms = [LOGGED_MS] * len(lines)
            if (event_ms := decoded.latest_event_ms) is not None:
                place = "machines", piece.offsets.partition, piece.offsets.offset_first
                latest[place] = LatestTimes(event_ms, min(event_ms, LOGGED_MS))
            yield DecodedChunk("machines", piece.offsets.partition, offsets, logged_ms, decoded, lines.__getitem__)

    patch.setattr(recomputation, "decode_pieces", decode_pieces)
    windows = {stage.name: EndRange(None, log.slices[-1][2]) for stage in pipeline.stages}
    span = VersionSpan(1, pipeline, 1, 1, len(log.slices), windows)
    compared = Table(directory / "compared", ROWS_SCHEMA)
    compared.create()
    tasks = [LogTask([piece], own=True) for piece, lines, _ in log.pieces() if lines]
    span_directory = directory / "span"
    again = Recomputation(span, decoding_of(pipeline, ""), tasks, span_directory, compared)
    accounts = list(run_parts(again.parts))
    assert {place: times for one in accounts for place, times in one.latest.items()} == latest
    assert sum(one.records for one in accounts) == sum(len(lines) for _, lines, _ in log.pieces())
    database = Database(directory / "spilled", 256)
    found: Results = {stage.name: {} for stage in pipeline.stages}
    compute = again.results

    def kept(database: Database, at: int) -> Iterator[Any]:
        for batch in compute(database, at):
            keep(pipeline, found, pipeline.stages[at].name, batch.rows)
            yield batch

    patch.setattr(again, "results", kept)
    try:
        again.compute(database)
    finally:
        database.close()
    stores = ("(dead letters)", *(f"letters:{stage.name}" for stage in pipeline.stages))
    all_rows = pq.read_table(directory / "compared").to_pylist()
    rows = [row for row in all_rows if row["store"] in stores]
    emitted = {stage.name for stage in pipeline.record_stages}
    documents = {row["id"]: row["body"] for row in all_rows if row["store"] in emitted}
    counts = [*(one.results for one in accounts), *computed]
    assert sum(one[name] for one in counts for name in emitted) == len(documents)
    assert sum(sum(one.rejected.values()) for one in accounts) == sum(row["store"] == stores[0] for row in rows)
    assert len({row["id"] for row in rows}) == len(rows), "each has one dead letter"
    return found, {row["id"]: row["body"].decode() for row in rows}, documents


def keep(pipeline: CheckedPipeline, found: Results, stage: str, batch: pa.RecordBatch) -> None:
    by = next(one.identifying for one in pipeline.stages if one.name == stage)
    for row in batch.to_pylist():
        key = (row["@window_start_ms"], row["@window_end_ms"], *(row[name] for name in by))
        assert key not in found[stage], "each window is there once"
        found[stage][key] = row


def assert_same(ours: Results, theirs: Results) -> None:
    assert ours.keys() == theirs.keys()
    for stage, results in ours.items():
        assert results.keys() == theirs[stage].keys(), stage
        for key, row in results.items():
            other = theirs[stage][key]
            assert row.keys() == other.keys()
            different = {name: (value, other[name]) for name, value in row.items() if not is_same(value, other[name])}
            assert not different, (stage, key, different)


def is_same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-6) or (math.isnan(ours) and math.isnan(theirs))
    return type(ours) is type(theirs) and bool(ours == theirs)


@pytest.mark.guarantee(
    "G101",
    "The audit's computation in DuckDB equals the operators over random logs and pipelines. Doubles agree within "
    "1e-9, everything else exactly.",
    promise="the-audit-finds-every-difference",
)
@pytest.mark.guarantee("G143")
@pytest.mark.guarantee(
    "G402",
    "The audit recomputes every aggregate with a different implementation.",
    promise="the-audit-finds-every-difference",
)
@pytest.mark.guarantee("G480")
@examples(60, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 2**32))
def test_the_audit_computes_what_the_operators_compute(seed: int) -> None:
    random = Random(seed)
    assert_both_agree(some_pipeline(random), some_log(random))


@pytest.mark.long
@examples(40, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 2**32), st.sampled_from(["America/New_York", "America/Havana", "Europe/Rome"]))
def test_so_they_do_with_days_of_a_time_zone(seed: int, zone: str) -> None:
    random = Random(seed)
    days = random.choice([1, 1, 2, 5])
    shapes: list[dict[str, Any]] = [
        {"tumbling": f"{days}d"},
        {"sliding": {"size": f"{days}d", "every": "1d"}},
        {"cumulative": {"size": f"{days}d", "step": "1h"}},
    ]
    window = {**random.choice(shapes), "tz": zone, "offset": random.choice(["0s", "6h"]), "by": ["machine"]}
    window |= {"name": "days", "aggregate": {"n": "count(*)", "most": "max(power)", "last": "last(power)"}}
    document = {**document_of([]), "steps": [{"window": window, "emit": [{"elasticsearch": "days"}]}]}
    # In 1970, where log times are, too. Clocks were set in all of these.
    day = random.choice(["04-24", "05-29", "09-25", "10-23"])
    log = some_log(random, int(datetime.fromisoformat(f"1970-{day}T00:00Z").timestamp() * 1000), 4_000)
    assert_both_agree(check(PipelineSpec.from_document(document), STREAM), log)


@pytest.mark.guarantee("G391")
@examples(25, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 2**32))
def test_so_they_do_where_steps_make_branches(seed: int) -> None:
    random = Random(seed)
    assert_both_agree(check(PipelineSpec.from_document(document_of(some_graph(random))), STREAM), some_log(random))


@pytest.mark.guarantee(
    "G464",
    "An audit finds the pairs of a join by DuckDB queries that share nothing with the operator, and the two agree. A "
    "backfill recomputes joined rows of the past.",
    promise="the-audit-finds-every-difference",
)
@pytest.mark.guarantee("G595")
@examples(40, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 2**32))
def test_so_they_do_where_rows_are_joined(seed: int) -> None:
    random = Random(seed)
    assert_both_agree(check(PipelineSpec.from_document(document_of(some_join(random))), STREAM), some_log(random))


@pytest.mark.guarantee(
    "G594",
    "An audit joins the windows that it computed itself by DuckDB queries. It finds the same joined rows, and the "
    "same dead letters of results that fail on the path to a join.",
    promise="the-audit-finds-every-difference",
)
@examples(40, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 2**32))
def test_so_they_do_where_results_are_joined(seed: int) -> None:
    random = Random(seed)
    steps = some_result_join(random)
    assert_both_agree(check(PipelineSpec.from_document(document_of(steps)), STREAM), some_log(random))


def with_dedupe(pipeline: CheckedPipeline, random: Random) -> CheckedPipeline:
    """The pipeline with a `dedupe` somewhere before its first window."""
    document = json.loads(json.dumps(pipeline.spec.as_document()))
    steps = document["steps"]
    firsts = [number for number, step in enumerate(steps) if "window" in step]
    by = ["machine", *random.sample(["site", "small", "price", "awake", "built", "cost"], random.randint(0, 3))]
    steps.insert(random.randint(0, firsts[0]), {"dedupe": {"by": by, "within": random.choice(["1s", "7s", "1m"])}})
    return check(PipelineSpec.from_document(document), STREAM)


@pytest.mark.guarantee(
    "G472",
    "An audit finds the same duplicates, and as many, by a query over values, without hashes and state.",
    promise="the-audit-finds-every-difference",
)
@examples(25, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 2**32))
def test_so_they_do_where_records_come_again(seed: int) -> None:
    random = Random(seed)
    pipeline, log = with_dedupe(some_pipeline(random), random), some_log(random)
    slices = []
    for records, watermark_ms, after_ms in log.slices:
        again = {
            partition: [line for one in lines for line in [one] * random.choice([1, 1, 2])]
            for partition, lines in records.items()
        }
        slices.append((again, watermark_ms, after_ms))
    ours, theirs = audited(pipeline, Log(slices)), operated(pipeline, Log(slices))
    assert ours.duplicates == theirs.duplicates
    assert ours.documents == theirs.documents
    assert_same(ours.results, theirs.results)


@dataclass
class Computed:
    results: Results
    documents: set[str]
    """The ids of records that are emitted."""
    duplicates: int


def operated(pipeline: CheckedPipeline, log: Log) -> Computed:
    """Return what a source task and one bucket compute, slice by slice."""
    config = TaskConfig(
        decoding=decoding_of(pipeline, ""),
        stages=pipeline.stages,
        types=(tuple(STREAM.types.items()),),
        bucket_keys=(0,),
        late_is_dropped=False,
        crashes=False,
        record_stages=pipeline.record_stages,
    )
    task, cascade, decoder = SourceTask(config), config.cascade, decoder_of(config.decoding.inputs[0])
    found = Computed({stage.name: {} for stage in pipeline.stages}, set(), 0)
    state: bytes | None = None
    pieces = log.pieces()
    for records, watermark_ms, after_ms in log.slices:
        decoded_chunks = []
        for _ in records:
            piece, lines, offsets = next(pieces)
            if lines:
                decoded = decoder.decode(lines, [0] * len(lines), watermark_ms)
                partition = piece.offsets.partition
                decoded_chunks.append(
                    DecodedChunk("machines", partition, offsets, [0] * len(lines), decoded, lines.__getitem__)
                )
        rows = list(task.rows(decoded_chunks, is_new=True, work=None))
        chunks = [
            Chunk(partition, sequence, blob, entry)
            for _, kind, partition, sequence, blob in rows
            if (entry := entry_of(kind)) is not None
        ]
        stepped = cascade.step(state, chunks, Closing(watermark_ms, after_ms))
        state = stepped.state
        found.duplicates += stepped.duplicates
        for one in stepped.results:
            keep(pipeline, found.results, one.stage, one.rows)
        blobs = [(partition, sequence, blob) for _, kind, partition, sequence, blob in rows if kind == RECORD_ROWS]
        of_stages = without_duplicates(unpack_record_rows(blobs), pipeline.record_stages, stepped.repeated_records)
        for record_stage in pipeline.record_stages:
            for batch in of_stages.get(record_stage.name, ()):
                shape = document_shape(pipeline, record_stage, record_stage.emits[0], 1)
                found.documents |= {one.id for one in shape.documents(batch, 1, 1)}
    return found


def audited(pipeline: CheckedPipeline, log: Log) -> Computed:
    """Return what the audit computes."""
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        found: list[Recomputation] = []
        make = Recomputation.compute

        def compute(self: Recomputation, database: Database) -> Counter[str]:
            found.append(self)
            counts.append(make(self, database))
            return counts[-1]

        counts: list[Counter[str]] = []
        patch.setattr(Recomputation, "compute", compute)
        results, _, documents = by_audit(pipeline, log, Path(directory), patch, counts)
    return Computed(results, set(documents), found[0].duplicates)


def assert_both_agree(pipeline: CheckedPipeline, log: Log) -> None:
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        ours, our_rejected, our_records = by_audit(pipeline, log, Path(directory), patch)
    theirs, their_rejected, their_records = by_operators(pipeline, log)
    assert our_rejected == their_rejected
    assert our_records == their_records
    assert_same(ours, theirs)
