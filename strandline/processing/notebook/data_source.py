"""`spark.read.format("strandline")`: a Python data source for any Spark session whose Python has this package.

    from strandline.processing.notebook.data_source import register
    register(spark)
    spark.read.format("strandline").option("data_dir", DIR).option("stream", "turbines").load()

Spark gets the schema in one process and the partitions in another, and reads in its workers. Each process opens what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from strandline.core.errors import Conflict

if TYPE_CHECKING:  # modules for planning take half a second to import, and the workers don't need them
    from strandline.processing.notebook.tables import Part, Table

NAME = "strandline"


def register(spark: SparkSession) -> None:
    """Register the format "strandline" in this session, for streams, dead letters, and results."""
    spark.dataSource.register(StrandlineSource)


class StrandlineSource(DataSource):
    """The data source for one set of options. docs/notebook.md has the options."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return from_arrow_schema(_planned(dict(self.options), schema_only=True).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return StrandlineReader(dict(self.options), schema)


class StrandlinePartition(InputPartition):
    """The input of one task."""

    def __init__(self, part: Part) -> None:
        super().__init__(None)
        self.part = part


class StrandlineReader(DataSourceReader):
    """Reads the data that existed when it was planned."""

    def __init__(self, options: dict[str, Any], schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        table = _planned(self._options)
        if from_arrow_schema(table.schema) != self._schema:
            raise Conflict(
                "the columns have changed since the DataFrame was created. The stream or the pipeline has a new version, or you "
                "passed your own schema, which isn't supported; load the DataFrame again"
            )
        return [StrandlinePartition(part) for part in table.parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, StrandlinePartition):  # Spark creates another kind if there is no partition
            yield from partition.part.read(to_arrow_schema(self._schema, timezone="UTC"))


def _planned(options: dict[str, Any], *, schema_only: bool = False) -> Table:
    from strandline.log.index import LogIndex
    from strandline.processing.notebook.request import request_of
    from strandline.processing.notebook.tables import plan_table
    from strandline.processing.source.opened_ledger import open_ledger

    query = request_of(options)
    with closing(open_ledger(query.addresses.ledger_url)) as ledger, LogIndex(query.addresses.kafka_bootstrap) as index:
        return plan_table(query, ledger, index, schema_only=schema_only)
