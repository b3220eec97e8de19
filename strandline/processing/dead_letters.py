"""Dead letters: a record or result that could not be used, with its bytes, the reason and where it came from.

A dead letter's key is its identity: the source coordinates of a record, or index and id of a refused document. It is
written once however often a slice is replayed: under a transactional id that shuts out an older attempt first, and
leaving out what the stream already holds since the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaException, Producer

from strandline.core.errors import LogUnavailable
from strandline.core.failpoints import failpoint
from strandline.core.record import dead_letter_topic
from strandline.processing.log_reader import LogIndex, LogReader, OffsetRange
from strandline.processing.transactions import produce, take_over_id

DEAD_LETTERS_A_TRANSACTION = 5_000


@dataclass(frozen=True)
class DeadLetter:
    identity: str
    value: bytes | None
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def of_record(
        cls, stream: str, partition: int, offset: int, value: bytes | None, reason: str, message: str, step: str
    ) -> DeadLetter:
        headers = {
            "reason": reason,
            "message": message,
            "step": step,
            "stream": stream,
            "partition": str(partition),
            "offset": str(offset),
        }
        return cls(f"{stream}/{partition}/{offset}", value, tuple(headers.items()))

    @classmethod
    def of_document(
        cls, index: str, document_id: str, value: bytes, reason: str, message: str, step: str
    ) -> DeadLetter:
        headers = {"reason": reason, "message": message, "step": step, "index": index, "document": document_id}
        return cls(f"{index}/{document_id}", value, tuple(headers.items()))


class DeadLetterWriter:
    """Writes one task's dead letters. `slot` names the task's place in its batch: the same place of any later attempt
    takes over its transactional id, which ends what an older attempt left open."""

    def __init__(self, bootstrap: str, job: str, slot: str, timeout_s: float = 60.0) -> None:
        self._bootstrap = bootstrap
        self._topic = dead_letter_topic(job)
        self._slot = slot
        self._timeout_s = timeout_s
        self._transactional_id = f"{self._topic}.{slot}"

    def write(self, letters: Iterator[DeadLetter], written_before: Mapping[int, int]) -> int:
        """Write those that are not in the stream yet; return how many letters were given.

        1. Take over the transactional id: an older attempt can no longer commit.
        2. Read what the stream holds since `written_before` (partition -> offset, of the last checkpoint), to its very end.
        3. Write the others, in transactions of bounded size.
        """
        given = 0
        producer: Producer | None = None
        present: set[bytes] = set()
        for chunk in _chunks(letters, DEAD_LETTERS_A_TRANSACTION):
            if producer is None:
                producer = self._take_over()
                failpoint("dead_letters.taken_over")
                present = self._present(written_before)
            given += len(chunk)
            missing = [letter for letter in chunk if letter.identity.encode() not in present]
            if missing:
                self._write_transaction(producer, missing)
        return given

    def _take_over(self) -> Producer:
        try:
            return take_over_id(self._bootstrap, self._transactional_id, self._topic, self._timeout_s)
        except KafkaException as error:
            raise self._unavailable(error) from error

    def _present(self, written_before: Mapping[int, int]) -> set[bytes]:
        index = LogIndex(self._bootstrap)
        # Not only up to the first open transaction: a killed attempt may have left one open in another slot, and letters
        # of this slot committed behind it. The reader waits until that slot is taken over too, or Kafka ends it.
        starts, ends = index.starts(self._topic), index.ends_with_open(self._topic)
        reader = LogReader(self._bootstrap)
        try:
            present: set[bytes] = set()
            for partition, end in ends.items():
                first = max(written_before.get(partition, 0), starts[partition])
                for messages in reader.read(OffsetRange(self._topic, partition, first, end)):
                    present.update(key for message in messages if isinstance(key := message.key(), bytes))
            return present
        finally:
            reader.close()

    def _write_transaction(self, producer: Producer, letters: Sequence[DeadLetter]) -> None:
        try:
            producer.begin_transaction()
            for letter in letters:
                headers = [(name, text.encode()) for name, text in letter.headers]
                produce(producer, self._topic, letter.value, letter.identity.encode(), headers)
            failpoint("dead_letters.before_commit")
            producer.commit_transaction(self._timeout_s)
            failpoint("dead_letters.committed")
        except KafkaException as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: KafkaException) -> LogUnavailable:
        return LogUnavailable(
            f"dead letters could not be written to {self._topic} at {self._bootstrap} (slot {self._slot}): {error.args[0].str()}"
        )


def _chunks(letters: Iterator[DeadLetter], size: int) -> Iterator[list[DeadLetter]]:
    chunk: list[DeadLetter] = []
    for letter in letters:
        chunk.append(letter)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
