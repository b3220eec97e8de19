"""Reads the sources of followed lookups: all rows first, and then the changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from strandline.core.errors import Conflict, InvalidSettings, LogChanged, LogTruncated
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.lookups.packed_rows import ROWS_MAX, TooLarge, pack_rows
from strandline.core.lookups.source import EVERY_MS_MIN, LookupSource
from strandline.core.record_headers import RECORD_TIMESTAMP, pack_header_values, with_record_metadata
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.lookups.sources import SourceBegin, SourceRows
from strandline.ledger.states import LookupRow, Offsets
from strandline.log.admin import KafkaAdmin
from strandline.log.messages import LogMessage, LogReader, offset_of
from strandline.log.reader import OffsetRange
from strandline.processing.formats.lookups.rows import KeyedRows, canonical_text, digest_of, kept_rows, keyed_rows
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchemas
from strandline.processing.source.followed.query_rows import query_rows
from strandline.processing.source.followed.stream_rows import LoggedRecords, StreamRows

if TYPE_CHECKING:
    from strandline.ledger.roles import LedgerReader

READ_S_MAX = 30.0
"""A reading of a stream ends after about so long; the next goes on."""
FIRST_READ_S_MAX = 40.0
"""The first reading of a stream, when a lookup is applied, is whole or fails: a client waits for the answer."""
VERSION_BYTES_A_SECOND = 4_096
"""Versions are recorded so slowly that no more than this comes into the ledger, whatever a source does."""


class SourceReader:
    """Reads the sources of lookups (streams and queries), for a control service. Several threads may use it."""

    def __init__(
        self, ledger: LedgerReader, kafka: KafkaAdmin, sql_urls: Callable[[], Mapping[str, str]], ledger_url: str = ""
    ) -> None:
        """`sql_urls()`: database -> its URL, as STRANDLINE_SQL_SOURCES has it now. `ledger_url`: without its password."""
        self._ledger = ledger
        self._kafka = kafka
        self._sql_urls = sql_urls
        self._ledger_url = ledger_url

    def read_all(self, spec: LookupSpec) -> tuple[bytes, int, SourceBegin]:
        """Return all rows of a source as JSON, their number, and the position from which the source is followed.

        Raises SourceUnavailable, LogUnavailable; NotFound if the stream doesn't exist; InvalidSettings if the database isn't
        configured; Conflict if the content can't be the lookup's rows.
        """
        begun_s = time.monotonic()
        assert spec.source is not None
        rows: KeyedRows = {}
        position, skipped, skipped_last = None, 0, ""
        if spec.source.sql is not None:
            rows = self._queried(spec)
        else:
            followed, position, is_current = self._follow(spec, rows, {}, FIRST_READ_S_MAX)
            skipped, skipped_last = followed.skipped, followed.skipped_last
            if not is_current:
                raise Conflict(
                    f"{spec.source.description} could not be read in {FIRST_READ_S_MAX:g} s, and a lookup begins with all of it; "
                    "follow a stream with fewer records, as one that a job emits"
                )
        text = canonical_text(rows)
        pause_ms = wait_ms(spec.source, len(_packed(text)))
        return text, len(rows), SourceBegin(position, pause_ms, _since_ms(begun_s), skipped, skipped_last)

    def read_on(self, present: LookupRow, position: Offsets | None) -> SourceRows:
        """Return the current rows of the source: those of the version `present`, changed by the records from `position` on.

        A query returns all its rows again. `position`: None for a query, or if unread records of the stream were lost. Then
        raises LogTruncated. Raises the errors of `read_all`, too.
        """
        begun_s = time.monotonic()
        spec = LookupSpec.described(present.document)
        assert spec.source is not None
        is_current, skipped, skipped_last = True, 0, ""
        if spec.source.sql is not None:
            rows = self._queried(spec)
        else:
            if position is None:
                raise LogTruncated(
                    f"{spec.source.description} has lost records that were not read; apply the lookup's document again to "
                    "rebuild its rows from the records that the stream still contains"
                )
            (reached,) = position.values()
            if self._ends(self._stream(spec), reached) == reached:
                return SourceRows(present.digest, None, present.rows, position, _since_ms(begun_s))
            rows = keyed_rows(spec, kept_rows(present, self._ledger.lookup_table(present.digest)))
            followed, position, is_current = self._follow(spec, rows, reached, READ_S_MAX)
            skipped, skipped_last = followed.skipped, followed.skipped_last
        text = canonical_text(rows)
        digest = digest_of(spec, text)
        packed = None if digest == present.digest else _packed(text)
        read_for_ms = _since_ms(begun_s)
        return SourceRows(digest, packed, len(rows), position, read_for_ms, is_current, skipped, skipped_last)

    def _queried(self, spec: LookupSpec) -> KeyedRows:
        assert spec.source is not None
        assert spec.source.sql is not None
        name, urls = spec.source.sql.database, self._sql_urls()
        if name not in urls:
            known = ", ".join(sorted(urls)) or "none"
            raise InvalidSettings(
                f"STRANDLINE_SQL_SOURCES names no database '{name}' (it names: {known}); set it where the control services run"
            )
        return query_rows(spec, urls[name])

    def _stream(self, spec: LookupSpec) -> StreamSpec:
        """Return the stream of the lookup's source. Raises NotFound; LogChanged if its topic was deleted and recreated."""
        assert spec.source is not None
        assert spec.source.stream is not None
        row = self._ledger.stream(spec.source.stream)
        if row.topic_id is not None and self._kafka.describe(row.name).topic_id != row.topic_id:
            raise LogChanged(
                f"topic {row.name} was deleted and recreated. To use its name again, run strandline apply with the stream's "
                "document: the refusal lists the commands. Or register the stream under another name, and a lookup of another "
                "name that follows it"
            )
        return StreamSpec.from_document(row.document)

    def _ends(self, stream: StreamSpec, position: Mapping[int, int]) -> dict[int, int]:
        """Return the end of each partition. Raises LogTruncated if the stream lacks records from `position` on."""
        name = stream.stream
        partitions = range(self._kafka.describe(name).partitions)
        starts, ends = self._kafka.starts(name, partitions), self._kafka.ends(name, partitions)
        for partition, offset in position.items():
            if not starts[partition] <= offset <= ends[partition]:
                raise LogTruncated(
                    f"stream {name}, partition {partition} holds offsets {starts[partition]} to {ends[partition]}, but must be "
                    f"read from {offset} on: unread records were lost. Raise its retention; then apply the lookup's "
                    "document again, and its rows are rebuilt from the records that the stream holds"
                )
        return ends

    def _follow(
        self, spec: LookupSpec, rows: KeyedRows, position: Mapping[int, int], seconds_max: float
    ) -> tuple[StreamRows, Offsets, bool]:
        """Change `rows` by the records from `position` on, for about `seconds_max`. A partition that `position` lacks is read
        from its first record. Return the counts, the offsets up to which the stream was read, and True if these are its end."""
        stream = self._stream(spec)
        name, ends = stream.stream, self._ends(stream, position)
        starts = self._kafka.starts(name, list(ends))
        reached = {partition: position.get(partition, starts[partition]) for partition in ends}
        followed = StreamRows(spec, stream, self._schemas(stream))
        deadline_s = time.monotonic() + seconds_max
        with closing(LogReader(self._kafka.bootstrap)) as reader:
            for partition, end in ends.items():
                for messages in reader.read(OffsetRange(name, partition, reached[partition], end)):
                    followed.take_in(rows, _logged(partition, messages, followed.reader))
                    if len(rows) > ROWS_MAX:
                        raise Conflict(
                            f"stream {name} has more than {ROWS_MAX:,} keys, and a lookup holds no more rows"
                        )
                    reached[partition] = offset_of(messages[-1]) + 1
                    if time.monotonic() > deadline_s:
                        return followed, {name: reached}, reached == ends
                reached[partition] = end
        return followed, {name: reached}, True

    def _schemas(self, stream: StreamSpec) -> RegisteredSchemas | None:
        if not record_format(stream).uses_registry:
            return None
        from strandline.processing.source.kept_schemas import (
            SchemasNow,
            schemas_of_process,
        )  # only where a stream needs it

        return SchemasNow(schemas_of_process(self._ledger_url), are_new=True)


def wait_ms(source: LookupSource, version_bytes: int | None, *, is_current: bool = True) -> int:
    """Return the time in ms until a source is read again: `every` of its document, or less if it wasn't read to its end.

    It is longer if large versions would be stored often. `version_bytes`: size of the new version. None if nothing changed."""
    every_ms = source.every if is_current else EVERY_MS_MIN
    return max(every_ms, (version_bytes or 0) * 1000 // VERSION_BYTES_A_SECOND)


def _packed(text: bytes) -> str:
    """Return the rows in the form in which the ledger stores them. Raises Conflict if they are too large."""
    try:
        return pack_rows(text)
    except TooLarge as error:
        raise Conflict(str(error)) from error


def _logged(partition: int, messages: list[LogMessage], reader: RowReader) -> LoggedRecords:
    headers = [_headers(message, reader) for message in messages]
    return LoggedRecords(
        partition,
        [offset_of(message) for message in messages],
        [_bytes(message.value()) for message in messages],
        [_bytes(message.key()) for message in messages],
        [_source(one, reader) for one in headers],
    )


def _headers(message: LogMessage, reader: RowReader) -> dict[str, bytes]:
    found = {name: _bytes(value) or b"" for name, value in message.headers() or []}
    has_time = RECORD_TIMESTAMP in reader.headers_beside
    return with_record_metadata(found, _bytes(message.key()), message.timestamp()[1] if has_time else None)


def _source(headers: Mapping[str, object], reader: RowReader) -> bytes | None:
    """Return the headers on which rows depend, packed as by the log's reader. None if there are none."""
    first = next((_bytes(headers[name]) for name in reader.headers if name in headers), None)
    named = {name: _bytes(headers[name]) or b"" for name in reader.headers_beside if name in headers}
    return pack_header_values(first, named)


def _bytes(value: object) -> bytes | None:
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else None


def _since_ms(begun_s: float) -> int:
    return int((time.monotonic() - begun_s) * 1000)
