"""Patterns of written times: patterns of Java's `DateTimeFormatter` as in Spark, limited to these letters:

- `yyyy`, `yy`: the year; its last two digits. `to_timestamp` reads four digits; two, for 2000 to 2099.
- `MM`, `M`, `MMM`, `MMMM`: the month: `03`, `3`, `Mar`, `March`. Read in upper and lower case.
- `dd`, `d`: the day of the month.
- `DDD`, `D`: the day of the year. Not read.
- `EEE`, `EEEE`: the day of the week: `Sun`, `Sunday`. Not read.
- `HH`, `H`: the hour, 0 to 23.
- `hh`, `h`, with `a`: the hour, 1 to 12, and `AM` or `PM`. Read in upper and lower case.
- `mm`, `m`, `ss`, `s`: minute, second.
- `S` to `SSSSSS`: one to six digits of the second's fraction. This number of digits is read, or fewer.
- `XXX`, `XX`, `X`: the offset from UTC: `+02:00`, `+0200`, `+02`; `Z` for none. Times are written in UTC.

Text between `'`, and characters that aren't letters, are literal; `''` is a quote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

PATTERN_LENGTH_MAX = 100
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_OFFSET = r"[+-]\d{2}"
_READ = {
    "yyyy": ("year", r"\d{4}"),
    "yy": ("year", r"\d{2}"),
    "MM": ("month", r"\d{2}"),
    "M": ("month", r"\d{1,2}"),
    "MMM": ("month", f"(?i:{'|'.join(name[:3] for name in MONTHS)})"),
    "MMMM": ("month", f"(?i:{'|'.join(MONTHS)})"),
    "dd": ("day", r"\d{2}"),
    "d": ("day", r"\d{1,2}"),
    "DDD": ("day of the year", ""),
    "D": ("day of the year", ""),
    "EEE": ("day of the week", ""),
    "EEEE": ("day of the week", ""),
    "HH": ("hour", r"\d{2}"),
    "H": ("hour", r"\d{1,2}"),
    "hh": ("hour of the half day", r"\d{2}"),
    "h": ("hour of the half day", r"\d{1,2}"),
    "a": ("half of the day", "(?i:AM|PM)"),
    "mm": ("minute", r"\d{2}"),
    "m": ("minute", r"\d{1,2}"),
    "ss": ("second", r"\d{2}"),
    "s": ("second", r"\d{1,2}"),
    **{"S" * digits: ("fraction", rf"\d{{1,{digits}}}") for digits in range(1, 7)},
    "XXX": ("offset", rf"Z|{_OFFSET}:\d{{2}}"),
    "XX": ("offset", rf"Z|{_OFFSET}\d{{2}}"),
    "X": ("offset", rf"Z|{_OFFSET}"),
}
"""Letters -> their meaning, and the regular expression that reads them. Empty if they are only for writing."""


@dataclass(frozen=True)
class Piece:
    """A part of a pattern: letters with a meaning, or a literal string."""

    letters: str
    text: str = ""

    @property
    def what(self) -> str:
        """Meaning of the letters."""
        return _READ[self.letters][0] if self.letters else ""


Pattern = tuple[Piece, ...]


def written_pattern(text: str) -> Pattern:
    """Return the pieces of a pattern that writes times. Raises ValueError for other patterns."""
    if not 0 < len(text) <= PATTERN_LENGTH_MAX:
        raise ValueError(f"has {len(text)} characters; expected 1 to {PATTERN_LENGTH_MAX}")
    pieces = tuple(_pieces(text))
    used = {piece.what for piece in pieces}
    if ("hour of the half day" in used) != ("half of the day" in used):
        raise ValueError("has one of 'h' and 'a' without the other; write HH for the hours 0 to 23")
    return pieces


def read_pattern(text: str) -> Pattern:
    """Return the pieces of a pattern that reads times. Raises ValueError for other patterns."""
    pieces = written_pattern(text)
    used = [piece.what for piece in pieces if piece.letters]
    for piece in pieces:
        if piece.letters and not _READ[piece.letters][1]:
            raise ValueError(f"has '{piece.letters}', which is only for writing times")
        if used.count(piece.what) > 1:
            raise ValueError(f"has the {piece.what} twice")
    if "hour" in used and "half of the day" in used:
        raise ValueError("has the hour twice, as 'H' and as 'h'")
    if missing := [what for what in ("year", "month", "day") if what not in used]:
        raise ValueError(f"lacks the {missing[0]}; expected at least year, month and day, as yyyy-MM-dd")
    return pieces


def read_expression(pattern: Pattern) -> str:
    """Return the regular expression (RE2) that reads a pattern, with a named group for each piece with letters. The groups are
    `p0`, `p1`, and so on, by the index of the piece."""
    parts = [
        f"(?P<p{at}>{_READ[piece.letters][1]})" if piece.letters else re.escape(piece.text)
        for at, piece in enumerate(pattern)
    ]
    return rf"\A{''.join(parts)}\z"


def _pieces(text: str) -> Iterator[Piece]:
    for match in re.finditer(r"'((?:[^']|'')*)'|([A-Za-z])\2*|([^A-Za-z']+)|(.)", text, re.DOTALL):
        found = match[0]
        if match[4]:
            raise ValueError("has a quote that is not closed")
        if match[2] and found not in _READ:
            raise ValueError(f"has '{found}', which is not supported; expected some of: {', '.join(_READ)}")
        if match[2]:
            yield Piece(found)
        elif found == "''":
            yield Piece("", "'")
        else:
            yield Piece("", match[3] if match[1] is None else match[1].replace("''", "'"))


_TIME_TEXT = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[T ](?:(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,9}))?)?)?\s*(Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?)?)?",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros_of_text(text: str) -> int | None:
    """Return microseconds since 1970 for a time as in `timestamp '...'`, UTC by default. None if it isn't a time."""
    match = _TIME_TEXT.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    fraction = int((match[7] or "").ljust(6, "0")[:6])
    zone: timezone = UTC
    if match[8] and match[8][0] in "+-":
        hours, _, minutes = match[8][1:].partition(":")
        if not minutes and len(hours) > 2:
            hours, minutes = hours[:-2], hours[-2:]
        offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
        if offset > timedelta(hours=18):
            return None
        zone = timezone(offset if match[8][0] == "+" else -offset)
    try:
        moment = datetime(year, month, day, hour, minute, second, fraction, tzinfo=zone)
    except ValueError:
        return None
    return (moment - _EPOCH) // timedelta(microseconds=1)
