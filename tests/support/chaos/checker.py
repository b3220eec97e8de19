"""Checks whether a job kept its promises, from a dump of everything that it left.

Shares no code with the platform: it has its own decoding, lateness, watermarks, windows, cascade, and document ids. It
knows the pipelines of `work.py` and `more_jobs.py` (`checking/pipelines.py`) and of `graph_job.py` (`checking/graph`).
From the docs it knows how a slice decides lateness (docs/ledger.md), and the form of dead letters and
documents. A document's id is a hash of job, stage, window, and key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.support.chaos.checking.accounts import check_accounts
from tests.support.chaos.checking.backfills import check_backfilled, check_shown, expected_backfills, of_all
from tests.support.chaos.checking.cascade import Closers, results_of_closed
from tests.support.chaos.checking.documents import Expected, Writers, expected_documents, expected_records
from tests.support.chaos.checking.graph.lookups import check_lookups
from tests.support.chaos.checking.judging import ClassifiedRecord, classify_all
from tests.support.chaos.checking.lateness import check_lateness, check_nothing_is_late
from tests.support.chaos.checking.letters import check_dead_letters
from tests.support.chaos.checking.pace import PACES, Pace
from tests.support.chaos.checking.pipelines import Pipeline, first
from tests.support.chaos.checking.results import check_documents, check_stream
from tests.support.chaos.checking.slices import check_log, check_slices
from tests.support.chaos.checking.verdict import JobVerdict
from tests.support.chaos.checking.versions import Version
from tests.support.chaos.checking.watermarks import check_silences, check_watermarks
from tests.support.chaos.dump import Dump, Record, Row

WITHOUT_A_ROW = "a record without a row"


def check_job(dump: Dump, job: str, stream: str, pipeline_of: Callable[[Pace], Pipeline] = first) -> JobVerdict:
    """Compare the dump with the expected results. `stream`: input of the job.

    1. The slices: one chain over the log from its beginning, committed in order. Epochs and versions only rise, and the
       log still contains all records of the slices.
    2. Each record, by its slice: used, or refused with a reason.
    3. The silences, within the bounds of the log's times. The lookup version of each slice. The watermarks and the
       windows that each slice closes, from the used records. The late records, by the intention of the load.
    4. Windows and cascade over the used records, by the version that closed the window.
    5. The dead letters of refused records and of unusable results, each once, with its bytes. The documents: each
       result of a closed window once, correct, in its index; also those of each backfill. The alias shows each window
       once, from the newest backfill that contains it.
    6. The rows that are emitted without a window, by the version of their slice, as the documents of windows.
    7. The results in the stream: those of the first stage, each once, and equal.
    8. The counts of every slice.
    """
    verdict, pipeline = JobVerdict(records=len(dump.records)), pipeline_of(PACES[dump.speed])
    slices, checkpoints = dump.tables["slices"], {row["slice"]: row for row in dump.tables["checkpoints"]}
    check_slices(dump, slices, checkpoints, stream, pipeline.windows, verdict)
    check_log(dump, slices, stream, verdict)
    judged = list(classify_all(dump.records, slices, stream, pipeline.judge, verdict))
    check_silences(dump, judged, slices, stream, verdict)
    if pipeline.lookup is not None:
        check_lookups(dump, judged, slices, verdict)
    closers = Closers(check_watermarks(judged, slices, checkpoints, stream, pipeline.rule, verdict))
    if pipeline.reads_results:
        check_nothing_is_late(judged, verdict)
    else:
        check_lateness(judged, slices, stream, verdict)
    versions = {row["version"] for table in ("slices", "backfills") for row in dump.tables[table]}
    by_version = {version: pipeline.results(judged, Version(version)) for version in sorted(versions)}
    results, windows = results_of_closed(by_version, slices, closers), pipeline.windows
    restored = [one for one in dump.tables["events"] if one["kind"] == "results_restored"]
    writers = Writers(slices, checkpoints, verdict.epochs, restored)
    records = records_emitted(job, stream, pipeline, judged, slices, writers)
    documents = expected_documents(job, results, closers, windows, writers) | records
    backfills = expected_backfills(job, dump.tables["backfills"], by_version, closers, checkpoints, windows, verdict)
    check_dead_letters(
        dump.dead_letters, judged, [*documents.values(), *of_all(backfills)], stream, checkpoints, verdict
    )
    verdict.expected = sum(one.closer in checkpoints for one in documents.values())
    check_documents(dump.documents, documents, checkpoints, verdict)
    if dump.documents_deleted:
        verdict.repeated.append(f"the indices count {dump.documents_deleted} deleted or overwritten documents")
    check_backfilled(dump, backfills, checkpoints, verdict)
    check_shown(dump, documents, backfills, checkpoints, {*windows, *(one.stage for one in records.values())}, verdict)
    if dump.results is not None:
        check_stream(dump.results, dump.documents, pipeline.to_stream, verdict, restored)
    check_accounts(judged, results, closers, checkpoints, windows, records.values(), verdict)
    verdict.reached = count_reached(dump.records, judged, pipeline)
    verdict.must_reach = pipeline.must_reach
    verdict.divergence += [event["message"] for event in dump.tables["events"] if "divergence" in str(event["facts"])]
    return verdict


def count_reached(records: list[Record], judged: list[ClassifiedRecord], pipeline: Pipeline) -> Counter[str]:
    """Return how often each reason of a dead letter, and what else is special in records, occurred."""
    found = pipeline.reached(judged)
    found.update(one.reason for one in judged if one.reason is not None)
    noted = {id(one.record): one.noted for one in judged}
    for names in noted.values():
        found.update(names)
    found[WITHOUT_A_ROW] += len(records) - len(noted)
    return found


def records_emitted(
    job: str, stream: str, pipeline: Pipeline, judged: list[ClassifiedRecord], slices: list[Row], writers: Writers
) -> dict[str, Expected]:
    """Every row that the job emits without a window. Empty if it has no stage for this."""
    if pipeline.records_stage is None or pipeline.columns is None:
        return {}
    versions = {row["number"]: Version(row["version"]) for row in slices}
    rows = [(one, pipeline.columns(one, versions[one.slice])) for one in judged if one.member is not None]
    return expected_records(job, pipeline.records_stage, stream, rows, writers)
