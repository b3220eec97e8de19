"""Metadata of a record as strings: its key, its timestamp, its headers, and the source that a gateway recorded.

Each kind names the header from which it is read. Two of these headers don't exist in Kafka: those of the key and the timestamp of
the record. The reader of the log adds them to the headers (`RECORD_KEY`, `RECORD_TIMESTAMP`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from strandline.core.record_headers import (
    HEADER_MQTT_RETAINED,
    HEADER_PROPERTY_PREFIX,
    HEADER_SOURCE,
    RECORD_KEY,
    RECORD_TIMESTAMP,
)

Read = Callable[[str], str | None]


class RecordMetadata:
    """The metadata that fills one field."""

    def __init__(self, text: str) -> None:
        """`text`: the metadata in the form of the stream's document."""
        kind, chosen = _parts(text)
        self.header = _HEADERS[kind] if kind in _HEADERS else _PREFIXES[kind] + chosen
        self._read: Read = partial(_topic, chosen) if kind == "topic" else _READ.get(kind, lambda value: value)

    def text_of(self, headers: Mapping[str, bytes]) -> str | None:
        """Return the value for a record with these headers. None if it has none."""
        value = headers.get(self.header)
        return None if value is None else self._read(value.decode(errors="replace"))


def _parts(text: str) -> tuple[str, str]:
    """Return the kind of metadata and the selected part: `("topic", "-1")`, `("header", "site")`, `("key", "")`."""
    kind, _, rest = text.partition("[" if "[" in text else ".")
    return kind, rest.removesuffix("]") if "[" in text else rest


def _after(protocols: tuple[str, ...], source: str) -> str | None:
    protocol, _, rest = source.partition(":")
    return rest if protocol in protocols and rest else None


def _sender(source: str) -> str | None:
    """Return the address of the sender, for all gateways to which senders connect."""
    protocol, _, address = source.partition(":")
    return None if protocol in ("mqtt", "file", "poll") else address or None


def _topic(chosen: str, source: str) -> str | None:
    topic = _after(("mqtt",), source)
    if topic is None or not chosen:
        return topic
    levels, number = topic.split("/"), int(chosen.removesuffix(":"))
    if chosen.endswith(":"):
        return "/".join(levels[number:]) or None
    return (levels[number] or None) if -len(levels) <= number < len(levels) else None


_HEADERS = {
    "key": RECORD_KEY,
    "timestamp": RECORD_TIMESTAMP,
    "source": HEADER_SOURCE,
    "sender": HEADER_SOURCE,
    "file": HEADER_SOURCE,
    "url": HEADER_SOURCE,
    "topic": HEADER_SOURCE,
    "retained": HEADER_MQTT_RETAINED,
}
_PREFIXES = {"header": "", "property": HEADER_PROPERTY_PREFIX}
_READ: Mapping[str, Read] = {
    "sender": _sender,
    "file": partial(_after, ("file",)),
    "url": partial(_after, ("poll",)),
    "retained": lambda value: "true" if value == "1" else "false",
}
