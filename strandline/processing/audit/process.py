"""The audit of one job: `python -m strandline.processing.audit.process --job NAME [--after-ms MS] [--up-to-ms MS]`.

It recomputes the job's windows from log, ledger, and pipeline with DuckDB, and compares them with the results. It writes JSON
lines to stdout: `{"progress": {...}}` during the work, and one `{"report": {...}}` or `{"error": {...}}` at the end.

Exit codes are those of `strandline job audit`: 0 if nothing differs; 3 if something differs; 1 if the audit failed, or could not
audit everything that was requested.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import structlog

from strandline.core.errors import Conflict, NotFound, PermanentError, StrandlineError
from strandline.core.logs import configure_logs
from strandline.core.record_headers import REASON_DUPLICATE, dead_letter_topic
from strandline.core.settings import Settings
from strandline.ledger.database import without_secrets
from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import CheckpointRow, SliceRow, StreamVersions, Totals
from strandline.log.index import LogIndex
from strandline.processing.audit.event_times import LatestEvents, event_time_differences
from strandline.processing.audit.findings import find
from strandline.processing.audit.index_reader import EndRange, close_snapshot, open_snapshot
from strandline.processing.audit.parts import Account, Part, run_parts
from strandline.processing.audit.plan import AuditPlan, VersionSpan, plan_audit, stores_of_letters, streams_of
from strandline.processing.audit.progress import Progress, keep_stdout, write_message
from strandline.processing.audit.recomputation import Recomputation
from strandline.processing.audit.reconciliation import EVER_MS, ComparisonResult, Reconciler
from strandline.processing.audit.report import AuditReport, Outcome, letter_scope, make_report, store_scopes
from strandline.processing.audit.sinks.audited_sinks import removed_before
from strandline.processing.audit.sinks.reading import sink_parts
from strandline.processing.audit.stores import ROWS_SCHEMA, index_parts, letters_parts, results_parts
from strandline.processing.audit_queries.table import Database, Table
from strandline.processing.backfill.plan import Backfilled, complete_backfills
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline, aliases_of
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.slices.continuity import require_same_topic
from strandline.processing.source.decoding import decoding_of
from strandline.processing.source.recorded_slices import LogTask, recorded_tasks
from strandline.processing.spark.scratch import scratch_directory
from strandline.results.sinks.registry import stream_store

log = structlog.get_logger()

_SLICES_A_LOOK = 1_000
EXIT_FAILED = 1
EXIT_CODES: dict[Outcome, int] = {"clean": 0, "differences": 3, "incomplete": EXIT_FAILED}


class Audit:
    """One audit of one job: it recomputes results from the log, and compares them with the stored ones. It changes
    nothing, but opens and closes snapshots of the index.
    """

    def __init__(self, settings: Settings, job: str, requested: EndRange) -> None:
        self._settings = settings
        self._job = job
        self._requested = requested
        self._ledger = LedgerReader.open(settings.ledger_url)
        self._index = LogIndex(settings.kafka_bootstrap)

    def run(self) -> AuditReport:
        """Recompute, compare, and report.

        1. Plan from the ledger, up to the current last checkpoint, while the job continues. Record where its slices divide the
           log, because slices can be removed from the ledger during the audit.
        2. Take a snapshot of the index, and the ends of the streams of results and of dead letters. Raise Conflict if a backfill
           became complete in between.
        3. Read the stored results, also from files and tables, and the dead letters. The ledger contains all slices that wrote
           them. Read the log and recompute the windows.
        4. Compare the totals of the log with those of the ledger. Compare event times, watermarks, and closes of each slice
           that is still in the ledger.
        5. Compare results, documents, rejected records, and dead letters by id.
        """
        began_s = time.monotonic()
        try:
            letters = dead_letter_topic(self._job)
            backfills = complete_backfills(self._ledger, self._job, self._load)
            plan = self._plan(self._index.starts(letters), backfills)
            tasks = [self._tasks(span) for span in plan.spans]
            aliases = sorted({alias for s in plan.spans for one in aliases_of(s.pipeline).values() for alias in one})
            streams = {name for s in plan.spans for one in streams_of(s.pipeline).values() for name in one}
            deleted = {name for name in streams if not self._is_there(name)}
            snapshots = {alias: open_snapshot(self._settings.elasticsearch_url, alias) for alias in aliases}
            try:
                if complete_backfills(self._ledger, self._job, self._load) != backfills:
                    raise Conflict(f"a backfill of job {self._job} has just become complete; audit it again")
                letters_end = self._index.ends(letters)
                held = {name: (self._index.starts(name), self._index.ends(name)) for name in streams - deleted}
                with scratch_directory(self._settings, f"audit-{self._job}") as directory:
                    compared = Table(directory / "compared", ROWS_SCHEMA)
                    compared.create()
                    removed = self._read_stores(plan, snapshots, held, letters_end, compared)
                    removed |= {stream_store(name): EVER_MS for name in deleted}
                    last = self._ledger.last_slice(self._job)
                    assert last is not None, "a committed slice exists, so a last slice exists"
                    reconciler = Reconciler(store_scopes(plan, last, removed), letter_scope(plan, last))
                    recomputations = self._recomputations(plan, tasks, directory, compared)
                    computed, latest, found = self._compute(recomputations, directory, compared, reconciler)
                wrong, slice_held = self._compare_event_times(plan, latest)
                plan = plan.without_event_times_before(slice_held)
                return make_report(plan, computed, wrong, found, reconciler, time.monotonic() - began_s)
            finally:
                for snapshot in snapshots.values():
                    close_snapshot(self._settings.elasticsearch_url, snapshot)
        finally:
            self._ledger.close()

    def _load(self, version: int, streams: StreamVersions | None = None) -> CheckedPipeline:
        return load_pipeline(self._ledger, self._job, version, streams)

    def _plan(self, letter_starts: dict[int, int], backfills: list[Backfilled]) -> AuditPlan:
        job = self._ledger.job(self._job)
        streams = self._load(job.version).streams
        what_now = "The records of its results were deleted, and can't be audited."
        for stream in streams:
            known_id, present_id = self._ledger.stream(stream).topic_id, self._index.topic_id(stream)
            require_same_topic(self._job, stream, known_id, present_id, what_now)
        return plan_audit(
            self._ledger,
            self._job,
            self._load,
            {stream: self._index.starts(stream) for stream in streams},
            letter_starts,
            self._requested,
            {name: self._index.starts(name) for name in self._emitted_streams() if self._is_there(name)},
            backfills,
            job.generation,
        )

    def _is_there(self, stream: str) -> bool:
        """Return True if a stream of results still exists."""
        try:
            self._index.topic_id(stream)
        except NotFound:
            return False
        return True

    def _emitted_streams(self) -> list[str]:
        """Return the streams to which any version of the job emits."""
        last = self._ledger.last_checkpoint(self._job)
        return list(last.result_offsets) if last is not None else []

    def _read_stores(
        self,
        plan: AuditPlan,
        snapshots: dict[str, str],
        streams: dict[str, tuple[dict[int, int], dict[int, int]]],
        letters_end: dict[int, int],
        compared: Table,
    ) -> dict[str, int]:
        """Read the stores. Return store -> the time before which its owner has removed everything."""
        bootstrap = self._settings.kafka_bootstrap
        topic = dead_letter_topic(self._job)
        stores: dict[str, tuple[str, ...]] = {}
        for span in plan.spans:  # versions can emit one stage to different sinks
            for stage, names in stores_of_letters(span.pipeline).items():
                stores[stage] = tuple(dict.fromkeys((*stores.get(stage, ()), *names)))
        if not plan.spans:  # nothing is compared, and older dead letters can be deleted
            letters_end = {}
        parts: list[Part] = [
            *index_parts(self._settings.elasticsearch_url, self._job, snapshots, self._requested, compared),
            *results_parts(bootstrap, self._job, streams, self._requested, compared),
            *letters_parts(bootstrap, topic, plan.letters_from, letters_end, stores, compared),
        ]
        of_sinks, absent = sink_parts(self._settings, plan, compared)
        account = _run("reading the results", [*parts, *of_sinks])
        return removed_before(account.standing, absent)

    def _compute(
        self, spans: list[Recomputation], directory: Path, compared: Table, reconciler: Reconciler
    ) -> tuple[Totals, LatestEvents, ComparisonResult]:
        account = _run("reading the log", [part for one in spans for part in one.parts])
        database = Database(directory / "spilled", self._settings.audit_memory_mb)
        try:
            results = Counter(account.results)
            progress = Progress("computing the windows", len(spans))
            for one in spans:
                counts = one.compute(database)
                if not one.span.is_backfill:  # the totals of no slice contain a backfill's results
                    results.update(counts)
                progress.advance()
            Progress("comparing")
            found = find(database, compared, reconciler)
        finally:
            database.close()
        if duplicates := sum(one.duplicates for one in spans if not one.span.is_backfill):
            account.rejected[REASON_DUPLICATE] += duplicates
        rejected = dict(sorted(account.rejected.items()))
        computed = Totals(account.records, account.records - sum(rejected.values()), rejected, dict(results))
        return computed, account.latest, found

    def _compare_event_times(self, plan: AuditPlan, latest: LatestEvents) -> tuple[list[str], int]:
        """Return the differences in event time of all slices whose records were read, and the first slice that was still in the
        ledger when it was compared."""

        def compare_above(floor: int) -> tuple[list[str], int]:
            return [
                difference
                for span in plan.spans
                if not span.is_backfill
                for difference in self._event_times_above(floor, span, latest)
            ], floor + 1

        return self._ledger.above_floor(self._job, compare_above)

    def _event_times_above(self, floor: int, span: VersionSpan, latest: LatestEvents) -> Iterator[str]:
        first = max(span.slice_own, floor + 1)
        before = self._ledger.checkpoint(self._job, first - 1) if first > 1 else None
        return event_time_differences(self._done(first, span.slice_last), before, latest)

    def _done(self, first: int, last: int) -> Iterator[tuple[SliceRow, CheckpointRow]]:
        """Yield the committed slices with their checkpoints, in their order. Raises NotFound if a slice was removed in
        the meantime.
        """
        for start in range(first, last + 1, _SLICES_A_LOOK):
            end = min(start + _SLICES_A_LOOK - 1, last)
            slices = self._ledger.slices(self._job, start, end)
            checkpoints = self._ledger.checkpoints(self._job, end - start + 1, before=end + 1)
            if min(len(slices), len(checkpoints)) <= end - start:
                raise NotFound(
                    f"some of slices {start} to {end} of job {self._job} have just been removed; audit again"
                )
            yield from zip(slices, reversed(checkpoints), strict=True)

    def _tasks(self, span: VersionSpan) -> list[LogTask]:
        pipeline = span.pipeline
        slices = span.slice_first, span.slice_own, span.slice_last
        return recorded_tasks(self._ledger, self._job, *slices, decoding_of(pipeline, "").formats, pipeline.lookups)

    def _recomputations(
        self, plan: AuditPlan, tasks: list[list[LogTask]], directory: Path, compared: Table
    ) -> list[Recomputation]:
        bootstrap, ledger_url = self._settings.kafka_bootstrap, without_secrets(self._settings.ledger_url)
        return [
            Recomputation(
                span,
                decoding_of(span.pipeline, bootstrap, ledger_url),
                own,
                directory / f"span-{number}",
                compared,
                self._requested,
            )
            for number, (span, own) in enumerate(zip(plan.spans, tasks, strict=True))
        ]


def _run(step: str, parts: Sequence[Part]) -> Account:
    """Run the parts, and add their accounts."""
    progress, whole = Progress(step, len(parts)), Account()
    for one in run_parts(parts):
        whole.add(one)
        progress.advance()
    return whole


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="strandline-audit", description="Audits one job.")
    parser.add_argument("--job", required=True, help="name of the job")
    parser.add_argument("--after-ms", type=int, help="only windows that end after this time")
    parser.add_argument("--up-to-ms", type=int, help="only windows that end at or before this time")
    options = parser.parse_args(arguments)
    settings = Settings()
    configure_logs(as_json=settings.log_json)
    try:
        report = Audit(settings, options.job, EndRange(options.after_ms, options.up_to_ms)).run()
    except StrandlineError as error:
        return _failed(options.job, error)
    except OSError as error:
        return _failed(options.job, PermanentError(f"the audit can't use its scratch directory: {error}"))
    write_message("report", asdict(report))
    return EXIT_CODES[report.outcome]


def _failed(job: str, error: StrandlineError) -> int:
    log.error("the audit failed", job=job, code=error.code, message=str(error))
    write_message("error", {"code": error.code, "message": str(error)})
    return EXIT_FAILED


if __name__ == "__main__":
    keep_stdout()
    sys.exit(main())
