"""Charsets of records other than UTF-8."""

from __future__ import annotations

import codecs
from typing import Literal, get_args

Charset = Literal["utf-8", "utf-16", "latin-1", "windows-1252"]
CHARSETS: tuple[Charset, ...] = get_args(Charset)
_LITTLE, _BIG = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE


def to_utf8(value: bytes, charset: str) -> bytes | None:
    """Convert a text of this charset to UTF-8, without a byte order mark. None if the bytes aren't a text of the
    charset.

    UTF-16 without a byte order mark is little-endian, as programs on Windows write it.
    """
    try:
        if charset == "utf-16":
            is_big = value.startswith(_BIG)
            text = value.removeprefix(_BIG if is_big else _LITTLE).decode("utf-16-be" if is_big else "utf-16-le")
        else:
            text = value.decode(charset)
        return text.encode()
    except UnicodeError:
        return None


def from_utf8(value: bytes, charset: str) -> bytes:
    """Convert a text from UTF-8 to another charset. UTF-16 is little-endian and has no byte order mark. Characters that
    the charset doesn't have are replaced.
    """
    return value.decode(errors="replace").encode("utf-16-le" if charset == "utf-16" else charset, errors="replace")
