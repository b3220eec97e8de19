"""The audit of one job: `python -m strandline.processing.audit --job NAME [--after-ms MS] [--up-to-ms MS]`.

Recomputes the job's windows from log, ledger and pipeline as one bounded Spark batch, and compares. Writes JSON lines to
stdout: `{"progress": {...}}` while it works, at the end one `{"report": {...}}` or `{"error": {...}}`.

Exit codes: 0 when the report was written, whatever it says; 1 when the audit could not be made.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from strandline.core.errors import Conflict, StrandlineError
from strandline.core.logs import configure_logs
from strandline.core.record import dead_letter_topic
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import SliceRow
from strandline.processing.audit_frames import (
    KEPT,
    Recomputed,
    aliases_of,
    counts_of,
    expected_documents,
    expected_letters,
    judged,
    recompute,
    sample_of,
)
from strandline.processing.audit_plan import AuditPlan, Stretch, plan_audit
from strandline.processing.audit_source import (
    TASK_ROWS,
    HeldPart,
    StretchSource,
    held_frame,
    letters_frame,
    stretch_frame,
)
from strandline.processing.log_reader import LogIndex
from strandline.processing.rewind import RewindPlan
from strandline.processing.runner import event_time_rule, load_pipeline, sentence_of, source_config, start_spark
from strandline.processing.watermark import emitted_up_to
from strandline.results.held_documents import EndRange, close_snapshot, count_documents, open_snapshot
from strandline.results.judgement import (
    DEAD_LETTERS,
    DIFFERENCES,
    Finding,
    Judge,
    Kind,
    LetterScope,
    StoreScope,
)

log = structlog.get_logger()

Counts = Mapping[tuple[str, str, str], int]
"""(store, kind, label) -> how many."""

SAMPLE_MAX = 100
"""Differences that a report tells singly; of all others it tells the numbers."""
_PARTITIONS_MAX = 2_000
_LOOK_S = 0.3


@dataclass(frozen=True)
class Account:
    """What one side says of the audited slices."""

    records: int
    accepted: int
    rejected: dict[str, int]
    """Reason -> records."""
    results: dict[str, int]
    """Stage -> windows."""


@dataclass(frozen=True)
class StoreReport:
    """One alias of the index, or the dead-letter stream."""

    store: str
    stage: str
    """Empty for the dead-letter stream."""
    after_ms: int | None
    """The windows audited end after it; null: from the first on."""
    up_to_ms: int | None
    counts: dict[str, int]
    """What became of them: `same`, `missing`, `extra`, ..."""


@dataclass(frozen=True)
class AuditReport:
    """What an audit found."""

    job: str
    outcome: str
    """`clean`; `differences`; `incomplete` when nothing differs but the log no longer holds all that was asked for."""
    incomplete: str
    asked_after_ms: int | None
    asked_up_to_ms: int | None
    slice_first: int
    slice_last: int
    computed: Account
    ledger: Account
    """What the ledger says; `results` only when every window was audited."""
    account: list[str]
    """Where the two accounts differ, as sentences."""
    stores: list[StoreReport]
    differences: int
    """Of all kinds, in all stores, and in the account."""
    sample: list[Finding]
    """The first of them."""
    seconds: float


@dataclass
class Progress:
    """Where an audit is; told whenever it changes."""

    step: str = ""
    done: int = 0
    total: int = 0
    """Spark tasks of this step; 0 while that is unknown."""
    _stages: dict[int, tuple[int, int]] = field(default_factory=dict)

    @contextmanager
    def of(self, step: str, spark: SparkSession) -> Iterator[None]:
        """Tell how far Spark is with what is done inside."""
        self.step, self.done, self.total, self._stages = step, 0, 0, {}
        _tell("progress", {"step": step, "done": 0, "total": 0})
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_LOOK_S):
                self._look(spark)

        watcher = threading.Thread(target=watch, name="audit-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _look(self, spark: SparkSession) -> None:
        tracker = spark.sparkContext.statusTracker()
        for number in tracker.getActiveStageIds():
            info = tracker.getStageInfo(number)
            if info is not None:
                self._stages[number] = (info.numCompletedTasks, info.numTasks)
        for number in self._stages.keys() - set(tracker.getActiveStageIds()):
            self._stages[number] = (self._stages[number][1],) * 2
        done, total = (sum(values) for values in zip(*self._stages.values(), strict=True)) if self._stages else (0, 0)
        if (done, total) != (self.done, self.total):
            self.done, self.total = done, total
            _tell("progress", {"step": self.step, "done": done, "total": total})


class Audit:
    """One audit of one job. Changes nothing but what the index remembers of its snapshots."""

    def __init__(self, settings: Settings, job: str, asked: EndRange) -> None:
        self._settings = settings
        self._job = job
        self._asked = asked
        self._ledger = Ledger.open(settings.ledger_url)
        self._index = LogIndex(settings.kafka_bootstrap)

    def run(self) -> AuditReport:
        """Recompute, compare, report.

        1. Decide from the ledger what is audited: up to the last checkpoint now, whatever the job does meanwhile.
        2. Take a snapshot of the index, and the end of the dead-letter stream. What they hold was written by slices
           that the ledger has by now.
        3. Read the index; read the log and compute the windows anew.
        4. Close the account: the records of the slices against the ledger.
        5. Judge each result, document, refused record and dead letter by its id.
        """
        began_s = time.monotonic()
        try:
            letters = dead_letter_topic(self._job)
            stream, plan = self._plan(self._index.starts(letters))
            aliases = sorted(
                {alias for s in plan.stretches for one in aliases_of(s.pipeline).values() for alias in one}
            )
            snapshots = {alias: open_snapshot(self._settings.elasticsearch_url, alias) for alias in aliases}
            try:
                letters_end = self._index.ends(letters)
                last = self._ledger.last_slice(self._job)
                assert last is not None, "a committed slice is there, so there is a last one"
                with _spark(self._settings, self._job, plan) as spark:
                    judge = Judge(_store_scopes(plan, last), _letter_scope(plan, stream, last))
                    computed, counts, sample = self._compute(spark, plan, snapshots, letters_end, judge)
                return _report(plan, computed, counts, sample, judge, time.monotonic() - began_s)
            finally:
                for snapshot in snapshots.values():
                    close_snapshot(self._settings.elasticsearch_url, snapshot)
        finally:
            self._ledger.close()

    def _plan(self, letter_starts: dict[int, int]) -> tuple[str, AuditPlan]:
        job = self._ledger.job(self._job)
        stream = load_pipeline(self._ledger, self._job, job.version).spec.input.stream
        known_id, present_id = self._ledger.stream(stream).topic_id, self._index.topic_id(stream)
        if known_id is not None and known_id != present_id:
            raise Conflict(
                f"stream {stream} is another topic than the one that job {self._job} has read: it was deleted and made "
                "again, so the records that its results came from are gone and can't be audited"
            )
        return stream, plan_audit(
            self._ledger,
            self._job,
            lambda version: load_pipeline(self._ledger, self._job, version),
            {stream: self._index.starts(stream)},
            letter_starts,
            self._asked,
        )

    def _compute(
        self,
        spark: SparkSession,
        plan: AuditPlan,
        snapshots: dict[str, str],
        letters_end: dict[int, int],
        judge: Judge,
    ) -> tuple[Account, Counts, list[Finding]]:
        url, progress = self._settings.elasticsearch_url, Progress()
        parts = [
            HeldPart(alias, snapshot, part, count)
            for alias, snapshot in snapshots.items()
            for count in [count_documents(url, snapshot, self._asked) // TASK_ROWS + 1]
            for part in range(count)
        ]
        held = held_frame(spark, url, self._asked, parts).persist(KEPT)
        with progress.of("reading the index", spark):
            held.count()
        recomputed = [recompute(self._records(spark, stretch), stretch) for stretch in plan.stretches]
        with progress.of("reading the log", spark):
            for one in recomputed:
                one.materialize()
            computed = _account(recomputed)
        aliases = {stage: alias for one in plan.stretches for stage, alias in aliases_of(one.pipeline).items()}
        letters = letters_frame(
            spark,
            self._settings.kafka_bootstrap,
            dead_letter_topic(self._job),
            plan.letters_from,
            letters_end,
            aliases,
        )
        rows = [held, letters, *(frame for one in recomputed for frame in expected_documents(one))]
        rows += [expected_letters(one) for one in recomputed]
        findings = judged(rows, judge).persist(KEPT)
        with progress.of("comparing", spark):
            return computed, counts_of(findings), sample_of(findings, DIFFERENCES, SAMPLE_MAX)

    def _records(self, spark: SparkSession, stretch: Stretch) -> DataFrame:
        rule = event_time_rule(stretch.pipeline)
        no_run = RewindPlan(slice_first=stretch.slice_first, slice_committed=stretch.slice_last)
        config = source_config(self._settings, stretch.pipeline, rule, no_run, stretch.version, 0, spark)
        return stretch_frame(spark, StretchSource(config, stretch.slice_first, stretch.slice_own, stretch.slice_last))


@contextmanager
def _spark(settings: Settings, job: str, plan: AuditPlan) -> Iterator[SparkSession]:
    """A Spark session for a batch: more partitions for more records, so that what a task holds stays bounded."""
    # No job can have this name.
    scratch = (settings.scratch_dir or settings.data_dir / "scratch") / f".audit-{job}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        spark = start_spark(settings, f"{job}-audit", scratch)
        try:
            partitions = max(spark.sparkContext.defaultParallelism, plan.totals.records // TASK_ROWS)
            spark.conf.set("spark.sql.shuffle.partitions", str(min(partitions, _PARTITIONS_MAX)))
            yield spark
        finally:
            spark.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _account(recomputed: Sequence[Recomputed]) -> Account:
    records, rejected, results = 0, Counter[str](), Counter[str]()
    for one in recomputed:
        records += one.records()
        rejected.update(one.rejected())
        results.update({stage: frame.count() for stage, frame in one.stages.items()})
    return Account(records, records - rejected.total(), dict(sorted(rejected.items())), dict(results))


def _store_scopes(plan: AuditPlan, last: SliceRow) -> dict[str, StoreScope]:
    """Which documents of each alias are judged. `last` is a slice that was in the ledger after the index was looked at."""
    scopes = {}
    for stretch in plan.stretches:
        later = emitted_up_to([(stage.name, stage.size_ms) for stage in stretch.pipeline.stages], last.closes_ms)
        for stage, aliases in aliases_of(stretch.pipeline).items():
            ends = plan.scope[stage]
            for alias in aliases:
                scopes[alias] = StoreScope(
                    stage, ends.after_ms, ends.up_to_ms, later.get(stage), plan.slice_committed, last.number
                )
    return scopes


def _letter_scope(plan: AuditPlan, stream: str, last: SliceRow) -> LetterScope:
    is_to_the_end = plan.slice_last == plan.slice_committed
    return LetterScope(
        stream,
        plan.offsets_first.get(stream, {}),
        plan.offsets.get(stream, {}),
        last.offsets.get(stream, {}) if is_to_the_end else None,
    )


def _report(
    plan: AuditPlan,
    computed: Account,
    counts: Counts,
    sample: list[Finding],
    judge: Judge,
    seconds: float,
) -> AuditReport:
    totals = plan.totals
    rejected = {reason: count for reason, count in sorted(totals.rejected.items()) if count}
    ledger = Account(totals.records, totals.accepted, rejected, totals.results if plan.is_whole else {})
    account = _compare_accounts(computed, ledger)
    stores = [_store_report(name, one, counts) for name, one in sorted(judge.stores.items())]
    stores.append(_store_report(DEAD_LETTERS, None, counts))
    differences = len(account) + sum(count for (_, kind, _), count in counts.items() if kind in DIFFERENCES)
    outcome = "differences" if differences else "incomplete" if plan.incomplete else "clean"
    return AuditReport(
        job=plan.job,
        outcome=outcome,
        incomplete=plan.incomplete,
        asked_after_ms=plan.asked.after_ms,
        asked_up_to_ms=plan.asked.up_to_ms,
        slice_first=plan.slice_first,
        slice_last=plan.slice_last,
        computed=computed,
        ledger=ledger,
        account=account,
        stores=stores,
        differences=differences,
        sample=sample,
        seconds=round(seconds, 3),
    )


def _compare_accounts(computed: Account, ledger: Account) -> list[str]:
    """A sentence for each number in which the log and the ledger differ."""
    reasons = sorted(computed.rejected | ledger.rejected)
    pairs = [
        ("records", computed.records, ledger.records),
        ("accepted", computed.accepted, ledger.accepted),
        *((f"rejected as {one}", computed.rejected.get(one, 0), ledger.rejected.get(one, 0)) for one in reasons),
        *((f"results of {stage}", computed.results.get(stage, 0), count) for stage, count in ledger.results.items()),
    ]
    return [f"{what}: {ours:,} by the log, {theirs:,} by the ledger" for what, ours, theirs in pairs if ours != theirs]


def _store_report(name: str, scope: StoreScope | None, counts: Counts) -> StoreReport:
    of_store: Counter[str] = Counter()
    for (store, kind, _), count in counts.items():
        if store == name:
            of_store[kind] += count
    return StoreReport(
        store=name,
        stage=scope.stage if scope else "",
        after_ms=scope.after_ms if scope else None,
        up_to_ms=scope.up_to_ms if scope else None,
        counts={kind.value: of_store[kind] for kind in Kind if of_store[kind]},
    )


def _tell(what: str, content: Any) -> None:
    print(json.dumps({what: content}), flush=True)


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
        return _failed(options.job, StrandlineError(sentence_of(error)))
    _tell("report", asdict(report))
    return 0


def _failed(job: str, error: StrandlineError) -> int:
    log.error("the audit failed", job=job, code=error.code, message=str(error))
    _tell("error", {"code": error.code, "message": str(error)})
    return 1


if __name__ == "__main__":
    sys.exit(main())
