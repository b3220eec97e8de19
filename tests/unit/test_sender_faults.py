"""The status of a job names devices whose clocks are ahead, and partitions whose records are all rejected. Real ledger and source
task; no Spark, no Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import CheckpointRow, EventTimeRule, KeyAhead, SenderFaults
from strandline.log.range_reader import FetchedBatches
from strandline.log.reader import OffsetRange
from strandline.log.record_batches import RecordBatch
from strandline.processing.emission.commit import SliceCommitter
from strandline.processing.emission.keyed_task import BucketOutcome
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.slices.sender_faults import PartitionFacts, faults_after, keys_ahead, sender_of
from strandline.processing.source import decoding
from strandline.processing.source.decoding import task_config
from strandline.processing.source.slice_rows import FACTS, SourceFacts, add_facts, decode_facts, encode
from strandline.processing.source.source_config import Piece
from strandline.processing.source.source_task import SourceTask
from strandline.services.jobs.explanation import notes_of
from tests.support.control import Api
from tests.support.ledgers import a_checkpoint, a_slice

JOB, STREAM = "pump-minutes", "pumps"
NOW_MS = 1_790_000_000_000
PUMPS = """\
stream: pumps
partitions: 2
schema: {pump: string, at: timestamp, bar: double}
key: pump
---
pipeline: pump-minutes
input: {stream: pumps}
event_time: {field: at, delay: 10s, idle_timeout: 1m}
steps:
  - window: {name: m, tumbling: 1m, BY aggregate: {n: count(*)}}
    emit: [{elasticsearch: pump-minute}]
"""
BY_PUMP, BY_NOTHING = PUMPS.replace("BY", "by: [pump],"), PUMPS.replace("BY", "")
Sent = tuple[bytes | None, bytes, bytes]
"""Kafka key, payload, and source that the gateway recorded."""


def reading(pump: str, ahead_ms: int = 0) -> Sent:
    return pump.encode(), json.dumps({"pump": pump, "at": NOW_MS + ahead_ms, "bar": 2.5}).encode(), b"http:127.0.0.1"


BROKEN: Sent = (None, b'{"pump": "pump-4", "at": 17', b"mqtt:pumps/pump-4")
FAST = [reading("pump-1"), reading("pump-3", 180_000), reading("pump-2", 900), reading("pump-3", 179_000)]


class Log:
    """One slice in memory: partition -> records, each logged at NOW_MS."""

    def __init__(self, partitions: dict[int, list[Sent]]) -> None:
        self.partitions = partitions

    def read(self, ranges: Sequence[OffsetRange], headers=(), headers_beside=()):
        for one in ranges:
            builder = DefaultRecordBatchBuilder(2, 1, 0, -1, -1, -1, 1_000_000)
            for number, (key, value, source) in enumerate(self.partitions[one.partition]):
                builder.append(number, NOW_MS, key, value, [("strandline-source", source)])
            batches = [RecordBatch(memoryview(bytes(builder.build())))]
            yield from FetchedBatches(one, batches).columns(headers, headers_beside)


class Job:
    """A job whose slices are read by the real source task and committed by the real committer."""

    def __init__(self, ledger: Ledger, document: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger, self.api = ledger, Api(ledger)
        self.api.apply(document)
        self.row = ledger.begin_run(JOB, 1)
        self.pipeline = load_pipeline(ledger, JOB, 1)
        self.monkeypatch = monkeypatch
        self.number = 0

    def facts(self, partitions: dict[int, list[Sent]], *, is_new: bool = True) -> SourceFacts:
        self.monkeypatch.setattr(decoding, "reader_of_process", lambda bootstrap: Log(partitions))
        row = a_slice(1, job=JOB, rule=EventTimeRule(10_000, 60_000, 300_000), watermark_ms=None)
        found = []
        for partition, records in partitions.items():
            piece = Piece.of_slice(row, OffsetRange(STREAM, partition, 0, len(records)))
            rows = SourceTask(task_config(self.pipeline, "nowhere", (0,)))
            batches = rows.read([piece], is_new=is_new, work=None)
            found += [one for batch in batches for one in batch.to_pylist() if one["kind"] == FACTS]
        return add_facts(decode_facts(one["blob"]) for one in found)

    def commit(self, partitions: dict[int, list[Sent]]) -> CheckpointRow:
        self.number += 1
        first, end = ({STREAM: {0: at, 1: at}} for at in (100 * self.number - 100, 100 * self.number))
        last = self.ledger.last_checkpoint(JOB)
        reached = last.reached if last is not None else {}
        row = a_slice(
            self.number, self.row.epoch, JOB, offsets_first=first, offsets=end, reached=reached, watermark_ms=None
        )
        self.ledger.plan_slice(row)
        run = JobRun(Settings(), self.ledger, None, self.row, self.pipeline)  # type: ignore[arg-type]
        committer = SliceCommitter(run, RewindPlan(1, 0), lambda: None, lambda: None)
        committer.commit_slice(row, self.facts(partitions), [BucketOutcome()])
        found = self.ledger.last_checkpoint(JOB)
        assert found is not None
        return found

    def ask(self, path: str = "") -> dict:
        return self.api.ask("GET", f"/v1/jobs/{JOB}{path}").json()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield opened
    opened.close()


@pytest.mark.guarantee(
    "G807",
    "`strandline job explain`, the status, and the metrics name the keys that are more than 1 s ahead of their log "
    "time, also if their records are rejected as `future_event`. A key is shown until 10 minutes of log time after "
    "its last such record.",
    promise="failures-are-reported-with-their-remedy",
)
def test_explain_status_and_metrics_name_the_key_that_is_ahead(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(ledger, BY_PUMP, monkeypatch)
    job.commit({0: FAST})
    (note,) = job.ask("/explanation")["notes"]
    assert note.startswith("stream pumps, partition 0: the clock of pump-3 is 3m ahead of its log time; ")
    assert job.ask()["notes"] == [note]
    assert job.ask()["sender_faults"]["keys_ahead"] == [
        {"stream": "pumps", "partition": 0, "key": "pump-3", "ahead_ms": 180_000, "log_ms": NOW_MS}
    ]
    line = f'strandline_job_key_ahead_seconds{{job="{JOB}",key="pump-3",partition="0",stream="pumps"}} 180.0'
    assert line in job.api.ask("GET", "/metrics").text.splitlines()


def test_the_advice_for_a_clock_that_is_ahead_depends_on_the_limit() -> None:
    faults = SenderFaults([KeyAhead("s", 0, "a", 180_000, 1), KeyAhead("s", 0, "b", 900_000, 1)])
    rule = EventTimeRule(10_000, None, max_ahead_ms=300_000)
    reject, rejected = notes_of("job", faults, a_slice(1, rule=rule))
    assert "or reject such records with event_time.max_ahead" in reject
    assert "max_ahead rejects its records" in rejected and "or reject" not in rejected
    of_stream = EventTimeRule(10_000, None, by_stream=(("s", rule),))
    assert notes_of("job", faults, a_slice(1, rule=of_stream)) == [reject, rejected]
    assert all("or reject" in note for note in notes_of("job", faults, None))


@pytest.mark.guarantee(
    "G806",
    "`strandline job explain` and the status name a partition whose records are all rejected, the reasons, and the "
    "device, until a record of the partition is accepted.",
    promise="failures-are-reported-with-their-remedy",
)
def test_explain_names_the_partition_whose_records_are_all_rejected_the_reason_and_the_device(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(ledger, BY_PUMP, monkeypatch)
    old = reading("pump-5", -40 * 365 * 86_400_000)
    job.commit({0: [reading("pump-1")], 1: [BROKEN]})
    job.commit({0: [reading("pump-1"), BROKEN], 1: [BROKEN, (old[0], old[1].replace(b"2.5", b'"x"'), old[2])]})
    (note,) = job.ask("/explanation")["notes"]
    assert note == (
        "stream pumps, partition 1: no record is accepted; all 3 since slice 1 were rejected (decode 2, last from "
        "mqtt:pumps/pump-4, schema 1, last from pump-5); fix the device, or see the "
        "messages: strandline dead-letters list pump-minutes"
    )
    job.commit({0: [reading("pump-1")]})
    assert job.ask()["notes"] == [note]  # no record came, so nothing is better
    job.commit({1: [BROKEN, reading("pump-4")]})
    assert job.ask()["notes"] == job.ask("/explanation")["notes"] == []


@pytest.mark.guarantee("G807")
@pytest.mark.parametrize("document", [BY_PUMP, BY_NOTHING], ids=["key is read", "key is not read"])
def test_a_source_task_reports_keys_that_are_ahead(
    ledger: Ledger, document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also keys of records that are rejected because they are too far ahead. A lead of less than a second isn't reported."""
    facts = Job(ledger, document, monkeypatch).facts({0: [*FAST, reading("pump-6", 3_600_000), BROKEN]})
    found = facts.partitions[STREAM][0]
    assert found.keys_ahead == {"pump-3": (180_000, NOW_MS), "pump-6": (3_600_000, NOW_MS)}
    assert (found.records, found.rejected) == (6, {"decode": 1, "future_event": 1})
    assert found.senders == {"decode": (5, "mqtt:pumps/pump-4"), "future_event": (4, "pump-6")}


def test_the_order_of_the_parts_of_a_slice_changes_nothing() -> None:
    parts = [
        PartitionFacts(2, {"late": 2}, {"late": (4, "a")}, {"a": (2_000, 30), "b": (3_000, 10)}),
        PartitionFacts(1, {"late": 1}, {"late": (9, "")}, {"b": (3_000, 20)}),
        PartitionFacts(1, {"decode": 1}, {"decode": (2, "c")}, {"a": (2_000, 40)}),
    ]
    for order in permutations(parts):
        found = PartitionFacts()
        for part in order:
            found.add(part)
        assert found.senders == {"late": (9, ""), "decode": (2, "c")}
        assert found.keys_ahead == {"a": (2_000, 40), "b": (3_000, 20)}
    (partition,) = faults_after(None, 1, {"s": {0: found}}, 100).rejected_partitions
    assert partition.senders == {"decode": "c"}, "the sender of the last late record isn't known"


def test_a_replay_looks_for_no_senders(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Job(ledger, BY_PUMP, monkeypatch).facts({0: [*FAST, BROKEN]}, is_new=False).partitions == {}


def test_a_commit_that_is_repeated_changes_nothing() -> None:
    before = a_checkpoint(3, sender_faults=SenderFaults([KeyAhead("s", 0, "a", 2_000, 5)]))
    found = {"s": {0: PartitionFacts(2, {"decode": 2}, {})}}
    assert faults_after(before, 3, found, 5) is before.sender_faults
    after = faults_after(before, 4, found, 5)
    assert after.keys_ahead == before.sender_faults.keys_ahead
    assert after.rejected_partitions[0].rejected == {"decode": 2}


@pytest.mark.guarantee("G807")
def test_a_key_is_forgotten_ten_minutes_after_its_last_record_that_was_ahead() -> None:
    before = a_checkpoint(1, sender_faults=SenderFaults([KeyAhead("s", 0, "a", 2_000, 1_000)]))
    assert faults_after(before, 2, {}, 601_000).keys_ahead == before.sender_faults.keys_ahead
    assert faults_after(before, 2, {}, 601_001).keys_ahead == []
    newer = {"s": {0: PartitionFacts(1, {}, {}, {"a": (1_500, 601_001)})}}
    assert faults_after(before, 2, newer, 601_001).keys_ahead == [KeyAhead("s", 0, "a", 1_500, 601_001)]


@pytest.mark.guarantee(
    "G808",
    "The stored faults of senders have a bounded size: five keys, five partitions, and 100 characters of each name.",
    promise="stored-data-is-bounded",
)
def test_faults_are_bounded() -> None:
    """Five keys, the furthest ahead, and five partitions, those with the most records; in a task and in a checkpoint."""
    ahead_ms = np.arange(1_001, 101_001, 100)
    keys = pa.array([f"k{at}" for at in range(len(ahead_ms))])
    found = keys_ahead(ahead_ms, np.zeros(len(ahead_ms), np.int64), keys, str)
    assert list(found) == ["k999", "k998", "k997", "k996", "k995"]
    assert list(keys_ahead(ahead_ms, np.zeros(len(ahead_ms), np.int64), None, str)) == [
        "999",
        "998",
        "997",
        "996",
        "995",
    ]
    facts = {
        "s": {
            at: PartitionFacts(
                at + 1, {"decode": at + 1}, {}, {key: (ms + at, log_ms) for key, (ms, log_ms) in found.items()}
            )
            for at in range(9)
        }
    }
    after = faults_after(None, 1, facts, 0)
    assert [(one.partition, one.key) for one in after.keys_ahead] == [(at, "k999") for at in (8, 7, 6, 5, 4)]
    assert [one.partition for one in after.rejected_partitions] == [8, 7, 6, 5, 4]
    merged = SourceFacts()
    for name in "ab":
        part = PartitionFacts(1, {}, {}, {f"{name}{at}": (2_000 + at, 1) for at in range(4)})
        merged = add_facts([merged, SourceFacts(partitions={"s": {0: part}})])
    assert len(merged.partitions["s"][0].keys_ahead) == 5
    assert decode_facts(encode(merged)) == merged


@pytest.mark.guarantee("G808")
def test_the_name_of_a_sender_is_short_and_can_be_printed() -> None:
    assert sender_of(None, b"", b"mqtt:a/b") == "mqtt:a/b"
    assert sender_of(b"\x1b[31m\xff") == "\\x1b[31m\\xff"
    assert sender_of(b"x" * 500) == "x" * 100 + "…"
    assert sender_of(None) is None


def test_the_ledger_keeps_faults(ledger: Ledger) -> None:
    """Lone surrogates and NUL in keys can't be stored; `sender_of` writes them out."""
    Api(ledger).apply(BY_PUMP)
    row = ledger.begin_run(JOB, 1)
    ledger.plan_slice(a_slice(1, row.epoch, JOB))
    facts = {"s": {0: PartitionFacts(1, {"decode": 1}, {"decode": (7, "é")}, {"a\\0": (2_000, 1)})}}
    written = replace(a_checkpoint(1, row.epoch, JOB), sender_faults=faults_after(None, 1, facts, 1))
    ledger.commit_checkpoint(written)
    assert ledger.last_checkpoint(JOB) == written
