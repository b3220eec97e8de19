"""Results are a function of log and slices: no digit depends on the number of Spark's partitions, or on restarts.

One log. A job cuts it into slices, and further jobs get the same slices. Whenever one of them commits a slice, a trigger in
the ledger's database plans the next one as it was cut the first time.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
from dataclasses import replace

import pytest

from strandline.core.record_headers import dead_letter_topic
from strandline.ledger.states import CheckpointRow, Desired
from strandline.log.index import LogIndex
from strandline.log.messages import LogReader
from strandline.log.reader import OffsetRange
from strandline.processing.run.runner import Runner
from tests.support.audit_lab import AuditLab
from tests.support.ledgers import run_sql
from tests.support.waiting import stretched, wait_until

pytestmark = pytest.mark.timeout(900)
STREAM = "same-readings"
BASE_MS = 1_700_000_000_000 // 60_000 * 60_000
RECORDS = 6_000
SLICE_RECORDS = 600
CUT_FIRST = "same-first"


def stream_text() -> str:
    return f"""
stream: {STREAM}
partitions: 2
schema:
  device: string
  ts: {{type: timestamp, unit: ms}}
  temp: double
  cost: decimal(10,2)
key: device
"""


def pipeline_text(job: str) -> str:
    """Aggregates whose value doesn't depend on the order: the last digit of a sum of doubles would."""
    return f"""
pipeline: {job}
input: {{stream: {STREAM}}}
event_time: {{field: ts, delay: 10s, max_ahead: null, idle_timeout: null}}
steps:
  - where: temp < 900
  - window:
      name: tens
      tumbling: 10s
      by: [device]
      aggregate: {{n: count(*), peak: max(temp), low: min(temp), cost: sum(cost), closed: last(temp), mid: median(temp),
                  temps: count(distinct temp), costs: approx_count_distinct(cost), about: "approx_percentile(temp, 0.9)",
                  warm: count(*) filter (where temp > 500), dear: "min_by(temp, cost)"}}
    emit: [{{elasticsearch: {job}-tens}}]
  - window:
      name: halves
      sliding: {{size: 30s, every: 10s}}
      by: [device]
      aggregate: {{n: sum(n), peak: max(peak), cost: sum(cost), closed: last(closed), mid: median(mid)}}
    emit: [{{elasticsearch: {job}-halves}}]
  - window: {{name: minute, tumbling: 1m,
              aggregate: {{n: sum(n), peak: max(peak), cost: sum(cost), opened: first(closed), busy: "max_by(mid, n)"}}}}
    emit: [{{elasticsearch: {job}-minute}}]
"""


def records() -> list[bytes]:
    """Return readings in order of time, with 3 s of disorder. Of 100, five are late and two broken."""
    chance = random.Random(4)
    lines = []
    for number in range(RECORDS):
        late_ms = 100_000 if number > 1_500 and chance.random() < 0.05 else 0
        reading = {
            "device": f"d{number % 23}",
            "ts": BASE_MS + number * 60 - chance.randrange(3_000) - late_ms,
            "temp": round(chance.uniform(-10, 1_010), 3),
            "cost": str(chance.randrange(1_000) / 100),
        }
        line = json.dumps(reading).encode()
        lines.append(line[:-3] if chance.random() < 0.02 else line)
    return lines


@pytest.fixture(scope="module")
def log(audit_lab: AuditLab) -> str:
    """The job that cuts the slices; its log is that of all others."""
    audit_lab.apply(stream_text() + "---" + pipeline_text(CUT_FIRST))
    audit_lab.send(STREAM, records())
    run_to_the_end(audit_lab, CUT_FIRST, shuffle_partitions=1)
    assert len(audit_lab.slices(CUT_FIRST)) > RECORDS // SLICE_RECORDS
    return CUT_FIRST


def run_to_the_end(
    lab: AuditLab,
    job: str,
    *,
    shuffle_partitions: int,
    slice_records: int = SLICE_RECORDS,
    restarts: int = 0,
    slice_tasks: str = "spread",
) -> None:
    """Drain the job. `restarts`: how often its runner is stopped before the end, at any point."""
    settings = lab.settings.model_copy(update={"slice_rows_max": slice_records, "slice_tasks": slice_tasks})
    lab.spark.conf.set("spark.sql.shuffle.partitions", str(shuffle_partitions))
    lab.ledger.set_desired(job, Desired.DRAINED)
    chance = random.Random(job)
    for _ in range(restarts):
        stop_on_the_way(lab, Runner(settings, job, lab.spark), job, committed(lab, job) + chance.randint(1, 6))
    assert Runner(settings, job, lab.spark).run() == 0
    ends = LogIndex(lab.settings.kafka_bootstrap).ends(STREAM)
    assert lab.slices(job)[-1].offsets[STREAM] == ends


def stop_on_the_way(lab: AuditLab, runner: Runner, job: str, slice_reached: int) -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(runner.run()))
    thread.start()
    wait_until(lambda: committed(lab, job) >= slice_reached or not thread.is_alive(), bool, "some slices further", 120)
    runner.stop_now()
    thread.join(stretched(120))
    assert codes == [0]


def committed(lab: AuditLab, job: str) -> int:
    last = lab.ledger.last_checkpoint(job)
    return last.slice if last else 0


def give_slices_of(lab: AuditLab, cut_first: str, job: str) -> None:
    """From now on each run of `job` finds the next slice of `cut_first` planned, as it was cut there."""
    columns = "number, offsets_first, offsets, checksums, cut_time_ms, watermark_ms, rule, reached, silence_ms, kind, planned_ms"
    columns += ", stream_versions, sessions, lookup_versions"
    plant = f"""
        INSERT INTO slices (job, epoch, version, status, {columns})
        SELECT '{job}', jobs.epoch, 1, 'planned', {columns} FROM slices JOIN jobs ON jobs.name = '{job}'
        WHERE slices.job = '{cut_first}' AND slices.number ="""
    name = job.replace("-", "_")
    run_sql(
        lab.settings.ledger_url,
        f"""CREATE TRIGGER plan_first_of_{name} AFTER INSERT ON runs
            WHEN NEW.job = '{job}' AND NOT EXISTS (SELECT 1 FROM slices WHERE job = '{job}')
            BEGIN {plant} 1; END""",
    )
    run_sql(
        lab.settings.ledger_url,
        f"""CREATE TRIGGER plan_next_of_{name} AFTER INSERT ON checkpoints WHEN NEW.job = '{job}'
            BEGIN {plant} NEW.slice + 1; END""",
    )


def digest(lab: AuditLab, job: str) -> str:
    """Return a digest of all documents of the job, without what names the job, the version and the run."""
    documents = []
    for stage in ("tens", "halves", "minute"):
        for document in lab.documents(f"{job}-{stage}").values():
            origin = document.pop("strandline")
            documents.append(json.dumps([stage, origin["emission"], document], sort_keys=True))
    assert len(documents) > 500
    return hashlib.sha256("\n".join(sorted(documents)).encode()).hexdigest()


def rejected(lab: AuditLab, job: str) -> dict[str, int]:
    return lab.ledger.totals(job).rejected


@pytest.mark.guarantee("G6")
@pytest.mark.guarantee("G75")
@pytest.mark.guarantee("G400")
@pytest.mark.long
@pytest.mark.parametrize(
    ("shuffle_partitions", "restarts"),
    [(4, 1), *(pytest.param(*case, marks=pytest.mark.long) for case in ((4, 3), (16, 2)))],
)
def test_the_same_slices_give_the_same_documents(
    audit_lab: AuditLab, log: str, shuffle_partitions: int, restarts: int
) -> None:
    job = f"same-{shuffle_partitions}-{restarts}"
    audit_lab.apply(pipeline_text(job))
    give_slices_of(audit_lab, log, job)
    run_to_the_end(audit_lab, job, shuffle_partitions=shuffle_partitions, restarts=restarts)
    as_cut = [replace(one, job=log, epoch=1) for one in audit_lab.slices(job)]
    assert as_cut == [replace(one, epoch=1) for one in audit_lab.slices(log)]
    assert digest(audit_lab, job) == digest(audit_lab, log)
    assert rejected(audit_lab, job) == rejected(audit_lab, log)
    assert len(audit_lab.ledger.runs(job)) == restarts + 1
    report = audit_lab.audit(job)
    assert (report["outcome"], report["differences"]) == ("clean", 0), report


@pytest.mark.guarantee("G905")
@pytest.mark.long
def test_one_task_for_each_slice_gives_the_same_documents_dead_letters_and_checkpoints(
    audit_lab: AuditLab, log: str
) -> None:
    """The job is stopped twice, so it rewinds twice."""
    job = "same-one-task"
    audit_lab.apply(pipeline_text(job))
    give_slices_of(audit_lab, log, job)
    run_to_the_end(audit_lab, job, shuffle_partitions=2, restarts=2, slice_tasks="one")
    as_cut = [replace(one, job=log, epoch=1) for one in audit_lab.slices(job)]
    assert as_cut == [replace(one, epoch=1) for one in audit_lab.slices(log)]
    assert digest(audit_lab, job) == digest(audit_lab, log)
    assert checkpoints(audit_lab, job) == checkpoints(audit_lab, log)
    assert dead_letters(audit_lab, job) == dead_letters(audit_lab, log)
    report = audit_lab.audit(job)
    assert (report["outcome"], report["differences"]) == ("clean", 0), report


def checkpoints(lab: AuditLab, job: str) -> list[CheckpointRow]:
    """All checkpoints of the job, oldest first, without the fields that depend on the run and on the name of the job."""
    found = lab.ledger.checkpoints(job, limit=1_000)
    assert len(found) > RECORDS // SLICE_RECORDS
    return [
        replace(
            one,
            job="",
            epoch=0,
            committed_ms=0,
            dead_letter_offsets={},
            stored={store.replace(job, "same"): count for store, count in one.stored.items()},
        )
        for one in sorted(found, key=lambda one: one.slice)
    ]


def dead_letters(lab: AuditLab, job: str) -> list[object]:
    """All dead letters of the job: value and headers."""
    topic = dead_letter_topic(job)
    found = []
    index = LogIndex(lab.settings.kafka_bootstrap)
    starts, ends = index.starts(topic), index.ends(topic)
    for partition, end in ends.items():
        for messages in LogReader(lab.settings.kafka_bootstrap).read(
            OffsetRange(topic, partition, starts[partition], end)
        ):
            found += [(one.key(), one.value(), tuple(one.headers())) for one in messages]
    assert len(found) > 50
    return sorted(found)


@pytest.mark.guarantee("G75")
@pytest.mark.parametrize(
    "slice_records", [*(pytest.param(records, marks=pytest.mark.long) for records in (300, SLICE_RECORDS)), 5_000]
)
@pytest.mark.long
def test_a_run_over_slices_of_any_size_audits_clean_against_its_own(
    audit_lab: AuditLab, log: str, slice_records: int
) -> None:
    job = log
    if slice_records != SLICE_RECORDS:
        job = f"same-cut-{slice_records}"
        audit_lab.apply(pipeline_text(job))
        run_to_the_end(audit_lab, job, shuffle_partitions=2, slice_records=slice_records, restarts=2)
    report = audit_lab.audit(job)
    assert (report["outcome"], report["differences"]) == ("clean", 0), report
    assert report["computed"]["records"] == RECORDS
    assert min(report["computed"]["rejected"][reason] for reason in ("late", "decode")) > 50
