"""The second look at a slice that holds rejected records: read it again with its bytes, and write the dead letters."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.core.errors import BadRecord
from strandline.core.record import REASON_EXPRESSION, REASON_LATE, dead_letter_topic
from strandline.core.settings import Settings
from strandline.ledger.database import without_secrets
from strandline.log.index import LogIndex
from strandline.processing.emission.dead_letters import STEP, DeadLetterTask
from strandline.processing.operators.stages import PROBLEM, apply_steps, can_fail
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.source.data_source import BYTES, MESSAGE, REASON, SOURCE_COLUMNS, LogSource


class RejectedRecords:
    """Finds a slice's rejected records and writes their dead letters. Decides nothing anew: the same decoder, watermark and
    expressions give the same refusals as in the main plan."""

    def __init__(
        self, spark: SparkSession, pipeline: CheckedPipeline, settings: Settings, epoch: int, slots: int
    ) -> None:
        """`slots`: from how many places at most the run `epoch` writes."""
        self._epoch = epoch
        self._slots = slots
        self._spark = spark
        self._pipeline = pipeline
        self._bootstrap = settings.kafka_bootstrap
        self._ledger_url = without_secrets(settings.ledger_url)
        self._index = LogIndex(settings.kafka_bootstrap)

    def write(self, number: int, written_before: Mapping[int, int]) -> tuple[dict[str, int], dict[int, int]]:
        """Write the dead letters of slice `number`; return reason -> count and where the dead-letter stream ends now."""
        task = DeadLetterTask(self._bootstrap, self._ledger_url, self._pipeline.job, self._epoch, dict(written_before))
        rejected = self._rejected(number).coalesce(self._slots)
        rows = rejected.mapInArrow(task, "reason string, count long").collect()
        counts: dict[str, int] = {}
        for row in rows:  # a few rows a task
            counts[row["reason"]] = counts.get(row["reason"], 0) + row["count"]
        return counts, self._index.ends(dead_letter_topic(self._pipeline.job))

    def first(self, number: int) -> BadRecord | None:
        """The first record of slice `number` that can't be used, by stream, partition and offset; late ones are no errors."""
        frame = self._rejected(number).where(F.col(REASON) != REASON_LATE).drop(BYTES).orderBy(*SOURCE_COLUMNS).limit(1)
        for row in frame.collect():
            stream, partition, offset = (row[name] for name in SOURCE_COLUMNS)
            where = f"stream {stream}, partition {partition}, offset {offset}"
            return BadRecord(row[REASON], f"{where}: {row[MESSAGE]}", row[STEP])
        return None

    def _rejected(self, number: int) -> DataFrame:
        steps = self._pipeline.stages[0].pre_steps
        only_rejected = not can_fail(steps)
        frame = (
            self._spark.read.format(LogSource.name())
            .options(first=number, last=number, only_rejected=str(only_rejected).lower())
            .load()
        )
        at_decode = frame.where(F.col(REASON).isNotNull()).withColumn(STEP, F.lit("decode"))
        if self._pipeline.spec.late == "drop":
            at_decode = at_decode.where(F.col(REASON) != REASON_LATE)
        wanted = [*SOURCE_COLUMNS, BYTES, REASON, MESSAGE, STEP]
        if only_rejected:
            return at_decode.select(*wanted)
        failed = apply_steps(frame.where(F.col(REASON).isNull()), steps).where(F.col(PROBLEM).isNotNull())
        at_step = (
            failed.withColumn(REASON, F.lit(REASON_EXPRESSION))
            .withColumn(MESSAGE, F.col(PROBLEM))
            .withColumn(STEP, F.split_part(F.col(PROBLEM), F.lit(":"), F.lit(1)))
        )
        return at_decode.select(*wanted).unionByName(at_step.select(*wanted))
