"""Results get into a stream once, whatever earlier attempts left there: half done, open, or still alive."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Message, Producer

from strandline.core.errors import Divergence, Fenced, LogUnavailable, RecordTooLarge
from strandline.log.index import LogIndex
from strandline.log.topics import Topics
from strandline.log.transactions import TransactionSlot, fence_producer, fence_producers
from strandline.processing.emission.result_stream_writer import (
    ResultStream,
    ResultStreamWriter,
    StreamWriteContext,
    result_header,
)
from strandline.processing.emission.transactional_ids import id_of_result_stream
from strandline.results.document import Document, DocumentShape
from strandline.results.writer import WriteReport
from tests.integration.test_log_reader import make_topic
from tests.support.stage_batches import MAY_1_NOON_MS, MINUTE_MS, stage_batch
from tests.support.topic_reader import read_messages
from tests.support.waiting import stretched, wait_until

FIELDS = (("device", "string"), ("n", "long"))
PARTITIONS = 3
RECORD_BYTES_MAX = 1_000_000
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


class Stage:
    """A stage that emits to one stream. `epoch` is the job's current run."""

    def __init__(self, kafka: str, name: str) -> None:
        make_topic(kafka, name, PARTITIONS)
        self.kafka, self.name, self.epoch = kafka, name, 1
        shape = DocumentShape(name, "job", "stage", 1, FIELDS[:1], FIELDS[1:], is_stream=True)
        self.stream = ResultStream(kafka, shape, "device", RECORD_BYTES_MAX)

    def attempt(self, slot: int = 0, before: int = 0) -> ResultStreamWriter:
        return ResultStreamWriter(self.stream, self.place(slot, before), self.require_present)

    def write(
        self,
        devices: str,
        *,
        slot: int = 0,
        epoch: int = 1,
        emission: int = 1,
        attempt: ResultStreamWriter | None = None,
    ) -> WriteReport:
        """One result for each letter; those of later emissions are of later windows."""
        writer = attempt or self.attempt(slot)
        starts_ms = [MAY_1_NOON_MS + emission * MINUTE_MS] * len(devices)
        rows = [(device, ord(device)) for device in devices]
        return writer.write_batches([stage_batch(FIELDS, rows, starts_ms=starts_ms)], epoch, emission)

    def write_random(self, characters: int) -> WriteReport:
        """Write one result that can't be compressed. Its key has this length, and is in the result too."""
        device = "".join(random.Random(1).choices(LETTERS, k=characters))
        writer = ResultStreamWriter(self.stream, self.place(0), self.require_present)
        return writer.write_batches([stage_batch(FIELDS, [(device, 1)])], 1, 1)

    def place(self, slot: int, before: int = 0) -> StreamWriteContext:
        return StreamWriteContext(slot, dict.fromkeys(range(PARTITIONS), before))

    def require_present(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise Fenced(f"run {epoch} is over")

    def messages(self) -> list[Message]:
        return read_messages(self.kafka, self.name, PARTITIONS, isolation="read_committed")

    def held(self) -> list[tuple[str, str]]:
        """(emission, device) of each record, sorted."""
        return sorted((result_header(m, "strandline-emission"), (m.key() or b"").decode()) for m in self.messages())

    def killed_after(self, devices: str, slot: int, *, has_committed: bool) -> Producer:
        """Return the producer of an attempt that was killed.

        Keep it: if it is garbage-collected, its transaction ends.
        """
        writer = ResultStreamWriter(self.stream, self.place(slot), self.require_present)
        producer = fence_producer(self.kafka, *self.slot(slot))
        batch = stage_batch(
            FIELDS, [(d, ord(d)) for d in devices], starts_ms=[MAY_1_NOON_MS + MINUTE_MS] * len(devices)
        )
        producer.begin_transaction()
        for document in self.stream.shape.documents(batch, 1, 1):
            headers = [("strandline-emission", b"1"), ("strandline-id", document.id.encode())]
            producer.produce(self.name, document.source, writer._find_key(document.source), headers=headers)
        assert producer.flush(30) == 0
        if has_committed:
            producer.commit_transaction(30)
        return producer

    def slot(self, number: int) -> tuple[str, str]:
        return id_of_result_stream("job", "stage", self.name, number), self.name


def test_a_result_is_a_record_with_key_headers_and_flat_times(kafka: str) -> None:
    stage = Stage(kafka, "results-look")
    assert stage.write("a", epoch=1, emission=7).created == 1
    (message,) = stage.messages()
    assert message.key() == b"a"
    headers = dict(message.headers() or ())
    assert headers.pop("strandline-id") != b""
    assert headers == {
        "strandline-job": b"job",
        "strandline-stage": b"stage",
        "strandline-emission": b"7",
        "strandline-epoch": b"1",
    }
    assert message.value() == (
        b'{"@timestamp":"2024-05-01T12:08:00.000Z",'
        b'"window":{"start":"2024-05-01T12:07:00.000Z","end":"2024-05-01T12:08:00.000Z"},'
        b'"window_start":"2024-05-01T12:07:00.000Z","window_end":"2024-05-01T12:08:00.000Z","device":"a","n":97,'
        b'"strandline":{"job":"job","stage":"stage","version":1,"epoch":1,"emission":7}}'
    )


def test_equal_keys_stand_in_one_partition_where_gateways_put_them(kafka: str) -> None:
    stage = Stage(kafka, "results-keys")
    for emission in (1, 2):
        stage.write("abcdefgh", emission=emission)
    gateway = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "partitioner": "murmur2_random"})
    for device in "abcdefgh":
        gateway.produce(stage.name, b"{}", device.encode())
    assert gateway.flush(30) == 0
    places: dict[bytes, set[int]] = {}
    for message in stage.messages():
        places.setdefault(message.key() or b"", set()).add(message.partition() or 0)
    assert len(places) == 8 and all(len(partitions) == 1 for partitions in places.values())


def test_twice_is_once(kafka: str) -> None:
    """By another attempt of the same run, and by another run."""
    stage = Stage(kafka, "results-twice")
    assert stage.write("abc").created == 3
    report = stage.write("abcd")
    assert (report.created, report.already) == (1, 3)
    stage.epoch = 2
    assert stage.write("abcd", epoch=2).already == 4
    assert stage.held() == [("1", device) for device in "abcd"]


@pytest.mark.guarantee(
    "G9",
    "A document is created once and never overwritten, unless its pipeline revises it by late records (G585). Another "
    "value under the same id is an alarm, in an index and in a stream of results.",
    promise="each-result-exists-once-with-the-right-value",
)
def test_another_value_under_the_same_id_is_an_alarm_and_writes_nothing(kafka: str) -> None:
    """Also if results of other slots are between those that are compared."""
    stage = Stage(kafka, "results-diverging")
    stage.write("abc")
    stage.write("def", slot=1)
    stage.epoch = 2
    starts_ms = [MAY_1_NOON_MS + MINUTE_MS] * 3
    rows = stage_batch(FIELDS, [("a", ord("a")), ("c", 7), ("g", ord("g"))], starts_ms=starts_ms)
    with pytest.raises(
        Divergence, match=r"1 results differ.*results-diverging.*n is 99 in the stream, this run computed 7"
    ):
        stage.attempt().write_batches([rows], 2, 1)
    assert stage.held() == [("1", device) for device in "abcdef"]
    assert [json.loads(m.value() or b"")["n"] for m in stage.messages() if m.key() == b"c"] == [99]


def test_one_attempt_may_write_many_batches_and_looks_once_what_is_there(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[TransactionSlot] = []
    look = TransactionSlot._read_there

    def counted(self: TransactionSlot) -> dict[str, tuple[int, int]]:
        looks.append(self)
        return look(self)

    monkeypatch.setattr(TransactionSlot, "_read_there", counted)
    stage = Stage(kafka, "results-many")
    stage.write("ad")
    attempt = stage.attempt()
    assert [stage.write(devices, attempt=attempt).created for devices in ("abc", "def", "ghi")] == [2, 2, 3]
    assert len(looks) == 2, "one for each attempt"
    assert stage.held() == [("1", device) for device in "abcdefghi"]


def test_of_two_attempts_at_one_slot_the_one_that_came_later_writes(kafka: str) -> None:
    stage = Stage(kafka, "results-attempts")
    first, second = stage.attempt(), stage.attempt()
    stage.write("ab", attempt=first)
    assert stage.write("abc", attempt=second).already == 2
    with pytest.raises(LogUnavailable, match="fenced"):
        stage.write("cd", attempt=first)
    assert stage.write("d", attempt=second).created == 1
    assert stage.held() == [("1", device) for device in "abcd"]


def test_an_attempt_that_was_killed_after_its_commit_is_found(kafka: str) -> None:
    stage = Stage(kafka, "results-committed")
    killed = stage.killed_after("ab", 0, has_committed=True)
    report = stage.write("abc")
    assert (report.created, report.already) == (1, 2)
    assert stage.held() == [("1", device) for device in "abc"]
    del killed


@pytest.mark.guarantee("G72")
def test_what_stands_behind_another_slots_open_transaction_is_found(kafka: str) -> None:
    """The reader waits until that slot is taken over too: before, its outcome is unknown."""
    stage = Stage(kafka, "results-open")
    killed = [
        stage.killed_after("abc", 0, has_committed=False),
        stage.killed_after("abcdef", 1, has_committed=True),
    ]
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(stage.write, "abcdef", slot=1)
        with pytest.raises(TimeoutError):
            again.result(2)
        fence_producers(kafka, [stage.slot(0)])
        assert again.result(stretched(60)).already == 6
    assert stage.held() == [("1", device) for device in "abcdef"]
    killed.clear()


@pytest.mark.guarantee(
    "G72",
    "A result is in its stream once, whichever process is killed before or after a transaction, whatever an attempt "
    "left open, and whatever an older run still tries.",
    promise="each-sink-contains-each-result-once",
)
def test_an_older_run_gets_nothing_in_once_a_new_one_has_shut_it_out(kafka: str) -> None:
    """From whichever slot: with the producer that it holds, and by taking the slot over again."""
    stage = Stage(kafka, "results-zombie")
    paused = [stage.attempt(0), stage.attempt(7)]
    stage.write("a", emission=1, attempt=paused[0])
    stage.write("b", emission=1, attempt=paused[1])
    stage.epoch = 2
    fence_producers(kafka, [stage.slot(number) for number in range(8)])
    for attempt in paused:
        with pytest.raises(LogUnavailable, match="fenced"):
            stage.write("cd", emission=1, attempt=attempt)
    stage.write("ab", slot=3, epoch=2, emission=2)
    for slot in (0, 3, 7):
        with pytest.raises(Fenced):
            stage.write("ab", slot=slot, emission=2)
    assert stage.held() == [("1", "a"), ("1", "b"), ("2", "a"), ("2", "b")]


def test_the_end_of_a_stream_is_told_when_all_in_it_is_settled(kafka: str) -> None:
    stage = Stage(kafka, "results-settled")
    index = LogIndex(kafka)
    stage.write("abcdefgh")
    ends = index.settled_ends(stage.name)
    assert ends == index.ends_with_open(stage.name)
    killed = stage.killed_after("xyz", 5, has_committed=False)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(index.settled_ends, stage.name)
        with pytest.raises(TimeoutError):
            waiting.result(1)
        fence_producers(kafka, [stage.slot(5)])
        assert sum(waiting.result(stretched(30)).values()) > sum(ends.values())
    del killed


def test_a_result_that_no_record_can_hold_is_refused(kafka: str) -> None:
    stage = Stage(kafka, "results-large")
    writer = ResultStreamWriter(stage.stream, stage.place(0), stage.require_present)
    report = writer.write_batches([stage_batch(FIELDS, [("x" * 1_000_000, 1), ("a", 1)])], 1, 1)
    assert [one.type for one in report.refused] == ["record_too_large"]
    assert report.created == 1 and report.rows == 2


def test_the_largest_result_is_as_large_as_the_largest_record(kafka: str) -> None:
    stage = Stage(kafka, "results-largest")
    topics = Topics(kafka, replication=1, record_bytes_max=RECORD_BYTES_MAX)
    wait_until(lambda: topics.find(stage.name), lambda found: found is not None, "every broker knows the topic")
    topics.ensure_room_for_records(stage.name)
    (document,) = stage.stream.shape.documents(stage_batch(FIELDS, [("", 1)]), 1, 1)
    assert isinstance(document, Document)
    fills = RECORD_BYTES_MAX - len(document.source)
    writer = ResultStreamWriter(stage.stream, stage.place(0), stage.require_present)
    report = writer.write_batches([stage_batch(FIELDS, [("é" * (fills // 2), 1), ("y" * (fills + 1), 1)])], 1, 1)
    assert [len(one.source) for one in report.refused] == [RECORD_BYTES_MAX + 1]
    (message,) = stage.messages()
    assert RECORD_BYTES_MAX - 1 <= len(message.value() or b"") <= RECORD_BYTES_MAX
    assert message.key() == ("é" * (fills // 2)).encode(), "the key is nearly as long again"


def test_a_stream_that_takes_less_than_the_largest_record_is_no_outage(kafka: str) -> None:
    """Kafka answers, and says what is wrong: the job fails with what to do."""
    stage = Stage(kafka, "results-narrow")
    Topics(kafka, replication=1, record_bytes_max=1_024)._admin.change_config(
        stage.name, {"max.message.bytes": "700000"}
    )
    with pytest.raises(RecordTooLarge, match=r"results-narrow.*Apply the pipeline's document again"):
        stage.write_random(600_000)
    assert stage.write("a").created == 1
