"""The sources of a query's rows, as Spark sees them before the first batch.

Spark uses three processes for a source, one after the other. One creates the source, one creates its reader for the tasks, and
the planner runs in one. Each of them unpickles the source, and would spend half a second of a recovery on all imports. So this
module imports no other module of Strandline, and the reader stays packed until a process plans or reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

T = TypeVar("T")
ROWS_DDL = "bucket int, kind tinyint, partition int, sequence bigint, blob binary"
"""`slice_rows.ROWS_SCHEMA`, as Spark says it."""


class RowSource(DataSource):
    """A source of rows for the keyed tasks; see `slice_rows`."""

    packed: bytes
    """The reader, pickled by the process of the query."""

    @classmethod
    def of(cls, reader: DataSourceReader | DataSourceStreamReader) -> type[DataSource]:
        """Return a source class with this reader, for `spark.dataSource.register`."""
        return type(f"Bound{cls.__name__}", (cls,), {"packed": cloudpickle.dumps(reader)})  # type: ignore[no-untyped-call]

    def schema(self) -> str:
        return ROWS_DDL


class StreamSource(RowSource):
    """A source of a streaming query."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PackedReader(self.packed)


class LogSource(StreamSource):
    """New slices, planned one after the other; read by a `SliceStreamReader`."""

    @classmethod
    def name(cls) -> str:
        return "strandline_log"


class PackedReader(DataSourceStreamReader):
    """A reader that is unpickled when one of its methods is first called."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._reader: DataSourceStreamReader | None = None

    def initialOffset(self) -> dict[str, int]:
        return self._call(lambda reader: reader.initialOffset())

    def latestOffset(self, start: dict[str, int], limit: object = None) -> dict[str, int]:
        return self._call(lambda reader: reader.latestOffset(start, limit))  # type: ignore[arg-type]

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self._call(lambda reader: reader.partitions(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        reader = self._unpacked()
        from strandline.core.portable_errors import typed_for_driver  # the reader has imported the errors

        with typed_for_driver():
            yield from reader.read(partition)

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.stop()

    def _call(self, function: Callable[[DataSourceStreamReader], T]) -> T:
        reader = self._unpacked()
        from strandline.core.portable_errors import typed_for_driver  # the reader has imported the errors

        with typed_for_driver():
            return function(reader)

    def _unpacked(self) -> DataSourceStreamReader:
        if self._reader is None:
            self._reader = cloudpickle.loads(self._packed)
        return self._reader
