"""The second reading of a slice that holds rejected records: with their bytes, for their dead letters."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.core.errors import BadRecord
from strandline.core.record_headers import REASON_EXPRESSION, REASON_LATE, dead_letter_topic
from strandline.ledger.database import without_secrets
from strandline.processing.emission.dead_letters import STEP, DeadLetterTask
from strandline.processing.operators.stages import PROBLEM, apply_steps, can_fail
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.source.data_source import BYTES, MESSAGE, REASON, SOURCE_COLUMNS, LogSource


class RejectedRecords:
    """Finds a slice's rejected records and writes their dead letters. The same decoder, watermark and expressions reject the same
    records as in the main plan."""

    def __init__(self, spark: SparkSession, run: JobRun, slots: int) -> None:
        """`slots`: how many tasks may write at once."""
        self._spark = spark
        self._run = run
        self._slots = slots

    def write(self, number: int, written_before: Mapping[int, int]) -> tuple[dict[str, int], dict[int, int]]:
        """Write the dead letters of slice `number`; return reason -> count, and where the dead-letter stream ends afterwards."""
        run = self._run
        ledger_url = without_secrets(run.settings.ledger_url)
        task = DeadLetterTask(
            run.settings.kafka_bootstrap,
            ledger_url,
            run.job,
            run.epoch,
            dict(written_before),
            run.settings.record_bytes_max,
        )
        rejected = self._rejected(number).coalesce(self._slots)
        rows = rejected.mapInArrow(task, "reason string, count long").collect()
        counts: dict[str, int] = {}
        for row in rows:  # a few rows a task
            counts[row["reason"]] = counts.get(row["reason"], 0) + row["count"]
        return counts, run.index.ends(dead_letter_topic(run.job))

    def first(self, number: int) -> BadRecord | None:
        """The first rejected record of slice `number`, by stream, partition and offset. Late records don't count."""
        frame = self._rejected(number).where(F.col(REASON) != REASON_LATE).drop(BYTES).orderBy(*SOURCE_COLUMNS).limit(1)
        for row in frame.collect():
            stream, partition, offset = (row[name] for name in SOURCE_COLUMNS)
            where = f"stream {stream}, partition {partition}, offset {offset}"
            return BadRecord(row[REASON], f"{where}: {row[MESSAGE]}", row[STEP])
        return None

    def _rejected(self, number: int) -> DataFrame:
        steps = self._run.pipeline.stages[0].pre_steps
        only_rejected = not can_fail(steps)
        frame = (
            self._spark.read.format(LogSource.name())
            .options(first=number, last=number, only_rejected=str(only_rejected).lower())
            .load()
        )
        at_decode = frame.where(F.col(REASON).isNotNull()).withColumn(STEP, F.lit("decode"))
        if self._run.pipeline.spec.late == "drop":
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
