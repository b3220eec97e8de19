"""JSON within strings of a sample, and the `embedded` of a stream that opens it."""

from __future__ import annotations

import base64
import binascii
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from strandline.core.json_paths import STEPS_MAX, path_text
from strandline.core.streams.embedded import EMBEDDED_MAX
from strandline.processing.formats.inference.schemas import Path, leaves

_ENCODINGS = ("text", "base64", "hex")


def with_opened(objects: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Return the objects with the contents of their strings as members, and the `embedded` of the stream. Empty if no member
    contains JSON in each record that has it."""
    texts: dict[Path, list[str]] = defaultdict(list)
    for one in objects:
        for path, value in leaves(one, ()):
            if isinstance(value, str) and len(path) < STEPS_MAX:
                texts[path].append(value)
    found = {path: encoding for path, some in texts.items() if (encoding := _encoding_of(some)) is not None}
    found = dict(list(found.items())[:EMBEDDED_MAX])
    opened = [_opened(one, found, ()) for one in objects] if found else list(objects)
    settings = [
        {"at": path_text(path)} | ({} if encoding == "text" else {"encoding": encoding})
        for path, encoding in found.items()
    ]
    return opened, settings


def _encoding_of(texts: Sequence[str]) -> str | None:
    return next((one for one in _ENCODINGS if all(_content(text, one) is not None for text in texts)), None)


def _content(text: str, encoding: str) -> Any:
    """Return the object or array in the string. None if there is none."""
    try:
        data = text.encode() if encoding == "text" else _bytes_of(text, encoding)
        if data.strip()[:1] not in (b"{", b"["):
            return None
        value = json.loads(data)
    except (ValueError, binascii.Error, RecursionError):
        return None
    return value if isinstance(value, dict | list) and value else None


def _bytes_of(text: str, encoding: str) -> bytes:
    return bytes.fromhex(text) if encoding == "hex" else base64.b64decode(text, validate=True)


def _opened(one: dict[str, Any], found: dict[Path, str], within: Path) -> dict[str, Any]:
    return dict(_members(one, found, within))


def _members(one: dict[str, Any], found: dict[Path, str], within: Path) -> Iterator[tuple[str, Any]]:
    for name, value in one.items():
        path = (*within, name)
        if isinstance(value, dict):
            yield name, _opened(value, found, path)
        elif path in found and isinstance(value, str):
            yield name, _content(value, found[path])
        else:
            yield name, value
