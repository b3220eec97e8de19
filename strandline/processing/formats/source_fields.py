"""Fields from the source of a record: its MQTT topic, the query of its URL, or HTTP headers. They are only added for the decoder.

The log contains the sender's bytes together with topic, query, and headers, so the input of a job is a function of the log.
Sources only add fields that the record lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import parse_qsl

import msgspec

from strandline.core.files.text_rows import BYTE_ORDER_MARK
from strandline.core.record_headers import QUERY_MARK, SOURCE_MQTT, unpack_header_values
from strandline.processing.formats.record_fields import JsonText, in_blocks
from strandline.processing.formats.record_metadata import RecordMetadata
from strandline.processing.formats.text_values import json_of_text

EVENT_TIME_PARAMETER = "event_time"
SOURCES_REMEMBERED_MAX = 50_000
_SOURCE_BYTES_REMEMBERED_MAX = 256
_WHITESPACE = b" \t\r\n"
_read_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_write = msgspec.json.encode

Members = tuple[tuple[bytes, bytes], ...]
"""Names and JSON values."""


class FilledTexts(list[JsonText]):
    """Records with the fields that their sources add, and the same records without them."""

    def __init__(self, texts: Iterable[JsonText], without_sources: Sequence[JsonText]) -> None:
        super().__init__(texts)
        self.without_sources = without_sources
        """Records as they were, so that a message about one names a position in it."""


class SourceFields:
    """Adds the fields of the sources to the records of one stream."""

    def __init__(
        self,
        levels: Mapping[str, int],
        types: Mapping[str, str],
        headers: Mapping[str, str] = MappingProxyType({}),
        event_time: str | None = None,
        metadata: Mapping[str, RecordMetadata] = MappingProxyType({}),
    ) -> None:
        """Prepare the sources.

        - `levels`: field -> level of the topic, counted from 0.
        - `types`: field -> its declared type, for all fields.
        - `headers`: field -> header of the record.
        - `event_time`: field that the query parameter with this name fills.
        - `metadata`: field -> metadata that fill it.
        """
        self._levels = dict(levels)
        self._types = dict(types)
        self._headers = dict(headers)
        self._metadata = dict(metadata)
        self._fields = {EVENT_TIME_PARAMETER: event_time} if event_time is not None else {}
        self._fields |= {name: name for name in types}
        """Query parameter -> field. A parameter with the field's own name has priority."""
        self._remembered = lru_cache(maxsize=SOURCES_REMEMBERED_MAX)(self._read_source)

    def members_of(self, source: bytes | None) -> Members:
        """Return the fields that a record's source fills: its MQTT topic (`mqtt:a/b`), or its query (`?name=value`), and other
        headers."""
        if source is None:
            return ()
        return (self._remembered if len(source) <= _SOURCE_BYTES_REMEMBERED_MAX else self._read_source)(source)

    def fill_in(self, values: Sequence[JsonText], sources: Sequence[bytes | None]) -> FilledTexts:
        """Return the values with the fields that their sources add. `sources`: a header of each record."""
        return FilledTexts(in_blocks(self._fill_in_at_once, self._fill_in_one, values, sources), values)

    def _fill_in_at_once(self, values: Sequence[JsonText], sources: Sequence[bytes | None]) -> list[bytes] | None:
        """Return the values with their fields, if all are objects that certainly have none of them. None if one needs a closer
        check."""
        try:
            text = b"".join(values)  # type: ignore[arg-type]
        except TypeError:  # not bytes
            return None
        if b"\\" in text or {value[:2] for value in values} != {b'{"'}:  # type: ignore[index]
            return None
        members = list(map(self.members_of, sources))
        if any(name in text for name in {name for one in set(members) for name, _ in one}):
            return None
        begins = {one: b"{" + b"".join([name + b":" + content + b"," for name, content in one]) for one in set(members)}
        return [begins[one] + value[1:] for one, value in zip(members, values, strict=True)]  # type: ignore[index]

    def _fill_in_one(self, value: JsonText, source: bytes | None) -> JsonText:
        if source is None or not isinstance(value, bytes):
            return value
        value = value.removeprefix(BYTE_ORDER_MARK)
        start = len(value) - len(value.lstrip(_WHITESPACE))
        if value[start : start + 1] != b"{":
            return value  # not an object: the decoder rejects it
        members = self.members_of(source)
        # If the name doesn't occur, and no escape can spell it, no member of the record has it.
        if b"\\" in value or any(name in value for name, _ in members):
            try:
                own = _read_members(value)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                return value
            members = tuple(member for member in members if msgspec.json.decode(member[0]) not in own)
        if not members:
            return value
        rest = value[start + 1 :]
        comma = b"" if rest.lstrip(_WHITESPACE)[:1] == b"}" else b","
        return b"{" + b",".join([name + b":" + content for name, content in members]) + comma + rest

    def _read_source(self, source: bytes) -> Members:
        """Read a source. A missing or empty level fills no field, nor does a query parameter that isn't in the schema."""
        texts: dict[str, str] = {}
        first, named = unpack_header_values(source)
        source = first or b""
        if source.startswith(SOURCE_MQTT) and self._levels:
            levels = source[len(SOURCE_MQTT) :].decode(errors="replace").split("/", max(self._levels.values()) + 1)
            texts = {
                name: levels[level] for name, level in self._levels.items() if level < len(levels) and levels[level]
            }
        elif source.startswith(QUERY_MARK):
            query = parse_qsl(source[len(QUERY_MARK) :].decode("latin-1"), keep_blank_values=True, errors="replace")
            given = {
                name: text for name, text in reversed(query) if name in self._fields
            }  # the first value of a name counts
            own = {name: text for name, text in given.items() if name in self._types}
            texts = {self._fields[name]: text for name, text in given.items()} | own
        for name, header in self._headers.items():
            if header in named:
                texts.setdefault(name, named[header].decode(errors="replace"))
        for name, one in self._metadata.items():
            if name not in texts and (value := one.text_of(named)) is not None:
                texts[name] = value
        return tuple((_write(name), json_of_text(text, self._types[name])) for name, text in texts.items())
