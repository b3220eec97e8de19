"""A small file of Parquet can hold many long strings. They are unpacked a few at a time."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.core.files.parquet_rows import ROWS_AT_ONCE
from strandline.processing.desk.record_files import read_records
from strandline.processing.formats.inference.parquet_sample import read_parquet
from strandline.processing.formats.record_rows import RecordFormat

ROWS, LENGTH = 1_500, 1 << 18
PEAK_BYTES_MAX = 5 * ROWS_AT_ONCE * LENGTH
"""Values of Python, their JSON, and those of the step before."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"text": ["a" * LENGTH] * ROWS}), path, compression="zstd")
    assert path.stat().st_size < 2_000
    return path


@pytest.mark.guarantee(
    "G782",
    "A small file of Parquet with many long strings is read a few rows at a time, and a sample of it ends at 64 MiB.",
    promise="no-client-can-exhaust-a-service",
)
def test_a_small_file_is_read_in_small_steps(path: Path) -> None:
    tracemalloc.start()
    assert sum(len(piece) for piece in read_records(path, RecordFormat("json", (), {}))) == ROWS
    assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES_MAX
    tracemalloc.stop()


@pytest.mark.guarantee("G782")
def test_a_sample_ends_at_a_number_of_bytes(path: Path) -> None:
    tracemalloc.start()
    rows, _ = read_parquet(path.read_bytes(), ROWS)
    assert 0 < len(rows) < ROWS
    assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES_MAX
    tracemalloc.stop()
