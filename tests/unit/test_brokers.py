"""What a broker's answer to a fetch is taken for; real brokers answer in tests/contract/test_log_readers.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaError

from strandline.log.brokers import Asked, Brokers


class Throttling:
    """A connection to a broker that holds its clients to a quota: it answers at once, and with nothing."""

    def connected(self) -> bool:
        return True

    async def send(self, request: object) -> Any:
        return SimpleNamespace(API_VERSION=11, error_code=0, throttle_time_ms=900, topics=[])


def test_a_partition_that_an_answer_leaves_out_is_a_failure_that_passes() -> None:
    brokers, address = Brokers("nowhere", 1.0, {}), ("broker", 9092)
    brokers._leaders["s", 0] = address
    brokers._connections[address] = Throttling()  # type: ignore[assignment]
    with pytest.raises(KafkaError, match="broker:9092 left out partitions") as raised:
        asyncio.run(brokers.fetch([Asked(("s", 0), 5, 1_000)], 1_000))
    assert raised.value.retriable
