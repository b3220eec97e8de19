"""Functions of text by Spark's rules."""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc


def upper(texts: pa.Array) -> pa.Array:
    return _converted(texts, pc.ascii_upper, str.upper)


def lower(texts: pa.Array) -> pa.Array:
    return _converted(texts, pc.ascii_lower, str.lower)


def _converted(texts: pa.Array, kernel: Callable[[pa.Array], pa.Array], convert: Callable[[str], str]) -> pa.Array:
    """All at once where all is ASCII, else one by one."""
    if pc.all(pc.string_is_ascii(texts)).as_py() is not False:
        return kernel(texts)
    return pa.array([None if text is None else convert(text) for text in texts.to_pylist()], pa.string())


def like_pattern(pattern: str) -> str:
    """The regular expression for a LIKE pattern: `%` any text, `_` one character, a backslash takes the next one literally."""
    parts, at = [], 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\" and at + 1 < len(pattern):
            at += 1
            parts.append(re.escape(pattern[at]))
        else:
            parts.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
        at += 1
    return "".join(parts)


def is_like(text: str, pattern: str) -> bool:
    return re.fullmatch(like_pattern(pattern), text, re.DOTALL) is not None


def substring(text: str | None, start: int | None, count: int | None) -> str | None:
    """Counted from 1; 0 counts as 1, and a negative start counts from the end."""
    if text is None or start is None or count is None:
        return None
    first = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    end = first + max(count, 0)
    return text[max(first, 0) : max(end, 0)]
