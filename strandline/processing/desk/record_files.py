"""Files of records: plain or base64 lines, rows of CSV and Parquet as JSON objects, and files that belong to a format. They are
read in parts of bounded size."""

from __future__ import annotations

import csv
import sys
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
import pyarrow as pa

from strandline.core.errors import PermanentError
from strandline.core.files.parquet_rows import ROWS_AT_ONCE, json_rows
from strandline.core.files.text_rows import (
    Row,
    TooLong,
    lines_of,
    rows_of_csv,
    rows_of_lines,
    without_column_names,
)
from strandline.core.json_paths import JsonPath
from strandline.core.streams.format import ValueRows
from strandline.core.streams.format_registry import all_forms
from strandline.ingest.gateway.framing import split_one_value
from strandline.processing.desk.records import RECORDS_AT_ONCE
from strandline.processing.formats.format import Format
from strandline.processing.formats.record_fields import RecordField
from strandline.processing.formats.record_rows import RecordFormat
from strandline.processing.formats.text_values import json_of_text

FileFormat = Literal["lines", "csv", "parquet", "base64", "own"]
LINE_BYTES_MAX = 64 << 20
_BLOCK_BYTES = 1 << 20
_SUFFIXES: dict[str, FileFormat] = {
    ".ndjson": "lines", ".jsonl": "lines", ".json": "lines", ".txt": "lines", ".lines": "lines",
    ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".pq": "parquet",
    ".b64": "base64", ".base64": "base64",
}  # fmt: skip
_encode = msgspec.json.Encoder(enc_hook=str).encode
_PACKED = (".gz", ".zst", ".bz2", ".lz4")


def read_records(path: Path, config: RecordFormat) -> Iterator[list[bytes]]:
    """Yield the records of a file in its order, in parts. `-` is stdin, as lines. Raises PermanentError if the file can't be
    read."""
    form = config.form
    kind = _file_format(path, form, has_value_rows=config.value_rows is not None)
    try:
        if kind == "parquet":
            yield from _of_parquet(path)
            return
        with _opened(path) as file:
            if kind == "own":
                yield from _pieces(form.file_records(file, config.options, str(path)))
                return
            if kind == "base64":
                records = _of_base64(_lines(file, str(path)), str(path))
            elif kind == "csv":
                records = _of_csv(file, config, path)
            elif config.value_rows is not None:
                records = _rows_of_values(file, config.value_rows, str(path))
            elif form.is_json_text:
                records = _of_json(file, str(path), is_of_positions=config.is_of_positions)
            else:
                records = _lines(file, str(path))
            yield from _pieces(records)
    except (OSError, pa.ArrowException) as error:
        raise PermanentError(f"{path} can't be read: {error}") from error


def _file_format(path: Path, form: Format, *, has_value_rows: bool) -> FileFormat:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in _PACKED]
    suffix = suffixes[-1] if suffixes else ""
    if suffix and suffix == form.file_suffix:
        return "own"
    if (other := next((one for one in _formats() if suffix and suffix == one.file_suffix), None)) is not None:
        raise PermanentError(
            f"{path}: the suffix {suffix} means {other.file_name}, but the stream's format is {form.name}; rename the file "
            "if that is wrong"
        )
    kind = _SUFFIXES.get(suffix, "lines")
    if kind == "csv" and has_value_rows:
        kind = "lines"  # a row is a record
    if kind == "lines" and not (form.is_line or form.has_line_files):
        own = f", or {form.file_name} ({form.file_suffix})" if form.file_suffix else ""
        raise PermanentError(
            f"{path}: a record of format {form.name} is not a line of text; pass a file with each record in base64 on its "
            f"own line (.b64){own}"
        )
    if kind in ("csv", "parquet") and not form.is_json:
        raise PermanentError(
            f"{path}: rows become JSON objects, but the stream's format is {form.name}; pass the records as lines"
        )
    return kind


def _formats() -> list[Format]:
    return [form for form in all_forms() if isinstance(form, Format)]


def _opened(path: Path) -> BinaryIO:
    if str(path) == "-":
        return sys.stdin.buffer
    return pa.input_stream(str(path), compression="detect")  # type: ignore[no-any-return]


def _lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield each line that isn't blank, without its end."""
    rows = rows_of_lines(_all_lines(file), LINE_BYTES_MAX)
    return _kept((row for row, _ in rows), LINE_BYTES_MAX, name)


def _of_json(file: BinaryIO, name: str, *, is_of_positions: bool = False) -> Iterator[bytes]:
    """Yield the records of a JSON file: its lines, the elements if it is one array, or the object if it is one object. The HTTP
    gateway and `stream infer` do the same. `is_of_positions`: an array of values is one record."""
    records, lines = json_of_one_value(file, name)
    if is_of_positions and records is not None and not all(one[:1] == b"[" for one in records):
        records = None
    yield from lines if records is None else records


def json_of_one_value(file: BinaryIO, name: str) -> tuple[list[bytes] | None, Iterator[bytes]]:
    """Return the records of a file that is one JSON array, or one object over several lines; None for another file. Also return
    the file's lines. Raises PermanentError for an array that is too large."""
    lines = _lines(file, name)
    held = list(islice(lines, 1))
    first = held[0].strip() if held else b""
    if first[:1] not in (b"[", b"{"):
        return None, chain(held, lines)
    if (records := split_one_value(first)) is not None:
        held += islice(lines, 1)
        is_array = first[:1] == b"[" and len(held) == 1
        return (records if is_array else None), chain(held, lines)
    size = len(held[0])
    for line in lines:
        held.append(line)
        size += len(line)
        if size > LINE_BYTES_MAX and first[:1] == b"[":
            raise PermanentError(
                f"{name} seems to be one JSON array of more than {LINE_BYTES_MAX:,} bytes; pass one object per line: "
                "jq -c '.[]' FILE"
            )
        if size > LINE_BYTES_MAX:
            return None, chain(held, lines)
    return split_one_value(b"\n".join(held)), iter(held)


def _all_lines(file: BinaryIO) -> Iterator[Row]:
    return lines_of(iter(partial(file.read, _BLOCK_BYTES), b""), LINE_BYTES_MAX)


def _kept(rows: Iterable[Row], bytes_max: int, name: str) -> Iterator[bytes]:
    for row in rows:
        if isinstance(row, TooLong):
            raise PermanentError(
                f"{name} has a record of more than {bytes_max:,} bytes; check that it has one record per line"
            )
        yield row


def _pieces(records: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield parts of bounded size."""
    held: list[bytes] = []
    size = 0
    for record in records:
        held.append(record)
        size += len(record)
        if len(held) == RECORDS_AT_ONCE or size >= _BLOCK_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _rows_of_values(file: BinaryIO, of_values: ValueRows, name: str) -> Iterator[bytes]:
    """Yield rows of values unchanged, without a header row. `strandline ingest` accepts the same rows."""
    from strandline.core.settings import Settings  # slow to import, and only these rows have a limit that is a setting

    delimiter, row_bytes_max = of_values.delimiter.encode(), Settings.read().record_bytes_max
    rows = rows_of_csv(_all_lines(file), delimiter, row_bytes_max)
    for row, _ in without_column_names(rows, of_values.columns, delimiter, name):
        if isinstance(row, TooLong):
            raise PermanentError(
                f"{name} has a row of more than {row_bytes_max:,} bytes, which no gateway accepts; remove it, or set "
                "STRANDLINE_RECORD_BYTES_MAX as for the gateways"
            )
        yield row


def _of_base64(lines: Iterator[bytes], name: str) -> Iterator[bytes]:
    for number, line in enumerate(lines, 1):
        try:
            yield b64decode(line.strip(), validate=True)
        except ValueError as error:
            raise PermanentError(f"{name}: line {number} is not base64: {error}") from error


def _of_csv(file: BinaryIO, config: RecordFormat, path: Path) -> Iterator[bytes]:
    """Yield a JSON object for each row after the header. A column is the member with its name, or the path of a field
    (`device.id`). Fields declared as numbers or booleans aren't strings. An empty cell is a missing value."""
    rows = csv_cells(file, path)
    columns = [_column(title, config.fields) for _, titles in islice(rows, 1) for title in titles]
    for line, row in rows:
        if len(row) != len(columns):
            raise PermanentError(
                f"{path}: the row at line {line} has {len(row)} values, but the header has {len(columns)} names"
            )
        yield _object(columns, row)


def csv_cells(file: BinaryIO, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each row of a CSV file that isn't blank, with the number of its first line. A quoted value can contain line breaks.
    Raises PermanentError if the file isn't CSV in UTF-8."""
    texts = (line.decode() + "\n" for line in _kept(_all_lines(file), LINE_BYTES_MAX, str(path)))
    rows = csv.reader(texts, delimiter="\t" if ".tsv" in path.suffixes else ",", strict=True)
    line = 1
    try:
        for row in rows:
            if row and not (len(row) == 1 and row[0].isspace()):
                yield line, row
            line = rows.line_num + 1
    except (UnicodeDecodeError, csv.Error) as error:
        raise PermanentError(f"{path} is not CSV in UTF-8: {error} (line {rows.line_num})") from error


def _column(title: str, fields: Sequence[RecordField]) -> tuple[JsonPath, str]:
    """Return the path of a column's values in the object, and their type."""
    title = title.strip()
    for field in fields:
        path = field.path or (field.name,)
        if title in (field.name, ".".join(map(str, path))):
            return path, field.type
    return (title,), "string"


def _object(columns: Sequence[tuple[JsonPath, str]], row: Sequence[str]) -> bytes:
    found: dict[str, Any] = {}
    for (path, field_type), cell in zip(columns, row, strict=True):
        if cell:
            here = found
            for step in path[:-1]:
                here = here.setdefault(str(step), {})
            here[str(path[-1])] = msgspec.Raw(json_of_text(cell, field_type))
    return _encode(found)


def _of_parquet(path: Path) -> Iterator[list[bytes]]:
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE):
                yield list(json_rows(batch))
    except ValueError as error:
        raise PermanentError(f"{path} can't be read as Parquet: {error}") from error
