"""Tables of an audit below its scratch directory: Parquet files that several processes write and DuckDB reads.

Memory is bounded: a writer buffers a few ten thousand rows, and DuckDB spills to the same directory above its limit.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from strandline.core.errors import PermanentError

_ROWS_A_GROUP = 100_000
_BYTES_A_GROUP = 32 * 1024 * 1024
_ROWS_A_BATCH = 20_000


@dataclass(frozen=True)
class Table:
    """The rows of all files in one directory."""

    directory: Path
    schema: pa.Schema

    def create(self) -> None:
        """Create the empty table."""
        self.directory.mkdir(parents=True)
        pq.write_table(self.schema.empty_table(), self.directory / "empty.parquet")  # DuckDB needs at least one file

    @contextmanager
    def writer(self, name: str) -> Iterator[TableWriter]:
        """Yield a writer that adds rows to the table, in a file of its own. `name`: not used by another writer of the table.
        The rows are in the table when the body ends."""
        writer = TableWriter(self.directory / f"{name}.parquet", self.schema)
        try:
            yield writer
        finally:
            writer.close()

    @property
    def sql(self) -> str:
        """The table as a relation in a query."""
        files = glob.escape(str(self.directory)).replace("'", "''")
        return f"read_parquet('{files}/*.parquet')"


class TableWriter:
    """Writes one file. Without rows, it writes no file."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self.schema = schema
        self._file: pq.ParquetWriter | None = None
        self._batches: list[pa.RecordBatch] = []

    def append(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._batches.append(batch)
        rows, size = (sum(getattr(one, what) for one in self._batches) for what in ("num_rows", "nbytes"))
        if rows >= _ROWS_A_GROUP or size >= _BYTES_A_GROUP:
            self._write()

    def close(self) -> None:
        """Write the buffered rows. Must be called."""
        try:
            self._write()
        finally:
            if self._file is not None:
                self._file.close()

    def _write(self) -> None:
        if not self._batches:
            return
        if self._file is None:
            texts = [item.name for item in self.schema if pa.types.is_string(item.type)]
            self._file = pq.ParquetWriter(self._path, self.schema, use_dictionary=texts, write_statistics=False)
        self._file.write_table(pa.Table.from_batches(self._batches, self.schema))
        self._batches = []


class Database:
    """DuckDB over such tables. Not thread-safe. It uses all cores."""

    def __init__(self, directory: Path, memory_mb: int) -> None:
        """`directory`: spill directory below the scratch directory."""
        self._connection = duckdb.connect(
            config={
                "memory_limit": f"{memory_mb}MB",
                "temp_directory": str(directory),
                "threads": len(os.sched_getaffinity(0)),
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,
            }
        )

    def close(self) -> None:
        self._connection.close()

    def query(self, sql: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query, in batches of bounded size. Raises PermanentError if DuckDB fails."""
        try:
            with self._connection.cursor() as cursor:
                yield from cursor.sql(sql).to_arrow_reader(_ROWS_A_BATCH)
        except (duckdb.Error, pa.ArrowException) as error:
            raise PermanentError(
                f"DuckDB could not compute the audit: {error}; free space in the scratch directory, or raise "
                "STRANDLINE_AUDIT_MEMORY_MB"
            ) from error
