"""What a run finds of results that its ledger can't know: in real topics and in a real index."""

from __future__ import annotations

from confluent_kafka import Message, Producer

from strandline.core.record_headers import HEADER_JOB
from strandline.log.index import LogIndex
from strandline.log.messages import last_records
from strandline.processing.emission.result_stream_writer import result_header
from strandline.results.elasticsearch_client import request
from strandline.results.newer_documents import newer_document
from tests.integration.test_log_reader import make_topic

AFTER_MS = 1_714_564_800_000
"""2024-05-01T12:00:00Z."""


def test_the_last_records_are_found_behind_other_records_and_aborted_ones(kafka: str) -> None:
    topic = "tail-of-results"
    make_topic(kafka, topic, 2)
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": "tail", "log_level": 3})
    producer.init_transactions(30)

    def write(job: str, count: int, *, commits: bool) -> None:
        producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, str(number), partition=0, headers=[(HEADER_JOB, job.encode())])
        producer.flush(30)
        producer.commit_transaction(30) if commits else producer.abort_transaction(30)

    def found(since: int) -> list[bytes | None]:
        messages = last_records(kafka, LogIndex(kafka), topic, {0: since}, is_of_job)
        return [message.value() for message in messages]

    def is_of_job(message: Message) -> bool:
        return result_header(message, HEADER_JOB) == "power"

    assert found(0) == []
    write("power", 3, commits=True)
    write("other", 700, commits=True)
    write("power", 900, commits=False)
    assert found(0) == [b"0", b"1", b"2"]
    assert found(3) == [], "only what stands after the checkpoint"
    assert last_records(kafka, LogIndex(kafka), "no-such-topic", {}, is_of_job) == []


def test_a_newer_document_is_found_before_it_is_refreshed(elasticsearch: str) -> None:
    def write(index: str, at: str, job: str, epoch: int, emission: int, digest: str = "") -> None:
        document = {"@timestamp": at, "strandline": {"job": job, "epoch": epoch, "emission": emission}}
        document["strandline"] |= {"slice_digest": digest} if digest else {}  # type: ignore[operator]
        request(elasticsearch, "POST", f"/{index}/_doc", timeout_s=30, body=document)

    def found(epoch: int = 3, emission: int = 10) -> tuple[int, int] | None:
        bounds = {"epoch": epoch, "emission": emission, "after_ms": AFTER_MS}
        assert newer_document(elasticsearch, "none", "power", **bounds) is None
        origin = newer_document(elasticsearch, "newer", "power", **bounds)
        return (origin["epoch"], origin["emission"]) if origin else None

    origin = {"properties": {"job": {"type": "keyword"}, "slice_digest": {"type": "keyword"}}}
    settings = {"settings": {"index": {"refresh_interval": -1}}, "mappings": {"properties": {"strandline": origin}}}
    for index in ("newer-2024.04", "newer-2024.05", "newer.g2-2024.05", "newer-other-2024.05"):
        request(elasticsearch, "PUT", f"/{index}", timeout_s=30, body=settings)
    write("newer-2024.05", "2024-05-01T12:01:00.000Z", "power", 3, 10)
    write("newer-2024.05", "2024-05-01T12:01:00.000Z", "other", 9, 99)
    write("newer-2024.04", "2024-04-01T12:01:00.000Z", "power", 9, 99)
    write("newer.g2-2024.05", "2024-05-01T12:01:00.000Z", "power", 9, 99)
    assert found() is None, "not of other jobs, of backfills, or of windows that were emitted before"
    write("newer-2024.05", "2024-05-01T12:02:00.000Z", "power", 3, 11)
    assert found() == (3, 11)
    assert found(epoch=2, emission=11) == (3, 11) or found(epoch=2, emission=11) == (3, 10)
    assert found(emission=11) is None
    bounds = {"epoch": 3, "emission": 12, "after_ms": AFTER_MS}
    write("newer-2024.05", "2024-05-01T12:03:00.000Z", "power", 3, 12, "aaaa")
    assert newer_document(elasticsearch, "newer", "power", digests={11: "bbbb", 12: "aaaa"}, **bounds) is None
    origin = newer_document(elasticsearch, "newer", "power", digests={11: "bbbb", 12: "cccc"}, **bounds)
    assert origin is not None and origin["slice_digest"] == "aaaa", "a slice that was planned again under its number"
