"""Topic, flags, and properties of an MQTT message as headers of its record."""

from __future__ import annotations

from strandline.core.record_headers import (
    HEADER_MESSAGE_ID,
    HEADER_MQTT_REDELIVERED,
    HEADER_MQTT_RETAINED,
    HEADER_PROPERTY_PREFIX,
)
from strandline.ingest.append.limits import HEADER_OVERHEAD_BYTES
from strandline.ingest.gateway.stream_appender import Headers
from strandline.ingest.mqtt.decoder import Publish
from strandline.ingest.mqtt.wire import PublishProperties

TOPIC_BYTES_MAX = 16 * 1024
PROPERTIES_BYTES_MAX = 16 * 1024
"""Maximum size of the content type and user properties of one message.
Topic and properties become headers, whose size in a record is limited.
"""


def packet_bytes_max(record_bytes_max: int) -> int:
    """Return the maximum size of a packet with a message that is accepted."""
    return record_bytes_max + TOPIC_BYTES_MAX + PROPERTIES_BYTES_MAX + 1024


def properties_fit(publish: Publish) -> bool:
    """Return True if the message's properties fit into the headers of a record."""
    properties = publish.properties
    return properties is None or _said_bytes(properties) + 32 * len(properties.user) <= PROPERTIES_BYTES_MAX


def bytes_beside_payload(publish: Publish) -> int:
    """Return the bytes that topic and properties of a message count while it waits: they become headers of its record."""
    properties = publish.properties
    if properties is None:
        return len(publish.topic)
    return len(publish.topic) + _said_bytes(properties) + HEADER_OVERHEAD_BYTES * len(properties.user)


def _said_bytes(properties: PublishProperties) -> int:
    user = sum(len(name.encode()) + len(value.encode()) for name, value in properties.user)
    return len((properties.content_type or "").encode()) + user


def headers_of(publish: Publish, route_headers: Headers, is_redelivered: bool = False) -> Headers:
    """Return the headers of the message's route, its flags, and its user properties."""
    if not publish.retain and not is_redelivered and publish.properties is None:
        return route_headers
    headers = list(route_headers)
    if publish.retain:
        headers.append((HEADER_MQTT_RETAINED, b"1"))
    if is_redelivered:
        headers.append((HEADER_MQTT_REDELIVERED, b"1"))
    for name, value in publish.properties.user if publish.properties else ():
        header = HEADER_MESSAGE_ID if name == HEADER_MESSAGE_ID else HEADER_PROPERTY_PREFIX + name
        headers.append((header, value.encode()))
    return headers
