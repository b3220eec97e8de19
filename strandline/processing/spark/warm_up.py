"""Warm-up of a standby before it has a job: one small query that uses the same parts as a job's query.

These are the same kind of source, the keyed task with its state and all imports of an emission, and foreachBatch. So the JVM has
loaded and compiled the code of a job's first batch, and the Python workers run, connected to Kafka. The query reads and writes
neither Kafka nor Elasticsearch nor the ledger.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from strandline.core.streams.stream import StreamSpec
from strandline.processing.emission.keyed_task import DeadLetterTarget, KeyedTask
from strandline.processing.emission.result_shapes import letter_shape
from strandline.processing.emission.stage_emission import StageEmission
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.source.data_source import SourceInputPartition
from strandline.processing.source.decoding import DecodedChunk, decoder_of, task_config
from strandline.processing.source.slice_rows import SliceWork, batches_of, encode
from strandline.processing.source.source_config import TaskConfig
from strandline.processing.source.source_task import SourceTask
from strandline.processing.source.spark_source import StreamSource
from strandline.processing.spark.keyed_query import keyed_query
from strandline.processing.spark.session import keys_of_buckets

log = structlog.get_logger()

BATCHES = 3
_BATCH_MS = 60_000
_ROWS = 200
"""In each task."""
_DEVICES = 20
_STREAM: dict[str, object] = {
    "stream": "warm-up",
    "partitions": 1,
    "format": "json",
    "schema": {"device": "string", "ts": {"type": "timestamp", "unit": "ms"}, "value": "double"},
}
_PIPELINE: dict[str, object] = {
    "pipeline": "warm-up",
    "input": {"stream": "warm-up"},
    "event_time": {"field": "ts", "delay": "1s", "idle_timeout": None},
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


def warm_up(spark: SparkSession, kafka_bootstrap: str, checkpoint: Path, is_awaited: Callable[[], bool]) -> None:
    """Run the small query to its end, or until `is_awaited` returns True. The caller deletes its `checkpoint` directory."""
    began = time.monotonic()
    if is_awaited():
        return
    pipeline = check(PipelineSpec.from_document(_PIPELINE), StreamSpec.from_document(_STREAM))
    source = task_config(pipeline, kafka_bootstrap, keys_of_buckets(spark))
    spark.dataSource.register(WarmSource.of(WarmReader(source, spark.sparkContext.defaultParallelism)))
    batches: list[int] = []

    def process(outcomes: DataFrame, batch: int) -> None:
        outcomes.collect()
        batches.append(batch)

    outcomes = keyed_query(spark.readStream.format(WarmSource.name()).load(), _keyed_task(pipeline, source))
    query = outcomes.writeStream.foreachBatch(process).option("checkpointLocation", str(checkpoint)).start()
    while len(batches) < BATCHES and query.isActive and not is_awaited():
        time.sleep(0.02)
    failure = query.exception()
    query.stop()
    if failure is not None:
        log.warning("warming up failed; the job starts anyway", error=str(failure))
    log.info("warmed up", batches=len(batches), seconds=round(time.monotonic() - began, 1))


def _keyed_task(pipeline: CheckedPipeline, source: TaskConfig) -> KeyedTask:
    """Return a keyed task that writes nothing."""
    emissions = tuple(
        StageEmission((), (), letter_shape(pipeline, stage, 1), pipeline.job, stage.name, 1, None, "", "", 0)
        for stage in pipeline.stages
    )
    letters = DeadLetterTarget("", "", pipeline.job, 1, 0)
    return KeyedTask(source.stages, source.bucket_keys, emissions, letters, record_stages=source.record_stages)


class WarmSource(StreamSource):
    """A source with slices of generated records, a minute of event time each. Read by a `WarmReader`."""

    @classmethod
    def name(cls) -> str:
        return "strandline_warm_up"


class WarmReader(DataSourceStreamReader):
    def __init__(self, source: TaskConfig, parallelism: int) -> None:
        self._source = source
        self._parallelism = parallelism

    def initialOffset(self) -> dict[str, int]:
        return {"slice": 0}

    def latestOffset(self, start: dict[str, int], limit: object = None) -> dict[str, int]:
        return {"slice": min(start["slice"] + 1, BATCHES)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        number = end["slice"]
        works = [SliceWork(number, True, None, number * _BATCH_MS, {}, {}), *[None] * (self._parallelism - 1)]
        return [SourceInputPartition([], is_new=True, work=encode(work) if work else None) for work in works]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SourceInputPartition)
        values: list[bytes | None] = [
            json.dumps({"device": f"device-{at % _DEVICES}", "ts": at * _BATCH_MS // _ROWS, "value": at / 7}).encode()
            for at in range(_ROWS)
        ]
        times = [0] * _ROWS
        decoded = decoder_of(self._source.decoding.inputs[0]).decode(values, times, None)
        chunk = DecodedChunk("warm-up", 0, range(_ROWS), times, decoded, values.__getitem__)
        yield from batches_of(SourceTask(self._source).rows([chunk], is_new=True, work=partition.work))
