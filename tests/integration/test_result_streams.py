"""A cascade over two jobs: the first emits each result to a stream once, and the second computes from it correctly.

This is so for any kills, between any steps.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Desired
from strandline.log.index import LogIndex
from strandline.log.topics import Topics
from strandline.processing.audit.index_reader import EndRange, open_snapshot, read_documents
from strandline.processing.emission.result_stream_writer import result_header
from strandline.processing.pipelines.result_streams import lagging_readers
from strandline.services.jobs.apply_documents import DocumentApplier, ensure_templates
from strandline.services.processes.process_tree import MARK_VARIABLE, kill_tree, tree_mark
from tests.support.topic_reader import read_messages
from tests.support.waiting import stretched, wait_until

FEED, TENS, MINUTES = "cascade-feed", "cascade-tens", "cascade-minutes"
DOCUMENTS = f"""
stream: {FEED}
partitions: 2
schema: {{device: string, ts: timestamp, n: long, cost: "decimal(10,2)"}}
key: device
---
pipeline: {TENS}
input: {{stream: {FEED}}}
event_time: {{field: ts, delay: 3s, max_ahead: null, idle_timeout: null}}
steps:
  - window: {{name: tens, tumbling: 10s, by: [device], aggregate: {{n: sum(n), mean: avg(n), cost: sum(cost)}}}}
    emit: [{{stream: {TENS}}}, {{elasticsearch: {TENS}}}]
---
pipeline: {MINUTES}
input: {{stream: {TENS}}}
event_time: {{field: window_start, delay: 0s, watermark: newest, max_ahead: null, idle_timeout: null}}
steps:
  - window: {{name: minutes, tumbling: 1m, by: [device], aggregate: {{n: sum(n), peak: max(mean), cost: sum(cost)}}}}
    emit: [{{elasticsearch: {MINUTES}}}]
"""
BASE_MS = 1_793_491_200_000
STEP_MS = 200
PIECE_RECORDS = 700
DEVICES = 12
KILLS = {TENS: "stream.committed=kill-family", MINUTES: "emit.written=kill-family"}
"""Where each job is killed with all its processes: its results are out, and nothing says so yet."""


class Cascade:
    """Two jobs, each with a runner process of its own."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self.settings, self.directory = settings, directory
        self.ledger = Ledger.open(settings.ledger_url)
        self.producer = Producer(
            {"bootstrap.servers": settings.kafka_bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        self.sent = 0
        self.runners: dict[str, subprocess.Popen[bytes]] = {}

    def apply(self, documents: str = DOCUMENTS) -> None:
        DocumentApplier(
            self.ledger,
            Topics(self.settings.kafka_bootstrap, replication=1, record_bytes_max=1_000_000),
            lambda pipeline: ensure_templates(self.settings.elasticsearch_url, pipeline),
            LogIndex(self.settings.kafka_bootstrap).starts,
        ).apply(documents.encode(), "cascade.yaml")

    def send(self, count: int) -> None:
        """Send records in order with 2 s of disorder. Of 100, five are late.

        They have many log times, so that slices can be cut between them.
        """
        chance = random.Random(self.sent)
        for number in range(self.sent, self.sent + count):
            late_ms = 150_000 if number > 300 and chance.random() < 0.05 else 0
            record = {
                "device": f"d{number % DEVICES}",
                "ts": BASE_MS + number * STEP_MS - chance.randrange(2_000) - late_ms,
                "n": chance.randrange(100),
                "cost": str(Decimal(chance.randrange(100_000)) / 100),
            }
            self.producer.produce(FEED, json.dumps(record).encode(), record["device"].encode())
            if number % 100 == 99:
                assert self.producer.flush(30) == 0
        assert self.producer.flush(30) == 0
        self.sent += count

    def start(self, job: str, slice_rows_max: int = 500) -> None:
        mark = tree_mark(self.directory, job)
        environment = os.environ | {
            "STRANDLINE_DATA_DIR": str(self.directory / job),
            "STRANDLINE_KAFKA_BOOTSTRAP": self.settings.kafka_bootstrap,
            "STRANDLINE_ELASTICSEARCH_URL": self.settings.elasticsearch_url,
            "STRANDLINE_LEDGER_URL": self.settings.ledger_url,
            "STRANDLINE_SLICE_ROWS_MAX": str(slice_rows_max),
            "STRANDLINE_SPARK_DRIVER_MEMORY": "600m",
            "STRANDLINE_FAILPOINTS": f"@{self.failpoints(job)}",
            MARK_VARIABLE: mark,
        }
        with (self.directory / f"{job}.log").open("ab") as log:
            command = [sys.executable, "-m", "strandline.processing.run.process", "--job", job]
            self.runners[job] = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def failpoints(self, job: str) -> Path:
        return self.directory / f"{job}.failpoints"

    def wait_for(self, is_so: Any, what: str) -> None:
        wait_until(is_so, bool, what, 120, 0.05)

    def kill_at(self, orders: dict[str, str]) -> None:
        """Arm, send a piece, and wait until each has killed its job; then start these again."""
        for job, order in orders.items():
            self.failpoints(job).write_text(order)
        self.send(PIECE_RECORDS)
        for job in orders:
            self.wait_for(lambda job=job: self.runners[job].poll() is not None, f"{job} killed; see its log")
            assert self.runners[job].wait() == -signal.SIGKILL
            fired = Path(f"{self.failpoints(job)}.fired")
            assert fired.exists()
            fired.unlink()
            kill_tree(tree_mark(self.directory, job))
            self.start(job)

    def drain(self, job: str) -> None:
        self.ledger.set_desired(job, Desired.DRAINED)
        assert self.runners[job].wait(stretched(120)) == 0, (self.directory / f"{job}.log").read_text()[-3_000:]

    def close(self) -> None:
        for job in self.runners:
            kill_tree(tree_mark(self.directory, job))
            self.runners[job].wait()
        self.ledger.close()

    def documents(self, alias: str) -> list[dict[str, Any]]:
        url = self.settings.elasticsearch_url
        pages = read_documents(url, open_snapshot(url, alias), EndRange(), 0, 1)
        return [json.loads(one.body) for page in pages for one in page]

    def messages(self, stream: str, partitions: int) -> list[Message]:
        return read_messages(self.settings.kafka_bootstrap, stream, partitions, isolation="read_committed")

    def expected_tens(self) -> tuple[dict[tuple[str, int], list[tuple[int, Decimal]]], int]:
        """(device, window start) -> its records, and how many are late: by the slices in the ledger, as anybody could."""
        slices = self.ledger.slices(TENS, 1, self.ledger.slice_count(TENS))
        groups: dict[tuple[str, int], list[tuple[int, Decimal]]] = defaultdict(list)
        late = 0
        for message in self.messages(FEED, 2):
            partition, offset = message.partition() or 0, message.offset() or 0
            (one,) = [
                row for row in slices if row.offsets_first[FEED][partition] <= offset < row.offsets[FEED][partition]
            ]
            record = json.loads(message.value() or b"")
            if one.watermark_ms is not None and record["ts"] < one.watermark_ms:
                late += 1
            else:
                start_ms = record["ts"] // 10_000 * 10_000
                groups[record["device"], start_ms].append((record["n"], Decimal(record["cost"])))
        return groups, late


@pytest.fixture
def cascade(kafka: str, elasticsearch: str, tmp_path: Path) -> Iterator[Cascade]:
    settings = Settings(
        data_dir=tmp_path,
        kafka_bootstrap=kafka,
        elasticsearch_url=elasticsearch,
        ledger_url=f"sqlite:///{tmp_path / 'ledger.sqlite'}",
    )
    cascade = Cascade(settings, tmp_path)
    yield cascade
    cascade.close()


@pytest.mark.guarantee("G72")
@pytest.mark.guarantee("G73")
@pytest.mark.long
def test_both_jobs_killed_the_stream_holds_each_result_once_and_its_reader_misses_none(cascade: Cascade) -> None:
    cascade.apply()
    for job in (TENS, MINUTES):
        cascade.start(job)
    cascade.kill_at(KILLS)
    cascade.send(PIECE_RECORDS)
    cascade.drain(TENS)
    cascade.drain(MINUTES)

    groups, late = cascade.expected_tens()
    assert late > 20
    tens = {key: (sum(n for n, _ in rows), sum(cost for _, cost in rows), len(rows)) for key, rows in groups.items()}
    messages = cascade.messages(TENS, 4)
    assert Counter(Counter(result_header(one, "strandline-id") for one in messages).values()) == {1: len(tens)}
    results = [json.loads(one.value() or b"") for one in messages]
    held = {(one["device"], millis(one["window_start"])): one for one in results}
    assert {key: (one["n"], Decimal(one["cost"])) for key, one in held.items()} == {
        key: (n, cost) for key, (n, cost, _) in tens.items()
    }
    assert len({one["strandline"]["epoch"] for one in results}) > 1
    assert len(cascade.documents(TENS)) == len(tens)

    wanted: dict[tuple[str, int], list[tuple[int, Decimal, float]]] = defaultdict(list)
    for (device, start_ms), (n, cost, count) in tens.items():
        wanted[device, start_ms // 60_000 * 60_000].append((n, cost, n / count))
    found = {(one["device"], millis(one["window"]["start"])): one for one in cascade.documents(MINUTES)}
    assert found.keys() == wanted.keys()
    for key, parts in wanted.items():
        n, cost, means = zip(*parts, strict=True)
        assert (found[key]["n"], Decimal(found[key]["cost"])) == (sum(n), sum(cost)), key
        assert found[key]["peak"] == pytest.approx(max(means), rel=1e-9)
    totals = cascade.ledger.totals(MINUTES)
    assert (totals.records, totals.accepted, totals.rejected) == (len(tens), len(tens), {})
    assert len(cascade.ledger.runs(TENS)) == len(cascade.ledger.runs(MINUTES)) == 2


@pytest.mark.guarantee("G771")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_reader_that_lags_when_its_emitter_leaves_the_stream_out_misses_no_result(cascade: Cascade) -> None:
    """The emitter has committed all its slices, and its new version emits to the index only, before the reader begins."""
    cascade.apply()
    cascade.start(TENS)
    for _ in range(4):  # several emissions
        cascade.send(PIECE_RECORDS)
        committed = cascade.ledger.slice_count(TENS)
        cascade.wait_for(lambda least=committed: cascade.ledger.slice_count(TENS) > least, "a slice of the emitter")
    cascade.drain(TENS)
    results = len(cascade.messages(TENS, 4))
    last = cascade.ledger.last_checkpoint(TENS)
    assert last is not None and last.slice > 3
    cascade.apply(DOCUMENTS.replace(f"{{stream: {TENS}}}, ", ""))
    assert lagging_readers(cascade.ledger, TENS) == {TENS: [MINUTES]}
    cascade.start(MINUTES, slice_rows_max=10)
    cascade.drain(MINUTES)
    totals = cascade.ledger.totals(MINUTES)
    assert (totals.records, totals.accepted, totals.rejected) == (results, results, {})
    ends = {tuple(sorted(row.result_offsets.get(TENS, {}).items())) for row in cascade.ledger.checkpoints(TENS)}
    slices = cascade.ledger.slices(MINUTES, 1, cascade.ledger.slice_count(MINUTES))
    cuts = {tuple(sorted(row.offsets[TENS].items())) for row in slices if row.offsets != row.offsets_first}
    assert len(cuts) > 2 and cuts <= ends


def millis(timestamp: str) -> int:
    return round(datetime.fromisoformat(timestamp).timestamp() * 1_000)
