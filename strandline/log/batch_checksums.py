"""Checksums of record batches. They show whether an offset still contains the same record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import NamedTuple

from aiokafka.errors import KafkaError, NoError, OffsetOutOfRangeError

from strandline.core.errors import LogUnavailable
from strandline.log.brokers import Brokers, PartitionKey, PartitionRequest, PartitionResponse
from strandline.log.kafka_connection import remedy_of
from strandline.log.record_batches import checksum_at

_PARTITION_BYTES_MAX = 131_072
"""Bytes of a partition in the first response. A larger batch is requested again, with more bytes."""
_GROWTH = 8
_LARGEST_BYTES = 64 * 1_048_576
_RESPONSE_BYTES_MAX = 16 * 1_048_576
"""Bytes of all partitions in a response. Partitions that find no room are requested again."""
_ASK_AGAIN_S = 0.2


class LogPosition(NamedTuple):
    """An offset of the log."""

    stream: str
    partition: int
    offset: int


class BatchChecksums:
    """Reads checksums of batches from the log.

    Not thread-safe. Must not be called inside an event loop, and must be closed.
    """

    def __init__(self, bootstrap: str, timeout_s: float, patience_s: float | None = None) -> None:
        """`patience_s`: Seconds for which an offset is requested again while its response proves nothing. None for the
        timeout.
        """
        self._bootstrap = bootstrap
        self._patience_s = timeout_s if patience_s is None else patience_s
        self._loop = asyncio.new_event_loop()
        self._brokers = Brokers(bootstrap, timeout_s, None)

    def at(self, positions: Collection[LogPosition]) -> dict[LogPosition, int | LogUnavailable]:
        """Return the checksums of the batches that contain these offsets. One request to each broker is enough if no
        partition occurs twice and no batch is large.

        An offset is left out only if its log proves that it lacks the offset: it starts after the offset, ends before it, or
        continues with a later batch. An empty response proves nothing and is requested again. The answer is LogUnavailable
        if the brokers don't answer for the offset, or send empty responses only, within the patience.
        """
        found: dict[LogPosition, int | LogUnavailable] = {}
        left, sizes = dict.fromkeys(positions), dict.fromkeys(positions, _PARTITION_BYTES_MAX)
        deadline = time.monotonic() + self._patience_s
        while left:
            one_of_each: dict[PartitionKey, LogPosition] = {}
            for wanted in left:
                one_of_each.setdefault((wanted.stream, wanted.partition), wanted)
            requests = [PartitionRequest(place, wanted.offset, sizes[wanted]) for place, wanted in one_of_each.items()]
            bytes_max = min(sum(one.bytes_max for one in requests), max(_RESPONSE_BYTES_MAX, requests[0].bytes_max))
            answers = self._loop.run_until_complete(self._brokers.fetch_each(requests, bytes_max))
            reasons: dict[LogPosition, Exception] = {}
            for place, wanted in one_of_each.items():
                try:
                    checksum, is_absent = _checksum(answers[place], wanted.offset)
                except (KafkaError, OSError, TimeoutError) as error:
                    reasons[wanted] = error
                    continue
                if checksum is not None:
                    found[wanted] = checksum
                if checksum is not None or is_absent:
                    del left[wanted]
                else:
                    sizes[wanted] = min(_GROWTH * sizes[wanted], _LARGEST_BYTES)
            if left and all(wanted in left for wanted in one_of_each.values()):
                if time.monotonic() > deadline:
                    return found | {one: self._gave_up(one, reasons.get(one)) for one in left}
                time.sleep(_ASK_AGAIN_S)
        return found

    def _gave_up(self, place: LogPosition, reason: Exception | None) -> LogUnavailable:
        why = (
            f"{str(reason) or type(reason).__name__}{remedy_of(reason)}"
            if reason
            else f"for offset {place.offset} of partition {place.partition}, which the log reaches, the responses are empty; if "
            "the topic has tiered storage, check the remote storage and the broker's remote.fetch.max.wait.ms"
        )
        error = LogUnavailable(
            f"the checksums of stream {place.stream} could not be read from Kafka at {self._bootstrap} ({why}); try again "
            "when Kafka answers"
        )
        error.__cause__ = reason
        return error

    def close(self) -> None:
        """Close the connections. Call no other method afterwards."""
        self._loop.run_until_complete(self._brokers.close())
        self._loop.close()


def _checksum(answer: PartitionResponse | Exception, offset: int) -> tuple[int | None, bool]:
    """Return the checksum, if the response contains it, and True if the response proves that the partition lacks the offset."""
    if isinstance(answer, Exception):
        raise answer
    if answer.error is OffsetOutOfRangeError:
        return None, True
    if answer.error is not NoError:
        raise answer.error(f"offset {offset}")
    found = checksum_at(answer.records, offset)
    # A broker that waited without success for its tiered storage may return no stable offset (-1).
    ends_before = not answer.records and 0 <= answer.stable_offset <= offset
    return found.checksum, found.is_in_hole or ends_before
