"""The source as Spark's planning processes see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pyspark import cloudpickle
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.slices.spark_offset import slice_of_offset
from strandline.processing.source.data_source import SliceStreamReader
from strandline.processing.source.slice_rows import ROWS_SCHEMA
from strandline.processing.source.spark_source import ROWS_DDL, LogSource, PackedReader

MAKE_A_READER = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    source = pickle.load(file)({})
reader = source.streamReader(source.schema())
print(*sorted(name for name in sys.modules if name.startswith("strandline.")))
"""


def a_source() -> type[LogSource]:
    config = SimpleNamespace(plan=RewindPlan(slice_first=7, slice_committed=9))
    return cast(type[LogSource], LogSource.of(SliceStreamReader(cast(Any, config))))


def test_its_rows_are_those_of_slice_rows() -> None:
    fields = [tuple(word.split()) for word in ROWS_DDL.split(", ")]
    of_arrow = cast(StructType, from_arrow_schema(ROWS_SCHEMA))
    assert fields == [(field.name, field.dataType.simpleString()) for field in of_arrow]


def test_a_reader_is_the_one_of_slices() -> None:
    source = cloudpickle.loads(cloudpickle.dumps(a_source()))({})
    reader = cloudpickle.loads(cloudpickle.dumps(source.streamReader(StructType())))
    assert isinstance(reader, PackedReader)
    assert slice_of_offset(reader.initialOffset()) == 6


def test_a_process_that_only_makes_the_reader_imports_none_of_what_reads(tmp_path: Path) -> None:
    packed = tmp_path / "source"
    packed.write_bytes(cloudpickle.dumps(a_source()))
    done = subprocess.run([sys.executable, "-c", MAKE_A_READER, packed], capture_output=True, text=True, check=True)
    source = "strandline.processing.source"
    assert done.stdout.split() == ["strandline.processing", source, f"{source}.spark_source"]
