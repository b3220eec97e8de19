"""Regular expressions of RE2 that an expression contains. They are checked when a document is applied. RE2 needs time in
proportion to the string, whatever the pattern. It has no look-around and no back-references."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

PATTERN_LENGTH_MAX = 1_000
_TOKEN = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|\((?:\?(?:P?<[^=!>][^>]*>)?)?|.", re.DOTALL
)
"""A quoted string, an escape, a class, an opening bracket with the prefix of another kind of group, or any character."""


@dataclass(frozen=True)
class Replacement:
    """The replacement of a match, in RE2's form."""

    text: str
    group_max: int
    """Highest number of a group in it."""


def pattern_of(text: str) -> str:
    """Return the pattern. Raises ValueError if it is too long, or RE2 doesn't accept it."""
    if len(text) > PATTERN_LENGTH_MAX:
        raise ValueError(f"is longer than {PATTERN_LENGTH_MAX:,} characters")
    try:
        pc.match_substring_regex(pa.scalar("", pa.string()), pattern=text)
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise ValueError(f"is not a regular expression that RE2 accepts: {reason}") from error
    if r"\C" in _TOKEN.findall(text):
        raise ValueError("has \\C, which matches a byte, so a part of a character would be left; write '.'")
    return text


_EDGES = ("", "a", " ", "a b-1_\n", "\na\n \n")
"""Strings with positions for every condition that RE2 can test without consuming a character: boundaries of strings, lines, and
words, with and without neighbours."""


def may_match_nothing(pattern: str) -> bool:
    """Return True if a valid pattern can match without consuming a character. RE2 itself decides, because other engines read some
    patterns differently (`[[:space:]]*`), and refuse others (`\\pZ*`)."""
    marked = pc.replace_substring_regex(pa.array(_EDGES), pattern=f"({pattern})", replacement=r"<\1>")
    return any("<>" in one for one in marked.to_pylist())


def groups_in(pattern: str) -> int:
    """Return the number of capturing groups of a valid pattern."""
    return sum(_keeps(token) for token in _TOKEN.findall(pattern))


def extracting(pattern: str, number: int) -> str:
    """Return the pattern with a single capturing group, named `value`: the group with this number. 0 is the whole match."""
    seen, parts = 0, []
    for token in _TOKEN.findall(pattern):
        if not _keeps(token):
            parts.append(token)
            continue
        seen += 1
        parts.append("(?P<value>" if seen == number else "(?:")
    found = "".join(parts)
    return found if number else f"(?P<value>{found})"


def replacement_of(text: str) -> Replacement:
    """Return the replacement of a match: `$1` is the first group, `$0` the whole match, and a backslash makes the next character
    literal. Raises ValueError if it is too long or malformed."""
    if len(text) > PATTERN_LENGTH_MAX:
        raise ValueError(f"is longer than {PATTERN_LENGTH_MAX:,} characters")
    parts, group_max, at = [], 0, 0
    while at < len(text):
        character, following = text[at], text[at + 1 : at + 2]
        if character == "$":
            if not re.match(r"[0-9](?![0-9])", text[at + 1 : at + 3], re.ASCII):
                raise ValueError("has a '$' without the number of a group, 0 to 9, after it; write \\\\$ for the sign")
            group_max = max(group_max, int(following))
            parts.append(f"\\{following}")
            at += 2
        elif character == "\\":
            if not following:
                raise ValueError("ends in a backslash, which must precede a character")
            parts.append("\\\\" if following == "\\" else following)
            at += 2
        else:
            parts.append(character)
            at += 1
    return Replacement("".join(parts), group_max)


def refuse_missing_group(pattern: str, number: int) -> None:
    """Raise ValueError if the pattern has no group with this number."""
    if number > (count := groups_in(pattern)):
        raise ValueError(f"asks for group {number} of a pattern that has {count or 'none'}")


def _keeps(part: str) -> bool:
    return part == "(" or part.startswith(("(?P<", "(?<"))
