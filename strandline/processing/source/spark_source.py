"""The log as a data source, as Spark sees it before the first batch of a query.

Spark asks three processes for it, one behind the other, and each of them unpickles it anew: one makes the source, one makes its
reader for the tasks, and in one the planner runs. So this module imports nothing else of ours, and what a run is bound to stays
packed until somebody plans or reads: with all imports, each of these processes took half a second of a recovery.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from strandline.processing.source.data_source import SliceStreamReader, SourceConfig

ROWS_DDL = "bucket int, kind tinyint, partition int, sequence bigint, blob binary"
"""`slice_rows.ROWS_SCHEMA`, as Spark says it."""


def log_source(config: SourceConfig) -> type[DataSource]:
    """A data source class bound to one run's config, for `spark.dataSource.register`."""

    class BoundLogSource(LogSource):
        bound = cloudpickle.dumps(config)  # type: ignore[no-untyped-call]

    return BoundLogSource


class RowSource(DataSource):
    """A source of rows for the keyed tasks; see `slice_rows`."""

    def schema(self) -> str:
        return ROWS_DDL


class LogSource(RowSource):
    """New slices, planned one after the other."""

    bound: bytes
    """The packed config of the run, as the runner itself has packed it."""

    @classmethod
    def name(cls) -> str:
        return "strandline_log"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LogReader(self.bound)


class LogReader(DataSourceStreamReader):
    """A `SliceStreamReader`, which is made when it is first asked for something."""

    def __init__(self, config: bytes) -> None:
        self._config = config
        self._reader: SliceStreamReader | None = None

    def initialOffset(self) -> dict[str, int]:
        return self._made().initialOffset()

    def latestOffset(self, start: dict[str, int], limit: object = None) -> dict[str, int]:
        return self._made().latestOffset(start, limit)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self._made().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._made().read(partition)

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.stop()

    def _made(self) -> SliceStreamReader:
        if self._reader is None:
            from strandline.processing.source.data_source import SliceStreamReader

            self._reader = SliceStreamReader(cloudpickle.loads(self._config))
        return self._reader
