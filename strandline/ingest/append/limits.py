"""Limit of the bytes that one gateway process has in flight to the log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from strandline.ingest.append.outcome import LogBusy
from strandline.log.record_key import Record

BYTES_IN_FLIGHT_MAX = 64 * 1024 * 1024
"""Maximum size in bytes of the values, keys, headers, and overhead of all records that Kafka has not confirmed yet."""
RECORD_OVERHEAD_BYTES = 400
"""Memory in bytes that a record uses in addition to its value, key, and extra headers: the headers of every record, and
the bookkeeping of librdkafka."""
HEADER_OVERHEAD_BYTES = 100
"""Memory in bytes that each extra header uses in addition to its name and value."""
RECORDS_PER_TURN = 1_000
"""Number of records after which a longer batch lets the event loop run. Batches up to this length reach the log in the
order of their calls."""


Headers = Sequence[tuple[str, bytes]]


def bytes_of(records: Sequence[Record], headers: Headers = (), headers_each: Sequence[Headers] | None = None) -> int:
    """Return the bytes that the records count while they are in flight.

    Args: headers: Added to each record; librdkafka copies them for each. headers_each: Extra headers of each single
    record.
    """
    each = RECORD_OVERHEAD_BYTES + _header_bytes(headers)
    size = sum(len(value) + len(key or b"") for value, key in records) + each * len(records)
    if headers_each is None:
        return size
    return size + sum(map(_header_bytes, headers_each))


def _header_bytes(headers: Headers) -> int:
    return sum(len(name) + len(value) + HEADER_OVERHEAD_BYTES for name, value in headers)


class BytesInFlight:
    """Counts the bytes of all records that were handed over and are neither confirmed nor failed."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.now = 0

    def require_budget(self, bytes_new: int) -> None:
        """Raises LogBusy if the bytes don't fit.

        A batch larger than the limit is accepted if nothing else is in flight.
        """
        if self.now and self.now + bytes_new > self._bytes_max:
            raise LogBusy(
                f"{self.now} bytes wait for Kafka to confirm, the limit is {self._bytes_max}; "
                f"nothing of this request was persisted: send it again a little later"
            )

    def take(self, bytes_new: int) -> None:
        """Count bytes that are handed over now."""
        self.now += bytes_new
        self._is_empty.clear()

    def give_back(self, bytes_done: int) -> None:
        """Stop counting bytes whose outcome is known."""
        self.now -= bytes_done
        if not self.now:
            self._is_empty.set()

    async def wait_until_empty(self) -> None:
        """Return when nothing is in flight."""
        await self._is_empty.wait()
