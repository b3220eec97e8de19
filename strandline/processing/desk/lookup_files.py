"""A file with the rows of a lookup: CSV with a header, JSON (one object a line, or an array of objects), or Parquet."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from strandline.core.errors import InvalidDocument, PermanentError, Problem
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.lookups.packed_rows import ROWS_MAX, TEXT_BYTES_MAX
from strandline.processing.desk.record_files import csv_cells, json_of_one_value, read_records
from strandline.processing.formats.lookups.rows import read_rows
from strandline.processing.formats.record_fields import record_fields
from strandline.processing.formats.record_rows import RecordFormat

KINDS = (".csv", ".tsv", ".ndjson", ".jsonl", ".json", ".parquet", ".pq")


def read_lookup_file(spec: LookupSpec, path: Path) -> bytes:
    """Return the rows as JSON objects, one a line. Raises InvalidDocument with the positions of errors. Raises PermanentError
    if the file can't be read, or has more rows than a lookup can have."""
    if not {suffix.lower() for suffix in path.suffixes}.intersection(KINDS):
        raise PermanentError(f"{path}: a file of rows must have one of the suffixes {', '.join(KINDS)}")
    rows: list[bytes] = []
    size = 0
    for piece in read_records(path, RecordFormat("json", record_fields(spec), {})):
        rows += (
            b" ".join(row.splitlines()) for row in piece
        )  # a line of JSON can contain a carriage return between two values
        size += sum(map(len, piece))
        if len(rows) > ROWS_MAX or size > TEXT_BYTES_MAX:
            raise PermanentError(
                f"{path} contains more than {ROWS_MAX:,} rows, or more than {TEXT_BYTES_MAX:,} bytes of rows as JSON, which no "
                "lookup can have; leave out rows or fields"
            )
    found = read_rows(spec, rows)
    if isinstance(found, pa.RecordBatch):
        return b"\n".join(rows)
    lines = _lines_of_rows(path)
    if lines is None:
        raise InvalidDocument([Problem(f"{_row(one.row)}: {one.message_at(_row)}", "file", str(path)) for one in found])
    raise InvalidDocument(
        [Problem(one.message_at(lambda row: f"line {lines[row]}"), "file", str(path), lines[one.row]) for one in found]
    )


def _row(row: int) -> str:
    return f"row {row + 1}"


def _lines_of_rows(path: Path) -> list[int] | None:
    """Return the line at which each row begins. None if the file doesn't have one row a line."""
    suffixes = {suffix.lower() for suffix in path.suffixes}
    if suffixes.intersection((".parquet", ".pq")):
        return None
    with pa.input_stream(str(path), compression="detect") as file:
        if suffixes.intersection((".csv", ".tsv")):
            return [line for line, _ in csv_cells(file, path)][1:]
        if json_of_one_value(file, str(path))[0] is not None:
            return None
    with pa.input_stream(str(path), compression="detect") as file:
        return [number for number, line in enumerate(file.read().split(b"\n"), 1) if line.strip()]
