"""The emissions of a run's stages: which documents each makes, and who writes them."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.ledger.database import without_secrets
from strandline.processing.emission.made_indices import WriterFactory
from strandline.processing.emission.result_shapes import document_shape, letter_shape
from strandline.processing.emission.result_stream_writer import ResultStream
from strandline.processing.emission.stage_emission import StageEmission
from strandline.processing.pipelines.job_run import JobRun


def stage_emissions(
    run: JobRun, emitted: Mapping[str, int], stream_keys: Mapping[str, str | None], writer_of: WriterFactory
) -> tuple[StageEmission, ...]:
    """The emission of each stage.

    `emitted`: the end of the last window that each stage has emitted. `stream_keys`: the key field of each stream that is
    emitted to. `writer_of` makes the writer for an index.
    """
    settings = run.settings
    found = []
    for stage in run.pipeline.stages:
        shapes = [(document_shape(run.pipeline, stage, emit, run.version), emit.index) for emit in stage.emits]
        streams = (
            ResultStream(settings.kafka_bootstrap, shape, stream_keys[shape.emit_name], settings.record_bytes_max)
            for shape, _ in shapes
            if shape.is_stream
        )
        found.append(
            StageEmission(
                writers=tuple(writer_of(shape, index) for shape, index in shapes if not shape.is_stream),
                streams=tuple(streams),
                shape=letter_shape(run.pipeline, stage, run.version),
                job=run.job,
                stage=stage.name,
                epoch=run.epoch,
                emitted_ms=emitted.get(stage.name),
                kafka_bootstrap=settings.kafka_bootstrap,
                ledger_url=without_secrets(settings.ledger_url),
                record_bytes_max=settings.record_bytes_max,
            )
        )
    return tuple(found)
