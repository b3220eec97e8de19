"""Regular expressions of RE2, as an expression writes them out: judged when a document is applied. RE2 needs time in proportion
to the text, whatever the pattern, and knows no look-around and no back-references."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

PATTERN_LENGTH_MAX = 1_000
_TOKEN = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|\((?:\?(?:P?<[^=!>][^>]*>)?)?|.", re.DOTALL
)
"""A quoted text, an escape, a class, an opening bracket with what makes it another kind of group, or any character."""


@dataclass(frozen=True)
class Replacement:
    """What a match is replaced by, in RE2's form."""

    text: str
    group_max: int
    """The greatest number of a group in it."""


def pattern_of(text: str) -> str:
    """The pattern, which RE2 understands. Raises ValueError."""
    if len(text) > PATTERN_LENGTH_MAX:
        raise ValueError(f"is longer than {PATTERN_LENGTH_MAX:,} characters")
    try:
        pc.match_substring_regex(pa.scalar("", pa.string()), pattern=text)
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise ValueError(f"is no regular expression that RE2 knows: {reason}") from error
    if r"\C" in _TOKEN.findall(text):
        raise ValueError("has \\C, which takes a byte, so that a part of a character would be left; write '.'")
    return text


_EDGES = ("", "a", " ", "a b-1_\n", "\na\n \n")
"""Texts in which everything that RE2 can ask of a place without taking a character is true somewhere: together with what stands
beside it at the ends of texts, lines and words."""


def may_match_nothing(pattern: str) -> bool:
    """Whether a valid pattern matches somewhere without taking a character. RE2 itself is asked: other engines read some patterns
    otherwise (`[[:space:]]*`), and others not at all (`\\pZ*`)."""
    marked = pc.replace_substring_regex(pa.array(_EDGES), pattern=f"({pattern})", replacement=r"<\1>")
    return any("<>" in one for one in marked.to_pylist())


def groups_in(pattern: str) -> int:
    """How many groups of a valid pattern keep what they match."""
    return sum(_keeps(token) for token in _TOKEN.findall(pattern))


def extracting(pattern: str, number: int) -> str:
    """The pattern with one group alone that keeps what it matches: that with this number, named `value`. 0 is all."""
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
    """What a match is replaced by: `$1` is the first group, `$0` all, and a backslash takes the next character literally. Raises
    ValueError."""
    if len(text) > PATTERN_LENGTH_MAX:
        raise ValueError(f"is longer than {PATTERN_LENGTH_MAX:,} characters")
    parts, group_max, at = [], 0, 0
    while at < len(text):
        character, following = text[at], text[at + 1 : at + 2]
        if character == "$":
            if not re.match(r"[0-9](?![0-9])", text[at + 1 : at + 3], re.ASCII):
                raise ValueError("has a '$' without the number of a group, 0 to 9, behind it; write \\\\$ for the sign")
            group_max = max(group_max, int(following))
            parts.append(f"\\{following}")
            at += 2
        elif character == "\\":
            if not following:
                raise ValueError("ends in a backslash, which takes the next character literally")
            parts.append("\\\\" if following == "\\" else following)
            at += 2
        else:
            parts.append(character)
            at += 1
    return Replacement("".join(parts), group_max)


def refuse_missing_group(pattern: str, number: int) -> None:
    """Raises ValueError if the pattern has no such group."""
    if number > (count := groups_in(pattern)):
        raise ValueError(f"asks for group {number} of a pattern that has {count or 'none'}")


def _keeps(part: str) -> bool:
    return part == "(" or part.startswith(("(?P<", "(?<"))
