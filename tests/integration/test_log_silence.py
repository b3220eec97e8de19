"""Silence over a real Kafka: the planner with its index of the log, and a monotonic clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.ledger.ledger import Ledger
from strandline.ledger.states import EventTimeRule, SliceRow
from strandline.log.index import LogIndex
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.slices.planner import InputStream, PlannerSettings, SlicePlanner
from strandline.processing.slices.silence import SilenceMeter
from strandline.processing.slices.watermark import (
    accepted_in_after,
    accepted_partitions,
    closes_after,
    reached_after,
)
from tests.support.ledgers import a_checkpoint
from tests.support.waiting import wait_until

JOB = "power"
RULE = EventTimeRule(delay_ms=1_000, idle_timeout_ms=30_000)
HOUR = WindowShape(3_600_000, 3_600_000)


class Lab:
    """A topic of two partitions, and a job that reads it without Spark. A record's value is its event time."""

    def __init__(self, kafka: str, stream: str, ledger: Ledger) -> None:
        self.kafka, self.stream, self.ledger = kafka, stream, ledger
        self.now_ms = 0
        self.index = LogIndex(kafka)
        admin = AdminClient({"bootstrap.servers": kafka})
        admin.create_topics([NewTopic(stream, 2, 1)])[stream].result()
        ledger.put_stream(stream, {"stream": stream})
        ledger.submit_job(JOB, "pipeline: power", {"pipeline": JOB})
        self.epoch = ledger.begin_run(JOB, 1).epoch
        settings = PlannerSettings(JOB, 1, self.epoch, (InputStream(stream),), 1_000, RULE, (HOUR,))
        self.planner = SlicePlanner(settings, ledger, self.index, silence=SilenceMeter(lambda: self.now_ms))

    def producer(self, **settings: str) -> Producer:
        return Producer({"bootstrap.servers": self.kafka, **settings})

    def send(self, producer: Producer, partition: int) -> None:
        producer.produce(self.stream, b"", partition=partition)
        assert producer.flush(20) == 0

    def commit(self, row: SliceRow, latest_ms: dict[int, int]) -> None:
        reached = reached_after(row.reached, {self.stream: latest_ms})
        came = accepted_partitions(row, {self.stream: latest_ms})
        self.ledger.commit_checkpoint(
            a_checkpoint(
                row.number,
                self.epoch,
                emitted={},
                reached=reached,
                closes_ms=closes_after(row, reached, came),
                result_offsets={},
                accepted_in=accepted_in_after(self.ledger.last_checkpoint(JOB), came, row.number),
            )
        )

    def looks(self, seconds: int) -> list[SliceRow]:
        """Return what is planned with one look per second."""
        planned = []
        for _ in range(seconds):
            self.now_ms += 1_000
            planned += [row] if (row := self.planner.next_slice()) is not None else []
        return planned

    def next_slice(self) -> SliceRow:
        """Once its records can be read. The clock stands still."""
        row = wait_until(self.planner.next_slice, lambda row: row is not None, "a slice")
        assert row is not None
        return row


@pytest.fixture
def lab(kafka: str, request: pytest.FixtureRequest, tmp_path) -> Iterator[Lab]:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    lab = Lab(kafka, request.node.name.replace("_", "-")[:80], ledger)
    for partition in (0, 1):
        lab.send(lab.producer(), partition)
    lab.commit(lab.next_slice(), {0: 100_000, 1: 90_000})
    yield lab
    lab.index.close()
    ledger.close()


@pytest.mark.guarantee("G24")
def test_behind_a_transaction_that_hangs_there_is_no_silence(lab: Lab) -> None:
    """Another program's transaction is open in partition 1 for ten minutes; what a sensor sends there meanwhile can't be read
    before it is over, and is not late then. Partition 0 goes on."""
    hanging = lab.producer(**{"transactional.id": f"{lab.stream}-hangs"})
    hanging.init_transactions(20)
    hanging.begin_transaction()
    lab.send(hanging, 1)
    sensor = lab.producer()
    lab.send(sensor, 1)
    assert lab.looks(300) == []
    lab.send(sensor, 0)
    row = lab.next_slice()
    assert row.silence_ms == {lab.stream: {0: 299_000}}, "it ends with the record of partition 0, which is in the slice"
    lab.commit(row, {0: 700_000})
    assert lab.looks(300) == []
    hanging.abort_transaction(20)
    row = lab.next_slice()
    assert (row.offsets[lab.stream][1], row.silence_ms) == (4, {lab.stream: {0: 299_000}}), (
        "the record of the transaction, the sensor's, and the mark of the end"
    )
    assert row.watermark_ms == 90_000 - RULE.delay_ms
