"""How much may be under way to the log at one time in a gateway process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from strandline.ingest.append.outcome import LogBusy
from strandline.log.record_key import Record

BYTES_IN_FLIGHT_MAX = 64 * 1024 * 1024
"""Values, keys, headers and overhead of all records that Kafka has not yet confirmed."""
RECORD_OVERHEAD_BYTES = 400
"""What a record costs in memory beside its value, its key and what its sender says of it: the headers that every record has,
and librdkafka's own book-keeping."""
HEADER_OVERHEAD_BYTES = 100
"""What each other header costs beside its name and value."""
RECORDS_PER_TURN = 1_000
"""A longer batch lets the event loop run in between; up to this, batches reach the log in the order of their calls."""


Headers = Sequence[tuple[str, bytes]]


def bytes_of(records: Sequence[Record], headers: Headers = (), headers_each: Sequence[Headers] | None = None) -> int:
    """What the records count while they are under way. `headers` stand in each record, and librdkafka copies them for each;
    `headers_each` are those that only one record has."""
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

    def require_room(self, bytes_new: int) -> None:
        """Raises LogBusy when the bytes don't fit. A batch that is larger than the limit goes alone, else it never could."""
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
