"""Joins against an oracle in plain Python, which knows all rows at once; and the same to the last bit in other slices, buckets
and chunks, and behind a rewind."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, assume, given
from hypothesis import strategies as st

from strandline.core.streams.stream import StreamSpec
from strandline.processing.desk.desk import Desk, DeskResult, Outcome
from strandline.processing.desk.records import DeskRecords
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.results.document import document_id, format_timestamp
from tests.property.test_branches import checked
from tests.property.test_rewind_windows import require_the_rest
from tests.property.test_window_operator import END, Record, digest, histories, run
from tests.support.examples import examples
from tests.support.join_graphs import a_join, some_join
from tests.support.step_graphs import document_of

History = list[tuple[list[Record], int | None]]
STREAM = StreamSpec.from_document(
    {
        "stream": "shop",
        "partitions": 3,
        "format": "json",
        "schema": {"kind": "string", "machine": "string?", "site": "string?", "ts": "timestamp", "value": "double?"},
        "retention": "7d",
    }
)


@pytest.mark.guarantee(
    "G461",
    "Joined rows, and windows over them, are the same to the last bit with the same ids, in any slices, chunks, and "
    "buckets. A rewind, or an upgrade to another join, doesn't change them.",
    promise="operators-compute-what-the-reference-describes",
)
@pytest.mark.guarantee("G595")
@examples(50)
@given(histories(), st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 7))
def test_joins_do_not_depend_on_slices_buckets_or_chunks(
    history: History, seed: int, buckets: int, chunk_rows: int
) -> None:
    pipeline = checked(some_join(Random(seed)))
    at_once = run(pipeline, [([row for rows, _ in history for row in rows], END)], 1, 10**6)
    assert digest(run(pipeline, history, buckets, chunk_rows)) == digest(at_once)


@pytest.mark.guarantee("G461")
@examples(50)
@given(histories(), st.integers(0, 2**32), st.none() | st.integers(0, 2**32), st.data())
def test_a_rewind_of_a_join_computes_just_what_is_not_emitted(
    history: History, seed: int, new_seed: int | None, data: st.DataObject
) -> None:
    """Also by a version with another join under the same name."""
    assume(len(history) > 1)
    old = checked(some_join(Random(seed)))
    new = old if new_seed is None else checked(some_join(Random(new_seed)))
    number = data.draw(st.integers(1, len(history) - 1), label="the last committed slice")
    require_the_rest(history, old, new, number)


@dataclass(frozen=True)
class Row:
    """A record as the oracle sees it."""

    place: str
    key: tuple[Any, ...]
    at_us: int
    value: float | None
    log: tuple[int, ...]
    """Position in the log, which sorts rows of one event time."""


def some_log(random: Random) -> list[tuple[int, bytes]]:
    """(partition, record): out of order, some late, some broken, some with one event time."""
    lines, ahead_us = [], 0
    for _ in range(random.choice([5, 30, 80])):
        ahead_us += random.choice([0, 0, 500_000, 3_000_000])
        at_us = max(0, ahead_us + random.choice([0, 0, 1, 999, 1_000, random.randrange(-6_000_000, 6_000_000)]))
        record = {
            "kind": random.choice(["l", "r", "r", "both"]),
            "machine": random.choice(["a", "a", "b", None]),
            "site": random.choice(["x", "y", None]),
            "ts": format_timestamp(at_us),
            "value": random.choice([None, random.uniform(-10, 10)]),
        }
        line = json.dumps(record).encode()
        lines.append((random.randrange(3), line[:-2] if random.random() < 0.04 else line))
    return lines


def join_document(join: dict[str, Any], delay: str) -> dict[str, Any]:
    add = {"l_value": "left.value", "r_value": "right.value", "l_ts": "left.ts", "r_ts": "right.ts"}
    steps = [
        {"where": "kind != 'r'", "name": "lefts"},
        {"where": "kind != 'l'", "name": "rights", "from": "shop"},
        {"join": {**join, "add": add}, "emit": [{"elasticsearch": "met"}]},
    ]
    document = document_of(steps, "shop")
    return {**document, "event_time": {"field": "ts", "delay": delay, "max_ahead": None, "idle_timeout": None}}


def at_the_desk(
    document: dict[str, Any], lines: Sequence[tuple[int, bytes]], slice_records: int | None, *, restarts: bool = False
) -> tuple[dict[str, bytes], set[str], dict[str, str]]:
    """Id -> document of each joined row, in the order in which they come; the records that were rejected; and of each joined row
    that can't be used its message."""
    desk = Desk(check(PipelineSpec.from_document(document), STREAM), slice_records, restarts=restarts)
    outcomes: list[Outcome] = []
    for first in range(0, len(lines), 11):
        part = lines[first : first + 11]
        outcomes += desk.feed(DeskRecords([line for _, line in part], [partition for partition, _ in part]))
        if restarts:
            desk.restart()
    outcomes += desk.drain()
    documents: dict[str, bytes] = {}
    rejected, unusable = set(), {}
    for one in outcomes:
        if isinstance(one, DeskResult):
            assert one.document.id not in documents, "each joined row is there once"
            documents[one.document.id] = re.sub(rb',"emission":\d+', b"", one.document.source)
        elif "offset" in one.place:
            rejected.add(f"shop/{one.place['partition']}/{one.place['offset']}")
        else:
            unusable[str(one.place["document"])] = one.message
    return documents, rejected, unusable


def accepted(lines: Sequence[tuple[int, bytes]], rejected: set[str], on: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """(kind, row) of each record that was not rejected."""
    counts: dict[int, int] = defaultdict(int)
    for partition, line in lines:
        offset = counts[partition]
        counts[partition] += 1
        place = f"shop/{partition}/{offset}"
        if place not in rejected:
            record = json.loads(line)
            key = tuple(record[name] for name in on)
            yield record["kind"], Row(place, key, microseconds(record["ts"]), record["value"], (partition, offset))


def microseconds(time: str) -> int:
    delta = datetime.fromisoformat(time) - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def by_hand(join: dict[str, Any], sides: tuple[list[Row], list[Row]]) -> tuple[dict[str, Any], set[str]]:
    """Id -> what the document says of each joined row; and the ids of the rows that are beyond the bound."""
    size_ms = seconds(join["tumbling"]) if "tumbling" in join else None
    before_ms, after_ms = (seconds(join["within"][name]) if "within" in join else 0 for name in ("before", "after"))
    holds_us = [1000 * after_ms, 1000 * before_ms]

    def window_of(row: Row) -> int:
        assert size_ms is not None
        return row.at_us // (1000 * size_ms) * size_ms

    def is_near(left: Row, right: Row) -> bool:
        if size_ms is not None:
            return window_of(left) == window_of(right)
        return left.at_us - 1000 * before_ms <= right.at_us <= left.at_us + 1000 * after_ms

    def is_beyond(row: Row, side: int) -> bool:
        def is_counted(one: Row) -> bool:
            if one.key != row.key or (one.at_us, one.log) >= (row.at_us, row.log):
                return False
            return window_of(one) == window_of(row) if size_ms is not None else one.at_us >= row.at_us - holds_us[side]

        if join.get("latest"):
            return False
        return None not in row.key and sum(map(is_counted, sides[side])) >= join["max_rows"]

    found: dict[str, Any] = {}

    def add(left: Row | None, right: Row | None, start_ms: int, end_ms: int) -> str:
        some = left or right
        assert some is not None
        places = "|".join("-" if row is None else row.place for row in (left, right))
        identity = document_id("health", "met", start_ms, end_ms, (*some.key, places))
        assert identity not in found
        found[identity] = {
            "window": {"start": format_timestamp(1000 * start_ms), "end": format_timestamp(1000 * end_ms)},
            **dict(zip(join["on"], some.key, strict=True)),
            **{
                f"{name}_{field}": None if row is None else value(row)
                for name, row in (("l", left), ("r", right))
                for field, value in (("value", lambda row: row.value), ("ts", lambda row: format_timestamp(row.at_us)))
            },
        }
        return identity

    def times_of(one: Row, hold_us: int) -> tuple[int, int]:
        if size_ms is not None:
            return window_of(one), window_of(one) + size_ms
        return one.at_us // 1000, one.at_us // 1000 + hold_us // 1000 + 1

    beyond = [{row.place for row in sides[side] if is_beyond(row, side)} for side in (0, 1)]
    unusable = set()
    for side in (0, 1):
        for row in sides[side]:
            if row.place in beyond[side]:
                identity = add(*((row, None) if side == 0 else (None, row)), *times_of(row, 0))
                unusable.add(identity)
                del found[identity]
    met: list[set[str]] = [set(), set()]
    for left in sides[0]:
        for right in sides[1]:
            is_pair = left.key == right.key and None not in left.key and is_near(left, right)
            if is_pair and join.get("latest"):  # no later one fits, too
                is_pair = not any(
                    other.key == right.key
                    and is_near(left, other)
                    and (other.at_us, other.log) > (right.at_us, right.log)
                    for other in sides[1]
                )
            if is_pair and left.place not in beyond[0] and right.place not in beyond[1]:
                met[0].add(left.place)
                met[1].add(right.place)
                times_us = left.at_us, right.at_us
                times = (min(times_us) // 1000, max(times_us) // 1000 + 1) if size_ms is None else times_of(left, 0)
                add(left, right, *times)
    for side in (0, 1):
        if join["type"] == "full" or (join["type"] == "left" and side == 0):
            for row in sides[side]:
                if row.place not in met[side] | beyond[side]:
                    add(*((row, None) if side == 0 else (None, row)), *times_of(row, holds_us[side]))
    return found, unusable


def seconds(text: str) -> int:
    return int(text[:-2]) if text.endswith("ms") else 1000 * int(text[:-1])


@pytest.mark.guarantee(
    "G460",
    "A join gives each matching pair of rows once, each row of a kept side without a partner once, and nothing else. "
    "This includes disorder, late and broken records, null keys, and equal rows.",
    promise="operators-compute-what-the-reference-describes",
)
@pytest.mark.guarantee("G463")
@pytest.mark.guarantee(
    "G595",
    "With `latest`, a row meets only the latest row of its key that isn't later than itself and at most `before` "
    "older; at equal times, the last in the log. A version that arrives after the row but before the watermark "
    "counts.",
    promise="operators-compute-what-the-reference-describes",
)
@examples(120, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 2**32), st.none() | st.sampled_from([7, 30]))
def test_joined_rows_are_those_of_an_oracle(seed: int, slice_records: int | None) -> None:
    """Disorder, late and broken records, null keys, rows beyond the bound; at once, in slices, and restarted all the time."""
    random = Random(seed)
    join, lines = a_join(random), some_log(random)
    document = join_document(join, random.choice(["0s", "2s", "1m"]))
    documents, rejected, unusable = at_the_desk(document, lines, slice_records)
    rows = list(accepted(lines, rejected, join["on"]))
    sides = [row for kind, row in rows if kind != "r"], [row for kind, row in rows if kind != "l"]
    wanted, beyond = by_hand(join, sides)
    shown = {identity: json.loads(source) for identity, source in documents.items()} if documents else {}
    for one in shown.values():
        del one["strandline"], one["@timestamp"]
    assert shown == wanted
    assert set(unusable) == beyond
    assert all("max_rows" in message for message in unusable.values())
    again = at_the_desk(document, lines, slice_records, restarts=True)
    assert again == (documents, rejected, unusable), "restarts change nothing"
    assert list(again[0]) == list(documents), "and nothing of the order"
