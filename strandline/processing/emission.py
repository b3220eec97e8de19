"""Emission: a stage's results leave from inside the plan, as they pass from one stage to the next.

So a cascade emits every stage from one plan that reads the log once and keeps each stage's state once. Ids come from the
data and documents are only ever created, so a batch that is run again lands on itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from strandline.core.record import REASON_RESULT
from strandline.core.settings import Settings
from strandline.processing.dead_letters import DeadLetter, DeadLetterWriter
from strandline.processing.log_source import EVENT_TIME
from strandline.processing.pipeline import CheckedPipeline, Emit, Stage
from strandline.results.counting_writer import CountingWriter
from strandline.results.document import DocumentShape
from strandline.results.elasticsearch_writer import ElasticsearchWriter
from strandline.results.writer import Refused, ResultWriter

SLICE_PROPERTY = "strandline.slice"
"""Spark local property: the number of the slice at work, which is the emission's number."""
DEAD_LETTERS_PROPERTY = "strandline.dead_letters"
"""Spark local property: where the dead-letter stream ended at the last checkpoint, as JSON."""

REFUSED_RESULTS = "_strandline_refused_results"
_WATERMARK_METADATA = "spark.watermarkDelayMs"
"""Marks the event-time column for Spark; an Arrow function loses it, so its schema says it again."""


def results_metric(stage: str) -> str:
    """The name under which a stage's results are observed."""
    return f"results_{stage}"


@dataclass(frozen=True)
class StageEmission:
    """Emits one stage from an executor's Python worker; travels there pickled."""

    writers: tuple[ResultWriter, ...]
    job: str
    stage: str
    epoch: int
    emitted_ms: int | None
    """Windows that end at or before it were emitted by an earlier run."""
    kafka_bootstrap: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write each batch's new results and pass all of them on; returns from a batch when the store has confirmed it."""
        context = TaskContext.get()
        assert context is not None
        emission = int(context.getLocalProperty(SLICE_PROPERTY) or 0)
        for batch in batches:
            new = self._new(batch)
            refused: list[Refused] = []
            if new.num_rows:
                for writer in self.writers:
                    refused += writer.write_batches([new], self.epoch, emission).refused
            if refused:
                self._bury(refused, context)
            counts = pa.array([len(refused)] + [0] * (batch.num_rows - 1) if batch.num_rows else [], pa.int64())
            yield batch.append_column(REFUSED_RESULTS, counts)

    def _new(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.emitted_ms is None:
            return batch
        ends_us = pc.struct_field(batch.column("window"), "end").cast(pa.int64())
        return batch.filter(pc.greater(ends_us, self.emitted_ms * 1000))

    def _bury(self, refused: list[Refused], context: TaskContext) -> None:
        written_before = {
            int(p): o for p, o in json.loads(context.getLocalProperty(DEAD_LETTERS_PROPERTY) or "{}").items()
        }
        slot = f"result-{self.stage}-{context.partitionId()}"
        letters = (
            DeadLetter.of_document(
                one.index or "", one.id, one.source, REASON_RESULT, f"{one.type}: {one.reason}", f"emit {self.stage}"
            )
            for one in refused
        )
        DeadLetterWriter(self.kafka_bootstrap, self.job, slot).write(letters, written_before)


class EmissionTap:
    """Puts a stage's emission into the plan, where the stage has one."""

    def __init__(
        self, pipeline: CheckedPipeline, version: int, epoch: int, emitted: Mapping[str, int], settings: Settings
    ) -> None:
        self._pipeline = pipeline
        self._version = version
        self._epoch = epoch
        self._emitted = emitted
        self._settings = settings

    def __call__(self, stage: Stage, frame: DataFrame) -> DataFrame:
        if not stage.emits:
            return frame
        emitted_ms = self._emitted.get(stage.name)
        emission = StageEmission(
            writers=tuple(self._writer(stage, emit) for emit in stage.emits),
            job=self._pipeline.job,
            stage=stage.name,
            epoch=self._epoch,
            emitted_ms=emitted_ms,
            kafka_bootstrap=self._settings.kafka_bootstrap,
        )
        fields = [StructField(f.name, f.dataType, f.nullable) for f in frame.schema.fields]
        schema = StructType([*fields, StructField(REFUSED_RESULTS, LongType())])
        schema[EVENT_TIME].metadata = {_WATERMARK_METADATA: self._pipeline.delay_ms}
        is_new = F.lit(True) if emitted_ms is None else F.unix_millis(F.col("window.end")) > emitted_ms
        tapped = frame.mapInArrow(emission, schema).observe(
            results_metric(stage.name),
            F.count(F.when(is_new, 1)).alias("results"),
            F.sum(REFUSED_RESULTS).alias("refused"),
        )
        return tapped.drop(REFUSED_RESULTS)

    def _writer(self, stage: Stage, emit: Emit) -> ResultWriter:
        if emit.kind == "counting":
            return CountingWriter()
        return ElasticsearchWriter(
            self._settings.elasticsearch_url, document_shape(self._pipeline, stage, emit, self._version)
        )


def document_shape(pipeline: CheckedPipeline, stage: Stage, emit: Emit, version: int) -> DocumentShape:
    """What the documents of one emission have in common."""
    return DocumentShape(
        emit_name=emit.name,
        job=pipeline.job,
        stage=stage.name,
        version=version,
        by=tuple(zip(stage.by, stage.by_types, strict=True)),
        aggregates=tuple((column.name, column.type) for column in stage.aggregates),
    )
