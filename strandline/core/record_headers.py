"""A record in Kafka: the value is the sender's bytes, unchanged; the headers hold what the gateway knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

HEADER_WRITER = "strandline-writer"
"""Writer id: names one gateway process's producer."""
HEADER_EPOCH = "strandline-epoch"
"""Writer epoch, a decimal number: grows with each start of the writer. Of a result, the epoch of the job's run."""
HEADER_SEQUENCE = "strandline-sequence"
"""Sequence number within the writer's epoch and the topic, a decimal number."""
HEADER_RECEIVED = "strandline-received-ms"
"""Receive time by the gateway's clock, decimal milliseconds since 1970 UTC."""
HEADER_SOURCE = "strandline-source"
"""Protocol and peer, as `http:127.0.0.1`; of MQTT, protocol and topic, as `mqtt:farm/lundy/turbine/T07`."""
SOURCE_MQTT = b"mqtt:"
"""The beginning of the source of a record from MQTT, before its topic."""
HEADER_PRINCIPAL = "strandline-principal"
"""Whose token signed the datagram that the record came in. Absent where the gateway did not ask."""
HEADER_QUERY = "strandline-query"
"""The query of the URL that a record was sent to, with its mark: `?device=a7`. Absent without one."""
QUERY_MARK = b"?"
HEADER_HTTP_PREFIX = "http-"
"""Before the name of each HTTP header, in lower case, that the stream's document names in `http.headers`."""
HEADER_CLOUD_EVENT_PREFIX = "ce_"
"""Before the name of each attribute of a CloudEvent that came in HTTP's binary mode, as CloudEvents' binding for Kafka has it."""
HEADER_CONTENT_TYPE = "content-type"
HEADER_MESSAGE_ID = "message-id"
"""The sender's own id for the record, where it gave one. MQTT: the user property of this name."""
HEADER_MQTT_RETAINED = "mqtt-retained"
"""`1` where the sender set the retained flag; from a broker, where the broker had kept the message. Absent otherwise."""
HEADER_MQTT_REDELIVERED = "mqtt-redelivered"
"""`1` where the broker says that it sent the message before (DUP): its record may be in the log already."""
HEADER_PROPERTY_PREFIX = "property-"
"""Before the name of each other user property of MQTT 5."""

RECORD_KEY, RECORD_TIMESTAMP = "\0key", "\0timestamp"
"""Stand for the key and the timestamp of a record among its headers, for fields with metadata. Never written to the log."""

HEADER_JOB = "strandline-job"
"""Of a result in a stream: the job that emitted it."""
HEADER_STAGE = "strandline-stage"
HEADER_EMISSION = "strandline-emission"
"""The emission, a decimal number: the slice that made the result final."""
HEADER_SLICE_DIGEST = "strandline-slice-digest"
"""Digest of that slice, as it was planned (`SliceRow.digest`)."""
HEADER_ID = "strandline-id"
"""The result's id, the same as of its document in an index."""

REASON_DECODE = "decode"
REASON_SCHEMA = "schema"
REASON_TIME_UNIT = "time_unit"
REASON_EXPRESSION = "expression"
REASON_LOOKUP = "lookup"
REASON_LATE = "late"
REASON_DUPLICATE = "duplicate"
"""Only counted: a record that came again has no dead letter."""
REASON_FUTURE_EVENT = "future_event"
REASON_RESULT = "result"
DeadLetterReason = Literal["decode", "schema", "time_unit", "expression", "lookup", "late", "future_event", "result"]
"""Those that a dead letter may have."""
REASONS_OF_STEPS = (REASON_EXPRESSION, REASON_LOOKUP)
"""Those for which a step of the pipeline rejects a record that was decoded."""

HEADER_PAYLOAD_BYTES = "payload-bytes"
"""Of a dead letter without its bytes: how many they were."""
HEADER_PAYLOAD_SHA256 = "payload-sha256"
"""Likewise: their SHA-256, in hexadecimal."""
HEADER_TAKEN_BY = "taken-by"
"""Of the dead letter of a record that failed in some branches of a pipeline: the stages that it came to in others, as
`minutes,alarms`. Absent where it came to none, and where the pipeline has no branches."""

HEADER_REPLAY_OF = "strandline-replay-of"
"""Of a record that was put back from a dead letter: which row it is of, as the dead letter's key says it
(`STREAM/PARTITION/OFFSET`, and `/ELEMENT` of an exploded one)."""
HEADER_REPLAY_LETTER = "strandline-replay-letter"
"""Likewise: the dead letter, `JOB/NUMBER`."""
HEADER_REPLAY_REPAIRED = "strandline-replay-repaired"
"""Likewise: `1` where its payload is not the sender's."""


DEAD_LETTER_PARTITION = 0
"""The only partition of a dead-letter stream that is used, also where its topic has more: an offset there numbers a letter."""


def dead_letter_topic(job: str) -> str:
    """The dead-letter stream of a job."""
    return f"{job}.dead-letter"


def with_record_metadata(headers: Mapping[str, bytes], key: bytes | None, timestamp_ms: int | None) -> dict[str, bytes]:
    """Return the headers of a record together with its key and its timestamp, as `RECORD_KEY` and `RECORD_TIMESTAMP`."""
    found = dict(headers)
    if key is not None:
        found[RECORD_KEY] = key
    if timestamp_ms is not None:
        found[RECORD_TIMESTAMP] = b"%d" % timestamp_ms
    return found


_PACKED_MARK = b"\0"
"""No query and no source that a gateway writes begins so; a header of a topic that others write to may."""
_write = msgspec.msgpack.encode
_read = msgspec.msgpack.Decoder(tuple[bytes | None, dict[str, bytes]]).decode


def pack_header_values(first: bytes | None, named: Mapping[str, bytes]) -> bytes | None:
    """Several headers of a record as one value, for what reads the log: `first` stands alone, `named` are header -> value. With
    nothing named it is `first` itself, unless that could be taken for a packed value."""
    if not named and not (first or b"").startswith(_PACKED_MARK):
        return first
    return _PACKED_MARK + _write((first, dict(named)))


def unpack_header_values(value: bytes | None) -> tuple[bytes | None, Mapping[str, bytes]]:
    """What was packed; a value that never was is `first`, with nothing named."""
    is_packed = value is not None and value.startswith(_PACKED_MARK)
    return _read(value[len(_PACKED_MARK) :]) if value is not None and is_packed else (value, {})
