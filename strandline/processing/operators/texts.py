"""Functions of strings by Spark's rules."""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.pipelines.functions.written import is_like_pattern

LIKE_LENGTH_MAX = 1_000
"""Maximum number of characters of a LIKE pattern that isn't written out."""


def upper(texts: pa.Array) -> pa.Array:
    return _converted(texts, pc.ascii_upper, str.upper)


def lower(texts: pa.Array) -> pa.Array:
    return _converted(texts, pc.ascii_lower, str.lower)


def _converted(texts: pa.Array, kernel: Callable[[pa.Array], pa.Array], convert: Callable[[str], str]) -> pa.Array:
    """Convert all strings in one step if all are ASCII, otherwise one by one."""
    if pc.all(pc.string_is_ascii(texts)).as_py() is not False:
        return kernel(texts)
    return pa.array([None if text is None else convert(text) for text in texts.to_pylist()], pa.string())


def like_pattern(pattern: str) -> str:
    """Return the regular expression for a valid LIKE pattern. `%` is any string, `_` one character, and a backslash makes the
    next character literal.

    The part between two `%` matches where it is found first, without backtracking (`(?>`). So matching takes linear time. With
    backtracking, the time would grow with a power of the length for each `%`.
    """
    pieces, at = [""], 0
    while at < len(pattern):
        character = pattern[at]
        if character == "%":
            pieces.append("")
        elif character == "_":
            pieces[-1] += "."
        else:
            at += character == "\\"
            pieces[-1] += re.escape(pattern[at])
        at += 1
    if len(pieces) == 1:
        return pieces[0]
    first, *between, last = pieces
    return "".join([first, *(f"(?>.*?{piece})" for piece in between), ".*", last])


def is_like(text: str, pattern: str) -> bool | None:
    """Return True if the string matches. None if the pattern is invalid or too long. A sender can write the pattern, and each
    of its parts is searched in the whole string."""
    if len(pattern) > LIKE_LENGTH_MAX or not is_like_pattern(pattern):
        return None
    return re.fullmatch(like_pattern(pattern), text, re.DOTALL) is not None


def substring(text: str | None, start: int | None, count: int | None) -> str | None:
    """Return a substring. Positions count from 1. 0 counts as 1, and a negative start counts from the end."""
    if text is None or start is None or count is None:
        return None
    first = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    end = first + max(count, 0)
    return text[max(first, 0) : max(end, 0)]
