"""Treatment of a broker's answers to a fetch. Real brokers answer in tests/contract/test_log_readers.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaError, NotLeaderForPartitionError, UnknownTopicOrPartitionError
from aiokafka.protocol.metadata import MetadataRequest

from strandline.log.brokers import Brokers, PartitionRequest, PartitionResponse


class Throttling:
    """A connection to a broker that holds its clients to a quota: it answers at once, and with nothing."""

    def connected(self) -> bool:
        return True

    def close(self) -> asyncio.Future[None]:
        return asyncio.ensure_future(asyncio.sleep(0))

    async def send(self, request: object) -> Any:
        return SimpleNamespace(API_VERSION=11, error_code=0, throttle_time_ms=900, topics=[])


def test_a_partition_that_an_answer_leaves_out_is_a_failure_that_passes() -> None:
    brokers, address = Brokers("nowhere", 1.0, {}), ("broker", 9092)
    brokers._leaders["s", 0] = address
    brokers._connections[address] = Throttling()  # type: ignore[assignment]
    with pytest.raises(KafkaError, match="broker:9092 left out partitions") as raised:
        asyncio.run(brokers.fetch([PartitionRequest(("s", 0), 5, 1_000)], 1_000))
    assert raised.value.retriable


class OneLeader:
    """A connection to the broker that leads every partition but those of a topic that is gone."""

    def __init__(self) -> None:
        self.fetches: list[set[str]] = []

    def connected(self) -> bool:
        return True

    def close(self) -> asyncio.Future[None]:
        return asyncio.ensure_future(asyncio.sleep(0))

    async def send(self, request: Any) -> Any:
        if isinstance(request, MetadataRequest):
            led = [(0, 0, 1, [], [])]
            topics = [(3, name, False, []) if name == "gone" else (0, name, False, led) for name in request._topics]
            return SimpleNamespace(brokers=[(1, "broker", 9092, None)], topics=topics)
        self.fetches.append({topic for topic, _ in request._topics})
        parts = [
            (topic, [(0, 6 if topic == "moved" else 0, 9, 9, 0, [], topic.encode())]) for topic, _ in request._topics
        ]
        return SimpleNamespace(API_VERSION=11, error_code=0, topics=parts)


def test_a_topic_that_is_gone_and_a_leader_that_has_moved_are_answers_of_their_own() -> None:
    brokers, address, connection = Brokers("nowhere", 1.0, {}), ("broker", 9092), OneLeader()
    brokers._connections[address] = connection  # type: ignore[assignment]
    asked = [PartitionRequest((name, 0), 5, 1_000) for name in ("gone", "a", "moved", "b")]
    found = asyncio.run(brokers.fetch_each(asked, 4_000))
    assert isinstance(found["gone", 0], UnknownTopicOrPartitionError)
    assert [answer.records for at in "ab" if isinstance(answer := found[at, 0], PartitionResponse)] == [b"a", b"b"]
    assert isinstance(answer := found["moved", 0], PartitionResponse) and answer.error is NotLeaderForPartitionError
    assert connection.fetches == [{"a", "moved", "b"}], "one request for all that the broker leads"
    assert set(brokers._leaders) == {("a", 0), ("b", 0)}, "the leaders of the others are asked for again"


def test_a_broker_that_does_not_answer_is_an_answer_of_its_partitions() -> None:
    brokers, near, far = Brokers("nowhere", 1.0, {}), ("near", 9092), ("far", 9092)
    connection = OneLeader()
    brokers._connections[near] = connection  # type: ignore[assignment]
    brokers._leaders |= {("a", 0): near, ("b", 0): far}
    brokers._connections[far] = Throttling()  # type: ignore[assignment]
    found = asyncio.run(
        brokers.fetch_each([PartitionRequest(("a", 0), 5, 1_000), PartitionRequest(("b", 0), 5, 1_000)], 2_000)
    )
    assert isinstance(found["a", 0], PartitionResponse)
    assert isinstance(found["b", 0], KafkaError)
    assert list(brokers._connections) == [near]
