"""Repairs JSON with known mistakes of a few senders: a byte order mark at the beginning, and words such as `nan` as values."""

from __future__ import annotations

import re
from collections.abc import Iterable

from strandline.core.files.text_rows import BYTE_ORDER_MARK

_WORD = re.compile(r"-?[A-Za-z]+")
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?[A-Za-z]++', re.DOTALL)
"""A whole string, or a word outside of strings."""
_JSON_WORDS = (b"true", b"false", b"null")


class JsonRepairs:
    """Repairs records that can't be read otherwise."""

    def __init__(self, markers: Iterable[str | float]) -> None:
        """`markers`: markers of missing values. Markers that are words can also be written without quotes."""
        words = {marker.lower() for marker in markers if isinstance(marker, str) and _WORD.fullmatch(marker)}
        self._words = {word.encode() for word in words}

    @property
    def has_words(self) -> bool:
        """True if words without quotes can be values."""
        return bool(self._words)

    def repaired(self, value: bytes) -> bytes | None:
        """Return the text with its mistakes corrected. None if it contains no known mistake."""
        text = value.removeprefix(BYTE_ORDER_MARK)
        if self._words:
            text = _TOKEN.sub(self._of_token, text)
        return None if text == value else text

    def position_in(self, value: bytes, at: int) -> int:
        """Return the position in the record of byte `at` of the repaired text. `value`: the record."""
        text = value.removeprefix(BYTE_ORDER_MARK)
        shift = len(value) - len(text)
        for token in _TOKEN.finditer(text) if self._words else ():
            if token.start() + len(value) - len(text) - shift >= at:
                break
            shift += len(token[0]) - len(self._of_token(token))
        return at + shift

    def _of_token(self, token: re.Match[bytes]) -> bytes:
        word = token[0]
        return b"null" if word not in _JSON_WORDS and word.lower() in self._words else word
