"""Converts many messages of one partition to rows: plain data as columns, and all other messages one by one.

Each message gets its position in the order of its node's messages separately, whichever path reads it. After that, its content
depends only on its payload and on its birth. So its rows can be made as text later, when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from strandline.processing.formats.columns.exploded_columns import ElementColumns, rows_of
from strandline.processing.formats.columns.json_columns import fields_at
from strandline.processing.formats.columns.read_columns import ROWS_MIN
from strandline.processing.formats.columns.source_columns import source_columns
from strandline.processing.formats.json_rows import ROWS_A_PART, Rows
from strandline.processing.formats.record_fields import JsonText, RecordField, Rejection
from strandline.processing.formats.source_fields import Members
from strandline.processing.formats.sparkplug.message_columns import ReadMessages, read_messages
from strandline.processing.formats.sparkplug.messages import MessageReader, RejectedError, Row, Topic, rows_of_data
from strandline.processing.formats.sparkplug.metric_columns import MetricColumns
from strandline.processing.formats.sparkplug.sessions import Birth

Found = Sequence[Row] | Rejection
"""Rows of a message, or the reason why it is rejected completely."""
TextsOf = Callable[[Sequence[JsonText], Sequence[bytes | None]], Sequence[JsonText]]


class MessageRows:
    """Makes the rows of the messages of one stream."""

    def __init__(
        self, fields: Sequence[RecordField], texts: TextsOf, members_of: Callable[[bytes | None], Members]
    ) -> None:
        """`texts`: returns the text in which fields are searched, for rows and the sources of their messages. `members_of`:
        returns the fields that a source fills."""
        at = fields_at(fields)
        self._paths = None if any(field.text for field in fields) else at
        self._fields = fields
        self._texts = texts
        self._members_of = members_of

    def parts(
        self, reader: MessageReader, values: Sequence[bytes | None], sources: Sequence[bytes | None]
    ) -> Iterator[Rows]:
        """Yield the rows of the next messages of the partition, in parts of whole messages. After each part, `reader` has
        read exactly its messages."""
        sources = sources or [None] * len(values)
        if self._paths is not None and len(values) >= ROWS_MIN:
            read = read_messages(values)
            topics = {source: reader.topic_of_data(source) for source in set(sources)}
            are_plain = read.fits & np.array([topics[source] is not None for source in sources], np.bool_)
            if 2 * np.count_nonzero(are_plain) >= len(values):
                read.fits[:] = are_plain
                yield from self._columns(_Turns(reader, values, sources, topics, read), read)
                return
        turns = _Turns(reader, values, sources, {}, None)
        yield from turns.rows(range(len(values)), self._texts)

    def _columns(self, turns: _Turns, read: ReadMessages) -> Iterator[Rows]:
        """Yield the rows of plain messages as columns, with those of the other messages between them."""
        assert self._paths is not None
        turns.take()
        numbers = {source: number for number, source in enumerate(turns.topics)}
        source_of = np.array([numbers[source] for source in turns.sources], np.int64)
        record_of = np.repeat(np.arange(len(turns.values)), read.counts)
        chosen = np.flatnonzero((turns.birth_of >= 0)[record_of])
        record_of = record_of[chosen]
        metrics = MetricColumns(read, chosen, record_of, turns.births, turns.birth_of)
        columns = metrics.columns(self._paths, list(turns.topics.values()), source_of)
        given = source_columns(list(map(self._members_of, numbers)), source_of, self._fields)
        assert given is not None, "columns can hold all of the fields"
        metrics.fits &= given[1][record_of]
        for name, column in given[0].items():
            if name not in columns:
                columns[name] = column.of(record_of)
            else:  # the message's own value counts, if it has one
                metrics.fits &= columns[name].present | ~column.present[record_of]
        fits = turns.birth_of >= 0
        fits[record_of[~metrics.fits]] = False
        keep = np.flatnonzero(fits[record_of])
        if len(keep) == 0:
            yield from turns.rows(range(len(turns.values)), self._texts)
            return
        if len(keep) < len(record_of):
            columns = {name: column.of(keep) for name, column in columns.items()}
        elements = ElementColumns(columns, fits, np.where(fits, read.counts, 0))
        rows, places, of_elements = rows_of(elements, lambda wanted: turns.rows(wanted, self._texts))
        if places:
            yield Rows(rows, places, of_elements, lambda row: turns.row(places[row], of_elements[row]))


class _Turns:
    """Messages that are read in their order, and the results."""

    def __init__(
        self,
        reader: MessageReader,
        values: Sequence[bytes | None],
        sources: Sequence[bytes | None],
        topics: dict[bytes | None, Topic | None],
        read: ReadMessages | None,
    ) -> None:
        """`topics`: topics of data messages that aren't requeued. `read`: columns; the rows of the messages in it are made
        later."""
        self.values, self.sources, self.topics = values, sources, topics
        self.births: list[Birth] = []
        self.birth_of = np.full(len(values), -1)
        """Index of the birth of each message whose rows are made later; -1 for the others."""
        self._reader, self._read = reader, read
        self._known: dict[int, Found] = {}

    def take(self) -> None:
        """Read all messages, except for the rows of plain data messages."""
        assert self._read is not None
        numbers: dict[int, int] = {}
        are_sent, seqs = self._read.seq.present.tolist(), self._read.seq.values.tolist()
        for place, is_plain in enumerate(self._read.fits.tolist()):
            topic = self.topics[self.sources[place]] if is_plain else None
            if topic is None:
                self._known[place] = self._reader.rows(self.values[place], self.sources[place])
                continue
            try:
                birth = self._reader.turn(topic, seqs[place] if are_sent[place] else None)
            except RejectedError as error:
                self._known[place] = error.rejection
                continue
            number = numbers.setdefault(id(birth), len(self.births))
            if number == len(self.births):
                self.births.append(birth)
            self.birth_of[place] = number

    def found(self, place: int) -> Found:
        """Return the result of one message. Read it if it wasn't read."""
        if place not in self._known:
            value, source, number = self.values[place], self.sources[place], self.birth_of[place]
            topic = self.topics.get(source) if number >= 0 else None
            if topic is None or value is None:
                self._known[place] = self._reader.rows(value, source)
            else:
                self._known[place] = rows_of_data(value, topic, self.births[number])
        return self._known[place]

    def row(self, place: int, element: int | None) -> JsonText:
        """Return one row, before its fields are read."""
        found = self.found(place)
        if isinstance(found, Rejection):
            return found
        assert element is not None, "it has rows"
        return found[element]

    def rows(self, places: Sequence[int], texts: TextsOf) -> Iterator[Rows]:
        """Yield the rows of the messages with these indices, in parts of whole messages. The rows' `places` are indices into
        `places`."""
        wholes, owners, elements = list[JsonText](), list[int](), list[int | None]()
        for at, place in enumerate(places):
            found = self.found(place)
            if isinstance(found, Rejection):
                wholes.append(found)
                owners.append(at)
                elements.append(None)
            else:
                wholes += found
                owners += [at] * len(found)
                elements += range(len(found))
            if wholes and (len(wholes) >= ROWS_A_PART or at == len(places) - 1):
                made = texts(wholes, [self.sources[places[owner]] for owner in owners])
                yield Rows(made, owners, elements, wholes.__getitem__)
                wholes, owners, elements = [], [], []
