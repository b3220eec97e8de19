"""Devices that sent the newest records of a partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.core.record_headers import HEADER_SOURCE, RECORD_KEY, unpack_header_values
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.roles import LedgerReader
from strandline.log.kafka_status import KafkaStatus
from strandline.log.record_key import key_finder
from strandline.processing.slices.sender_faults import sender_of

_RECORDS = 50
"""Number of the newest records of a partition whose senders are named."""
_BYTES_MAX = 4 << 20
_DEVICES_MAX = 3


@dataclass(frozen=True)
class NewestSenders:
    """Senders of the newest records of one partition."""

    log_ms: int | None
    """Log time of the newest record. None if the partition has none."""
    devices: tuple[str, ...]
    """At most three, that of the newest record first."""


def sender_finder(key: str | None) -> Callable[[bytes | None, bytes | None], str | None]:
    """Return the function that returns the sender of a record by its value and its packed headers. None if it is unknown.

    Args: key: Field of the key of the stream. None if it has none. RECORD_KEY and HEADER_SOURCE are named headers.
    """
    find_key = None if key is None else key_finder(key)

    def find(value: bytes | None, packed: bytes | None) -> str | None:
        _, named = unpack_header_values(packed)
        own = None if find_key is None or value is None else find_key(value)
        return sender_of(own, named.get(RECORD_KEY), named.get(HEADER_SOURCE))

    return find


def newest_senders(ledger: LedgerReader, log: KafkaStatus, stream: str, partition: int) -> NewestSenders:
    """Return the senders of the newest records of a partition.

    Raises NotFound, LogUnavailable.
    """
    find = sender_finder(StreamSpec.from_document(ledger.stream(stream).document).key)
    newest = log.newest_records(
        stream, _RECORDS, _BYTES_MAX, headers_beside=[RECORD_KEY, HEADER_SOURCE], partitions=[partition]
    )
    devices: dict[str, None] = {}
    for value, packed in zip(reversed(newest.values), reversed(newest.header_values), strict=True):
        if (sender := find(value, packed)) is not None:
            devices.setdefault(sender)
    log_ms = newest.log_times_ms[-1] if newest.log_times_ms else None
    return NewestSenders(log_ms, tuple(devices)[:_DEVICES_MAX])
