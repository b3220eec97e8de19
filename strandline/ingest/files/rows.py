"""The rows of a file, one record each: lines of NDJSON, text or InfluxDB's protocol, lines of CSV behind their header, rows of
Parquet.

A row's place in the file is its position: the same file gives the same rows. Lines keep their bytes. Parquet holds no bytes that
a sender wrote; its rows become JSON objects.
"""

from __future__ import annotations

import base64
import datetime
import re
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec

from strandline.core.errors import PermanentError
from strandline.core.stream import StreamSpec
from strandline.ingest.gateway.decompression import ZSTD_OPTIONS

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_READ_BYTES = 1 << 18
_PARQUET_ROWS = 1_000
COMPRESSIONS = (".gz", ".zst", ".zstd")
PARQUET = (".parquet", ".pq")
_CLOSING = re.compile(rb'[^"]*+(?:""[^"]*+)*+"')
"""Up to the end of a quoted value, in which a quote is doubled."""


class UnreadableFile(PermanentError):
    """The file can't be read as what its name says, or doesn't fit the stream."""

    code = "unreadable_file"


class TooLong:
    """Stands for a row that is larger than a record may be."""


TOO_LONG = TooLong()
Row = bytes | TooLong


def rows_of(
    path: Path, spec: StreamSpec, bytes_max: int, record_bytes_max: int, on_read: Callable[[int], None]
) -> Iterator[Row]:
    """The rows of the file's first `bytes_max` bytes, in order. `on_read` hears how many of them are read.

    Raises UnreadableFile, OSError.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    kind = suffixes[-1] if suffixes else ""
    if kind in PARQUET:
        yield from _parquet_rows(path, spec, record_bytes_max, on_read, compression)
        return
    if spec.format in ("msgpack", "cbor", "otlp", "prometheus"):
        raise UnreadableFile(f"{path}: records of format {spec.format} don't stand one a line; send them by HTTP")
    if kind == ".csv" and spec.format != "csv":
        raise UnreadableFile(f"{path} holds CSV, and stream {spec.stream} has the format {spec.format}, not csv")
    with path.open("rb") as file:
        lines = _lines(_blocks(file, compression, bytes_max, on_read, path), record_bytes_max)
        if spec.format == "csv":
            delimiter = (spec.csv.delimiter if spec.csv else ",").encode()
            lines = _without_header(_whole_csv_rows(lines, delimiter, record_bytes_max), spec, delimiter, path)
        yield from lines


def _blocks(
    file: BufferedReader, compression: str, bytes_max: int, on_read: Callable[[int], None], path: Path
) -> Iterator[bytes]:
    """The plain bytes, in blocks of a bounded size."""
    done = 0
    make = _DECOMPRESSORS.get(compression)
    decompressor = make() if make else None
    try:
        while done < bytes_max and (block := file.read(min(_READ_BYTES, bytes_max - done))):
            done += len(block)
            on_read(done)
            if decompressor is None or make is None:
                yield block
                continue
            while block or not decompressor.needs_input:
                if decompressor.eof:  # another member follows
                    decompressor = make()
                yield decompressor.decompress(block, _READ_BYTES)
                block = decompressor.unused_data if decompressor.eof else b""
                if decompressor.eof and not block:
                    break
        if decompressor is not None and not decompressor.eof:
            raise UnreadableFile(f"{path} is cut short: its {compression} data don't end")
    except (zlib.error, zstd.ZstdError) as error:
        raise UnreadableFile(f"{path} can't be decompressed as {compression}: {error}") from error


class _Gzip:
    """zlib's decompressor with the interface of zstd's."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(31)

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail and not self._zlib.eof

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": _Gzip,
    ".zst": lambda: zstd.ZstdDecompressor(options=ZSTD_OPTIONS),
    ".zstd": lambda: zstd.ZstdDecompressor(options=ZSTD_OPTIONS),
}


def _lines(blocks: Iterator[bytes], record_bytes_max: int) -> Iterator[Row]:
    r"""The lines without their `\n` or `\r\n`; blank ones are no rows. Memory is bounded, however long a line is."""
    rest: bytes = b""
    is_too_long = False
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if is_too_long or len(line) > record_bytes_max + 1:
                is_too_long = False
                yield TOO_LONG
            elif line.strip():
                yield line.removesuffix(b"\r")
        if len(rest) > record_bytes_max + 1:
            is_too_long, rest = True, b""
    if is_too_long:
        yield TOO_LONG
    elif rest.strip():
        yield rest.removesuffix(b"\r")


def _whole_csv_rows(lines: Iterator[Row], delimiter: bytes, record_bytes_max: int) -> Iterator[Row]:
    """Join lines that a quoted value runs over. Where that exceeds a record, the first line stands alone and the others are read
    anew: a quote that nobody closes costs no other row.

    A line that ends within a quoted value when it is read anew did so before, too; so none is looked at a third time.
    """
    opening = re.compile(b"(?:^|" + re.escape(delimiter) + b')"')
    held: deque[bytes] = deque()  # the first one opens a quoted value, which is not closed yet
    size = -1  # of the held lines and the line ends between them
    for line in lines:
        if isinstance(line, TooLong):
            yield from held
            held.clear()
            size = -1
            yield line
            continue
        is_open = _ends_in_quotes(line, opening, is_quoted=bool(held))
        held.append(line)
        size += len(line) + 1
        goes_on = True
        while held and (size > record_bytes_max or not goes_on):
            first = held.popleft()
            size -= len(first) + 1
            yield first if len(first) <= record_bytes_max else TOO_LONG
            goes_on = bool(held) and _ends_in_quotes(held[0], opening, is_quoted=False)
            is_open |= len(held) == 1  # if it does not go on, it goes out, too
        if held and not is_open:
            yield b"\n".join(held)
            held.clear()
            size = -1
    if held:
        yield b"\n".join(held)


def _ends_in_quotes(line: bytes, opening: re.Pattern[bytes], *, is_quoted: bool) -> bool:
    """Whether a quoted value goes on behind the line; `is_quoted`: one goes on from the line before. A quote opens only at the
    beginning of a value (RFC 4180)."""
    at = 0
    while found := _CLOSING.match(line, at) if is_quoted else opening.search(line, at):
        at, is_quoted = found.end(), not is_quoted
    return is_quoted


def _without_header(rows: Iterator[Row], spec: StreamSpec, delimiter: bytes, path: Path) -> Iterator[Row]:
    """The first row is left out if it names the columns. If it names them otherwise, the file doesn't fit: raises
    UnreadableFile."""
    columns = [name.lower() for name in (spec.csv.columns if spec.csv and spec.csv.columns else spec.fields)]
    first = next(rows, None)
    if first is None:
        return
    names = [] if isinstance(first, TooLong) else _names(first, delimiter)
    if names != columns:
        if sorted(names) == sorted(columns) or len(set(names) & set(columns)) * 2 > len(columns):
            raise UnreadableFile(
                f"{path} has the columns {', '.join(names)}, and stream {spec.stream} expects {', '.join(columns)}; "
                "name them in that order in the stream's document (csv.columns)"
            )
        yield first
    yield from rows


def _names(header: bytes, delimiter: bytes) -> list[str]:
    marks = b' "\xef\xbb\xbf'
    return [one.strip(marks).decode("utf-8", "replace").lower() for one in header.split(delimiter)]


def _parquet_rows(
    path: Path, spec: StreamSpec, record_bytes_max: int, on_read: Callable[[int], None], compression: str
) -> Iterator[Row]:
    import pyarrow as pa  # only where a file needs it
    from pyarrow import parquet

    if spec.format != "json" or compression:
        what = (
            f"stream {spec.stream} has the format {spec.format}"
            if not compression
            else f"it is packed as {compression}"
        )
        raise UnreadableFile(f"{path} holds Parquet, whose rows become JSON objects: {what}")
    try:
        with parquet.ParquetFile(path) as file:
            total, size, done = max(1, file.metadata.num_rows), path.stat().st_size, 0
            for batch in file.iter_batches(_PARQUET_ROWS):
                done += batch.num_rows
                on_read(size * done // total)
                for row in batch.to_pylist():
                    text = msgspec.json.encode(row, enc_hook=_plain)
                    yield text if len(text) <= record_bytes_max else TOO_LONG
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UnreadableFile(f"{path} can't be read as Parquet: {error}") from error


def _plain(value: object) -> object:
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, memoryview):
        return base64.b64encode(value).decode()
    raise TypeError(f"a value of type {type(value).__name__} has no JSON")
