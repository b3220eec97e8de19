"""The audit of one job: `python -m strandline.processing.audit.process --job NAME [--after-ms MS] [--up-to-ms MS]`.

Recomputes the job's windows from log, ledger and pipeline as one bounded Spark batch, and compares. Writes JSON lines to
stdout: `{"progress": {...}}` while it works, at the end one `{"report": {...}}` or `{"error": {...}}`.

Exit codes, as those of `strandline job audit`: 0 clean; 3 something differs; 1 the audit failed, or could not look at all
that was asked for.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from strandline.core.errors import Conflict, StrandlineError
from strandline.core.logs import configure_logs
from strandline.core.record_headers import dead_letter_topic
from strandline.core.settings import Settings
from strandline.ledger.database import without_secrets
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Totals
from strandline.log.index import LogIndex
from strandline.processing.audit.frames import (
    KEPT,
    Recomputed,
    counts_of,
    expected_documents,
    expected_letters,
    recompute,
    reconciled,
    sample_of,
)
from strandline.processing.audit.index_reader import EndRange, close_snapshot, count_documents, open_snapshot
from strandline.processing.audit.plan import AuditPlan, VersionSpan, plan_audit, stores_of, streams_of
from strandline.processing.audit.progress import Progress, tell
from strandline.processing.audit.reconciliation import DIFFERENCES, Finding, Reconciler
from strandline.processing.audit.report import AuditReport, Counts, Outcome, letter_scope, make_report, store_scopes
from strandline.processing.audit.source import (
    IndexPart,
    index_frame,
    letters_frame,
    results_frame,
)
from strandline.processing.backfill.plan import Backfilled, complete_backfills
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline, aliases_of
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.slices.rewind import require_same_topic
from strandline.processing.source.decoding import decoding_of
from strandline.processing.source.recorded_slices import TASK_ROWS, SpanSource, span_frame
from strandline.processing.spark.batch_session import batch_spark
from strandline.processing.spark.errors import typed_error

log = structlog.get_logger()

EXIT_FAILED = 1
EXIT_CODES: dict[Outcome, int] = {"clean": 0, "differences": 3, "incomplete": EXIT_FAILED}
SAMPLE_MAX = 100
"""Differences that a report shows; it counts all others."""


class Audit:
    """One audit of one job. Reads only; in the index it opens snapshots and closes them."""

    def __init__(self, settings: Settings, job: str, asked: EndRange, spark: SparkSession | None = None) -> None:
        """With `spark`, the audit uses that session and leaves it running; else it starts and stops its own."""
        self._settings = settings
        self._job = job
        self._asked = asked
        self._given_spark = spark
        self._ledger = Ledger.open(settings.ledger_url)
        self._index = LogIndex(settings.kafka_bootstrap)

    def run(self) -> AuditReport:
        """Recompute, compare, report.

        1. Plan from the ledger: audit up to the present last checkpoint, whatever the job does meanwhile.
        2. Take a snapshot of the index, and the ends of the streams of results and of dead letters. The ledger already has
           the slices that wrote all this. Raise Conflict if a backfill became complete in between.
        3. Read the stored results; read the log and compute the windows anew.
        4. Compare the totals of the log with those of the ledger.
        5. Compare results, documents, rejected records and dead letters, id by id.
        """
        began_s = time.monotonic()
        try:
            letters = dead_letter_topic(self._job)
            backfills = complete_backfills(self._ledger, self._job, self._load)
            stream, plan = self._plan(self._index.starts(letters), backfills)
            aliases = sorted({alias for s in plan.spans for one in aliases_of(s.pipeline).values() for alias in one})
            streams = {name for s in plan.spans for one in streams_of(s.pipeline).values() for name in one}
            snapshots = {alias: open_snapshot(self._settings.elasticsearch_url, alias) for alias in aliases}
            try:
                if complete_backfills(self._ledger, self._job, self._load) != backfills:
                    raise Conflict(f"a backfill of job {self._job} has just become complete; audit it again")
                letters_end = self._index.ends(letters)
                held = {name: (self._index.starts(name), self._index.ends(name)) for name in streams}
                last = self._ledger.last_slice(self._job)
                assert last is not None, "a committed slice is there, so there is a last one"
                with self._spark(plan) as spark:
                    reconciler = Reconciler(store_scopes(plan, last), letter_scope(plan, stream, last))
                    computed, counts, sample = self._compute(spark, plan, snapshots, held, letters_end, reconciler)
                return make_report(plan, computed, counts, sample, reconciler, time.monotonic() - began_s)
            finally:
                for snapshot in snapshots.values():
                    close_snapshot(self._settings.elasticsearch_url, snapshot)
        finally:
            self._ledger.close()

    @contextmanager
    def _spark(self, plan: AuditPlan) -> Iterator[SparkSession]:
        if self._given_spark is not None:
            yield self._given_spark
            return
        with batch_spark(self._settings, self._job, "audit", plan.totals.records) as spark:
            yield spark

    def _load(self, version: int) -> CheckedPipeline:
        return load_pipeline(self._ledger, self._job, version)

    def _plan(self, letter_starts: dict[int, int], backfills: list[Backfilled]) -> tuple[str, AuditPlan]:
        job = self._ledger.job(self._job)
        stream = self._load(job.version).spec.input.stream
        what_now = "The records that its results came from are gone and can't be audited."
        require_same_topic(self._job, self._ledger.stream(stream), self._index.topic_id(stream), what_now)
        return stream, plan_audit(
            self._ledger,
            self._job,
            self._load,
            {stream: self._index.starts(stream)},
            letter_starts,
            self._asked,
            {name: self._index.starts(name) for name in self._emitted_streams()},
            backfills,
        )

    def _emitted_streams(self) -> list[str]:
        """The streams to which the job emits, or ever did."""
        last = self._ledger.last_checkpoint(self._job)
        return list(last.result_offsets) if last is not None else []

    def _compute(
        self,
        spark: SparkSession,
        plan: AuditPlan,
        snapshots: dict[str, str],
        streams: dict[str, tuple[dict[int, int], dict[int, int]]],
        letters_end: dict[int, int],
        reconciler: Reconciler,
    ) -> tuple[Totals, Counts, list[Finding]]:
        url, progress = self._settings.elasticsearch_url, Progress()
        parts = [
            IndexPart(alias, snapshot, part, count)
            for alias, snapshot in snapshots.items()
            for count in [count_documents(url, snapshot, self._asked) // TASK_ROWS + 1]
            for part in range(count)
        ]
        held = index_frame(spark, url, self._asked, parts)
        if streams:
            bootstrap = self._settings.kafka_bootstrap
            held = held.unionByName(results_frame(spark, bootstrap, self._job, streams, self._asked))
        held = held.persist(KEPT)
        with progress.of("reading the results", spark):
            held.count()
        recomputed = [recompute(self._records(spark, span), span) for span in plan.spans]
        with progress.of("reading the log", spark):
            for one in recomputed:
                one.materialize()
            computed = _totals(recomputed)
        stores = {stage: names for one in plan.spans for stage, names in stores_of(one.pipeline).items()}
        letters = letters_frame(
            spark,
            self._settings.kafka_bootstrap,
            dead_letter_topic(self._job),
            plan.letters_from,
            letters_end,
            stores,
        )
        rows = [held, letters, *(frame for one in recomputed for frame in expected_documents(one))]
        rows += [expected_letters(one) for one in recomputed]
        findings = reconciled(rows, reconciler).persist(KEPT)
        with progress.of("comparing", spark):
            return computed, counts_of(findings), sample_of(findings, DIFFERENCES, SAMPLE_MAX)

    def _records(self, spark: SparkSession, span: VersionSpan) -> DataFrame:
        decoding = decoding_of(span.pipeline, self._settings.kafka_bootstrap)
        ledger_url = without_secrets(self._settings.ledger_url)
        source = SpanSource(self._job, ledger_url, decoding, span.slice_first, span.slice_own, span.slice_last)
        return span_frame(spark, source)


def _totals(recomputed: Sequence[Recomputed]) -> Totals:
    records, rejected, results = 0, Counter[str](), Counter[str]()
    for one in recomputed:
        records += one.records()
        rejected.update(one.rejected())
        if one.span.generation == 1:  # a backfill's results are in no slice's totals
            results.update({stage: frame.count() for stage, frame in one.stages.items()})
    return Totals(records, records - rejected.total(), dict(sorted(rejected.items())), dict(results))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="strandline-audit", description="Audits one job.")
    parser.add_argument("--job", required=True, help="the job's name")
    parser.add_argument("--after-ms", type=int, help="only windows that end after it")
    parser.add_argument("--up-to-ms", type=int, help="only windows that end at or before it")
    options = parser.parse_args(arguments)
    settings = Settings()
    configure_logs(as_json=settings.log_json)
    try:
        report = Audit(settings, options.job, EndRange(options.after_ms, options.up_to_ms)).run()
    except StrandlineError as error:
        return _failed(options.job, error)
    except (PySparkException, Py4JError) as error:
        return _failed(options.job, typed_error(error))
    tell("report", asdict(report))
    return EXIT_CODES[report.outcome]


def _failed(job: str, error: StrandlineError) -> int:
    log.error("the audit failed", job=job, code=error.code, message=str(error))
    tell("error", {"code": error.code, "message": str(error)})
    return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
