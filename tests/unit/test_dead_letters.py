"""Every record that a gateway takes fits into its dead letter; a larger one leaves its bytes out, and says so."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import pytest
from confluent_kafka import KafkaError, KafkaException

from strandline.core.errors import LogUnavailable, RecordTooLarge, StrandlineError
from strandline.core.record_headers import DEAD_LETTER_PARTITION
from strandline.log.record_size import RECORD_BATCH_HEAD_BYTES, is_too_large, record_batch_bytes_max
from strandline.log.transactions import Entry, _failure
from strandline.processing.emission import dead_letters
from strandline.processing.emission.dead_letters import HEADER_BYTES_MAX, DeadLetter, DeadLetterWriter

RECORD_BYTES_MAX = 1_024
"""The smallest that can be set: there the headers weigh most."""


def letter(number: int, value: bytes | None, message: str = "not JSON") -> DeadLetter:
    return DeadLetter.of_record("readings", 0, number, value, "decode", message, "decode")


@pytest.mark.parametrize("record_bytes_max", [RECORD_BYTES_MAX, 1_000_000])
def test_the_largest_record_fits_with_the_longest_headers(record_bytes_max: int) -> None:
    long = "é" * 1_000_000
    of_record = DeadLetter.of_record(
        "s" * 200, 2**31, 2**63, bytes(record_bytes_max), "r" * 100, long, "steps[0].derive." + long
    )
    of_document = DeadLetter.of_document("i" * 255, "d" * 512, bytes(record_bytes_max), long, long, long)
    for one in (of_record, of_document):
        bytes_max = record_batch_bytes_max(record_bytes_max) - RECORD_BATCH_HEAD_BYTES
        assert one.entry.size_bytes <= bytes_max
        assert one.within(bytes_max) is one


def test_letters_stand_in_the_partition_that_their_readers_look_at() -> None:
    """A topic that an operator made may have several."""
    of_document = DeadLetter.of_document("minutes-2026.09", "d-1", b"{}", "result", "no place", "emit minutes")
    assert [one.entry.partition for one in (letter(1, b""), of_document)] == [DEAD_LETTER_PARTITION] * 2 == [0, 0]


def test_a_message_that_is_cut_is_still_text() -> None:
    (message,) = [text for name, text in letter(1, b"", "é" * HEADER_BYTES_MAX).entry.headers if name == "message"]
    assert isinstance(message, bytes)
    assert len(message) in (HEADER_BYTES_MAX, HEADER_BYTES_MAX - 1)
    assert message.decode().lstrip("é") == "..."


@pytest.mark.parametrize("message", ["not JSON", "é" * HEADER_BYTES_MAX])
def test_a_letter_over_the_bound_tells_of_its_bytes_in_place_of_them(message: str) -> None:
    value = b"x" * 5_000
    small = letter(7, value, message).within(100)
    headers = dict(small.entry.headers)
    assert (small.identity, small.value) == ("readings/0/7", None)
    assert headers["payload-bytes"] == b"5000"
    assert headers["payload-sha256"] == sha256(value).hexdigest().encode()
    assert (headers["stream"], headers["partition"], headers["offset"]) == (b"readings", b"0", b"7")
    assert headers["message"].endswith(b"(a dead letter can't hold its 5000 bytes; they are left out)")
    assert len(headers["message"]) <= HEADER_BYTES_MAX


def test_a_record_without_a_value_has_nothing_to_leave_out() -> None:
    assert dict(letter(7, None).within(1).entry.headers).keys().isdisjoint({"payload-bytes", "payload-sha256"})


class NarrowSlot:
    """Double of a slot of a topic that accepts `takes` bytes in one request.

    It stores what it accepts, and counts what it refuses.
    """

    takes = 0
    taken: list[Entry]
    refused: int

    def __init__(self, *_: object) -> None:
        NarrowSlot.taken, NarrowSlot.refused = [], 0

    def write(self, entries: Sequence[Entry]) -> int:
        if sum(entry.size_bytes for entry in entries) > self.takes:
            NarrowSlot.refused += 1
            raise RecordTooLarge("too large")
        NarrowSlot.taken += entries
        return len(entries)


def write(monkeypatch: pytest.MonkeyPatch, takes: int, values: list[bytes]) -> list[bytes | None]:
    """Return what is in the topic afterwards, in order."""
    monkeypatch.setattr(dead_letters, "TransactionSlot", NarrowSlot)
    monkeypatch.setattr(NarrowSlot, "takes", takes)
    writer = DeadLetterWriter(
        "nowhere", "job", "job.dead-letter.record-0", 1, lambda _: None, record_bytes_max=RECORD_BYTES_MAX
    )
    assert writer.write((letter(number, value) for number, value in enumerate(values)), {}) == len(values)
    assert [entry.identity for entry in NarrowSlot.taken] == [f"readings/0/{number}" for number in range(len(values))]
    return [entry.value for entry in NarrowSlot.taken]


def test_what_is_over_the_producers_own_limit_is_never_tried_with_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [b"small", bytes(100_000), b"small"]
    assert write(monkeypatch, 10_000_000, values) == [b"small", None, b"small"]
    assert NarrowSlot.refused == 0


def test_a_topic_that_takes_less_gets_each_letter_that_it_takes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [b"small", bytes(1_000), bytes(9_000), bytes(1_000), b"small", bytes(8_000)]
    assert write(monkeypatch, 2_000, values) == [b"small", bytes(1_000), None, bytes(1_000), b"small", None]


def test_what_a_topic_refused_is_not_tried_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [bytes(9_000) for _ in range(1_000)]
    assert (
        write(monkeypatch, 300_000, values[:1] + values) == [bytes(9_000)] * 1_001
    )  # together too large, each one fits
    assert write(monkeypatch, 1_000_000, values) == values
    assert write(monkeypatch, 8_000, values) == [None] * 1_000
    assert NarrowSlot.refused < 2_000, "each piece once at most"


def test_a_topic_that_takes_no_letter_at_all_fails_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecordTooLarge):
        write(monkeypatch, 10, [b"small"])


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, RecordTooLarge),
        (KafkaError.RECORD_LIST_TOO_LARGE, RecordTooLarge),
        (KafkaError._TIMED_OUT, LogUnavailable),
        (KafkaError._TRANSPORT, LogUnavailable),
    ],
)
def test_what_kafka_finds_too_large_is_no_outage(code: int, kind: type[StrandlineError]) -> None:
    error = KafkaException(KafkaError(code))
    assert is_too_large(error.args[0]) is (kind is RecordTooLarge)
    failure = _failure("kafka:9092", "job.dead-letter.record-0", "job.dead-letter", error)
    assert type(failure) is kind
    assert "job.dead-letter" in str(failure)
    if kind is RecordTooLarge:
        assert "Apply the pipeline's document again" in str(failure)
