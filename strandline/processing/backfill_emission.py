"""The emission of a backfill: as that of a running job, into the indices of another generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from strandline.core.settings import Settings
from strandline.ledger.states import BackfillRow, WindowRange
from strandline.processing.emission import document_shape
from strandline.processing.pipeline import CheckedPipeline, Stage
from strandline.processing.stage_emission import REFUSED_RESULTS, SLICE_PROPERTY, StageEmission
from strandline.results.document import DocumentShape
from strandline.results.elasticsearch_writer import ElasticsearchWriter
from strandline.results.writer import Refused

_SAMPLE = "_strandline_refused_sample"


@dataclass(frozen=True)
class BackfillEmission(StageEmission):
    """Emits the windows of one chunk, and says of one refused result a batch why."""

    up_to_ms: int = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        emission = int(context.getLocalProperty(SLICE_PROPERTY) or 0)
        for batch in batches:
            refused = self._emit(self.writers, batch, context, emission)
            sample = [_describe(self.stage, refused[0])] if refused else [None]
            nothing = [None] * (batch.num_rows - 1)
            counts = [len(refused)] + [0] * (batch.num_rows - 1)
            yield batch.append_column(
                REFUSED_RESULTS, pa.array(counts if batch.num_rows else [], pa.int64())
            ).append_column(_SAMPLE, pa.array(sample + nothing if batch.num_rows else [], pa.string()))

    def _new(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        new = super()._new(batch)
        ends_us = pc.struct_field(new.column("window"), "end").cast(pa.int64())
        return new.filter(pc.less_equal(ends_us, self.up_to_ms * 1000))


def _describe(stage: str, refused: Refused) -> str:
    return f"{stage} {refused.index or ''}/{refused.id}: {refused.type}: {refused.reason}"


def shapes_of(row: BackfillRow, pipeline: CheckedPipeline, stage: Stage) -> list[DocumentShape]:
    """What the documents of one stage have in common, for each alias that it emits to."""
    return [
        document_shape(pipeline, stage, emit, row.version, row.generation)
        for emit in stage.emits
        if emit.kind == "elasticsearch"
    ]


@dataclass
class BackfillTap:
    """Puts a stage's emission into the plan of one chunk. After the plan has run, tells what it counted."""

    row: BackfillRow
    pipeline: CheckedPipeline
    windows: Mapping[str, WindowRange]
    """Of the chunk: stage -> ends."""
    settings: Settings
    _counted: dict[str, Observation] = field(default_factory=dict)

    def __call__(self, stage: Stage, frame: DataFrame) -> DataFrame:
        window = self.windows.get(stage.name)
        if window is None:
            return frame
        url, row = self.settings.elasticsearch_url, self.row
        emission = BackfillEmission(
            writers=tuple(ElasticsearchWriter(url, shape) for shape in shapes_of(row, self.pipeline, stage)),
            streams=(),
            job=row.job,
            stage=stage.name,
            epoch=row.epoch,
            emitted_ms=window.after_ms,
            kafka_bootstrap=self.settings.kafka_bootstrap,
            slot="backfill",
            up_to_ms=window.up_to_ms,
        )
        fields = [StructField(f.name, f.dataType, f.nullable) for f in frame.schema.fields]
        schema = StructType([*fields, StructField(REFUSED_RESULTS, LongType()), StructField(_SAMPLE, StringType())])
        end_ms = F.unix_millis(F.col("window.end"))
        is_inside = (end_ms > window.after_ms) & (end_ms <= window.up_to_ms)
        self._counted[stage.name] = observation = Observation()
        tapped = frame.mapInArrow(emission, schema).observe(
            observation,
            F.count(F.when(is_inside, 1)).alias("results"),
            F.sum(REFUSED_RESULTS).alias("refused"),
            F.max(_SAMPLE).alias("sample"),
        )
        return tapped.drop(REFUSED_RESULTS, _SAMPLE)

    def counted(self, name: str) -> dict[str, int]:
        """Stage -> `results` or `refused`; stages with none are left out."""
        found = {stage: int(one.get[name] or 0) for stage, one in self._counted.items()}
        return {stage: count for stage, count in found.items() if count}

    def sample(self) -> list[str]:
        """Why one of the refused results was, for each stage that has some."""
        return [str(one.get["sample"]) for one in self._counted.values() if one.get["sample"]]
