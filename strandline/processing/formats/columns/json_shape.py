"""The shape of a JSON object: all of its text but its values, which stand in cells. A device's records mostly have one shape."""

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
"""Records are read by no shape with more cells, as many as a stream has fields: for each of them all records are walked, and the
first record of a chunk decides."""


@dataclass(frozen=True)
class Cell:
    """A text, a number, true, false or null. The quotes of a text stand around the cell."""

    path: JsonPath
    is_text: bool
    value: bytes
    """What the model has there."""
    quote: int
    """Of the record's quotes the number of the last one before the cell."""
    after_quote: int
    """How many bytes behind this quote the cell begins."""
    before_next: int
    """How many bytes before the next quote it ends, or, where none follows, before the record does."""
    literal: bytes
    """What follows it, up to the next cell or the end."""


@dataclass(frozen=True)
class Shape:
    """What all records of one shape have in common."""

    begin: bytes
    """Up to the first cell."""
    cells: Sequence[Cell]
    containers: frozenset[JsonPath]
    """The paths of objects and arrays."""
    objects: frozenset[JsonPath]
    """Those of objects."""
    quotes: int
    """In a record."""


def shape_of(text: bytes, cells_max: int = CELLS_MAX) -> Shape | None:
    """The shape; None if the text is no JSON object, has more cells, a name twice, a blank or an escape where few have one, or
    two values without a quote between them."""
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
    """Path, begin and end of each value that holds no others, and the paths of objects and of arrays; None if an object has a
    name twice, or there are more values."""
    spans: list[tuple[JsonPath, int, int]] = []
    objects: set[JsonPath] = set()
    arrays: set[JsonPath] = set()
    path: list[str | int | None] = []
    names: list[set[str]] = []
    for token in _TOKEN.finditer(text):
        first = token[0][:1]
        if first in b"{[":
            (objects if first == b"{" else arrays).add(tuple(path))  # type: ignore[arg-type]  # a value has a name before it
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
