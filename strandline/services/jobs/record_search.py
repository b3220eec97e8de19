"""Search of records in a stream: by device, by log time, or by their bytes.

The newest records of the chosen range of log time are read, as many as the limits allow. The response names the range that was
read, so that a user knows whether an older record can exist.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

from strandline.core.described import Described
from strandline.core.record_headers import HEADER_SOURCE, RECORD_KEY
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.roles import LedgerReader
from strandline.log.kafka_status import KafkaStatus, NewestRecords
from strandline.services.jobs.devices import BYTES_MAX, BYTES_WANTED, RECORDS_MAX, covered_from_ms, one_at_a_time
from strandline.services.jobs.samples import decode_one, row_headers
from strandline.services.jobs.senders import sender_finder
from strandline.services.processes.limited_work import RunLimited

FOUND_MAX = 100
"""Maximum number of records in a response."""
TEXT_SHOWN = 2_000
"""Maximum number of characters of a payload in a response."""


class Wanted(NamedTuple):
    """Conditions for records. All of them must be true."""

    device: str = ""
    """Text that the name of the device contains, regardless of case. Empty for any device."""
    from_ms: int | None = None
    """First log time. None for the oldest record of the topic."""
    to_ms: int | None = None
    """Log time before which the records must have been appended. None for the newest record."""
    value: bytes | None = None
    """The payload, or the same JSON written in another way. None for any payload."""


@dataclass(frozen=True)
class FoundRecordView(Described):
    """A record of a stream, with its position in the log."""

    partition: int
    offset: int
    log_time_ms: int
    device: str
    """Value of the stream's key; without a key, the sender that the gateway noted. Empty if both are unknown."""
    size: int | None
    """Bytes of the payload. Null if the record has none: a tombstone."""
    text: str
    """The first 2,000 characters of the payload, with escapes for bytes that aren't text."""
    rows: list[dict[str, Any]]
    """The first rows of the record, with the fields that the stream declares. Empty if it is rejected, or if decoding it needs
    earlier records."""
    reason: str | None
    """Reason why the stream's document rejects the record. Null if it accepts it."""


@dataclass(frozen=True)
class FoundRecords(Described):
    """Records of a stream, the newest first."""

    stream: str
    records_read: int
    """Number of records that were compared with the conditions."""
    from_ms: int | None
    """All records since this log time were compared. Null if no record was read."""
    is_complete: bool
    """True if all records of the chosen range of log time were compared."""
    matches: int
    """Number of records that fulfil the conditions."""
    page: list[FoundRecordView]


class RecordSearch:
    """Searches records, in one stream at a time. Thread-safe."""

    def __init__(self, ledger: LedgerReader, log: KafkaStatus, run_limited: RunLimited) -> None:
        self._ledger, self._log, self._run_limited = ledger, log, run_limited
        self._turn = Lock()

    def find(self, stream: str, wanted: Wanted, limit: int) -> FoundRecords:
        """Return the newest records that fulfil the conditions, at most `limit` of them.

        Raises NotFound, LogUnavailable, TooExpensive; TransientError while other searches take too long.
        """
        spec = StreamSpec.from_document(self._ledger.stream(stream).document)
        with one_at_a_time(self._turn, "another search of records is running"):
            headers, beside = self._run_limited("search of records", row_headers, spec)
            held = self._log.range(stream)
            starts, ends = dict(held.offset_first), self._log.committed_ends(stream)
            if wanted.from_ms is not None:
                starts |= self._log.offsets_at(stream, wanted.from_ms)
            if wanted.to_ms is not None:
                ends = {at: min(ends[at], one) for at, one in self._log.offsets_at(stream, wanted.to_ms).items()}
            newest = self._log.newest_that_fit(
                stream,
                RECORDS_MAX if wanted.device or wanted.value is not None else limit * max(1, len(ends)),
                BYTES_WANTED,
                BYTES_MAX,
                headers,
                since=starts,
                headers_beside=[*beside, RECORD_KEY, HEADER_SOURCE],
                until=ends,
            )
            matches, page = self._run_limited("search of records", matching, spec, newest, wanted, limit)
        cut_ms = covered_from_ms(newest, starts, ends, time.time_ns() // 1_000_000)
        return FoundRecords(
            stream,
            len(newest.offsets),
            min(newest.log_times_ms, default=None) if cut_ms is None else cut_ms,
            cut_ms is None,
            matches,
            page,
        )


def matching(
    stream: StreamSpec, newest: NewestRecords, wanted: Wanted, limit: int
) -> tuple[int, list[FoundRecordView]]:
    """Return how many of these records fulfil the conditions, and the newest of them. Runs in a process with limits."""
    find = sender_finder(stream.key)
    is_wanted_value = _comparison(wanted.value)
    text = wanted.device.casefold()
    found = []
    for at, (value, packed) in enumerate(zip(newest.values, newest.header_values, strict=True)):
        if not is_wanted_value(value):
            continue
        device = find(value, packed) or ""
        if text in device.casefold():
            found.append((newest.log_times_ms[at], at, device))
    chosen = sorted(found, reverse=True)[:limit]
    return len(found), [_view(stream, newest, at, device) for _, at, device in chosen]


def _comparison(wanted: bytes | None) -> Callable[[bytes | None], bool]:
    """Return the function that compares a payload with the wanted one."""
    if wanted is None:
        return lambda value: True
    bare = wanted.strip()
    try:
        parsed = json.loads(bare)
    except (ValueError, RecursionError):
        return lambda value: value is not None and value.strip() == bare

    def is_same(value: bytes | None) -> bool:
        if value is None:
            return False
        try:
            return bool(json.loads(value) == parsed)
        except (ValueError, RecursionError):
            return False

    return is_same


def _view(stream: StreamSpec, newest: NewestRecords, at: int, device: str) -> FoundRecordView:
    value = newest.values[at]
    rows, reason = decode_one(stream, value, newest.header_values[at])
    return FoundRecordView(
        partition=newest.partitions[at],
        offset=newest.offsets[at],
        log_time_ms=newest.log_times_ms[at],
        device=device,
        size=None if value is None else len(value),
        text=_text(value or b""),
        rows=rows,
        reason=reason,
    )


def _text(value: bytes) -> str:
    return value[: TEXT_SHOWN * 4].decode("utf-8", "backslashreplace")[:TEXT_SHOWN]
