"""The rows of a text file, one record each: its lines, or its rows of CSV, which may run over lines.

A row keeps its bytes, without the end of its line. What is written to the log from a file and what a run at the desk reads of it
are the same rows. With each row comes the number of lines up to its end. Cut from there on, the lines give the rows that follow.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from strandline.core.errors import PermanentError

RECORD_BYTES_MAX = 1_000_000
"""Of a record, unless a setting says otherwise."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Programs on Windows write it before the first byte of a text."""
_BLANKS = b" \t\r\n\x0b\x0c\x1a"
"""Bytes of a line that holds nothing; 0x1A is the end of a file from DOS."""
_CLOSING = re.compile(rb'[^"]*+(?:""[^"]*+)*+"')
"""Up to the end of a quoted value, in which a quote is doubled."""


class UnreadableFile(PermanentError):
    """The file can't be read as what its name says, or doesn't fit the stream."""

    code = "unreadable_file"


class TooLong:
    """Stands for a row that is larger than a record may be."""


TOO_LONG = TooLong()
Row = bytes | TooLong
PlacedRow = tuple[Row, int]
"""A row, and its `line_next`: how many of the file's lines end with it or before. Lines are the same whatever rows are cut by."""


def lines_of(blocks: Iterable[bytes], row_bytes_max: int) -> Iterator[Row]:
    r"""The lines of a file that is read in blocks, without `\n`; a `\r` before it stays. Memory is bounded, however long a line
    is. A byte order mark at the beginning of the file is no part of a line."""
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
    """A row a line; blank lines are none."""
    for line_next, line in enumerate(lines, 1):
        if isinstance(line, TooLong):
            yield line, line_next
        elif line.strip(_BLANKS):
            yield _row(line, row_bytes_max), line_next


def rows_of_csv(lines: Iterable[Row], delimiter: bytes, row_bytes_max: int) -> Iterator[PlacedRow]:
    """Join lines that a quoted value runs over. Where that exceeds a row, the first line stands alone and the others are read
    anew: a quote that nobody closes costs no other row.

    A line that ends within a quoted value when it is read anew did so before, too; so none is looked at a third time.
    """
    opening = re.compile(b"(?:^|" + re.escape(delimiter) + b')"')
    held: deque[bytes] = deque()  # the first one opens a quoted value, which is not closed yet
    size = -1  # of the held lines and the line ends between them
    line_next = 0  # the lines before the held ones
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
            is_open |= len(held) == 1  # if it does not go on, it goes out, too
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
    """Rows of CSV; the first one is left out if it names the columns. If it names them otherwise, the file doesn't fit: raises
    UnreadableFile."""
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
                f"{file} has the columns {', '.join(names)}, and the stream expects {', '.join(expected)}; name them in that "
                "order in the stream's document (csv.columns)"
            )
        yield first
    yield from rows


def _row(text: bytes, row_bytes_max: int) -> Row:
    row = text.removesuffix(b"\r")
    return row if len(row) <= row_bytes_max else TOO_LONG


def _ends_in_quotes(line: bytes, opening: re.Pattern[bytes], *, is_quoted: bool) -> bool:
    """Whether a quoted value goes on behind the line; `is_quoted`: one goes on from the line before. A quote opens only at the
    beginning of a value (RFC 4180)."""
    at = 0
    while found := _CLOSING.match(line, at) if is_quoted else opening.search(line, at):
        at, is_quoted = found.end(), not is_quoted
    return is_quoted


def _names(header: bytes, delimiter: bytes) -> list[str]:
    return [_name(one.strip(b' "').decode("utf-8", "replace")) for one in header.split(delimiter)]


def _name(text: str) -> str:
    """A column's name in the form in which names are compared: `FIC101.PV` is the field FIC101_PV."""
    return re.sub(r"\W+", "_", text.lower())
