"""Rows of a text file, one record each: lines, or CSV rows, which can extend over several lines.

A row keeps its bytes, without the end of its line. File ingest and local runs read the same rows from a file. Each row comes
with the number of lines up to its end. If the file is cut there, the remaining lines contain the following rows.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from strandline.core.errors import PermanentError

RECORD_BYTES_MAX = 1_000_000
"""Default limit of the size of a record in bytes."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Programs on Windows write it before the first byte of a text."""
_BLANKS = b" \t\r\n\x0b\x0c\x1a"
"""Bytes of a blank line. 0x1A is the end of a file in DOS."""
_CLOSING = re.compile(rb'[^"]*+(?:""[^"]*+)*+"')
"""Text up to the end of a quoted value, in which quotes are doubled."""


class UnreadableFile(PermanentError):
    """The file doesn't have the format of its name, or doesn't fit the stream."""

    code = "unreadable_file"


class TooLong:
    """Marker for a row that is larger than a record can be."""


TOO_LONG = TooLong()
Row = bytes | TooLong
PlacedRow = tuple[Row, int]
"""A row, and its `line_next`: the number of lines of the file up to its end. The lines don't depend on how rows are cut."""


def lines_of(blocks: Iterable[bytes], row_bytes_max: int) -> Iterator[Row]:
    r"""Yield the lines of a file that is read in blocks, without `\n`. A `\r` before it stays. Memory is bounded for lines of
    any length. A byte order mark at the beginning of the file isn't part of a line."""
    rest: bytes = b""
    is_too_long = False
    for block in _without_mark(blocks):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield TOO_LONG if is_too_long or len(line) > row_bytes_max + 1 else line
            is_too_long = False
        if len(rest) > row_bytes_max + 1:
            is_too_long, rest = True, b""
    if is_too_long:
        yield TOO_LONG
    elif rest:
        yield rest


def _without_mark(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = iter(blocks)
    first = b""
    while len(first) < len(BYTE_ORDER_MARK) and (block := next(rest, None)) is not None:
        first += block
    yield first.removeprefix(BYTE_ORDER_MARK)
    yield from rest


def rows_of_lines(lines: Iterable[Row], row_bytes_max: int) -> Iterator[PlacedRow]:
    """Yield each line as a row, without blank lines."""
    for line_next, line in enumerate(lines, 1):
        if isinstance(line, TooLong):
            yield line, line_next
        elif line.strip(_BLANKS):
            yield _row(line, row_bytes_max), line_next


def rows_of_csv(lines: Iterable[Row], delimiter: bytes, row_bytes_max: int) -> Iterator[PlacedRow]:
    """Yield CSV rows: lines, joined if a quoted value extends over several lines. If the joined lines exceed the size of a row,
    the first line becomes a row, and the next lines are read again. So an unclosed quote affects no other row. A line that ends
    in a quoted value when it is read again did so before. So no line is read a third time."""
    opening = re.compile(b"(?:^|" + re.escape(delimiter) + b')"')
    held: deque[bytes] = deque()  # the first line opens a quoted value that isn't closed yet
    size = -1  # size of the held lines and the line ends between them
    line_next = 0  # lines before the held lines
    for line in lines:
        if isinstance(line, TooLong):
            for row, count in rows_of_lines(held, row_bytes_max):
                yield row, line_next + count
            line_next += len(held) + 1
            held.clear()
            size = -1
            yield line, line_next
            continue
        is_open = _ends_in_quotes(line, opening, is_quoted=bool(held))
        held.append(line)
        size += len(line) + 1
        goes_on = True
        while held and (size - held[-1].endswith(b"\r") > row_bytes_max or not goes_on):
            first = held.popleft()
            size -= len(first) + 1
            line_next += 1
            if first.strip(_BLANKS):
                yield _row(first, row_bytes_max), line_next
            goes_on = bool(held) and _ends_in_quotes(held[0], opening, is_quoted=False)
            is_open |= len(held) == 1  # if it isn't continued, it is emitted, too
        if held and not is_open:
            line_next += len(held)
            if len(held) > 1 or line.strip(_BLANKS):
                yield _row(b"\n".join(held), row_bytes_max), line_next
            held.clear()
            size = -1
    if held:
        yield _row(b"\n".join(held), row_bytes_max), line_next + len(held)


def without_column_names(
    rows: Iterator[PlacedRow], columns: Sequence[str], delimiter: bytes, file: str
) -> Iterator[PlacedRow]:
    """Yield CSV rows without the first row if it contains the names of the columns. Raise UnreadableFile if they
    differ from `columns`."""
    expected = [_name(name) for name in columns]
    first = next(rows, None)
    if first is not None and first[0] == b"sep=" + delimiter:  # Excel writes it before the row of names
        first = next(rows, None)
    if first is None:
        return
    names = [] if isinstance(first[0], TooLong) else _names(first[0], delimiter)
    if names != expected:
        if sorted(names) == sorted(expected) or len(set(names) & set(expected)) * 2 > len(expected):
            raise UnreadableFile(
                f"{file} has the columns {', '.join(names)}, and the stream expects {', '.join(expected)}; set "
                "csv.columns in the stream document to the columns of the file"
            )
        yield first
    yield from rows


def _row(text: bytes, row_bytes_max: int) -> Row:
    row = text.removesuffix(b"\r")
    return row if len(row) <= row_bytes_max else TOO_LONG


def _ends_in_quotes(line: bytes, opening: re.Pattern[bytes], *, is_quoted: bool) -> bool:
    """Return True if a quoted value continues after the line. A quote opens only at the start of a value (RFC 4180).

    Args: is_quoted: True if a quoted value continues from the line before.
    """
    at = 0
    while found := _CLOSING.match(line, at) if is_quoted else opening.search(line, at):
        at, is_quoted = found.end(), not is_quoted
    return is_quoted


def _names(header: bytes, delimiter: bytes) -> list[str]:
    return [_name(one.strip(b' "').decode("utf-8", "replace")) for one in header.split(delimiter)]


def _name(text: str) -> str:
    """Return the name of a column in the form in which names are compared: `FIC101.PV` is the field FIC101_PV."""
    return re.sub(r"\W+", "_", text.lower())
