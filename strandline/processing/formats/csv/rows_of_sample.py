"""A sample of CSV: its delimiter, its rows, and the names of its columns."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import islice

from strandline.core.files.text_rows import RECORD_BYTES_MAX, rows_of_csv
from strandline.processing.formats.inference.field_types import FITS_MIN, FITS_SHARE, value_of
from strandline.processing.formats.inference.text_hints import is_of_another_form
from strandline.processing.formats.timestamps import parse_timestamp

_DELIMITERS = ";,\t|"


@dataclass(frozen=True)
class CsvSample:
    """A text whose lines are rows of values."""

    delimiter: str
    texts: list[str]
    """The rows as they are."""
    rows: list[list[str]]
    """Values of the rows that have the most frequent number of values."""
    comments: int
    """Number of lines above the rows that begin with #."""


def read_csv(text: str, rows_max: int) -> CsvSample | None:
    """Return the sample as CSV, with the delimiter that results in equally many values in (nearly) all rows. None if there is
    none."""
    lines = text.encode().split(b"\n")
    comments = next((at for at, line in enumerate(lines) if not line.startswith(b"#")), 0)
    for above, share in ((0, 1.0), (comments, 1.0), (comments, FITS_SHARE)):
        for delimiter in _DELIMITERS:
            found = rows_of_csv(lines[above:], delimiter.encode(), RECORD_BYTES_MAX)
            texts = [row.decode() for row, _ in islice(found, rows_max) if isinstance(row, bytes)]
            try:
                rows = [next(csv.reader(StringIO(row, newline=""), delimiter=delimiter)) for row in texts]
            except csv.Error:
                continue
            width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
            if width > 1 and count >= share * len(rows) and (count >= FITS_MIN or share == 1):
                return CsvSample(delimiter, texts, [row for row in rows if len(row) == width], above)
    return None


def titles_of(rows: Sequence[Sequence[str]]) -> list[str] | None:
    """Return the unique names of the columns. None if the first row contains values."""
    titles = [title.strip() for title in rows[0]]
    titles[0] = titles[0] or untitled(0)  # the name of an index that pandas writes is empty
    has_titles = len(rows) > 1 and not any(map(_is_value, titles)) and any(map(_is_value, rows[1]))
    return _unlike(titles) if has_titles else None


def untitled(at: int) -> str:
    """Return the name of a column without a title."""
    return f"column_{at + 1}"


def _unlike(names: list[str]) -> list[str]:
    """Return unique names of columns: a name that occurs again gets its position."""
    found: dict[str, None] = {}
    for at, name in enumerate(names):
        while name in found:
            name = f"{name}_{at + 1}"
        found[name] = None
    return list(found)


def _is_value(text: str) -> bool:
    """Return True if a string isn't a name: it is empty, a number, true or false, or a time in any form."""
    return (
        not text
        or not isinstance(value_of(text), str)
        or parse_timestamp(text, "ms") is not None
        or is_of_another_form(text)
    )
