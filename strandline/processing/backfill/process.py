"""One backfill: `python -m strandline.processing.backfill.process --job NAME --generation N`.

It recomputes past windows from the recorded slices with the version of the pipeline in the ledger's row, and writes to indices
of a new generation. Then the aliases show these. The live job continues.

The process can be killed and started again at any time. Ids are a pure function of the log, so it finds the documents of earlier
attempts. A new attempt fences earlier ones.

`exit_codes.py` has the exit codes. Done: complete, or another attempt owns the backfill. Failed permanently: its row has the
reason.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from strandline.core.errors import Conflict, Fenced, LedgerUnavailable, PermanentError, StrandlineError, TransientError
from strandline.core.failpoints import failpoint
from strandline.core.logs import configure_logs
from strandline.core.settings import Settings
from strandline.ledger.database import without_secrets
from strandline.ledger.roles import BackfillLedger
from strandline.ledger.states import BackfillRow, BackfillState, StreamVersions
from strandline.log.index import LogIndex
from strandline.processing.backfill.emission import ChunkReader, ChunkSource, chunk_task, shapes_of
from strandline.processing.backfill.plan import (
    Backfilled,
    Chunk,
    complete_backfills,
    generations_by_store,
    next_chunk,
    records_done,
    require_records,
    stores_of,
    windows_left,
)
from strandline.processing.emission.keyed_task import OUTCOME_DDL, BucketOutcome, outcomes_of
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.run.exit_codes import EXIT_AWAY, EXIT_DONE, EXIT_FAILED, exit_code_of
from strandline.processing.slices.continuity import require_same_topic
from strandline.processing.slices.input_stream import require_same_stream
from strandline.processing.source.decoding import task_config
from strandline.processing.source.recorded_counts import RecordedCounts, recorded_counts
from strandline.processing.spark.batch_session import batch_spark
from strandline.processing.spark.errors import typed_error
from strandline.processing.spark.session import keys_of_buckets
from strandline.results.generations import discard_generation, swap_aliases
from strandline.results.mapping import build_mapping, ensure_index_template

log = structlog.get_logger()

CHUNK_SLICES = 4
"""Number of slices in a chunk, if all slices were as large as the largest."""


class Backfill:
    """One attempt at one backfill."""

    def __init__(self, settings: Settings, job: str, generation: int, spark: SparkSession | None = None) -> None:
        """`spark`: session to use, which stays running. Without it, the attempt starts and stops its own session."""
        self._settings = settings
        self._job = job
        self._generation = generation
        self._given_spark = spark
        self._ledger = BackfillLedger.open(settings.ledger_url)
        self._index = LogIndex(settings.kafka_bootstrap)

    def run(self) -> int:
        """Complete the backfill, and return the exit code of the process. A failure is recorded in its row; see `_failed`."""
        row: BackfillRow | None = None
        try:
            row = self._ledger.begin_backfill(self._job, self._generation)
            log.info("backfill begins", job=self._job, generation=row.generation, epoch=row.epoch, done_ms=row.done_ms)
            failpoint("backfill.begun")
            self._complete(row)
            return EXIT_DONE
        except StrandlineError as error:
            return self._failed(row, error)
        except (PySparkException, Py4JError) as error:
            return self._failed(row, typed_error(error))
        finally:
            self._ledger.close()

    def _complete(self, row: BackfillRow) -> None:
        """Compute the windows, then swap the aliases. Raises StrandlineError.

        1. Compute the windows that are not in the index yet, one chunk at a time, and record each chunk in the row.
        2. Record that the swap may happen. From here on the backfill can't be cancelled.
        3. Swap the aliases in one request, and close the row.
        """
        pipeline = self._load(row.version, row.stream_versions)
        if row.state is not BackfillState.SWAPPING:
            self._compute(row, pipeline)
            row = self._ledger.move_backfill(self._job, row.generation, BackfillState.SWAPPING, epoch=row.epoch)
        failpoint("backfill.before_swap")
        own = self._ledger.job(self._job).generation
        swap_aliases(self._settings.elasticsearch_url, generations_by_store(self._shown(row, pipeline)), own)
        failpoint("backfill.swapped")
        row = self._ledger.move_backfill(self._job, row.generation, BackfillState.COMPLETE, epoch=row.epoch)
        message = f"backfill {row.generation} of job {self._job} is complete: the aliases show it"
        facts = {"generation": row.generation, "version": row.version, "results": row.results, "refused": row.refused}
        self._ledger.record_event("backfill_complete", message, job=self._job, facts=facts)
        log.info(message, job=self._job, generation=row.generation, results=row.results)

    def _shown(self, row: BackfillRow, pipeline: CheckedPipeline) -> list[Backfilled]:
        """Return all complete backfills and this one."""
        others = complete_backfills(self._ledger, self._job, self._load, row.generation)
        return [*others, Backfilled(row.generation, row.version, pipeline, row.windows, row.slice)]

    def _compute(self, row: BackfillRow, pipeline: CheckedPipeline) -> None:
        """Write all results to the index.

        1. Check that Kafka still holds the records.
        2. Delete the indices of failed and cancelled backfills, and create the index templates of this backfill.
        3. Read, compute, and write one chunk at a time.
        """
        self._require_log(row, pipeline)
        self._discard_others()
        self._ensure_templates(row, pipeline)
        records_max = CHUNK_SLICES * self._settings.slice_rows_max
        chunk = next_chunk(self._ledger, row, pipeline, records_max)
        if chunk is None:
            return
        with self._spark(min(row.records, records_max)) as spark:
            while chunk is not None:
                row = self._compute_chunk(spark, row, pipeline, chunk)
                chunk = next_chunk(self._ledger, row, pipeline, records_max)

    def _compute_chunk(
        self, spark: SparkSession, row: BackfillRow, pipeline: CheckedPipeline, chunk: Chunk
    ) -> BackfillRow:
        outcomes = self._write_windows(spark, row, pipeline, chunk) if chunk.windows else []
        results, refused, samples = Counter[str](), Counter[str](), dict[str, str]()
        for outcome in outcomes:
            results.update(outcome.results)
            refused.update(outcome.refused)
            samples |= outcome.samples
        failpoint("backfill.chunk_written")
        row = self._ledger.record_backfill(
            self._job,
            row.generation,
            row.epoch,
            done_ms=chunk.up_to_ms,
            records_done=records_done(self._ledger, row, pipeline, chunk),
            results=dict(results),
            refused=dict(refused),
            sample=list(samples.values()),
        )
        failpoint("backfill.chunk_noted")
        log.info("chunk done", job=self._job, generation=row.generation, done_ms=row.done_ms, results=row.results)
        return row

    def _write_windows(
        self, spark: SparkSession, row: BackfillRow, pipeline: CheckedPipeline, chunk: Chunk
    ) -> list[BucketOutcome]:
        """Compute and write the windows of a chunk. Return the outcome of each bucket."""
        settings, events_ms = self._settings, (chunk.events_from_ms, chunk.up_to_ms)
        keys = keys_of_buckets(spark)
        if task_config(pipeline, settings.kafka_bootstrap, keys).cascade.is_split:
            keys = keys[:1]  # one bucket needs no merge, and has the same results
        source = task_config(pipeline, settings.kafka_bootstrap, keys, events_ms, without_secrets(settings.ledger_url))
        reader = ChunkReader(self._job, without_secrets(settings.ledger_url), chunk, source)
        spark.dataSource.register(ChunkSource.of(reader))
        before = self._ledger.checkpoint(self._job, row.slice).dead_letter_offsets
        (last,) = self._ledger.slices(self._job, chunk.slice_last, chunk.slice_last)
        recorded = self._recorded(row, chunk)
        task = chunk_task(row, pipeline, chunk, before, recorded, source, settings, last.digest)
        rows = spark.read.format(ChunkSource.name()).load()
        # Spark counts the parameters, so it accepts a function, but not a callable object.
        outcomes = rows.groupBy("bucket").applyInPandas(lambda key, frame: task(key, frame), OUTCOME_DDL)
        # The only action: the tasks write their results while the plan runs, and each bucket returns its outcome in one small
        # row.
        return outcomes_of(outcomes)

    def _recorded(self, row: BackfillRow, chunk: Chunk) -> RecordedCounts:
        """Return the counts of the chunk's slices in the checkpoints."""
        slices = range(chunk.slice_first, chunk.slice_last + 1)
        changes = self._ledger.version_changes(self._job, chunk.slice_last)
        ends = [first for first, _ in changes[1:]] + [slices.stop]
        versions = {version for (_, version), end in zip(changes, ends, strict=True) if end > slices.start}
        return recorded_counts(self._ledger, self._job, slices, versions, row.version, row.stream_versions)

    def _require_log(self, row: BackfillRow, pipeline: CheckedPipeline) -> None:
        what_now = "The records to compute from are gone."
        for stream, spec in pipeline.streams.items():
            known_id, present_id = self._ledger.stream(stream).topic_id, self._index.topic_id(stream)
            require_same_topic(self._job, stream, known_id, present_id, what_now)
            require_same_stream(self._ledger, self._index, self._job, spec)
        left = windows_left(row)
        if left:
            starts = {stream: self._index.starts(stream) for stream in pipeline.streams}
            require_records(self._ledger, self._job, self._load, pipeline, left, row.slice, starts)

    def _discard_others(self) -> None:
        own = self._ledger.job(self._job).generation
        for other in self._ledger.backfills(self._job):
            # The job's generation hides backfills of earlier incarnations, and their input may be deleted.
            if other.generation > own and other.state in (BackfillState.FAILED, BackfillState.CANCELLED):
                for store in stores_of(other, self._load(other.version, other.stream_versions)):
                    discard_generation(self._settings.elasticsearch_url, store, other.generation)

    def _ensure_templates(self, row: BackfillRow, pipeline: CheckedPipeline) -> None:
        url = self._settings.elasticsearch_url
        for stage in pipeline.stages:
            for shape, index in shapes_of(row, pipeline, stage) if stage.name in row.windows else ():
                mapping = build_mapping(shape)
                ensure_index_template(
                    url, shape.emit_name, mapping, generation=row.generation, is_shown=False, settings=index
                )

    def _load(self, version: int, streams: StreamVersions | None = None) -> CheckedPipeline:
        return load_pipeline(self._ledger, self._job, version, streams)

    @contextmanager
    def _spark(self, records: int) -> Iterator[SparkSession]:
        if self._given_spark is not None:
            yield self._given_spark
            return
        with batch_spark(self._settings, self._job, "backfill", records) as spark:
            yield spark

    def _failed(self, row: BackfillRow | None, error: StrandlineError) -> int:
        """Record the failure in the row, and return the exit code of the process. `row`: None if it couldn't be read.

        A permanent error ends the backfill. After it has begun to swap the aliases, no error ends it: the control service starts
        it again until the swap is done."""
        log.error(
            "the backfill failed", job=self._job, generation=self._generation, code=error.code, message=str(error)
        )
        code = exit_code_of(error)
        if row is None or isinstance(error, Fenced):
            return code if isinstance(error, TransientError) else EXIT_DONE
        try:
            present = self._ledger.backfill(self._job, row.generation)
            is_final = isinstance(error, PermanentError) and present.state is not BackfillState.SWAPPING
            to = BackfillState.FAILED if is_final else present.state
            self._ledger.move_backfill(self._job, row.generation, to, str(error), row.epoch)
            return EXIT_FAILED if is_final else code
        except (Conflict, Fenced) as ended:
            log.info("the backfill was ended", job=self._job, generation=row.generation, message=str(ended))
            return EXIT_DONE
        except LedgerUnavailable as unsaid:
            log.error("can't record in the ledger how the backfill ended", job=self._job, error=str(unsaid))
            return EXIT_AWAY


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="strandline-backfill", description="Recomputes past windows.")
    parser.add_argument("--job", required=True, help="name of the job")
    parser.add_argument("--generation", type=int, required=True, help="number of the backfill")
    options = parser.parse_args(arguments)
    settings = Settings()
    configure_logs(as_json=settings.log_json)
    try:
        backfill = Backfill(settings, options.job, options.generation)
    except StrandlineError as error:
        log.error("the backfill can't start", job=options.job, code=error.code, message=str(error))
        return exit_code_of(error)
    return backfill.run()


if __name__ == "__main__":
    sys.exit(main())
