"""Checksums of record batches: they tell whether an offset still holds the record that it held before."""

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
        """Per partition the checksum of the batch that holds the offset. A partition that holds no such offset is left out.

        Raises LogUnavailable when the brokers don't answer within the timeout.
        """
        found: dict[int, int] = {}
        left = dict(offsets)
        deadline = time.monotonic() + self._timeout_s
        while left:
            asked = [Asked((stream, partition), offset, _PARTITION_BYTES_MAX) for partition, offset in left.items()]
            try:
                answers = self._loop.run_until_complete(self._brokers.fetch(asked, _PARTITION_BYTES_MAX * len(asked)))
                for one, answer in zip(asked, answers, strict=False):
                    partition = one.place[1]
                    checksum = _checksum(answer, one.offset_first)
                    if checksum is not None:
                        found[partition] = checksum
                    # The first one has its whole batch for certain; for others there may have been no room.
                    if checksum is not None or one is asked[0] or answer.error is OffsetOutOfRangeError:
                        del left[partition]
            except (KafkaError, OSError, TimeoutError) as error:
                if time.monotonic() > deadline:
                    raise LogUnavailable(
                        f"the checksums of stream {stream} could not be read from Kafka at {self._bootstrap} "
                        f"({str(error) or type(error).__name__}{remedy_of(error)}); try again when Kafka answers"
                    ) from error
                self._loop.run_until_complete(self._brokers.close())
                time.sleep(_ASK_AGAIN_S)
        return found

    def close(self) -> None:
        """Close the connections. Nothing can be asked afterwards."""
        self._loop.run_until_complete(self._brokers.close())
        self._loop.close()


def _checksum(answer: Answer, offset: int) -> int | None:
    if answer.error is OffsetOutOfRangeError:
        return None
    if answer.error is not NoError:
        raise answer.error(f"offset {offset}")
    return checksum_at(answer.records, offset)
