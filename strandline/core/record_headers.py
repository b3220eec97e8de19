"""Headers of a record in Kafka. The value is the sender's bytes, unchanged. The headers contain what the gateway knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

HEADER_WRITER = "strandline-writer"
"""Writer id: identifies the producer of one gateway process."""
HEADER_EPOCH = "strandline-epoch"
"""Writer epoch, a decimal number that increases at each start of the writer. In a result, the epoch of the job's run."""
HEADER_SEQUENCE = "strandline-sequence"
"""Sequence number within the writer's epoch and the topic, a decimal number."""
HEADER_RECEIVED = "strandline-received-ms"
"""Receive time by the gateway's clock, decimal milliseconds since 1970 UTC."""
HEADER_SOURCE = "strandline-source"
"""Protocol and peer, as `http:127.0.0.1`. For MQTT, protocol and topic, as `mqtt:farm/lundy/turbine/T07`."""
SOURCE_MQTT = b"mqtt:"
"""Prefix of the source of a record from MQTT, before its topic."""
HEADER_PRINCIPAL = "strandline-principal"
"""Owner of the token that signed the record's datagram. Absent if the gateway didn't require a signature."""
HEADER_QUERY = "strandline-query"
"""Query of the URL to which a record was sent, with its `?`: `?device=a7`. Absent if there is none."""
QUERY_MARK = b"?"
HEADER_HTTP_PREFIX = "http-"
"""Prefix for the name of each HTTP header, in lower case, that `http.headers` of the stream document lists."""
HEADER_CLOUD_EVENT_PREFIX = "ce_"
"""Prefix for the name of each attribute of a CloudEvent in HTTP's binary mode, as in the Kafka binding of CloudEvents."""
HEADER_CONTENT_TYPE = "content-type"
HEADER_MESSAGE_ID = "message-id"
"""The sender's id of the record, if it sent one. For MQTT, the user property of this name."""
HEADER_MQTT_RETAINED = "mqtt-retained"
"""`1` if the sender set the retained flag; from a broker, if the broker had retained the message. Absent otherwise."""
HEADER_MQTT_REDELIVERED = "mqtt-redelivered"
"""`1` if the broker marked the message as sent before (DUP). Its record may already be in the log."""
HEADER_PROPERTY_PREFIX = "property-"
"""Prefix for the name of each other user property of MQTT 5."""

RECORD_KEY, RECORD_TIMESTAMP = "\0key", "\0timestamp"
"""Names of the key and the timestamp of a record among its headers, for fields with metadata. Never written to the log."""

HEADER_JOB = "strandline-job"
"""Job that emitted a result in a stream."""
HEADER_STAGE = "strandline-stage"
HEADER_EMISSION = "strandline-emission"
"""The emission, a decimal number: the slice that made the result final."""
HEADER_SLICE_DIGEST = "strandline-slice-digest"
"""Digest of this slice, as it was planned (`SliceRow.digest`)."""
HEADER_ID = "strandline-id"
"""Id of the result, equal to the id of its document in an index."""

REASON_DECODE = "decode"
REASON_SCHEMA = "schema"
REASON_TIME_UNIT = "time_unit"
REASON_EXPRESSION = "expression"
REASON_LOOKUP = "lookup"
REASON_LATE = "late"
REASON_DUPLICATE = "duplicate"
"""Only counted: a duplicate record has no dead letter."""
REASON_FUTURE_EVENT = "future_event"
REASON_RESULT = "result"
DeadLetterReason = Literal["decode", "schema", "time_unit", "expression", "lookup", "late", "future_event", "result"]
"""Reasons that a dead letter can have."""
REASONS_OF_STEPS = (REASON_EXPRESSION, REASON_LOOKUP)
"""Reasons for which a step of the pipeline rejects a decoded record."""

HEADER_PAYLOAD_BYTES = "payload-bytes"
"""Number of bytes of the payload, in a dead letter without the payload."""
HEADER_PAYLOAD_SHA256 = "payload-sha256"
"""SHA-256 of the payload in hexadecimal, in a dead letter without the payload."""
HEADER_TAKEN_BY = "taken-by"
"""Stages that accepted the record of a dead letter in other branches of the pipeline, as `minutes,alarms`. Absent if no stage
accepted it, and if the pipeline has no branches."""

HEADER_REPLAY_OF = "strandline-replay-of"
"""Row from which a requeued record comes, in the form of the dead letter's key: `STREAM/PARTITION/OFFSET`, and `/ELEMENT` for
an element of an exploded record."""
HEADER_REPLAY_LETTER = "strandline-replay-letter"
"""Dead letter from which a requeued record comes: `JOB/NUMBER`."""
HEADER_REPLAY_REPAIRED = "strandline-replay-repaired"
"""`1` if the payload of a requeued record isn't the sender's."""


DEAD_LETTER_PARTITION = 0
"""The only partition of a dead-letter stream that is used, even if its topic has more. An offset there is the number of a dead
letter."""


def dead_letter_topic(job: str) -> str:
    """Return the name of a job's dead-letter stream."""
    return f"{job}.dead-letter"


def with_record_metadata(headers: Mapping[str, bytes], key: bytes | None, timestamp_ms: int | None) -> dict[str, bytes]:
    """Return the headers of a record with its key and its timestamp, as `RECORD_KEY` and `RECORD_TIMESTAMP`."""
    found = dict(headers)
    if key is not None:
        found[RECORD_KEY] = key
    if timestamp_ms is not None:
        found[RECORD_TIMESTAMP] = b"%d" % timestamp_ms
    return found


_PACKED_MARK = b"\0"
"""Prefix of a packed value. No query and no source of a gateway begins with it, but a header of a topic with other writers can.
"""
_write = msgspec.msgpack.encode
_read = msgspec.msgpack.Decoder(tuple[bytes | None, dict[str, bytes]]).decode


def pack_header_values(first: bytes | None, named: Mapping[str, bytes]) -> bytes | None:
    """Return several headers of a record as one value, for readers of the log. See `unpack_header_values`.

    Without named headers, the value is `first` itself, unless `first` could be mistaken for a packed value.
    Args: named: Header -> value.
    """
    if not named and not (first or b"").startswith(_PACKED_MARK):
        return first
    return _PACKED_MARK + _write((first, dict(named)))


def unpack_header_values(value: bytes | None) -> tuple[bytes | None, Mapping[str, bytes]]:
    """Return the packed headers: `first`, and header -> value. A value that wasn't packed is `first`."""
    is_packed = value is not None and value.startswith(_PACKED_MARK)
    return _read(value[len(_PACKED_MARK) :]) if value is not None and is_packed else (value, {})
