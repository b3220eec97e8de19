"""The emissions of a run's stages: the shape of the documents of each (fields and ids), and the writers of its sinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from strandline.core.errors import Fenced
from strandline.ledger.database import without_secrets
from strandline.processing.emission.made_indices import WriterFactory
from strandline.processing.emission.result_shapes import document_shape, letter_shape
from strandline.processing.emission.result_stream_writer import ResultStream
from strandline.processing.emission.stage_emission import RecordEmission, StageEmission
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.stages import RecordStage, Stage
from strandline.results.sinks.registry import sink_writer
from strandline.results.writer import StoreWriter, with_deadline


@dataclass(frozen=True)
class EmissionsOfRun:
    """Makes the emissions of one run's stages."""

    run: JobRun
    stream_keys: Mapping[str, str | None]
    """The key field of each stream that is emitted to."""
    writer_of: WriterFactory
    """Makes the writer for an index."""
    deadline_s: float | None = None
    """Maximum time in seconds for which a writer tries again, if it has such a limit. None: the default of the writer."""

    def of_windows(self, emitted: Mapping[str, int]) -> tuple[StageEmission, ...]:
        """Return the emission of each window stage. `emitted`: stage -> end of the last window that it has emitted."""
        return tuple(
            StageEmission(*self._places(stage), emitted_ms=emitted.get(stage.name), **self._common(stage))
            for stage in self.run.pipeline.stages
        )

    def of_records(self, closes_ms: int | None) -> tuple[RecordEmission, ...]:
        """Return the emission of each stage of records. `closes_ms`: no later record has an earlier event time. None if
        unknown."""
        return tuple(
            RecordEmission(*self._places(stage), emitted_ms=closes_ms, **self._common(stage))
            for stage in self.run.pipeline.record_stages
        )

    @cached_property
    def _generation(self) -> int:
        return own_generation(self.run)

    def _places(self, stage: Stage | RecordStage) -> tuple[tuple[StoreWriter, ...], tuple[ResultStream, ...]]:
        run, settings, generation = self.run, self.run.settings, self._generation
        shapes = [(document_shape(run.pipeline, stage, emit, run.version, generation), emit) for emit in stage.emits]
        streams = (
            ResultStream(settings.kafka_bootstrap, shape, self.stream_keys[shape.emit_name], settings.record_bytes_max)
            for shape, _ in shapes
            if shape.is_stream
        )
        writers = (
            self._limited(
                sink_writer(settings, shape, emit) if shape.is_elsewhere else self.writer_of(shape, emit.index)
            )
            for shape, emit in shapes
            if not shape.is_stream
        )
        return tuple(writers), tuple(streams)

    def _limited(self, writer: StoreWriter) -> StoreWriter:
        return writer if self.deadline_s is None else with_deadline(writer, self.deadline_s)

    def _common(self, stage: Stage | RecordStage) -> dict[str, Any]:
        run, settings = self.run, self.run.settings
        return {
            "shape": letter_shape(run.pipeline, stage, run.version, self._generation),
            "job": run.job,
            "stage": stage.name,
            "epoch": run.epoch,
            "kafka_bootstrap": settings.kafka_bootstrap,
            "ledger_url": without_secrets(settings.ledger_url),
            "record_bytes_max": settings.record_bytes_max,
        }


def own_generation(run: JobRun) -> int:
    """Return the generation of indices to which the run writes. Raises Fenced if a newer run has begun: the job may have been
    reset, and results of an earlier incarnation must not get into the generation of a later one."""
    job = run.ledger.job(run.job)
    if job.epoch != run.epoch:
        raise Fenced(
            f"Run {run.epoch} of job {run.job} no longer owns it, run {job.epoch} does. Run {run.epoch} ends; do nothing."
        )
    return job.generation
