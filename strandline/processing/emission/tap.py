"""Emission: a stage's results are written from inside the plan, as they pass from one stage to the next.

So one plan emits every stage of a cascade, reads the log once and keeps each stage's state once. Ids come from the data and
documents are only ever created, so a repeated batch finds its own results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from strandline.ledger.database import without_secrets
from strandline.processing.emission.result_stream_writer import ResultStream
from strandline.processing.emission.stage_emission import REFUSED_RESULTS, StageEmission
from strandline.processing.operators.stages import WATERMARK_METADATA
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.stages import Emit, Stage
from strandline.processing.source.decoding import EVENT_TIME
from strandline.results.document import DocumentShape
from strandline.results.writer import ResultWriter

WriterFactory = Callable[[DocumentShape], ResultWriter]


def results_metric(stage: str) -> str:
    """The name under which a stage's results are observed."""
    return f"results_{stage}"


class EmissionTap:
    """Adds a stage's emission to the plan, where the stage emits."""

    def __init__(
        self,
        run: JobRun,
        emitted: Mapping[str, int],
        stream_keys: Mapping[str, str | None],
        writer_of: WriterFactory,
    ) -> None:
        """`emitted`: the end of the last window that each stage has emitted. `stream_keys`: the key field of each stream that is
        emitted to. `writer_of` makes the writer for an index."""
        self._run = run
        self._emitted = emitted
        self._stream_keys = stream_keys
        self._writer_of = writer_of

    def __call__(self, stage: Stage, frame: DataFrame) -> DataFrame:
        if not stage.emits:
            return frame
        run, settings = self._run, self._run.settings
        emitted_ms = self._emitted.get(stage.name)
        shapes = [document_shape(run.pipeline, stage, emit, run.version) for emit in stage.emits]
        emission = StageEmission(
            writers=tuple(self._writer_of(shape) for shape in shapes if not shape.is_stream),
            streams=tuple(
                ResultStream(
                    settings.kafka_bootstrap, shape, self._stream_keys[shape.emit_name], settings.record_bytes_max
                )
                for shape in shapes
                if shape.is_stream
            ),
            job=run.job,
            stage=stage.name,
            epoch=run.epoch,
            emitted_ms=emitted_ms,
            kafka_bootstrap=settings.kafka_bootstrap,
            ledger_url=without_secrets(settings.ledger_url),
            record_bytes_max=settings.record_bytes_max,
        )
        fields = [StructField(f.name, f.dataType, f.nullable) for f in frame.schema.fields]
        schema = StructType([*fields, StructField(REFUSED_RESULTS, LongType())])
        # An Arrow function loses the mark of event time, so its schema sets it again.
        schema[EVENT_TIME].metadata = {WATERMARK_METADATA: run.pipeline.delay_ms}
        is_new = F.lit(True) if emitted_ms is None else F.unix_millis(F.col("window.end")) > emitted_ms
        tapped = frame.mapInArrow(emission, schema).observe(
            results_metric(stage.name),
            F.count(F.when(is_new, 1)).alias("results"),
            F.sum(REFUSED_RESULTS).alias("refused"),
        )
        return tapped.drop(REFUSED_RESULTS)


def document_shape(
    pipeline: CheckedPipeline, stage: Stage, emit: Emit, version: int, generation: int = 1
) -> DocumentShape:
    """What the documents of one emission have in common. A backfill's documents always have ids from the data, whatever the job's
    guarantee: every attempt computes the same."""
    return DocumentShape(
        emit_name=emit.name,
        job=pipeline.job,
        stage=stage.name,
        version=version,
        by=tuple(zip(stage.by, stage.by_types, strict=True)),
        aggregates=tuple((column.name, column.type) for column in stage.aggregates),
        is_stream=emit.kind == "stream",
        is_once=generation > 1 or pipeline.spec.guarantee == "exactly_once",
        generation=generation,
    )
