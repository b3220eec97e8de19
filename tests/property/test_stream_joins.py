"""Joins of two streams equal those of the oracle of joins, which knows all rows of both at once.

They are the same to the last bit in other slices, buckets and chunks, after restarts, and in the audit's queries.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, example, given
from hypothesis import strategies as st

from strandline.core.streams.stream import StreamSpec
from strandline.processing.desk.desk import Desk, DeskResult, Outcome
from strandline.processing.desk.records import DeskRecords
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.results.document import format_timestamp
from tests.property.test_inputs import INPUTS, SCHEMAS, by_audit, by_buckets, exact_records, some_records
from tests.property.test_joins import Row, by_hand, microseconds
from tests.support.examples import examples
from tests.support.join_graphs import TIMES, a_join

Steps = list[dict[str, Any]]
STREAMS = {
    name: StreamSpec.from_document(
        {"stream": name, "partitions": partitions, "schema": schema, "key": "machine", "retention": "7d"}
    )
    for name, partitions, schema in (
        ("a", 3, {"machine": "string?", "site": "string?", "ts": "timestamp", "value": "double?", "own": "long?"}),
        ("b", 2, {"machine": "string?", "site": "string?", "at": "timestamp", "reading": "long?"}),
    )
}
AS_A: Steps = [{"from": "b", "derive": {"ts": "at", "value": "reading / 2"}, "name": "as_a"}]
ONCE: Steps = [{"from": "a", "dedupe": {"by": ["machine", "own"], "within": "2s"}, "name": "once"}]
SIDES: dict[str, tuple[Steps, str, str]] = {
    "two streams": (AS_A, "a", "as_a"),
    "turned": (AS_A, "as_a", "a"),
    "steps on both": (
        [
            *AS_A,
            {"where": "value is null or value > -8", "name": "some"},
            {"from": "a", "where": "own > 0", "name": "o"},
        ],
        "o",
        "some",
    ),
    "a union on the left": ([*AS_A, {"from": ["a", "as_a"], "where": "true", "name": "all"}], "all", "as_a"),
    "a union on both": (
        [
            *AS_A,
            {"from": ["a", "as_a"], "where": "true", "name": "all"},
            {"from": ["as_a", "a"], "where": "true", "name": "again"},
        ],
        "all",
        "again",
    ),
    "once on the left": ([*ONCE, *AS_A], "once", "as_a"),
    "once on both": ([*ONCE, {"where": "own > 0", "name": "some"}], "some", "once"),
    "once in a union": ([*ONCE, *AS_A, {"from": ["as_a", "once"], "where": "true", "name": "all"}], "a", "all"),
}
"""Steps, and which of them are left and right."""


def pipeline_of(random: Random, sides: str) -> tuple[CheckedPipeline, dict[str, Any]]:
    """A pipeline that joins, and the join."""
    steps, left, right = SIDES[sides]
    add = {f"{side[0]}_{name}": f"{side}.{name}" for side in ("left", "right") for name in ("value", "ts")}
    join = {**a_join(random), "left": left, "right": right, "add": add}
    delays = [random.choice(["0s", "2s", "1m"]) for _ in STREAMS]
    inputs = [
        {"stream": name, "event_time": {"field": field, "delay": delay, "max_ahead": None, "idle_timeout": None}}
        for name, field, delay in zip("ab", ("ts", "at"), delays, strict=True)
    ]
    document = {
        "pipeline": "health",
        "inputs": random.sample(inputs, 2),
        "steps": [*steps, {"join": join, "emit": [{"elasticsearch": "met"}]}],
    }
    spec = PipelineSpec.from_document(document)
    return check(spec, [STREAMS[name] for name in spec.streams]), join


def some_log(random: Random) -> list[tuple[str, int, bytes]]:
    """(stream, partition, record): out of order, some late, some broken, some with one event time."""
    lines, ahead_us = [], {"a": 0, "b": random.choice([0, 5_000_000])}
    stream = "a"
    for _ in range(random.choice([5, 30, 80])):
        stream = random.choice("ab") if random.random() < 0.2 else stream
        ahead_us[stream] += random.choice([0, 0, 500_000, 3_000_000])
        at_us = max(0, ahead_us[stream] + random.choice([0, 0, 1, 999, 1_000, random.randrange(-6_000_000, 6_000_000)]))
        record: dict[str, Any] = {"machine": random.choice(["a", "a", "b", None]), "site": random.choice(["x", None])}
        if stream == "a":
            value = random.choice([None, random.uniform(-10, 10)])
            record |= {"ts": format_timestamp(at_us), "value": value, "own": random.randrange(2)}
        else:
            record |= {"at": format_timestamp(at_us), "reading": random.choice([None, random.randrange(-20, 20)])}
        line = json.dumps(record).encode()
        partition = random.randrange(STREAMS[stream].partitions)
        lines.append((stream, partition, line[:-2] if random.random() < 0.04 else line))
    return lines


def at_the_desk(
    pipeline: CheckedPipeline,
    lines: Sequence[tuple[str, int, bytes]],
    slice_records: int | None,
    *,
    restarts: bool = False,
) -> tuple[list[tuple[str, bytes]], set[str], set[str]]:
    """(id, document) of each joined row, in the order in which they come; the records that were rejected; and the joined rows
    that can't be used."""
    desk = Desk(pipeline, slice_records, restarts=restarts)
    outcomes: list[Outcome] = []
    for stream, some in groupby(lines, key=lambda one: one[0]):
        partitions, values = zip(*(one[1:] for one in some), strict=True)
        outcomes += desk.feed(DeskRecords(values, partitions, stream=stream))
        if restarts:
            desk.restart()
    outcomes += desk.drain()
    results = [one.document for one in outcomes if isinstance(one, DeskResult)]
    letters = [one.place for one in outcomes if not isinstance(one, DeskResult)]
    return (
        [(one.id, re.sub(rb',"emission":\d+', b"", one.source)) for one in results],
        {f"{one['stream']}/{one['partition']}/{one['offset']}" for one in letters if "offset" in one},
        {str(one["document"]) for one in letters if "offset" not in one},
    )


def rows_of(
    pipeline: CheckedPipeline, lines: Sequence[tuple[str, int, bytes]], rejected: set[str], on: Sequence[str]
) -> dict[str, list[tuple[Row, dict[str, Any]]]]:
    """Stream -> its accepted records, as rows and as they were sent."""
    counts: dict[tuple[str, int], int] = defaultdict(int)
    found: dict[str, list[tuple[Row, dict[str, Any]]]] = {"a": [], "b": []}
    for stream, partition, line in lines:
        offset = counts[stream, partition]
        counts[stream, partition] += 1
        place = f"{stream}/{partition}/{offset}"
        if place not in rejected:
            record = json.loads(line)
            if stream == "b":
                reading = record["reading"]
                record |= {"ts": record["at"], "value": None if reading is None else reading / 2}
            key = tuple(record[name] for name in on)
            log = pipeline.spec.streams.index(stream), partition, offset
            found[stream].append((Row(place, key, microseconds(record["ts"]), record["value"], log), record))
    return found


def without_duplicates(rows: Sequence[tuple[Row, dict[str, Any]]]) -> list[tuple[Row, dict[str, Any]]]:
    """Return the rows that have no earlier row in their partition with the same values and nearly the same time."""

    def is_repeat(here: tuple[Row, dict[str, Any]], other: tuple[Row, dict[str, Any]]) -> bool:
        (row, record), (before, other_record) = here, other
        values = record["machine"], record["own"]
        return (
            before.log[:2] == row.log[:2]
            and before.log < row.log
            and None not in values
            and values == (other_record["machine"], other_record["own"])
            and abs(before.at_us - row.at_us) < 2_000_000
        )

    return [one for one in rows if not any(is_repeat(one, other) for other in rows)]


def sides_of(sides: str, rows: dict[str, list[tuple[Row, dict[str, Any]]]]) -> tuple[list[Row], list[Row]]:
    of_a, of_b = [row for row, _ in rows["a"]], [row for row, _ in rows["b"]]
    once = without_duplicates(rows["a"])
    first = [row for row, _ in once]
    if sides == "steps on both":
        of_a = [row for row, record in rows["a"] if record["own"] > 0]
        of_b = [row for row in of_b if row.value is None or row.value > -8]
    return {
        "turned": (of_b, of_a),
        "a union on the left": (of_a + of_b, of_b),
        "a union on both": (of_a + of_b, of_a + of_b),
        "once on the left": (first, of_b),
        "once on both": ([row for row, record in once if record["own"] > 0], first),
        "once in a union": (of_a, first + of_b),
    }.get(sides, (of_a, of_b))


@pytest.mark.guarantee(
    "G510",
    "A join of two streams gives each matching pair once, each row of a kept side without a partner once, and nothing "
    "else. Each stream has its own disorder, delay, and broken records; a side can be a union, or both sides one "
    "stream. Restarts change nothing.",
    promise="operators-compute-what-the-reference-describes",
)
@pytest.mark.guarantee(
    "G514",
    "With a `dedupe` before one or both sides of a join, joined rows equal those of the log without its duplicates, "
    "in any slices and buckets, and in the audit.",
    promise="operators-compute-what-the-reference-describes",
)
@examples(50, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 2**32), st.sampled_from(sorted(SIDES)), st.none() | st.sampled_from([1, 7, 30]))
def test_joined_rows_of_two_streams_are_those_of_an_oracle(seed: int, sides: str, slice_records: int | None) -> None:
    """Each stream with its own delay, disorder, late and broken records; at once, in slices, and restarted all the time."""
    random = Random(seed)
    (pipeline, join), lines = pipeline_of(random, sides), some_log(random)
    documents, rejected, unusable = at_the_desk(pipeline, lines, slice_records)
    assert len(dict(documents)) == len(documents), "each joined row is there once"
    wanted, beyond = by_hand(join, sides_of(sides, rows_of(pipeline, lines, rejected, join["on"])))
    shown = {identity: json.loads(source) for identity, source in documents}
    for one in shown.values():
        del one["strandline"], one["@timestamp"]
    assert shown == wanted
    assert unusable == beyond
    again = at_the_desk(pipeline, lines, slice_records, restarts=True)
    assert again == (documents, rejected, unusable), "restarts change nothing, and nothing of the order"


KEYED = {
    name: StreamSpec.from_document({"stream": name, "schema": schema, "key": "k"}) for name, schema in SCHEMAS.items()
}


def in_buckets(random: Random) -> CheckedPipeline:
    """Return a pipeline with a join of the streams of `test_inputs`, with windows after it and in another branch."""
    join = {
        **a_join(random),
        "left": "some",
        "right": random.choice(["bb", "all", "a"]),
        "on": random.choice([["k"], ["k", "site"], ["site"]]),
        "add": {"v": "left.v", "w": "right.v", "site_right": "right.site"},
    }
    if "within" in join and "latest" not in join:
        join["within"] = {side: random.choice(TIMES[:4]) for side in ("before", "after")}
    aggregate = {"n": "count(*)", "v": "sum(v)", "w": "sum(w)", "first": "first(w)"}
    behind = {"name": "behind", "tumbling": "20s", "by": random.choice([join["on"][:1], ["site_right"], []])}
    steps: Steps = [
        {"name": "bb", "from": "b", "derive": {"v": "w * 0.5"}},
        *random.choice([[], [{"name": "once", "from": "a", "dedupe": {"by": ["k", "site"], "within": "2s"}}]]),
        {"name": "some", "where": "v > -40"},
        {"name": "all", "from": ["some", "bb"], "where": "v < 90"},
        {"join": join, "emit": [{"elasticsearch": "met"}]},
        {"window": {**behind, "aggregate": aggregate}, "emit": [{"elasticsearch": "behind"}]},
        {"from": "all", "window": {"name": "beside", "tumbling": "10s", "by": ["k"], "aggregate": {"s": "sum(v)"}}},
        {"emit": [{"elasticsearch": "beside"}]},
    ]
    if "dedupe" not in steps[1]:
        steps[1]["from"] = "a"
    spec = PipelineSpec.from_document({"pipeline": "p", "inputs": random.sample(INPUTS, 2), "steps": steps})
    return check(spec, [KEYED[name] for name in spec.streams])


@pytest.mark.guarantee(
    "G511",
    "Joined rows of two streams, and windows over them, are the same to the last bit in any slices, chunks, and "
    "buckets. The audit finds the same by its own queries.",
    promise="operators-compute-what-the-reference-describes",
)
@pytest.mark.guarantee("G514")
@examples(10, deadline=None)
@given(seed=st.integers(0, 10**9), buckets=st.sampled_from([1, 2, 5]))
def test_slices_buckets_and_the_order_of_chunks_change_no_bit(seed: int, buckets: int) -> None:
    random = Random(seed)
    pipeline, records = in_buckets(random), some_records(random, 100)
    assert by_buckets(pipeline, records, random, buckets) == by_buckets(pipeline, records, Random(seed), 1)


@pytest.mark.guarantee("G511")
@pytest.mark.guarantee("G514")
@examples(12, deadline=None)
@given(st.integers(0, 10**9))
@example(1_000_000)
def test_an_audit_joins_two_streams_by_its_own_queries(seed: int) -> None:
    random = Random(seed)
    pipeline, records = in_buckets(random), exact_records(random, 100)
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        found, _ = by_audit(pipeline, records, random, Path(directory), patch)
    # The audit also names a stage that has no result.
    assert found == {stage: [] for stage in found} | by_buckets(pipeline, records, random, 2)
