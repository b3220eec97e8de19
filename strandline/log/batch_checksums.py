"""Checksums of record batches. They show whether an offset still holds the record that it held before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from aiokafka.errors import KafkaError, NoError, OffsetOutOfRangeError

from strandline.core.errors import LogUnavailable
from strandline.log.brokers import Answer, Asked, Brokers
from strandline.log.kafka_connection import remedy_of
from strandline.log.record_batches import checksum_at

_PARTITION_BYTES_MAX = 131_072
"""Of a partition beyond the first, a batch that is larger is asked for once more."""
_ASK_AGAIN_S = 0.2


class BatchChecksums:
    """Reads checksums of batches from the log. Not thread-safe, and not to be called inside an event loop; to be closed."""

    def __init__(self, bootstrap: str, timeout_s: float) -> None:
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._loop = asyncio.new_event_loop()
        self._brokers = Brokers(bootstrap, timeout_s, None)

    def at(self, stream: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """Return the checksum of the batch that contains the offset, by partition.

        A partition is left out only if its log proves that it lacks the offset: it starts after the offset, ends before it, or
        continues with a later batch. An empty response proves nothing and is requested again. Raises LogUnavailable if the
        brokers don't answer, or send empty responses only, within the timeout.
        """
        found: dict[int, int] = {}
        left = dict(offsets)
        deadline = time.monotonic() + self._timeout_s
        while left:
            asked = [Asked((stream, partition), offset, _PARTITION_BYTES_MAX) for partition, offset in left.items()]
            count = len(left)
            reason: Exception | None = None
            try:
                answers = self._loop.run_until_complete(self._brokers.fetch(asked, _PARTITION_BYTES_MAX * count))
                for one, answer in zip(asked, answers, strict=False):
                    checksum, is_absent = _checksum(answer, one.offset_first)
                    if checksum is not None:
                        found[one.place[1]] = checksum
                    if checksum is not None or is_absent:
                        del left[one.place[1]]
            except (KafkaError, OSError, TimeoutError) as error:
                reason = error
                self._loop.run_until_complete(self._brokers.close())
            if len(left) < count:
                continue
            if time.monotonic() > deadline:
                raise self._gave_up(stream, left, reason) from reason
            time.sleep(_ASK_AGAIN_S)
        return found

    def _gave_up(self, stream: str, left: Mapping[int, int], reason: Exception | None) -> LogUnavailable:
        partition, offset = next(iter(left.items()))
        why = (
            f"{str(reason) or type(reason).__name__}{remedy_of(reason)}"
            if reason
            else f"for offset {offset} of partition {partition}, which the log reaches, the responses are empty; if the topic "
            "has tiered storage, check the remote storage and the broker's remote.fetch.max.wait.ms"
        )
        return LogUnavailable(
            f"the checksums of stream {stream} could not be read from Kafka at {self._bootstrap} ({why}); try again when Kafka "
            "answers"
        )

    def close(self) -> None:
        """Close the connections. Nothing can be asked afterwards."""
        self._loop.run_until_complete(self._brokers.close())
        self._loop.close()


def _checksum(answer: Answer, offset: int) -> tuple[int | None, bool]:
    """Return the checksum, if the response contains it, and True if the response proves that the partition lacks the offset."""
    if answer.error is OffsetOutOfRangeError:
        return None, True
    if answer.error is not NoError:
        raise answer.error(f"offset {offset}")
    found = checksum_at(answer.records, offset)
    # A broker that waited in vain for its tiered storage may name no stable offset (-1).
    ends_before = not answer.records and 0 <= answer.stable_offset <= offset
    return found.checksum, found.is_in_hole or ends_before
