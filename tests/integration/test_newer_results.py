"""A run finds results that its ledger can't know, in real topics and in a real index."""

from __future__ import annotations

import pytest
from confluent_kafka import Message, Producer

from strandline.core.errors import Conflict
from strandline.core.record_headers import HEADER_JOB
from strandline.log.index import LogIndex
from strandline.log.messages import last_records
from strandline.processing.emission.result_stream_writer import result_header
from strandline.results.document import DocumentShape
from strandline.results.elasticsearch_client import request
from strandline.results.generations import hide_older, newest_generation
from strandline.results.index_settings import INDEX_SETTINGS_DEFAULT
from strandline.results.mapping import build_mapping, ensure_index_template, make_index
from strandline.results.newer_documents import (
    count_emission_range,
    count_emissions,
    newer_document,
    unknown_generation,
)
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
    assert found(3) == [], "only results after the checkpoint"
    assert last_records(kafka, LogIndex(kafka), "no-such-topic", {}, is_of_job) == []


@pytest.mark.guarantee("G28")
@pytest.mark.guarantee("G763")
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


@pytest.mark.guarantee("G766")
def test_a_generation_that_the_ledger_does_not_contain_is_found_and_no_older_one_is_shown_again(
    elasticsearch: str,
) -> None:
    """The ledger is from before a reset, whose results are generation 2."""
    mapping = build_mapping(DocumentShape("lived", "power", "tens", 1, (), (("n", "long"),)))
    at = {"settings": INDEX_SETTINGS_DEFAULT, "is_shown": True}
    make_index(elasticsearch, "lived-2026.10", "lived", mapping, **at)
    make_index(elasticsearch, "lived.g2-2026.10", "lived", mapping, **at)
    hide_older(elasticsearch, "lived", 2)
    assert newest_generation(elasticsearch, ["none", "lived"]) == 2
    assert unknown_generation(elasticsearch, "lived", "power", set(), 1) is None, "it contains nothing of the job"
    origin = {"job": "power", "stage": "tens", "version": 1, "epoch": 1, "emission": 9}
    document = {"@timestamp": "2026-10-01T00:00:00.000Z", "n": 1, "strandline": origin}
    request(elasticsearch, "POST", "/lived.g2-2026.10/_doc", timeout_s=30, body=document)
    assert unknown_generation(elasticsearch, "lived", "power", set(), 1) == 2
    assert unknown_generation(elasticsearch, "lived", "power", {2}, 1) is None
    assert unknown_generation(elasticsearch, "lived", "power", set(), 2) is None
    with pytest.raises(Conflict, match="the alias shows generation 2, which replaced the results in this index"):
        ensure_index_template(elasticsearch, "lived", mapping)
    shown = request(elasticsearch, "GET", "/_alias/lived", timeout_s=30)
    assert list(shown) == ["lived.g2-2026.10"]


@pytest.mark.guarantee("G764")
def test_documents_are_counted_by_emission_before_a_refresh(elasticsearch: str) -> None:
    mapping = build_mapping(DocumentShape("counted", "power", "tens", 1, (), (("n", "long"),)))
    make_index(elasticsearch, "counted-2026.10", "counted", mapping, is_shown=True, settings=INDEX_SETTINGS_DEFAULT)
    for emission in (3, 5, 5, 7):
        origin = {"job": "power", "stage": "tens", "version": 1, "epoch": 1, "emission": emission}
        document = {"@timestamp": "2026-10-01T00:00:00.000Z", "n": 1, "strandline": origin}
        request(elasticsearch, "POST", "/counted-2026.10/_doc", timeout_s=30, body=document)
        assert (count_emissions(elasticsearch, "counted-2026.10", "power", 1) or {}).get(emission)
    assert count_emissions(elasticsearch, "counted-2026.10", "power", 4) == {5: 2, 7: 1}
    assert count_emission_range(elasticsearch, "counted-2026.10", "power", 3, 5) == 3
    assert count_emission_range(elasticsearch, "counted-2026.10", "power", 5, None) == 3
    assert count_emissions(elasticsearch, "counted-2026.10", "other", 1) == {}
    assert count_emissions(elasticsearch, "counted-2026.11", "power", 1) is None
    request(elasticsearch, "POST", "/counted-2026.10/_close", timeout_s=30)
    assert count_emission_range(elasticsearch, "counted-2026.10", "power", 1, None) is None
