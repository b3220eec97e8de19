"""The lines of InfluxDB's protocol in a body. Imports nothing slow, because gateways use it."""

from __future__ import annotations

import re

_WHITESPACE = b" \t\r\n"
_LINE = re.compile(
    rb"""[ \t\r]*+\#[^\n]*+  # a comment; or
    |(?=[^\n])[^ \\\n]*+(?:\\[^\n]?[^ \\\n]*+)*+  # the measurement and its tags, up to the first space without a backslash
    (?:[^=\\\n]++|="[^"\\]*+(?:\\.[^"\\]*+)*+"(?=[,\s]|\Z)|\\[^\n]?|=)*+  # fields and time; texts may hold ends of lines""",
    re.DOTALL | re.VERBOSE,
)
"""A line without its end. A quote opens a string only after the `=` of a field, and only if the next quote is at the end of a
value. Otherwise the line ends at its first break, so that a string without an end doesn't consume later lines. Possessive, so
it never backtracks."""


def split_influx(body: bytes) -> list[bytes] | None:
    r"""Return the lines without comments. A `\n` in the string of a field ends no line. None if each `\n` ends a line."""
    if b'"' not in body and b"#" not in body:
        return None
    return [line for line in _LINE.findall(body) if line.lstrip(_WHITESPACE)[:1] not in (b"", b"#")]
