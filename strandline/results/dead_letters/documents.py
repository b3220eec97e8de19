"""A dead letter becomes a document: its id and its content depend only on the dead-letter stream.

A document:

    {"@timestamp": "2026-11-01T12:01:00.250Z",                  when the dead letter was written, by Kafka's clock
     "reason": "schema", "step": "decode", "message": "...",
     "stream": "turbines", "partition": 2, "offset": 4711,       position of the record; "index" and "document" of a result
     "element": 3,                                               index of the row, if the record has several rows
     "text": "{\"power\": -3", "bytes": "eyJwb3dlciI6IC0z", "size": 12,
     "number": 17, "topic_id": "..."}                            its own position: `strandline dead-letters show JOB 17`

`text` contains the decoded bytes, with `\\xff` for bytes that are not UTF-8; a long text is cut. `bytes` contains all
bytes, or is missing. The dead-letter stream always contains all bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from strandline.core.record_headers import HEADER_PAYLOAD_BYTES
from strandline.results.document import Document

TEXT_CHARACTERS_MAX = 8_192
BYTES_MAX = 32_768
"""Maximum number of bytes in a document. With more, the index would be as large as the log."""
_WORD = {"type": "keyword", "ignore_above": 8_191}
"""Mapping of a string from a header, which has at most 4,096 bytes. A longer one, which another program wrote, would be
refused."""
DEAD_LETTER_FIELDS: dict[str, dict[str, Any]] = {
    "@timestamp": {"type": "date"},
    "reason": _WORD,
    "step": _WORD,
    "message": _WORD,
    "stream": _WORD,
    "partition": {"type": "long"},
    "offset": {"type": "long"},
    "element": {"type": "long"},
    "index": _WORD,
    "document": _WORD,
    "text": {"type": "text"},
    "bytes": {"type": "binary"},
    "size": {"type": "long"},
    "number": {"type": "long"},
    "topic_id": {"type": "keyword"},
}
DEAD_LETTER_MAPPING = {"dynamic": "strict", "properties": DEAD_LETTER_FIELDS}
_TEXTS = [name for name, field in DEAD_LETTER_FIELDS.items() if field is _WORD]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS_MAX = 18


def dead_letter_document(
    index: str, topic_id: str, number: int, log_time_ms: int, headers: Mapping[str, str], value: bytes
) -> Document:
    """Return the document of one dead letter.

    `number` is its offset in the dead-letter stream. The stream's id distinguishes it from a later stream with the same
    name.
    """
    source: dict[str, Any] = {
        "@timestamp": (_EPOCH + timedelta(milliseconds=log_time_ms)).isoformat(timespec="milliseconds"),
        **{name: headers[name] for name in _TEXTS if name in headers},
        **{name: int(headers[name]) for name in ("partition", "offset", "element") if _is_number(headers.get(name))},
    }
    if value:
        # A character has at most four bytes.
        source["text"] = value[: 4 * TEXT_CHARACTERS_MAX].decode("utf-8", "backslashreplace")[:TEXT_CHARACTERS_MAX]
    if 0 < len(value) <= BYTES_MAX:
        source["bytes"] = base64.b64encode(value).decode("ascii")
    left_out = headers.get(HEADER_PAYLOAD_BYTES)
    source |= {"size": int(left_out or 0) if _is_number(left_out) else len(value), "number": number}
    return Document(f"{topic_id}-{number}", index, msgspec.json.encode(source | {"topic_id": topic_id}))


def _is_number(text: str | None) -> bool:
    return text is not None and text.isdecimal() and len(text) <= _DIGITS_MAX
