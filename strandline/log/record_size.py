"""How large a record may be, and what it means when Kafka finds one too large.

One setting, STRANDLINE_RECORD_BYTES_MAX, says how large a record may be that a gateway takes. All other limits follow from it
here: those of topics, and those of every producer (of gateways, results and dead letters).
"""

from __future__ import annotations

from confluent_kafka import KafkaError

RECORD_BATCH_HEAD_BYTES = 1_024
"""More than Kafka adds to a record's value, key and headers: the head of its batch."""
_TOO_LARGE_CODES = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
"""The client answers with these, too, when a record is over the producer's own limit."""


def record_batch_bytes_max(record_bytes_max: int) -> int:
    """The `max.message.bytes` under which the largest record always fits: its value, its key (a part of the value, so
    at most as long again) and the headers. The limit of every producer is the same number."""
    return 2 * record_bytes_max + 65_536


def is_too_large(error: KafkaError) -> bool:
    """Whether the topic takes no record of this size. Kafka has answered then, and will answer the same again."""
    return error.code() in _TOO_LARGE_CODES
