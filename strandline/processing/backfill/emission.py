"""The emission of a backfill: like that of a running job, but into the indices of its generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from strandline.core.settings import Settings
from strandline.ledger.database import without_secrets
from strandline.ledger.states import BackfillRow, WindowRange
from strandline.processing.emission.slice_context import SliceContext
from strandline.processing.emission.stage_emission import REFUSED_RESULTS, REFUSED_SAMPLE, BackfillEmission
from strandline.processing.emission.tap import document_shape
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.stages import Stage
from strandline.results.document import DocumentShape
from strandline.results.elasticsearch_writer import ElasticsearchWriter


def shapes_of(row: BackfillRow, pipeline: CheckedPipeline, stage: Stage) -> list[DocumentShape]:
    """The shape of a stage's documents, for each alias that it emits to."""
    return [
        document_shape(pipeline, stage, emit, row.version, row.generation)
        for emit in stage.emits
        if emit.kind == "elasticsearch"
    ]


@dataclass
class BackfillTap:
    """Adds a stage's emission to the plan of one chunk, and counts results while the plan runs."""

    row: BackfillRow
    pipeline: CheckedPipeline
    windows: Mapping[str, WindowRange]
    """Stage -> the ends of the chunk's windows."""
    context: SliceContext
    """The chunk's last slice, which is the emission's number, and where the dead-letter stream ended when the backfill was asked
    for."""
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
            ledger_url=without_secrets(self.settings.ledger_url),
            record_bytes_max=self.settings.record_bytes_max,
            context=self.context,
            up_to_ms=window.up_to_ms,
            generation=row.generation,
        )
        fields = [StructField(f.name, f.dataType, f.nullable) for f in frame.schema.fields]
        schema = StructType(
            [*fields, StructField(REFUSED_RESULTS, LongType()), StructField(REFUSED_SAMPLE, StringType())]
        )
        end_ms = F.unix_millis(F.col("window.end"))
        is_inside = (end_ms > window.after_ms) & (end_ms <= window.up_to_ms)
        self._counted[stage.name] = observation = Observation()
        tapped = frame.mapInArrow(emission, schema).observe(
            observation,
            F.count(F.when(is_inside, 1)).alias("results"),
            F.sum(REFUSED_RESULTS).alias("refused"),
            F.max(REFUSED_SAMPLE).alias("sample"),
        )
        return tapped.drop(REFUSED_RESULTS, REFUSED_SAMPLE)

    def counted(self, name: str) -> dict[str, int]:
        """Stage -> its number of `results` or `refused`, without stages that have none."""
        found = {stage: int(one.get[name] or 0) for stage, one in self._counted.items()}
        return {stage: count for stage, count in found.items() if count}

    def sample(self) -> list[str]:
        """The reason of one refused result of each stage that has some."""
        return [str(one.get["sample"]) for one in self._counted.values() if one.get["sample"]]
