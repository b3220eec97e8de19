"""The shape of a JSON object: its text without the values, which are in cells. Records of a device mostly have one shape."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from strandline.core.json_paths import JsonPath
from strandline.processing.formats.record_fields import why_unreadable

_TOKEN = re.compile(rb'"[^"]*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_UNUSUAL = re.compile(rb"[\x00-\x1f\\]")

CELLS_MAX = 1_000
"""Maximum number of cells of a shape, which is the maximum number of fields of a stream. All records are scanned for each cell,
and the first record of a chunk determines the shape."""


@dataclass(frozen=True)
class Cell:
    """A string, a number, true, false, or null. The quotes of a string are outside the cell."""

    path: JsonPath
    is_text: bool
    value: bytes
    """Bytes of the model's value."""
    quote: int
    """Number of the last quote before the cell, among the quotes of the record."""
    after_quote: int
    """Number of bytes from this quote to the beginning of the cell."""
    before_next: int
    """Number of bytes from the end of the cell to the next quote, or to the end of the record if there is no quote."""
    literal: bytes
    """Bytes between the cell and the next cell or the end."""


@dataclass(frozen=True)
class Shape:
    """The common parts of all records of one shape."""

    begin: bytes
    """Bytes before the first cell."""
    cells: Sequence[Cell]
    containers: frozenset[JsonPath]
    """Paths of objects and arrays."""
    objects: frozenset[JsonPath]
    """Paths of objects."""
    quotes: int
    """Number of quotes of a record."""


def shape_of(text: bytes, cells_max: int = CELLS_MAX) -> Shape | None:
    """Return the shape of a JSON object. None if the text has no shape.

    It has none if it isn't a JSON object, or has too many cells, a name twice, unusual blanks or escapes, or two values
    without a quote between them.
    """
    if text[:1] != b"{" or _UNUSUAL.search(text) or why_unreadable(text) is not None:
        return None
    found = _values_in(text, cells_max)
    if found is None or not found[0]:
        return None
    spans, objects, arrays = found
    bounds = [0, *(bound for _, begin, end in spans for bound in (begin, end)), len(text)]
    literals = [text[begin:end] for begin, end in zip(bounds[::2], bounds[1::2], strict=True)]
    if not all(b'"' in literal for literal in literals[:-1]):
        return None
    quotes = list(accumulate(literal.count(b'"') for literal in literals))
    cells = [
        Cell(
            path=path,
            is_text=text[begin - 1 : begin] == b'"',
            value=text[begin:end],
            quote=quotes[at] - 1,
            after_quote=len(literals[at]) - literals[at].rindex(b'"'),
            before_next=literals[at + 1].find(b'"') if b'"' in literals[at + 1] else len(literals[at + 1]),
            literal=literals[at + 1],
        )
        for at, (path, begin, end) in enumerate(spans)
    ]
    return Shape(literals[0], cells, frozenset(objects | arrays), frozenset(objects), quotes[-1])


def _values_in(
    text: bytes, count_max: int
) -> tuple[list[tuple[JsonPath, int, int]], set[JsonPath], set[JsonPath]] | None:
    """Return the path, beginning, and end of each value that contains no other value, and the paths of objects and of arrays.
    None if an object has a name twice, or if there are more than `count_max` values."""
    spans: list[tuple[JsonPath, int, int]] = []
    objects: set[JsonPath] = set()
    arrays: set[JsonPath] = set()
    path: list[str | int | None] = []
    names: list[set[str]] = []
    for token in _TOKEN.finditer(text):
        first = token[0][:1]
        if first in b"{[":
            (objects if first == b"{" else arrays).add(tuple(path))  # type: ignore[arg-type]  # a name comes before a value
            path.append(None if first == b"{" else 0)
            names.append(set())
        elif first in b"}]":
            path.pop()
            names.pop()
        elif first == b",":
            path[-1] = path[-1] + 1 if isinstance(path[-1], int) else None
        elif first == b":":
            continue
        elif path[-1] is None:
            path[-1] = name = token[0][1:-1].decode()
            if name in names[-1]:
                return None
            names[-1].add(name)
        elif len(spans) == count_max:
            return None
        else:
            is_text = first == b'"'
            spans.append((tuple(path), token.start() + is_text, token.end() - is_text))  # type: ignore[arg-type]
    return spans, objects, arrays
