"""The emissions of a run's stages: which documents each makes, and who writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strandline.ledger.database import without_secrets
from strandline.processing.emission.made_indices import WriterFactory
from strandline.processing.emission.result_stream_writer import ResultStream
from strandline.processing.emission.sinks import sink_writer
from strandline.processing.emission.stage_emission import RecordEmission, StageEmission
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.stages import Emit, RecordStage, Stage
from strandline.results.document import DocumentShape
from strandline.results.records.record_document import RecordShape
from strandline.results.writer import StoreWriter


@dataclass(frozen=True)
class EmissionsOfRun:
    """Makes the emissions of one run's stages."""

    run: JobRun
    stream_keys: Mapping[str, str | None]
    """The key field of each stream that is emitted to."""
    writer_of: WriterFactory
    """Makes the writer for an index."""

    def of_windows(self, emitted: Mapping[str, int]) -> tuple[StageEmission, ...]:
        """The emission of each window. `emitted`: the end of the last window that each has emitted."""
        return tuple(
            StageEmission(*self._places(stage), emitted_ms=emitted.get(stage.name), **self._common(stage))
            for stage in self.run.pipeline.stages
        )

    def of_records(self, closes_ms: int | None) -> tuple[RecordEmission, ...]:
        """The emission of each stage of records. `closes_ms`: none with an earlier event time comes any more."""
        return tuple(
            RecordEmission(*self._places(stage), emitted_ms=closes_ms, **self._common(stage))
            for stage in self.run.pipeline.record_stages
        )

    def _places(self, stage: Stage | RecordStage) -> tuple[tuple[StoreWriter, ...], tuple[ResultStream, ...]]:
        run, settings = self.run, self.run.settings
        shapes = [(document_shape(run.pipeline, stage, emit, run.version), emit) for emit in stage.emits]
        streams = (
            ResultStream(settings.kafka_bootstrap, shape, self.stream_keys[shape.emit_name], settings.record_bytes_max)
            for shape, _ in shapes
            if shape.is_stream
        )
        writers = (
            sink_writer(settings, shape, emit) if shape.is_elsewhere else self.writer_of(shape, emit.index)
            for shape, emit in shapes
            if not shape.is_stream
        )
        return tuple(writers), tuple(streams)

    def _common(self, stage: Stage | RecordStage) -> dict[str, Any]:
        run, settings = self.run, self.run.settings
        return {
            "shape": letter_shape(run.pipeline, stage, run.version),
            "job": run.job,
            "stage": stage.name,
            "epoch": run.epoch,
            "kafka_bootstrap": settings.kafka_bootstrap,
            "ledger_url": without_secrets(settings.ledger_url),
            "record_bytes_max": settings.record_bytes_max,
        }


def letter_shape(
    pipeline: CheckedPipeline, stage: Stage | RecordStage, version: int, generation: int = 1
) -> DocumentShape:
    """What the documents in dead letters of a stage's results have in common: as of the first place that the stage emits to. It
    may emit to nothing; a backfill emits to indices only."""
    kinds = ("elasticsearch", "stream") if generation == 1 else ("elasticsearch",)
    places = [emit for emit in stage.emits if emit.kind in kinds]
    return document_shape(pipeline, stage, (*places, Emit("stream", stage.name))[0], version, generation)


def document_shape(
    pipeline: CheckedPipeline, stage: Stage | RecordStage, emit: Emit, version: int, generation: int = 1
) -> DocumentShape:
    """What the documents of one emission have in common. A backfill's documents always have ids from the data, whatever the job's
    guarantee: every attempt computes the same."""
    is_once = generation > 1 or pipeline.spec.guarantee == "exactly_once"
    if isinstance(stage, RecordStage):
        return RecordShape(
            emit_name=emit.name,
            job=pipeline.job,
            stage=stage.name,
            version=version,
            by=(),
            aggregates=stage.fields,
            is_stream=emit.kind == "stream",
            is_elsewhere=emit.kind not in ("elasticsearch", "stream"),
            is_once=is_once,
            input_stream=pipeline.stream.stream,
        )
    return DocumentShape(
        emit_name=emit.name,
        job=pipeline.job,
        stage=stage.name,
        version=version,
        by=tuple(zip(stage.by, stage.by_types, strict=True)),
        aggregates=tuple(stage.value_types.items()),
        is_stream=emit.kind == "stream",
        is_elsewhere=emit.kind not in ("elasticsearch", "stream"),
        is_once=is_once,
        generation=generation,
    )
