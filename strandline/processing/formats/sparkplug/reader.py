"""Reads the messages of one partition, with the state that births declare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from strandline.processing.formats.json_rows import Rows
from strandline.processing.formats.record_fields import RecordField
from strandline.processing.formats.source_fields import Members
from strandline.processing.formats.sparkplug.message_rows import MessageRows, TextsOf
from strandline.processing.formats.sparkplug.messages import MessageReader, letter_of_row, letters_of_metrics
from strandline.processing.formats.sparkplug.sessions import Sessions


class NodeMessages:
    """Reads the messages of one stream. See `SessionReader`."""

    def __init__(
        self, fields: Sequence[RecordField], texts: TextsOf, members_of: Callable[[bytes | None], Members]
    ) -> None:
        self._reader = MessageReader(Sessions())
        self._rows = MessageRows(fields, texts, members_of)

    @property
    def sessions(self) -> Sessions:
        """Declarations of the births so far."""
        return self._reader.sessions

    def begin(self, sessions: Sessions) -> None:
        """Continue with other messages. `sessions`: the declarations of births before these messages."""
        self._reader = MessageReader(sessions)

    def parts(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> Iterator[Rows]:
        """Yield the rows of the next messages, in parts of whole messages."""
        return self._rows.parts(self._reader, values, sources)

    def letter_of_row(self, row: bytes) -> bytes:
        """Return the value of the dead letter of a row."""
        return letter_of_row(row)

    def letters(self, value: bytes) -> Callable[[int], bytes]:
        """Return a function: index of a metric without a row -> value of its dead letter."""
        return letters_of_metrics(value)
