"""Dead letters: a rejected record or refused result, with its bytes, the reason, and its log position or index.

A dead letter's key is its identity: stream, partition, and offset of a record, or index and id of a refused document.
Transactions write it once, however often a slice is replayed.

Each record that a gateway accepts fits into its dead letter, because headers have a maximum size, and the topic and the producer
accept the sum. A larger record, written to Kafka directly, has a dead letter with the size and SHA-256 instead of the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from strandline.core.errors import RecordTooLarge
from strandline.core.record_headers import (
    DEAD_LETTER_PARTITION,
    HEADER_PAYLOAD_BYTES,
    HEADER_PAYLOAD_SHA256,
    HEADER_TAKEN_BY,
    dead_letter_topic,
)
from strandline.log.messages import LogMessage
from strandline.log.record_size import RECORD_BATCH_HEAD_BYTES, record_batch_bytes_max
from strandline.log.transactions import Entry, SlotConfig, TransactionSlot
from strandline.processing.source.slice_rows import parts_by_size, row_identity

Headers = tuple[tuple[str, bytes], ...]
HEADER_ELEMENT = "element"
"""Index of a row's element in the record's array. Only if the record has several rows."""

DEAD_LETTERS_A_TRANSACTION = 5_000
HEADER_BYTES_MAX = 4_096
"""A longer text is cut: a message may quote what it refuses."""
_BESIDE_VALUE_BYTES_MAX = 16 * HEADER_BYTES_MAX
"""The key and the headers of a dead letter have fewer bytes together: it has at most ten of them."""


class DeadLetter(NamedTuple):
    """A rejected record or refused document. A tuple, because there may be as many as records."""

    identity: str
    value: bytes | None
    headers: Headers
    """Each no longer than HEADER_BYTES_MAX."""

    @classmethod
    def of_record(
        cls,
        stream: str,
        partition: int,
        offset: int,
        value: bytes | None,
        reason: str,
        message: str,
        step: str,
        element: int | None = None,
        taken_by: str | None = None,
    ) -> DeadLetter:
        """Return the dead letter of a rejected record, or of one of its rows. `element`: index of the row's element in the
        record's array. None if the record is one row. `taken_by`: stages of other branches that received the row anyway."""
        headers = _headers(reason, message, step, "stream", stream)
        place: Headers = (("partition", b"%d" % partition), ("offset", b"%d" % offset))
        if element is not None:
            place = (*place, (HEADER_ELEMENT, b"%d" % element))
        if taken_by is not None:
            place = (*place, (HEADER_TAKEN_BY, _cut(taken_by.encode())))
        return cls(row_identity(stream, partition, offset, element), value, (*headers, *place))

    @classmethod
    def of_document(
        cls, index: str, document_id: str, value: bytes, reason: str, message: str, step: str
    ) -> DeadLetter:
        headers = _headers(reason, message, step, "index", index)
        return cls(f"{index}/{document_id}", value, (*headers, ("document", _cut(document_id.encode()))))

    @property
    def message(self) -> str:
        """Reason why it could not be used."""
        return dict(self.headers)["message"].decode()

    @property
    def entry(self) -> Entry:
        """Return the record for the dead-letter stream. Its size without the value is bounded."""
        return Entry(self.identity, self.value, self.identity.encode(), self.headers, DEAD_LETTER_PARTITION)

    def within(self, bytes_max: int) -> DeadLetter:
        """Return this dead letter. If it is larger than `bytes_max`, size and SHA-256 replace the payload's bytes."""
        if self.value is None or len(self.value) + _BESIDE_VALUE_BYTES_MAX <= bytes_max:
            return self  # nearly all: to count every header's bytes would cost as much as to write the letter
        if self.entry.size_bytes <= bytes_max:
            return self
        headers = dict(self.headers)
        left_out = f" (a dead letter can't hold its {len(self.value)} bytes; they are left out)".encode()
        headers["message"] = _cut(headers["message"], HEADER_BYTES_MAX - len(left_out)) + left_out
        headers[HEADER_PAYLOAD_BYTES] = b"%d" % len(self.value)
        headers[HEADER_PAYLOAD_SHA256] = sha256(self.value).hexdigest().encode()
        return self._replace(value=None, headers=tuple(headers.items()))


@lru_cache(maxsize=1_024)
def _headers(reason: str, message: str, step: str, origin: str, name: str) -> Headers:
    """Return the headers. Cached, because the dead letters of a slice share most strings. `origin`: `stream` or `index`."""
    texts = ("reason", reason), ("message", message), ("step", step), (origin, name)
    return tuple((header, _cut(text.encode())) for header, text in texts)


class DeadLetterWriter:
    """Writes the dead letters of one attempt of one task, under a transactional id that no other task uses.

    `require_current_epoch` raises Fenced unless the run `epoch` is still the current one.
    """

    def __init__(
        self,
        bootstrap: str,
        job: str,
        transactional_id: str,
        epoch: int,
        require_current_epoch: Callable[[int], None],
        *,
        record_bytes_max: int,
    ) -> None:
        """`record_bytes_max`: the largest record that gateways take."""
        self._config = SlotConfig(
            bootstrap,
            dead_letter_topic(job),
            epoch,
            require_current_epoch,
            identity_of=_key_of,
            failpoints="dead_letters",
            record_bytes_max=record_bytes_max,
        )
        self._id = transactional_id
        self._slot: TransactionSlot | None = None
        self._bytes_max = record_batch_bytes_max(record_bytes_max) - RECORD_BATCH_HEAD_BYTES

    def write(self, letters: Iterable[DeadLetter], written_before: Mapping[int, int]) -> int:
        """Write the dead letters that aren't in the stream yet, in transactions of bounded size. Return the number of all
        letters.

        `written_before`: partition -> end of the stream at the last checkpoint. Raises LogUnavailable; Fenced; RecordTooLarge if
        the topic doesn't accept a letter even without its bytes.
        """
        given = 0
        slot = self._slot = self._slot or TransactionSlot(self._config, self._id, written_before)
        for chunk in parts_by_size(letters, lambda _: 1, DEAD_LETTERS_A_TRANSACTION):
            given += len(chunk)
            self._write_chunk(slot, chunk)
        return given

    def _write_chunk(self, slot: TransactionSlot, letters: list[DeadLetter]) -> None:
        """Write the letters, each with its bytes if the topic accepts that size.

        A topic may accept less than STRANDLINE_RECORD_BYTES_MAX. A refused list is halved until it has one letter. The size of
        that letter is the limit from then on.
        """
        fitting = [letter.within(self._bytes_max) for letter in letters]
        try:
            slot.write([letter.entry for letter in fitting])
        except RecordTooLarge:
            if len(fitting) > 1:
                half = len(fitting) // 2
                self._write_chunk(slot, fitting[:half])
                self._write_chunk(slot, fitting[half:])
                return
            if fitting[0].value is None:
                raise
            self._bytes_max = fitting[0].entry.size_bytes - 1
            self._write_chunk(slot, fitting)


def _cut(text: bytes, bytes_max: int = HEADER_BYTES_MAX) -> bytes:
    """Return the UTF-8 text. If it is longer than `bytes_max`, return as many characters as fit, and three dots."""
    if len(text) <= bytes_max:
        return text
    return text[: bytes_max - 3].decode(errors="ignore").encode() + b"..."


def _key_of(message: LogMessage) -> str:
    key = message.key()
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else ""
