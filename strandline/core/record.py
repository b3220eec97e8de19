"""A record on its way: the sender's bytes are the Kafka value, unchanged; what the gateway knows is in these headers."""

from __future__ import annotations

HEADER_WRITER = "strandline-writer"
"""Writer id: names one gateway process's producer."""
HEADER_EPOCH = "strandline-epoch"
"""Writer epoch, a decimal number: grows with each start of the writer."""
HEADER_SEQUENCE = "strandline-sequence"
"""Sequence number within the writer's epoch and the partition, a decimal number."""
HEADER_RECEIVED = "strandline-received-ms"
"""Receive time by the gateway's clock, decimal milliseconds since 1970 UTC."""
HEADER_SOURCE = "strandline-source"
"""Protocol and peer, as `http:127.0.0.1`; of MQTT, protocol and topic, as `mqtt:farm/lundy/turbine/T07`."""
SOURCE_MQTT = b"mqtt:"
"""How the source of a record from MQTT begins; its topic follows."""
HEADER_CONTENT_TYPE = "content-type"
HEADER_MESSAGE_ID = "message-id"
"""The sender's own id for the record, where it gave one. MQTT: the user property of this name."""
HEADER_MQTT_RETAINED = "mqtt-retained"
"""`1` where the sender set the retained flag; from a broker, where the broker had kept the message. Absent otherwise."""
HEADER_MQTT_REDELIVERED = "mqtt-redelivered"
"""`1` where the broker says that it sent the message before (DUP): its record may be in the log already."""
HEADER_PROPERTY_PREFIX = "property-"
"""Before the name of each other user property of MQTT 5."""

REASON_DECODE = "decode"
REASON_SCHEMA = "schema"
REASON_EXPRESSION = "expression"
REASON_LATE = "late"
REASON_FUTURE_EVENT = "future_event"
REASON_RESULT = "result"


def dead_letter_topic(job: str) -> str:
    """The dead-letter stream of a job."""
    return f"{job}.dead-letter"
