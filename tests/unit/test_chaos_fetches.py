"""Fetch answers that the proxy before Kafka changes are those of the fault, and else what the broker sent."""

from __future__ import annotations

import asyncio
import random

import pytest
from aiokafka.protocol import fetch

from tests.support.faults.kafka_proxy import Api, Frame, Rule, empty_fetches, holed_fetches
from tests.unit.test_record_batches import batch

BATCHES = [batch(0, b"a", b"b"), batch(2, b"c"), batch(3, b"d")]
RECORDS = b"".join(BATCHES)
CORRELATION = b"\0\0\0\7"


def answered(version: int, records: bytes) -> bytes:
    """An answer of two topics: one partition with records, and one without."""
    response = getattr(fetch, f"FetchResponse_v{version}")
    aborted = [(7, 0)]

    def partition(number: int, data: bytes) -> tuple[object, ...]:
        log_start = (0,) if version >= 5 else ()
        replica = (-1,) if version >= 11 else ()
        return (number, 0, 4, 4, *log_start, aborted, *replica, data)

    head = (0, 0, 0) if version >= 7 else (0,)
    topics = [("readings", [partition(0, records), partition(1, b"")]), ("other", [partition(0, records)])]
    return CORRELATION + response(*head, topics).encode()


def changed(rule: Rule, version: int, records: bytes = RECORDS) -> dict[tuple[str, int], tuple[int, bytes]]:
    """(topic, partition) -> last stable offset and records, of the answer as it is passed on."""
    body = asyncio.run(rule.spoil(Frame(Api.FETCH, version, answered(version, records))))
    assert body[:4] == CORRELATION
    found = getattr(fetch, f"FetchResponse_v{version}").decode(body[4:])
    return {(topic, one[0]): (one[3], one[-1]) for topic, parts in found.topics for one in parts}


@pytest.mark.parametrize("version", range(4, 12))
def test_an_empty_answer_has_no_records_and_may_hide_the_end_of_the_log(version: int):
    rule = empty_fetches(random.Random(1), 1.0)
    seen = [changed(rule, version)["readings", 0] for _ in range(20)]
    assert {records for _, records in seen} == {b""}
    assert {stable for stable, _ in seen} == {4, -1}
    assert rule.changed == 40, "the partition without records is as it was"


@pytest.mark.parametrize("version", range(4, 12))
def test_a_hole_is_one_batch_and_never_the_last_one(version: int):
    rule = holed_fetches(random.Random(1), 1.0)
    seen = {changed(rule, version)["readings", 0] for _ in range(20)}
    assert seen == {(4, BATCHES[1] + BATCHES[2]), (4, BATCHES[0] + BATCHES[2])}
    assert changed(rule, version, BATCHES[0])["readings", 0] == (4, BATCHES[0])


def test_what_is_not_drawn_and_other_topics_are_passed_on_as_they_came():
    whole = {("readings", 0): (4, RECORDS), ("readings", 1): (4, b""), ("other", 0): (4, RECORDS)}
    assert changed(empty_fetches(random.Random(1), 0.0), 11) == whole
    found = changed(holed_fetches(random.Random(1), 1.0, ["other"]), 11)
    assert found["readings", 0] == (4, RECORDS)
    assert found["other", 0] != (4, RECORDS)
    later = Frame(Api.FETCH, 12, b"of a client that no rule is about")
    assert asyncio.run(empty_fetches(random.Random(1), 1.0).spoil(later)) == later.body
