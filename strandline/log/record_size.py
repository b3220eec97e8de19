"""Size limits of records, and recognition of Kafka's errors about them.

The setting STRANDLINE_RECORD_BYTES_MAX is the maximum size of a record that a gateway accepts. All other limits are
derived from it here: those of topics, and those of every producer (of gateways, results, and dead letters).
"""

from __future__ import annotations

from confluent_kafka import KafkaError

RECORD_BATCH_HEAD_BYTES = 1_024
"""Upper bound of the bytes that Kafka adds to a record's value, key, and headers: the head of its batch."""
_TOO_LARGE_CODES = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
"""The client returns these, too, if a record exceeds the producer's own limit."""


def record_batch_bytes_max(record_bytes_max: int) -> int:
    """Return a `max.message.bytes` that always fits the largest record: its value, its key, and the headers.

    The key is a part of the value, so it is at most as long. The limit of every producer is the same number.
    """
    return 2 * record_bytes_max + 65_536


def is_too_large(error: KafkaError) -> bool:
    """Return True if the topic doesn't accept records of this size. Kafka would return the same error again."""
    return error.code() in _TOO_LARGE_CODES
