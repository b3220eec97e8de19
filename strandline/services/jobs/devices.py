"""Devices of a stream: when each was last seen, how often it sends, and its rejected records.

The newest records of each partition are read, never the whole log. So a list covers a range of log time, which it names. A list
is kept for some seconds, because each page and each client needs the same list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Literal

from strandline.core.described import Described
from strandline.core.errors import TransientError
from strandline.core.record_headers import HEADER_SOURCE, RECORD_KEY
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.roles import LedgerReader
from strandline.log.kafka_status import KafkaStatus, NewestRecords
from strandline.services.jobs.job_status import input_streams
from strandline.services.jobs.senders import sender_finder
from strandline.services.processes.limited_work import RunLimited

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDS_MAX = 100_000
"""Maximum number of records of one list."""
KEPT_S = 20.0
LETTERS_MAX = 5_000
"""Maximum number of dead letters that are read, of each job that reads the stream."""
BYTES_WANTED = 24 << 20
"""Size of the records of one list that is aimed at."""
BYTES_MAX = 48 << 20
"""Maximum size of the records of one list."""
_WAIT_S = 20.0
_KEPT_MAX = 4
_UNKNOWN = ""

Order = Literal["silence", "errors", "records"]
Place = tuple[int, int]
"""Partition and offset."""
Rejection = tuple[str, str]
"""Job and reason of a dead letter."""


@dataclass(frozen=True)
class DeviceView(Described):
    """A device: a value of the stream's key. Without a key, the sender that the gateway noted."""

    device: str
    """Empty for records without a key and a sender."""
    last_ms: int
    """Log time of its newest record."""
    records: int
    """Number of its records in the range of the list."""
    interval_ms: int | None
    """Mean time between two of its records. Null for a single record."""
    rejected: int
    """Number of these records that are dead letters of a job."""
    rejected_job: str | None
    """Job with the dead letter of the newest rejected record. Null if none is rejected."""
    rejected_reason: str | None
    """Reason of this dead letter."""
    partition: int
    """Partition of its newest record."""
    offset: int
    """Offset of its newest record."""


@dataclass(frozen=True)
class DeviceList(Described):
    """Page of the devices of a stream, according to its newest records."""

    stream: str
    read_ms: int
    """Time at which the records were read."""
    from_ms: int | None
    """The list contains all devices with a record since this log time. Null if no record was read."""
    is_complete: bool
    """True if the list contains all devices with a record in the topic."""
    records: int
    """Number of records that were read."""
    devices: int
    """Number of devices in all pages, without a search."""
    matches: int
    """Number of devices that match the search."""
    page: list[DeviceView]
    next: str | None
    """Path of the next page. Null if there is none."""


@dataclass(frozen=True)
class FoundDevices:
    """Devices of the records that were read."""

    read_ms: int
    from_ms: int | None
    is_complete: bool
    records: int
    devices: list[DeviceView]


@dataclass
class _Device:
    """Facts about a device, from its records so far."""

    first_ms: int
    last_ms: int
    newest: Place
    records: int = 0
    rejected: int = 0
    rejection: tuple[int, Rejection] | None = None
    """Log time and dead letter of the newest rejected record."""


def devices_of(key: str | None, newest: NewestRecords, rejected: Mapping[Place, Rejection]) -> list[DeviceView]:
    """Return the devices of these records. Runs in a process with limits.

    Args: key: Field of the stream's key. None if it has none. rejected: Position of each rejected record -> job and reason.
    """
    find = sender_finder(key)
    found: dict[str, _Device] = {}
    columns = newest.partitions, newest.offsets, newest.log_times_ms, newest.values, newest.header_values
    for partition, offset, log_ms, value, packed in zip(*columns, strict=True):
        device = find(value, packed) or _UNKNOWN
        facts = found.get(device)
        if facts is None:
            facts = found[device] = _Device(log_ms, log_ms, (partition, offset))
        facts.first_ms = min(facts.first_ms, log_ms)
        if log_ms >= facts.last_ms:
            facts.last_ms, facts.newest = log_ms, (partition, offset)
        facts.records += 1
        if rejection := rejected.get((partition, offset)):
            facts.rejected += 1
            if facts.rejection is None or log_ms >= facts.rejection[0]:
                facts.rejection = log_ms, rejection
    return [_view(device, facts) for device, facts in found.items()]


def _view(device: str, facts: _Device) -> DeviceView:
    job, reason = facts.rejection[1] if facts.rejection else (None, None)
    between_ms = None if facts.records == 1 else (facts.last_ms - facts.first_ms) // (facts.records - 1)
    return DeviceView(
        device, facts.last_ms, facts.records, between_ms, facts.rejected, job, reason, facts.newest[0], facts.newest[1]
    )


def covered_from_ms(newest: NewestRecords, starts: dict[int, int], ends: dict[int, int], now_ms: int) -> int | None:
    """Return the log time since which all records were read. None if the whole topic was read.

    Args: starts, ends: First and next offset of each partition.
    """
    firsts: dict[int, tuple[int, int]] = {}
    for partition, offset, log_ms in zip(newest.partitions, newest.offsets, newest.log_times_ms, strict=True):
        firsts.setdefault(partition, (offset, log_ms))
    bounds = []
    for partition, end in ends.items():
        if starts.get(partition, 0) >= end:
            continue
        offset, log_ms = firsts.get(partition, (end, now_ms))
        if offset > starts.get(partition, 0):
            bounds.append(log_ms)
    return max(bounds, default=None)


class Devices:
    """Lists of devices. Reads one stream at a time. Thread-safe."""

    def __init__(
        self,
        ledger: LedgerReader,
        log: KafkaStatus,
        run_limited: RunLimited,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger, self._log, self._run_limited, self._clock = ledger, log, run_limited, clock
        self._turn = Lock()
        self._kept: dict[str, tuple[float, FoundDevices]] = {}

    def of(self, stream: str) -> FoundDevices:
        """Return the devices of the newest records of the stream, as read at most KEPT_S ago.

        Raises NotFound, LogUnavailable, TooExpensive; TransientError while other lists take too long.
        """
        row = self._ledger.stream(stream)
        with one_at_a_time(self._turn, "another list of devices is read"):
            kept_s, kept = self._kept.get(stream, (0.0, None))
            if kept is not None and self._clock() - kept_s < KEPT_S:
                return kept
            found = self._read(StreamSpec.from_document(row.document))
            self._kept.pop(stream, None)
            self._kept[stream] = self._clock(), found
            while len(self._kept) > _KEPT_MAX:
                self._kept.pop(next(iter(self._kept)))
            return found

    def _read(self, spec: StreamSpec) -> FoundDevices:
        """Read the newest records, as many as fit into BYTES_WANTED."""
        name, now_ms = spec.stream, time.time_ns() // 1_000_000
        held = self._log.range(name)
        newest = self._log.newest_that_fit(
            name,
            RECORDS_MAX,
            BYTES_WANTED,
            BYTES_MAX,
            since=held.offset_first,
            headers_beside=[RECORD_KEY, HEADER_SOURCE],
        )
        if not newest.offsets:
            return FoundDevices(now_ms, None, True, 0, [])
        from_ms = covered_from_ms(newest, held.offset_first, held.offset_next, now_ms)
        oldest_ms = min(newest.log_times_ms)
        rejected = self._rejected(name, oldest_ms)
        devices = self._run_limited("list of devices", devices_of, spec.key, newest, rejected)
        return FoundDevices(
            now_ms, oldest_ms if from_ms is None else from_ms, from_ms is None, len(newest.offsets), devices
        )

    def _rejected(self, stream: str, since_ms: int) -> dict[Place, Rejection]:
        """Return the positions of rejected records of the stream, according to the newest dead letters of its jobs."""
        found: dict[Place, Rejection] = {}
        for job in self._ledger.jobs():
            if stream not in input_streams(self._ledger, job):
                continue
            held = self._log.dead_letter_range(job.name, since_ms)
            if held is None:
                continue
            first = max(held.offset_first, held.offset_next - LETTERS_MAX)
            with closing(self._log.read_dead_letters(job.name, first, held.offset_next)) as lists:
                for letters in lists:
                    found |= {
                        (int(one.headers["partition"]), int(one.headers["offset"])): (
                            job.name,
                            one.headers.get("reason", ""),
                        )
                        for one in letters
                        if one.headers.get("stream") == stream and one.headers.get("offset", "").isdecimal()
                    }
        return found


@contextmanager
def one_at_a_time(turn: Lock, busy: str) -> Iterator[None]:
    """Wait for the turn to read many records. Raises TransientError while other calls take too long.

    Args: busy: What other calls do, for the message.
    """
    if not turn.acquire(timeout=_WAIT_S):
        raise TransientError(f"{busy}; try again in some seconds")
    try:
        yield
    finally:
        turn.release()


def chosen_devices(found: FoundDevices, search: str, order: Order) -> Sequence[DeviceView]:
    """Return the devices whose name contains the text, regardless of case. `silence`: those that were silent longest first."""
    text = search.casefold()
    some = [one for one in found.devices if text in one.device.casefold()] if text else found.devices
    if order == "errors":
        return sorted(some, key=lambda one: (-one.rejected, one.last_ms, one.device))
    if order == "records":
        return sorted(some, key=lambda one: (-one.records, one.device))
    return sorted(some, key=lambda one: (one.last_ms, one.device))
