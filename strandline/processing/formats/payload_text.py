"""The text of a record before its format reads it: another charset, and JSON within strings of a record.

A string that contains no JSON stays as it is, so that no member is found in it. A record in another charset becomes bytes that
each format rejects.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from strandline.core.charsets import from_utf8, to_utf8
from strandline.core.json_paths import JsonPath
from strandline.processing.formats.json_rows import resolve, with_value
from strandline.processing.formats.record_fields import why_unreadable

_NO_TEXT = b"\xff"
"""Bytes that are no text in UTF-8, so each format rejects them."""
_text_of = msgspec.json.Decoder(str).decode


@dataclass(frozen=True)
class PayloadText:
    """Charset and embedded JSON of the records of a stream. It is pickled."""

    charset: str
    """Charset of the records. Empty for UTF-8."""
    embedded: tuple[tuple[JsonPath, str], ...]
    """(path, encoding) of each string that contains JSON."""

    def opened(self, value: bytes) -> bytes:
        """Return the record in UTF-8, with the contents of the strings as members."""
        if self.charset:
            found = to_utf8(value, self.charset)
            if found is None:
                return _NO_TEXT
            value = found
        for path, encoding in self.embedded:
            value = _opened(value, path, encoding)
        return value

    def all_opened(self, values: Sequence[bytes | None]) -> list[bytes | None]:
        """Return all records as `opened` returns them."""
        return [None if value is None else self.opened(value) for value in values]

    def closed(self, value: bytes) -> bytes:
        """Return a record in UTF-8 in the charset of the stream: the value of a dead letter, which can be requeued."""
        return from_utf8(value, self.charset) if self.charset else value


def _opened(value: bytes, path: JsonPath, encoding: str) -> bytes:
    token = _token_at(value, path)
    if token is None or token[:1] != b'"':
        return value
    try:
        content = _content_of(_text_of(token), encoding)
    except (ValueError, binascii.Error):
        return value
    if content[:1] not in (b"{", b"[") or why_unreadable(content) is not None:
        return value
    if value.count(token) == 1:
        return value.replace(token, content)
    return with_value(value, path, content)


def _token_at(value: bytes, path: JsonPath) -> bytes | None:
    """Return the JSON text at the path. None if there is none, or if the record can't be read."""
    if value.lstrip()[:1] != b"{" or why_unreadable(value) is not None:
        return None
    return resolve(value, path)


def _content_of(text: str, encoding: str) -> bytes:
    """Return the bytes that a string contains. Raises ValueError if it isn't hex or base64, as `encoding` says."""
    if encoding == "text":
        return text.strip().encode()
    if encoding == "hex":
        return bytes.fromhex(text).strip()
    return base64.b64decode(text, validate=True).strip()
