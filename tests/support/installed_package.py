"""A Python package as pip would install it, in a directory of a test's own."""

from __future__ import annotations

from pathlib import Path

FUNCTIONS = '''
import random
from os import system

import pyarrow as pa
import pyarrow.compute as pc


def fahrenheit(batch):
    return pa.RecordBatch.from_arrays([pc.add(pc.multiply(batch.column("temp"), 1.8), 32.0)], ["warm"])


def spelled(batch):
    """Raises an error for whatever is no number that is spelled out."""
    words = ["zero", "one", "two", "three"]
    return pa.RecordBatch.from_arrays([pa.array([words.index(w) for w in batch.column("word").to_pylist()])], ["n"])


def at_random(batch):
    return pa.RecordBatch.from_arrays([pa.array([random.random() for _ in range(batch.num_rows)])], ["warm"])


def above_the_mean(batch):
    """Depends on the other rows of the batch."""
    temp = batch.column("temp")
    return pa.RecordBatch.from_arrays([pc.subtract(temp, pc.mean(temp))], ["warm"])


def half_of_the_rows(batch):
    return fahrenheit(batch.slice(0, batch.num_rows // 2))


def of_another_type(batch):
    return pa.RecordBatch.from_arrays([batch.column("temp").cast(pa.string())], ["warm"])


def of_another_name(batch):
    return pa.RecordBatch.from_arrays([batch.column("temp")], ["cold"])


def no_batch(batch):
    return {"warm": [1.0]}


def none_below_zero(batch):
    temp = batch.column("temp")
    return pa.RecordBatch.from_arrays([pc.if_else(pc.less(temp, 0.0), None, temp)], ["warm"])


number = 7
'''


def install(directory: Path, version: str = "1.2.0", functions: str = FUNCTIONS) -> Path:
    """Put the package `acme-quality` with the module `acme_quality` there; return the directory, for `sys.path`."""
    (directory / "acme_quality.py").write_text(functions)
    metadata = directory / f"acme_quality-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-quality\nVersion: {version}\n")
    (metadata / "top_level.txt").write_text("acme_quality\n")
    (metadata / "RECORD").write_text("acme_quality.py,,\n")
    return directory
