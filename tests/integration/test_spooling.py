"""A stream that may be spooled, over a real Kafka that pauses, and with writers that are killed: what was accepted is in the
log, once, in order."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from strandline.core.record_headers import HEADER_EPOCH, HEADER_SEQUENCE, HEADER_WRITER
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.attempts import AttemptFinder, Outcome
from strandline.ingest.append.kafka_clients import KafkaClients
from strandline.ingest.append.spool import Attempt, SpooledRecord
from strandline.ingest.append.transactional_writer import TransactionalWriter
from strandline.ingest.append.worker_thread import WorkerThread
from strandline.ingest.append.writer import LogWriter
from strandline.log.topics import Topics
from strandline.services.processes.pids import PidFile
from tests.support.topic_reader import read_messages
from tests.support.waiting import stretched, wait_until

DEADLINE_S = 60
PARTITIONS = 4


class Sender:
    """A process of tests/support/spool_sender.py, and its output."""

    def __init__(self, kafka, topic, data_dir, first=0, pause_s=0.002):
        self.log = (data_dir / "sender.log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.spool_sender", kafka, topic, data_dir, str(first), str(pause_s)],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.lines = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True)
        self._reader.start()

    def accepted(self, where=None):
        # The last line may have been cut by a kill; what it meant to say was not heard.
        found = [line.split() for line in list(self.lines) if line.startswith("accepted") and line.endswith("\n")]
        return [int(number) + i for _, number, place in found if where in (None, place) for i in range(5)]

    def end(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        self.process.wait(stretched(DEADLINE_S))
        self._reader.join(stretched(DEADLINE_S))
        self._close()

    def wait_until_drained(self):
        try:
            assert self.process.wait(DEADLINE_S) == 0
        except (AssertionError, subprocess.TimeoutExpired) as error:
            self.process.kill()
            raise AssertionError(Path(self.log.name).read_text()[-5_000:]) from error
        self._reader.join(stretched(DEADLINE_S))
        self._close()
        assert "drained\n" in self.lines

    def _close(self):
        self.process.stdout.close()
        self.log.close()


@pytest.fixture
def topic(kafka):
    name = f"spooled-{uuid.uuid4().hex[:12]}"
    spec = StreamSpec.from_document({"stream": name, "partitions": PARTITIONS, "schema": {"n": "long"}})
    Topics(kafka, replication=1, record_bytes_max=1_000_000).ensure_stream_topic(spec)
    return name


@pytest.fixture
def pause(servers, kafka):
    """Kafka stops answering, as in a long pause or behind a cut, and goes on where it was."""
    pid = PidFile(servers.data_dir).alive()["kafka"]
    yield lambda is_paused: os.kill(pid, signal.SIGSTOP if is_paused else signal.SIGCONT)
    os.kill(pid, signal.SIGCONT)


def read_committed(kafka, topic):
    """(key, number) of everything committed, in the order of each partition."""
    messages = read_messages(kafka, topic, PARTITIONS, isolation="read_committed", within_s=DEADLINE_S)
    return [(message.key(), int(message.value())) for message in messages]


def check(found, accepted):
    """Nothing accepted is missing, nothing is there twice, and each key is in the order of sending."""
    times = Counter(number for _, number in found)
    assert [number for number in accepted if number not in times] == []
    assert [number for number, count in times.items() if count > 1] == []
    for key in {key for key, _ in found}:
        numbers = [number for other, number in found if other == key]
        assert numbers == sorted(numbers)


@pytest.mark.guarantee(
    "G43",
    "A spooled record gets into the log once, in the order of its stream, through pauses of Kafka and `kill -9` of "
    "the writer at any moment.",
    promise="records-are-stored-once-and-unchanged",
)
def test_what_is_accepted_while_kafka_is_away_gets_into_the_log_once_and_in_order(kafka, topic, pause, tmp_path):
    sender = Sender(kafka, topic, tmp_path)
    wait_until(lambda: len(sender.accepted("log")) > 500, what="records in the log")
    pause(True)
    wait_until(lambda: len(sender.accepted("spool")) > 500, what="records in the spool")
    pause(False)
    before = len(sender.accepted("log"))
    wait_until(lambda: len(sender.accepted("log")) > before + 500, what="records in the log again")
    sender.end()
    Sender(kafka, topic, tmp_path, pause_s=-1).wait_until_drained()
    assert not [line for line in sender.lines if line.startswith("refused")]
    check(read_committed(kafka, topic), sender.accepted())


@pytest.mark.guarantee("G43")
@pytest.mark.parametrize("kills", [3, pytest.param(8, marks=pytest.mark.long)])
def test_writers_that_are_killed_while_they_spool_and_drain_lose_nothing_and_repeat_nothing(
    kafka, topic, pause, tmp_path, kills
):
    accepted, ended = [], Counter()
    for kill in range(kills):
        sender = Sender(kafka, topic, tmp_path, first=kill * 1_000_000)
        wait_until(lambda s=sender: s.accepted(), what="a first acknowledgement")
        if kill % 2 == 0:
            pause(True)
            wait_until(lambda s=sender, few=200 + 100 * kill: len(s.accepted("spool")) > few, what="spooled records")
            if kill % 4 == 0:
                pause(False)
                time.sleep(0.15 * kill)  # sleeps: a kill while the writer fences, resolves, or drains
        else:
            wait_until(lambda s=sender: s.accepted("log"), what="records in the log")
            time.sleep(0.05 * kill)  # sleeps: the instant of the kill
        sender.end()
        pause(False)
        accepted += sender.accepted()
        ended.update({where: len(sender.accepted(where)) for where in ("log", "spool")})
    Sender(kafka, topic, tmp_path, pause_s=-1).wait_until_drained()
    assert ended["spool"] > 0
    assert ended["log"] > 0
    check(read_committed(kafka, topic), accepted)


def test_an_attempt_is_found_in_a_topic_that_was_made_anew(kafka, topic):
    """The offsets that were noted are of the topic before; nothing of it is sent a second time for that."""

    async def story():
        async with LogWriter(
            kafka, writer_id=topic, epoch=1, record_bytes_max=1_000, confirm_timeout_s=DEADLINE_S
        ) as writer:
            values = [(b"%d" % number, b"key-%d" % number) for number in range(20)]
            await writer.append(topic, values, received_ms=1, source=b"test", content_type=b"text/plain")
        thread = WorkerThread("kafka")
        finder = AttemptFinder(
            KafkaClients(
                kafka,
                writer_id=topic,
                record_bytes_max=1_000,
                confirm_timeout_s=DEADLINE_S,
                make_producer=Producer,
                make_consumer=Consumer,
                make_admin=AdminClient,
            ),
            thread,
        )
        try:
            attempt = Attempt(topic, 20, dict.fromkeys(range(PARTITIONS), 1_000))
            sent = [SpooledRecord(topic, 1, sequence, b"", None, []) for sequence in range(1, 21)]
            assert await finder.outcome_of(attempt, sent) is Outcome.ARRIVED
            later = [record._replace(epoch=2) for record in sent]
            assert await finder.outcome_of(attempt, later) is Outcome.ABSENT
        finally:
            thread.close()

    asyncio.run(story())


@pytest.mark.guarantee("G770")
def test_an_attempt_whose_records_were_deleted_from_the_log_is_unknown(kafka, topic):
    """With the transaction in one partition deleted, the records of another one still show that it has arrived."""

    async def story():
        clients = KafkaClients(
            kafka,
            writer_id=topic,
            record_bytes_max=1_000,
            confirm_timeout_s=DEADLINE_S,
            make_producer=Producer,
            make_consumer=Consumer,
            make_admin=AdminClient,
        )
        thread = WorkerThread("kafka")
        finder = AttemptFinder(clients, thread)
        attempt = Attempt(topic, 20, await finder.ends_of(topic))
        records = [spooled(topic, sequence) for sequence in range(1, 21)]
        writer = TransactionalWriter(clients, thread, confirm_timeout_s=DEADLINE_S, on_error=lambda _: None)
        try:
            await writer.open()
            await writer.commit(records)
            assert await finder.outcome_of(attempt, records) is Outcome.ARRIVED
            later = [record._replace(epoch=2) for record in records]
            assert await finder.outcome_of(attempt, later) is Outcome.ABSENT
            delete_all(kafka, topic, [0])
            assert await finder.outcome_of(attempt, records) is Outcome.ARRIVED
            delete_all(kafka, topic, range(PARTITIONS))
            assert await finder.outcome_of(attempt, records) is Outcome.UNKNOWN
            again = Attempt(topic, 20, await finder.ends_of(topic))
            assert await finder.outcome_of(again, later) is Outcome.UNKNOWN, "its known ends are older"
            finder.forget()
            again = Attempt(topic, 20, await finder.ends_of(topic))
            assert await finder.outcome_of(again, later) is Outcome.ABSENT, "nothing was deleted after it"
        finally:
            writer.drop()
            thread.close()

    asyncio.run(story())


def spooled(topic, sequence):
    headers = [(HEADER_WRITER, topic.encode()), (HEADER_EPOCH, b"1"), (HEADER_SEQUENCE, b"%d" % sequence)]
    return SpooledRecord(topic, 1, sequence, b"%d" % sequence, b"key-%d" % sequence, headers)


def delete_all(kafka, topic, partitions):
    """Delete the records of the partitions, as retention does."""
    admin = AdminClient({"bootstrap.servers": kafka})
    everything = [TopicPartition(topic, number, OFFSET_END) for number in partitions]
    for answer in admin.delete_records(everything).values():
        answer.result(stretched(DEADLINE_S))
