"""Fields that a stream takes from the MQTT topic: added to a record for the decoder alone.

The log keeps the sender's bytes, and the topic in the source header, so what a job sees is a function of the log. The topic
only adds fields that the record lacks. Records that came another way stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from strandline.core.record_headers import SOURCE_MQTT

TOPICS_REMEMBERED_MAX = 50_000
_TOPIC_BYTES_REMEMBERED_MAX = 256
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_WHITESPACE = b" \t\r\n"
_read_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_write = msgspec.json.encode


class TopicFields:
    """Fills in the fields of one stream."""

    def __init__(self, levels: Mapping[str, int], types: Mapping[str, str]) -> None:
        """`levels`: field -> level of the topic, counted from 0. `types`: field -> its declared type."""
        self._levels = dict(levels)
        self._types = {name: types[name] for name in levels}
        self._members_of = lru_cache(maxsize=TOPICS_REMEMBERED_MAX)(self._read_topic)

    def fill_in(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> list[bytes | None]:
        """Return the values with the fields that their topics add. `sources`: the source headers of the same records."""
        return [self._fill_in_one(value, _topic(source)) for value, source in zip(values, sources, strict=True)]

    def _fill_in_one(self, value: bytes | None, topic: bytes | None) -> bytes | None:
        if value is None or topic is None:
            return value
        start = len(value) - len(value.lstrip(_WHITESPACE))
        if value[start : start + 1] != b"{":
            return value  # no object: the decoder rejects it
        members = (self._members_of if len(topic) <= _TOPIC_BYTES_REMEMBERED_MAX else self._read_topic)(topic)
        # Where the name does not occur and no escape could spell it, no member of the record has it.
        if b"\\" in value or any(name in value for name, _ in members):
            try:
                own = _read_members(value)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                return value
            members = [member for member in members if msgspec.json.decode(member[0]) not in own]
        if not members:
            return value
        rest = value[start + 1 :]
        comma = b"" if rest.lstrip(_WHITESPACE)[:1] == b"}" else b","
        return b"{" + b",".join([name + b":" + content for name, content in members]) + comma + rest

    def _read_topic(self, topic: bytes) -> list[tuple[bytes, bytes]]:
        """The names and values that a topic gives, in JSON. A missing or empty level gives no field."""
        levels = topic.decode(errors="replace").split("/", max(self._levels.values()) + 1)
        return [
            (_write(name), _as_json(levels[level], self._types[name]))
            for name, level in self._levels.items()
            if level < len(levels) and levels[level]
        ]


def _as_json(text: str, field_type: str) -> bytes:
    """The level as JSON of the field's type; where that is impossible, as a text, which the decoder rejects."""
    if field_type == "boolean" and text in ("true", "false"):
        return text.encode()
    if field_type not in ("string", "boolean") and _NUMBER.fullmatch(text):
        return text.encode()
    return _write(text)


def _topic(source: bytes | None) -> bytes | None:
    return source[len(SOURCE_MQTT) :] if source is not None and source.startswith(SOURCE_MQTT) else None
