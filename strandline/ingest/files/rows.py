"""The rows of a file, one record each.

Rows are lines of NDJSON, text, or InfluxDB's protocol, lines of CSV after their header, or rows of Parquet. The
position of a row is the number of lines up to its end (for Parquet, of rows). Unlike the number of rows before it, this
depends neither on the maximum size of a record nor on the rules that convert lines to rows. Lines keep their bytes. A
Parquet file doesn't contain bytes that a sender wrote, so its rows become JSON objects.
"""

from __future__ import annotations

import base64
import datetime
import sys
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from strandline.core.files.text_rows import (
    TOO_LONG,
    PlacedRow,
    Row,
    UnreadableFile,
    lines_of,
    rows_of_csv,
    rows_of_lines,
    without_column_names,
)
from strandline.core.streams.format import ValueRows
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.decompression import ZSTD_OPTIONS

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_READ_BYTES = 1 << 18
COMPRESSIONS = (".gz", ".zst", ".zstd")
PARQUET = (".parquet", ".pq")


def rows_of(
    path: Path,
    spec: StreamSpec,
    bytes_max: int,
    record_bytes_max: int,
    on_read: Callable[[int], None],
    line_first: int = 0,
) -> Iterator[PlacedRow]:
    """Yield the rows of the file's first `bytes_max` bytes in order, each with its `line_next`.

    Args: line_first: Number of lines to skip (for Parquet, of rows). on_read: Called with the number of bytes that are
    read.

    Raises UnreadableFile, OSError.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    kind = suffixes[-1] if suffixes else ""
    if kind in PARQUET:
        rows = _parquet_rows(path, spec, record_bytes_max, on_read, compression)
        yield from islice(((row, row_next) for row_next, row in enumerate(rows, 1)), line_first, None)
        return
    form = spec.form
    if form.unusable is not None:
        raise UnreadableFile(f"{path}: {form.unusable}")
    if not form.is_line:
        raise UnreadableFile(
            f"{path}: a file can't contain one record of format {spec.format} per line; send them by {form.sender}"
        )
    of_values = form.value_rows(spec)
    if kind == ".csv" and of_values is None:
        raise UnreadableFile(
            f"{path} contains CSV, but stream {spec.stream} has the format {spec.format}, not csv; use a stream of csv"
        )
    with path.open("rb") as file:
        lines = lines_of(_blocks(file, compression, bytes_max, on_read, path), record_bytes_max)
        if of_values is not None:
            placed = _csv_rows(lines, line_first, of_values, record_bytes_max, path)
        else:
            placed = rows_of_lines(islice(lines, line_first, None), record_bytes_max)
        for row, count in placed:
            yield row, line_first + count


def _csv_rows(
    lines: Iterator[Row], line_first: int, of_values: ValueRows, record_bytes_max: int, path: Path
) -> Iterator[PlacedRow]:
    """Yield the rows after the first `line_first` lines, with lines counted from there.

    Raises UnreadableFile if the file's first row contains column names that the stream doesn't expect, even if that row
    was ingested before.
    """
    delimiter, columns = of_values.delimiter.encode(), of_values.columns
    before = islice(lines, line_first)
    rows = rows_of_csv(before if line_first else lines, delimiter, record_bytes_max)
    rows = without_column_names(rows, columns, delimiter, str(path))
    if line_first:
        next(rows, None)  # the stream may expect other columns now
        for _ in before:
            pass  # these lines are done
        rows = rows_of_csv(lines, delimiter, record_bytes_max)
    yield from rows


def _blocks(
    file: BufferedReader, compression: str, bytes_max: int, on_read: Callable[[int], None], path: Path
) -> Iterator[bytes]:
    """Yield the decompressed bytes, in blocks of a bounded size."""
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
            raise UnreadableFile(f"{path} is truncated: its {compression} data don't end")
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


def _parquet_rows(
    path: Path, spec: StreamSpec, record_bytes_max: int, on_read: Callable[[int], None], compression: str
) -> Iterator[Row]:
    import pyarrow as pa  # only if a file needs it
    from pyarrow import parquet

    from strandline.core.files.parquet_rows import ROWS_AT_ONCE, python_rows

    if not spec.form.is_json or compression:
        what = (
            f"stream {spec.stream} has the format {spec.format}"
            if not compression
            else f"it is compressed as {compression}"
        )
        raise UnreadableFile(f"{path} contains Parquet, whose rows become JSON objects, but {what}")
    try:
        with parquet.ParquetFile(path) as file:
            total, size, done = max(1, file.metadata.num_rows), path.stat().st_size, 0
            for batch in file.iter_batches(ROWS_AT_ONCE):
                done += batch.num_rows
                on_read(size * done // total)
                for row in python_rows(batch):
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
