"""What a standby does before it has a job: it runs one small query through all that a job's query uses.

The same source class, the same stages, a mapInArrow worker with what an emission imports, foreachBatch: so the JVM has
loaded and compiled what a job's first batch needs, and the Python workers run, connected to Kafka. The query reads and
writes neither Kafka nor Elasticsearch nor the ledger.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from strandline.core.stream import StreamSpec
from strandline.log.reader import MESSAGES_A_FETCH
from strandline.processing.operators.stages import WATERMARK_METADATA, build_stages
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model import PipelineSpec
from strandline.processing.pipelines.stages import Stage
from strandline.processing.source.data_source import FACTS, accepted_schema, read_accepted
from strandline.processing.source.data_source import LogPartition as Task
from strandline.processing.source.decoding import EVENT_TIME, DecodingConfig, decoding_of

log = structlog.get_logger()

BATCHES = 3
_BATCH_MS = 60_000
ROWS = 50_000
"""In each task: enough for the JVM to compile the loops over rows, in which a rewind spends its time."""
_DEVICES = 1_000
_STREAM: dict[str, object] = {
    "stream": "warm-up",
    "partitions": 1,
    "format": "json",
    "schema": {"device": "string", "ts": "timestamp", "value": "double"},
}
_PIPELINE: dict[str, object] = {
    "pipeline": "warm-up",
    "input": {"stream": "warm-up"},
    "event_time": {"field": "ts", "delay": "1s"},
    "steps": [
        {"derive": {"twice": "value * 2"}},
        {"where": "twice >= 0"},
        {
            "window": {
                "name": "first",
                "tumbling": "10s",
                "by": ["device"],
                "aggregate": {"n": "count(*)", "mean": "avg(twice)", "peak": "max(twice)"},
            },
            "emit": [{"elasticsearch": "warm-up"}],
        },
        {
            "window": {"name": "second", "tumbling": "1m", "by": ["device"], "aggregate": {"n": "sum(n)"}},
            "emit": [{"elasticsearch": "warm-up-minute"}],
        },
    ],
}


def warm_up(
    spark: SparkSession, kafka_bootstrap: str, scratch: Path, is_awaited: Callable[[], bool], rows: int = ROWS
) -> None:
    """Run the small query to its end, or until a job `is_awaited`, with `rows` in each task of a batch."""
    began = time.monotonic()
    if is_awaited():
        return
    pipeline = check(PipelineSpec.from_document(_PIPELINE), StreamSpec.from_document(_STREAM))
    spark.dataSource.register(
        _warm_source(decoding_of(pipeline, kafka_bootstrap), rows, spark.sparkContext.defaultParallelism)
    )
    batches: list[int] = []

    def process(results: DataFrame, batch: int) -> None:
        results.write.format("noop").mode("append").save()
        batches.append(batch)

    frame = build_stages(spark.readStream.format(WarmSource.name()).load(), pipeline, _tap)
    query = frame.writeStream.foreachBatch(process).option("checkpointLocation", str(scratch / "warm-up")).start()
    while len(batches) < BATCHES and query.isActive and not is_awaited():
        time.sleep(0.02)
    failure = query.exception()
    query.stop()
    if failure is not None:
        log.warning("warming up failed; the job starts all the same", error=str(failure))
    log.info("warmed up", batches=len(batches), seconds=round(time.monotonic() - began, 1))


def _warm_source(decoding: DecodingConfig, rows: int, parallelism: int) -> type[DataSource]:
    class BoundWarmSource(WarmSource):
        bound = WarmReader(decoding, rows, parallelism)

    return BoundWarmSource


class WarmSource(DataSource):
    """Slices of made-up records, a minute of event time each."""

    bound: WarmReader

    @classmethod
    def name(cls) -> str:
        return "strandline_warm_up"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(accepted_schema(self.bound.decoding))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return self.bound


class WarmReader(DataSourceStreamReader):
    def __init__(self, decoding: DecodingConfig, rows: int, parallelism: int) -> None:
        self.decoding = decoding
        self._rows = rows
        self._parallelism = parallelism

    def initialOffset(self) -> dict[str, int]:
        return {"slice": 0}

    def latestOffset(self, start: dict[str, int], limit: object = None) -> dict[str, int]:
        return {"slice": min(start["slice"] + 1, BATCHES)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [Task([], end["slice"] * _BATCH_MS) for _ in range(self._parallelism)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        tick_ms, schema = partition.tick_ms or 0, accepted_schema(self.decoding)
        devices = pa.array([f"device-{number}" for number in range(_DEVICES)])
        for first in range(0, self._rows, MESSAGES_A_FETCH):
            rows = np.arange(first, min(first + MESSAGES_A_FETCH, self._rows))
            times_us = tick_ms * 1_000 + rows * (_BATCH_MS * 1_000 // self._rows)
            made = {
                "device": devices.take(pa.array(rows % _DEVICES)),
                "ts": pa.array(times_us),
                "value": pa.array(rows.astype(float)),
                EVENT_TIME: pa.array(times_us),
                FACTS: pa.nulls(len(rows), pa.list_(pa.int64())),
            }
            yield pa.RecordBatch.from_arrays([made[item.name].cast(item.type) for item in schema], schema=schema)
        yield from read_accepted(self.decoding, partition)


def _tap(stage: Stage, frame: DataFrame) -> DataFrame:
    if not stage.emits:
        return frame
    schema = StructType(list(frame.schema.fields))
    schema[EVENT_TIME].metadata = {WATERMARK_METADATA: 1000}
    return frame.mapInArrow(_pass_on, schema)


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on as an emission does, with the modules that it imports loaded."""
    for module in ("strandline.processing.emission.stage_emission", "strandline.results.elasticsearch_writer"):
        importlib.import_module(module)
    yield from batches
