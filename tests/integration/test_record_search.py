"""Records of a stream are found by device, log time, and payload, in a real Kafka."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.core.record_headers import HEADER_SOURCE
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.log.kafka_status import KafkaStatus
from strandline.services.jobs.record_search import RecordSearch, Wanted
from strandline.services.processes.limited_work import run_here

START_MS = 1_790_000_000_000
STEP_MS = 1_000
PUMPS = 3
COUNT = 60


@pytest.fixture
def stream(kafka: str) -> str:
    """A topic with a record of each pump in turn, one per second, in two partitions; the newest one is broken, from a sender."""
    name = f"pumps-{uuid.uuid4().hex[:10]}"
    admin = AdminClient({"bootstrap.servers": kafka})
    topic = NewTopic(name, 2, 1, config={"message.timestamp.type": "CreateTime", "retention.ms": "-1"})
    admin.create_topics([topic])[name].result()
    producer = Producer({"bootstrap.servers": kafka})
    for at in range(COUNT):
        value = json.dumps({"pump": f"P{at % PUMPS}", "flow": at}).encode()
        producer.produce(name, value, partition=at % 2, timestamp=START_MS + at * STEP_MS)
    broken_ms = START_MS + COUNT * STEP_MS
    producer.produce(name, b'{"pump": ', partition=0, timestamp=broken_ms, headers={HEADER_SOURCE: b"tcp:10.0.0.9"})
    assert producer.flush(30) == 0
    return name


@pytest.fixture
def search(kafka: str, stream: str, tmp_path: Path) -> Iterator[RecordSearch]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    schema = {"pump": "string", "flow": "long"}
    document = StreamSpec.from_document(
        {"stream": stream, "partitions": 2, "schema": schema, "key": "pump"}
    ).as_document()
    ledger.put_stream(stream, document)
    yield RecordSearch(ledger, KafkaStatus(kafka), run_here)
    ledger.close()


def test_the_newest_records_come_first_with_their_fields(search: RecordSearch, stream: str) -> None:
    found = search.find(stream, Wanted(), 3)
    assert [(one.log_time_ms - START_MS) // STEP_MS for one in found.page] == [60, 59, 58]
    broken, newest, _ = found.page
    assert (broken.rows, broken.device, broken.text) == ([], "tcp:10.0.0.9", '{"pump": ')
    assert broken.reason is not None
    assert broken.reason.startswith("decode: ")
    assert (newest.partition, newest.offset, newest.device) == (1, 29, "P2")
    assert (newest.rows, newest.reason) == ([{"pump": "P2", "flow": 59}], None)
    assert not found.is_complete, "only the newest records were read"


def test_a_device_is_found_in_a_range_of_log_time(search: RecordSearch, stream: str) -> None:
    wanted = Wanted("p1", from_ms=START_MS + 10 * STEP_MS, to_ms=START_MS + 20 * STEP_MS)
    found = search.find(stream, wanted, 100)
    assert [one.rows[0]["flow"] for one in found.page] == [19, 16, 13, 10]
    assert (found.is_complete, found.records_read, found.from_ms) == (True, 10, START_MS + 10 * STEP_MS)
    assert search.find(stream, wanted._replace(from_ms=START_MS + COUNT * 2 * STEP_MS, to_ms=None), 9).matches == 0


@pytest.mark.parametrize("payload", [b'{"flow":7,"pump":"P1"}', b' {"pump": "P1", "flow": 7}\n'], ids=["other", "same"])
def test_a_payload_is_found_however_its_json_is_written(search: RecordSearch, stream: str, payload: bytes) -> None:
    found = search.find(stream, Wanted(value=payload), 10)
    assert [(one.partition, one.offset) for one in found.page] == [(1, 3)]
    assert (found.matches, found.is_complete, found.records_read) == (1, True, COUNT + 1)


def test_a_payload_that_is_no_json_is_compared_by_its_bytes(search: RecordSearch, stream: str) -> None:
    assert [one.offset for one in search.find(stream, Wanted(value=b'{"pump": '), 10).page] == [30]
    assert search.find(stream, Wanted(value=b'{"pum": '), 10).matches == 0
