"""The index of dead letters holds what the dead-letter stream holds, each once, whatever kills the one that copies."""

from __future__ import annotations

import base64
import json
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Message

from strandline.ledger.ledger import Ledger
from strandline.log.index import LogIndex
from strandline.log.kafka_status import KafkaStatus
from strandline.log.topics import Topics
from strandline.processing.emission.dead_letters import DeadLetter, DeadLetterWriter
from strandline.results.dead_letters.documents import BYTES_MAX, DEAD_LETTER_MAPPING
from strandline.results.document import DocumentShape
from strandline.results.mapping import build_mapping, ensure_index_template
from strandline.services.jobs.job_status import present_pipeline
from strandline.services.jobs.result_views import kibana_objects
from strandline.services.supervision import dead_letter_copies
from strandline.services.supervision.dead_letter_copies import DeadLetterCopies
from tests.support.control import BOTH, Api
from tests.support.lens import counted, faults, panels, search
from tests.support.topic_reader import read_messages
from tests.support.waiting import stretched

LETTERS = 650
RECORD_BYTES_MAX = 1_000_000
DAY_MS = 86_400_000
KILLED = """
import os, signal, sys
from strandline.ledger.ledger import Ledger
from strandline.log.kafka_status import KafkaStatus
from strandline.results.dead_letters.index import DeadLetterIndex
from strandline.services.supervision import dead_letter_copies

ledger, kafka, elasticsearch, at = sys.argv[1:]
create, calls = DeadLetterIndex.create, []

def create_and_die(self, documents):
    calls.append(create(self, documents))
    if len(calls) == int(at):
        os.kill(os.getpid(), signal.SIGKILL)
    return calls[-1]

DeadLetterIndex.create = create_and_die
dead_letter_copies.LETTERS_AT_ONCE = 300
dead_letter_copies.DeadLetterCopies(Ledger.open(ledger), lambda job: True, KafkaStatus(kafka), elasticsearch).copy()
"""


class Lab:
    """A job whose dead letters are to be in an index, and what copies them."""

    def __init__(self, directory: Path, kafka: str, elasticsearch: str) -> None:
        self.kafka, self.url = kafka, elasticsearch
        self.ledger_url = f"sqlite:///{directory / 'ledger.sqlite'}"
        self.ledger = Ledger.open(self.ledger_url)
        self.client = httpx.Client(base_url=elasticsearch, timeout=60, trust_env=False)
        self.job = f"copied-{uuid.uuid4().hex[:8]}"
        self.index = f"{self.job}.dead-letters"
        self.apply("{index: true}")
        Topics(kafka, replication=1, record_bytes_max=RECORD_BYTES_MAX).ensure_dead_letter_topic(self.job)
        self.written = 0

    def close(self) -> None:
        self.client.delete(f"/{self.index}")
        self.client.close()
        self.ledger.close()

    def apply(self, dead_letters: str) -> None:
        text = BOTH.replace("pipeline: power", f"pipeline: {self.job}").replace("turbine-minute", f"{self.job}-minute")
        answer = Api(self.ledger).apply(f"{text}dead_letters: {dead_letters}\n")
        assert answer.status_code == 200, answer.text

    def write(self, count: int) -> None:
        """Dead letters of several kinds and sizes, in transactions, whose ends take places of the stream, too."""
        chance = random.Random(self.written)
        numbers = range(self.written, self.written + count)
        letters = [
            DeadLetter.of_document(
                f"{self.job}-2026.11", f"id-{n}", b'{"n": "wide"}', "result", "no number", "per_minute"
            )
            if n % 10 == 0
            else DeadLetter.of_record(
                "turbines",
                n % 4,
                n,
                chance.randbytes(chance.choice([0, 1, 50, 3_000, BYTES_MAX + 1])),
                "decode",
                "é" * 9,
                "decode",
            )
            for n in numbers
        ]
        writer = DeadLetterWriter(
            self.kafka,
            self.job,
            f"{self.job}.dead-letter.record-0",
            1,
            lambda _: None,
            record_bytes_max=RECORD_BYTES_MAX,
        )
        for first in range(0, count, 100):
            writer.write(letters[first : first + 100], {0: 0})
        self.written += count
        with LogIndex(self.kafka) as log:  # Kafka confirms a commit before readers see it
            log.settled_ends(f"{self.job}.dead-letter")

    def copies(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> DeadLetterCopies:
        return DeadLetterCopies(self.ledger, lambda job: True, KafkaStatus(self.kafka), self.url, now_ms)

    def copy_and_be_killed(self, at: int) -> None:
        command = [sys.executable, "-c", KILLED, self.ledger_url, self.kafka, self.url, str(at)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=stretched(120), check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr

    def held(self) -> dict[str, dict[str, Any]]:
        """Every document by its id. Fails when one was ever overwritten."""
        self.client.post(f"/{self.index}/_refresh").raise_for_status()
        asked = {"size": 10_000, "version": True}
        hits = self.client.post(f"/{self.index}/_search", json=asked).raise_for_status().json()["hits"]["hits"]
        assert {hit["_version"] for hit in hits} <= {1}
        return {hit["_id"]: hit["_source"] for hit in hits}

    def in_topic(self) -> list[Message]:
        return read_messages(self.kafka, f"{self.job}.dead-letter", 1, isolation="read_committed")


@pytest.fixture
def lab(tmp_path: Path, kafka: str, elasticsearch: str) -> Iterator[Lab]:
    lab = Lab(tmp_path, kafka, elasticsearch)
    yield lab
    lab.close()


def require_equal(held: dict[str, dict[str, Any]], messages: list[Message]) -> None:
    """Each message is one document, with its place, its time, its headers and its bytes."""
    by_number = {one["number"]: one for one in held.values()}
    assert len(held) == len(by_number) == len(messages)
    for message in messages:
        told, value = by_number[message.offset()], message.value()
        for name, header in message.headers() or []:
            assert str(told[name]) == header.decode()
        assert told["size"] == len(value)
        assert base64.b64decode(told.get("bytes", "")) == (value if len(value) <= BYTES_MAX else b"")
        assert told.get("text", "") == value.decode("utf-8", "backslashreplace")[:8_192]
        moment_ms = message.timestamp()[1]
        assert told["@timestamp"].startswith(time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment_ms / 1000)))


@pytest.mark.long
@pytest.mark.guarantee(
    "G196",
    "With `dead_letters: {index: true}`, each dead letter is in the index once, equal to the dead-letter stream, "
    "through any kill. None is in an alias of results, and the index is bounded by the document. A job neither waits "
    "for the index nor fails because of it.",
    promise="each-rejected-record-is-one-dead-letter",
)
def test_killed_between_any_two_requests_each_dead_letter_is_there_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after documents were created and before this is recorded: in the first piece, and in a later one."""
    monkeypatch.setattr(dead_letter_copies, "LETTERS_AT_ONCE", 300)
    lab.write(LETTERS)
    for at in (1, 4):
        lab.copy_and_be_killed(at)
        assert 0 < len(lab.held()) < LETTERS
    created = lab.copies().copy()
    assert 0 < created < LETTERS
    require_equal(lab.held(), lab.in_topic())
    assert lab.copies().copy() == 0
    lab.write(20)
    assert lab.copies().copy() == 20
    require_equal(lab.held(), lab.in_topic())
    mapping = lab.client.get(f"/{lab.index}/_mapping").json()[lab.index]["mappings"]
    assert mapping["properties"] == json.loads(json.dumps(DEAD_LETTER_MAPPING["properties"]))


@pytest.mark.guarantee("G196")
def test_what_the_index_would_not_keep_is_not_copied_and_what_it_kept_too_long_goes(lab: Lab) -> None:
    lab.write(200)
    assert lab.copies().copy() == 200
    assert len(lab.held()) == 200  # searches find them now
    lab.apply("{index: true, max_documents: 50}")
    assert lab.copies().copy() == 0
    newest = [message.offset() for message in lab.in_topic()]
    held = {one["number"] for one in lab.held().values()}
    assert held == {number for number in newest if number >= newest[-1] + 2 - 50}, (
        "the end of a transaction is the last"
    )
    lab.apply("{index: true, retention: 1d}")
    lab.copies(lambda: time.time_ns() // 1_000_000 + 2 * DAY_MS).copy()
    assert lab.held() == {}
    lab.client.delete(f"/{lab.index}").raise_for_status()
    lab.apply("{index: true, max_documents: 50}")
    assert lab.copies().copy() == len(held), "no more than would be kept"


def test_an_index_that_was_deleted_is_filled_again(lab: Lab) -> None:
    lab.write(30)
    assert lab.copies().copy() == 30
    lab.client.delete(f"/{lab.index}").raise_for_status()
    assert lab.copies().copy() == 30
    require_equal(lab.held(), lab.in_topic())


@pytest.mark.guarantee("G196")
def test_dead_letters_are_never_among_the_results_of_an_alias_that_is_named_like_the_job(lab: Lab) -> None:
    """The template of `copied` makes every index `copied-*` a part of its alias."""
    shape = DocumentShape("copied", "job", "stage", 1, (), (("n", "long"),))
    ensure_index_template(lab.url, "copied", build_mapping(shape))
    try:
        lab.write(10)
        assert lab.copies().copy() == 10
        assert lab.client.get(f"/{lab.index}/_alias").json()[lab.index]["aliases"] == {
            f"{lab.index}.write": {"is_hidden": True}
        }
    finally:
        lab.client.delete("/_index_template/strandline-copied").raise_for_status()


def test_what_kibana_searches_for_finds_each_dead_letter(lab: Lab) -> None:
    """The panels of the dashboard, and a search for a word of a text."""
    lab.write(100)
    assert lab.copies().copy() == len(lab.held()) == 100
    job = lab.ledger.job(lab.job)
    pipeline = present_pipeline(lab.ledger, job)
    found = [panel for panel in panels(kibana_objects(pipeline)) if panel.alias == lab.index]
    assert [panel.title for panel in found] == [
        "dead letters", "late records and other dead letters by reason", "dead letters: why",
    ]  # fmt: skip
    mapping = lab.client.get(f"/{lab.index}/_mapping").json()[lab.index]["mappings"]
    for panel in found:
        assert faults(panel, mapping) == []
        answer = lab.client.post(f"/{lab.index}/_search", json=search(panel)).json()
        assert counted(answer) == 100, panel.title
    by_reason = lab.client.post(f"/{lab.index}/_search", json=search(found[1])).json()["aggregations"]
    ((_, reasons),) = by_reason.items()
    assert {one["key"]: one["doc_count"] for one in reasons["buckets"]} == {"decode": 90, "result": 10}
    word = lab.client.post(f"/{lab.index}/_search", json={"query": {"match": {"text": "wide"}}}).json()
    assert {hit["_source"]["reason"] for hit in word["hits"]["hits"]} == {"result"}


def test_without_the_option_nothing_is_copied_and_what_is_there_stays(lab: Lab) -> None:
    lab.write(10)
    assert lab.copies().copy() == 10
    lab.apply("{index: false}")
    lab.write(10)
    assert lab.copies().copy() == 0
    assert len(lab.held()) == 10
