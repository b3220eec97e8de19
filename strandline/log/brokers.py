"""The brokers of Kafka: connections to them, and the leaders of partitions. For one event loop, one task at a time.

The connections, with encryption and login, are those of aiokafka. Its client is not used, because its metadata requests
may create topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka.conn import AIOKafkaConnection, collect_hosts
from aiokafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    NoBrokersAvailable,
    NoError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    for_code,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest

from strandline.log.kafka_connection import aiokafka

_READ_COMMITTED = 1
_FETCH_WAIT_MAX_MS = 250
"""Milliseconds for which a broker waits if there are no records. It answers immediately as soon as there is one."""
_CLOSE_WAIT_S = 0.2

PartitionKey = tuple[str, int]
"""Topic and partition number."""


class PartitionRequest(NamedTuple):
    """Request of one fetch for one partition."""

    partition_key: PartitionKey
    offset_first: int
    bytes_max: int


class PartitionResponse(NamedTuple):
    """Response of a broker for one partition."""

    error: type[KafkaError]
    """NoError, or the reason why there are no records."""
    stable_offset: int
    """Offset up to which every transaction has ended."""
    aborted: list[tuple[int, int]]
    """The aborted transactions among the records: producer id and first offset."""
    records: bytes
    """Complete record batches. The first one may begin before the requested offset, and an incomplete one may follow
    the last."""


class Brokers:
    """Fetches from the leaders of partitions.

    A failure raises KafkaError, OSError, or TimeoutError. After it, call `close` before the next fetch.
    """

    def __init__(self, bootstrap: str, request_timeout_s: float, security: Mapping[str, Any] | None) -> None:
        """`security`: options of aiokafka's connections, such as `security_protocol`, `ssl_context`, and
        `sasl_mechanism`.

        None for the settings of this process, which are read again for each connection. Then InvalidSettings may be
        raised, too.
        """
        self._bootstrap = bootstrap
        self._options = {"client_id": "strandline", "request_timeout_ms": int(request_timeout_s * 1_000)}
        self._security = security
        self._connections: dict[tuple[str, int], AIOKafkaConnection] = {}
        self._leaders: dict[PartitionKey, tuple[str, int]] = {}

    async def fetch(self, requests: Sequence[PartitionRequest], bytes_max: int) -> list[PartitionResponse]:
        """Fetch from the leader of the first partition, also the directly following partitions in `requests` with the same
        leader.

        Returns a response for each of these; the caller must request the others again. The first partition that has
        records returns at least one complete batch, however large. All others are limited by `bytes_max`.
        """
        address = await self._leader_of(requests[0].partition_key, {one.partition_key[0] for one in requests})
        count = next(
            (n for n, one in enumerate(requests) if self._leaders.get(one.partition_key) != address), len(requests)
        )
        return await self._fetch_from(address, requests[:count], bytes_max)

    async def fetch_each(
        self, requests: Sequence[PartitionRequest], bytes_max: int
    ) -> dict[PartitionKey, PartitionResponse | Exception]:
        """Ask the leader of each of these different partitions, with one request to each broker. Return the answer of each
        partition, or why there is none. No failure of a partition or a broker affects the others, and no `close` is needed.
        """
        found: dict[PartitionKey, PartitionResponse | Exception] = await self._learn_leaders(
            [one.partition_key for one in requests]
        )
        of_leader: dict[tuple[str, int], list[PartitionRequest]] = {}
        for one in requests:
            if one.partition_key not in found:
                of_leader.setdefault(self._leaders[one.partition_key], []).append(one)

        async def fetch_from(address: tuple[str, int], these: Sequence[PartitionRequest]) -> None:
            try:
                answers: Sequence[PartitionResponse | Exception] = await self._fetch_from(address, these, bytes_max)
            except (KafkaError, OSError, TimeoutError) as error:
                answers = [error] * len(these)
                lost = self._connections.pop(address, None)
                await _end([lost] if lost else [])
            for one, answer in zip(these, answers, strict=True):
                found[one.partition_key] = answer
                if isinstance(answer, Exception) or answer.error not in (NoError, OffsetOutOfRangeError):
                    self._leaders.pop(one.partition_key, None)

        await asyncio.gather(*(fetch_from(address, these) for address, these in of_leader.items()))
        return found

    async def _fetch_from(
        self, address: tuple[str, int], requests: Sequence[PartitionRequest], bytes_max: int
    ) -> list[PartitionResponse]:
        connection = await self._connection(address)
        topics = [(topic, [(number, first, size)]) for (topic, number), first, size in requests]
        answer = await connection.send(FetchRequest(_FETCH_WAIT_MAX_MS, 1, bytes_max, _READ_COMMITTED, topics))
        error = for_code(getattr(answer, "error_code", 0))  # of the whole answer
        if error is not NoError:
            raise error(f"{address[0]}:{address[1]} refused to answer")
        aborted_at = 4 if answer.API_VERSION == 4 else 5
        found = {
            (topic, part[0]): PartitionResponse(for_code(part[1]), part[3], part[aborted_at] or [], part[-1] or b"")
            for topic, parts in answer.topics
            for part in parts
        }
        if any(
            one.partition_key not in found for one in requests
        ):  # its answer while it throttles this client by a quota
            raise RequestTimedOutError(f"{address[0]}:{address[1]} left out partitions that were requested")
        return [found[one.partition_key] for one in requests]

    async def close(self) -> None:
        """Close the connections and forget the leaders. The next fetch begins with new ones."""
        connections, self._connections, self._leaders = self._connections, {}, {}
        await _end(list(connections.values()))

    async def _leader_of(self, partition_key: PartitionKey, topics: set[str]) -> tuple[str, int]:
        if (
            partition_key not in self._leaders
            and (refused := (await self._ask_leaders(topics)).get(partition_key[0])) is not None
        ):
            raise refused
        if partition_key not in self._leaders:
            raise LeaderNotAvailableError(f"{partition_key[0]}/{partition_key[1]}")
        return self._leaders[partition_key]

    async def _learn_leaders(
        self, partition_keys: Sequence[PartitionKey]
    ) -> dict[PartitionKey, PartitionResponse | Exception]:
        """Query the leaders of these partitions, unless they are known. Return partition -> reason why its leader is
        still unknown.
        """
        unknown = [partition_key for partition_key in partition_keys if partition_key not in self._leaders]
        if not unknown:
            return {}
        try:
            refused = await self._ask_leaders({topic for topic, _ in unknown})
        except (KafkaError, OSError, TimeoutError) as error:
            return dict.fromkeys(unknown, error)
        return {
            partition_key: refused.get(partition_key[0])
            or LeaderNotAvailableError(f"{partition_key[0]}/{partition_key[1]}")
            for partition_key in unknown
            if partition_key not in self._leaders
        }

    async def _ask_leaders(self, topics: set[str]) -> dict[str, KafkaError]:
        """Ask who leads the partitions of these topics. Return the errors of topics."""
        connection = await self._any_connection()
        answer = await connection.send(MetadataRequest(sorted(topics), allow_auto_topic_creation=False))
        addresses = {broker[0]: (broker[1], broker[2]) for broker in answer.brokers}
        refused = {}
        for code, topic, _, partitions in answer.topics:
            if for_code(code) is not NoError:
                refused[topic] = for_code(code)(topic)
            for _, number, leader, *_ in partitions:
                if leader in addresses:
                    self._leaders[topic, number] = addresses[leader]
        return refused

    async def _any_connection(self) -> AIOKafkaConnection:
        for address in self._connections:
            return await self._connection(address)
        failure: Exception = NoBrokersAvailable(self._bootstrap)
        for host, port, _ in collect_hosts(self._bootstrap):
            try:
                return await self._connection((host, port))
            except (KafkaError, OSError, TimeoutError) as error:
                failure = error
        raise failure

    async def _connection(self, address: tuple[str, int]) -> AIOKafkaConnection:
        connection = self._connections.pop(address, None)
        if connection is None or not connection.connected():
            await _end([connection] if connection else [])
            security = self._security if self._security is not None else aiokafka()
            connection = AIOKafkaConnection(*address, **self._options, **security)
            try:
                await connection.connect()
            except BaseException:
                await _end([connection])
                raise
        self._connections[address] = connection
        return connection


async def _end(connections: Sequence[AIOKafkaConnection]) -> None:
    """Close the connections, but wait only for a moment: a silent broker may never answer the end of an encrypted
    connection."""
    if connections:
        await asyncio.wait([connection.close() for connection in connections], timeout=_CLOSE_WAIT_S)
