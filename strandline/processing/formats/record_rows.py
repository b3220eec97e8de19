"""The formats of records: each becomes JSON objects of the declared fields, which `decoder.py` reads.

To add a format, add what reads it to `_READERS`, and its name to `RecordFormatName` in `core/stream.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from strandline.core.json_paths import JsonPath, parse_json_path
from strandline.core.record_headers import HEADER_QUERY, HEADER_REPLAY_OF, HEADER_SOURCE
from strandline.processing.formats.bare_values import BareValues, RawValues
from strandline.processing.formats.change_events import ChangeEvents, fields_of_changes
from strandline.processing.formats.columns.read_columns import ROWS_MIN, QuickReader, ReadColumns
from strandline.processing.formats.columns.source_columns import numbered, source_columns
from strandline.processing.formats.delimited_lines import DelimitedLines
from strandline.processing.formats.influx_lines import InfluxLines
from strandline.processing.formats.json_rows import ROWS_A_PART, ExplodedRows, JsonRows, Rows
from strandline.processing.formats.packed_maps import PackedMaps
from strandline.processing.formats.record_fields import JsonText, RecordField, Rejection, record_fields
from strandline.processing.formats.source_fields import SourceFields
from strandline.processing.formats.sparkplug.messages import MessageReader, letter_of_row
from strandline.processing.formats.sparkplug.sessions import Sessions
from strandline.processing.formats.telemetry.otlp_metrics import OtlpMetrics
from strandline.processing.formats.telemetry.points import POINTS
from strandline.processing.formats.telemetry.remote_writes import RemoteWrites
from strandline.processing.formats.with_schema.avro_records import AvroRecords, RegisteredAvroRecords
from strandline.processing.formats.with_schema.protobuf_messages import ProtobufMessages, RegisteredProtobufMessages
from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchemas

if TYPE_CHECKING:  # its pydantic takes a fifth of a second to import, in every Python worker
    from strandline.core.stream import StreamSpec


@dataclass(frozen=True)
class RecordFormat:
    """How the bytes of a stream's records are read; travels pickled inside Spark."""

    name: str
    fields: tuple[RecordField, ...]
    """The stream's schema."""
    topic_levels: Mapping[str, int]
    """Fields that records from MQTT take from their topic: name -> level."""
    columns: tuple[str, ...] = ()
    """Of a line of csv."""
    delimiter: str = ","
    explode: JsonPath | None = None
    """The array whose elements are rows."""
    is_base64: bool = False
    """Whether raw records are written in base64."""
    schema: str | None = None
    """Of Avro the schema in JSON, of Protobuf the file descriptors in base64; None: each record names its own."""
    message: str | None = None
    """The type of Protobuf's messages; None: any."""
    header_fields: tuple[tuple[str, str], ...] = ()
    """Fields that a header of the record fills: name and header."""
    event_time_parameter: str | None = None
    """The field that the query's parameter `event_time` fills."""

    @property
    def uses_registry(self) -> bool:
        """Whether each record names its schema in the schema registry."""
        return self.name in ("avro", "protobuf") and self.schema is None

    @property
    def keeps_sessions(self) -> bool:
        """Whether what becomes of a record depends on the records of its partition before it."""
        return self.name == "sparkplug"


def record_format(stream: StreamSpec) -> RecordFormat:
    """How the records of the stream are read."""
    csv, avro, protobuf = stream.csv, stream.avro, stream.protobuf
    fields = record_fields(stream)
    return RecordFormat(
        name=stream.format,
        fields=fields_of_changes(fields) if stream.format == "debezium" else fields,
        topic_levels=dict(stream.mqtt.fields) if stream.mqtt else {},
        columns=tuple(csv.columns if csv and csv.columns else stream.fields),
        delimiter=csv.delimiter if csv else ",",
        explode=_array_of_rows(stream),
        is_base64=stream.raw is not None and stream.raw.encoding == "base64",
        schema=avro.written_by if avro else protobuf.descriptor if protobuf else None,
        message=protobuf.message if protobuf else None,
        header_fields=tuple(stream.http.record_headers.items()) if stream.http else (),
        event_time_parameter=stream.event_time_parameter,
    )


def _array_of_rows(stream: StreamSpec) -> JsonPath | None:
    """The array whose elements are rows, if the stream has one."""
    if stream.format in ("otlp", "prometheus"):
        return POINTS
    return None if stream.explode is None else parse_json_path(stream.explode)


class FormatReader(Protocol):
    """Reads the records of one format."""

    def objects(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return for each value a JSON object that holds its fields, or why there is none; None for None. `sources`: one of the
        headers of each record, or None. What becomes of a value depends on it and its source alone."""


class ArrayReader(FormatReader, Protocol):
    """Reads the records of a format that can be exploded, and is not JSON."""

    def with_only(self, value: bytes, element: int) -> bytes:
        """Return the record with an array of this element alone."""


def _avro(config: RecordFormat, schemas: RegisteredSchemas | None) -> ArrayReader:
    if config.schema is not None:
        return AvroRecords(config.fields, config.explode, config.schema)
    assert schemas is not None
    return RegisteredAvroRecords(config.fields, config.explode, schemas)


def _protobuf(config: RecordFormat, schemas: RegisteredSchemas | None) -> ArrayReader:
    if config.schema is not None and config.message is not None:
        return ProtobufMessages(config.fields, config.explode, config.schema, config.message)
    assert schemas is not None
    return RegisteredProtobufMessages(config.fields, config.explode, config.message, schemas)


_ARRAY_READERS: dict[str, Callable[[RecordFormat, RegisteredSchemas | None], ArrayReader]] = {
    "avro": _avro,
    "protobuf": _protobuf,
}
_READERS: dict[str, Callable[[RecordFormat, SourceFields], FormatReader]] = {
    "value": lambda config, sources: BareValues(config.fields, sources),
    "raw": lambda config, sources: RawValues(config.fields, sources, is_base64=config.is_base64),
    "csv": lambda config, _: DelimitedLines(config.fields, config.columns, config.delimiter),
    "msgpack": lambda config, _: PackedMaps.of_msgpack(config.fields),
    "cbor": lambda config, _: PackedMaps.of_cbor(config.fields),
    "influx": lambda config, _: InfluxLines(config.fields),
    "debezium": lambda config, _: ChangeEvents(config.fields),
    "otlp": lambda *_: OtlpMetrics(),
    "prometheus": lambda *_: RemoteWrites(),
}
"""JSON needs none."""


def json_objects(config: RecordFormat, values: Sequence[bytes]) -> Sequence[JsonText]:
    """Each record as a JSON object, or why it is none, before fields are looked for in it."""
    if config.keeps_sessions:
        return [None] * len(values)  # a message says what it is only among those before it
    make_reader = _READERS.get(config.name)
    if make_reader is None:
        return values
    sources = SourceFields({}, {field.name: field.type for field in config.fields})
    return make_reader(config, sources).objects(values, [None] * len(values))


class RowReader:
    """Makes the rows of one stream's records. Keeps no state between calls but what it has read of sources, and, where the format
    keeps sessions, what the records so far have declared: then it is given all records of a partition in their order."""

    def __init__(self, config: RecordFormat, schemas: RegisteredSchemas | None = None) -> None:
        """`schemas`: for a format that uses the registry."""
        self._source_fields = SourceFields(
            config.topic_levels,
            {field.name: field.type for field in config.fields if not field.rest},
            dict(config.header_fields),
            config.event_time_parameter,
        )
        self._array_reader = _ARRAY_READERS[config.name](config, schemas) if config.name in _ARRAY_READERS else None
        make_reader = _READERS.get(config.name)
        self._reader = make_reader(config, self._source_fields) if make_reader else self._array_reader
        self._messages = MessageReader(Sessions()) if config.keeps_sessions else None
        self._is_filled_in = config.name in ("value", "raw")
        self._skips_tombstones = config.name == "debezium"
        is_needed = (
            any(field.text or field.path is not None or field.rest for field in config.fields)
            and not self._is_filled_in
        )
        self._json_rows = JsonRows(config.fields) if is_needed else None
        self._exploded = ExplodedRows(config.fields, config.explode) if config.explode is not None else None
        self._fields = config.fields
        is_flat = self._json_rows is None and self._exploded is None
        self._quick: QuickReader | None = self._reader if is_flat and isinstance(self._reader, QuickReader) else None
        self.headers = (HEADER_QUERY, *((HEADER_SOURCE,) if config.topic_levels else ()))
        """Those that rows depend on: the first of them that a record has."""
        beside = {header for _, header in config.header_fields}
        if config.keeps_sessions:
            self.headers = (HEADER_SOURCE,)
            beside.add(HEADER_REPLAY_OF)
        self.headers_beside = tuple(sorted(beside))
        """Those that rows depend on beside the first."""

    @property
    def sessions(self) -> Sessions | None:
        """What the records so far have declared, where the format keeps sessions."""
        return None if self._messages is None else self._messages.sessions

    def begin(self, sessions: Sessions) -> None:
        """Read other records from here on, before which this was declared."""
        if self._messages is not None:
            self._messages = MessageReader(sessions)

    def parts(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> Iterator[Rows]:
        """The rows of the records, in order: all at once, or, where a record may be many rows, in parts of whole records. No part
        is without rows.

        `sources`: the first of `headers` of each record, packed with those of `headers_beside` that it has; empty when no record
        has one.
        """
        if self._skips_tombstones and None in values:
            yield from self._parts_without_tombstones(values, sources)
            return
        if self._messages is not None:
            yield from self._parts_of_messages(self._messages, values, sources)
            return
        objects: Sequence[JsonText] = values
        if (read := self._read_columns(values, sources)) is not None:
            yield Rows(read)
            return
        if self._reader is not None:
            objects = self._reader.objects(values, sources or [None] * len(values))
        if self._exploded is None:
            flat = objects if self._json_rows is None else self._json_rows.rows(objects)
            parts = iter([Rows(flat)] if flat else [])
        else:
            parts = self._exploded.parts(objects)
        for rows in parts:
            yield rows._replace(texts=self._filled_in(rows.texts, rows.of_each(sources))) if sources else rows

    def dead_letter_value(self, values: Sequence[bytes | None], rows: Rows, at: int) -> bytes | None:
        """What the dead letter of a row holds: the record's bytes; of an element's row, the record with this element alone, so
        that a replay repeats no other row."""
        element = None if rows.elements is None else rows.elements[at]
        value = values[at if rows.places is None else rows.places[at]]
        if element is None or value is None:
            return value
        if rows.wholes is not None and (whole := rows.wholes[at]) is not None:
            return letter_of_row(whole, value, element)
        assert self._exploded is not None
        if self._array_reader is not None:
            return self._array_reader.with_only(value, element)
        if self._reader is not None:
            (read,) = self._reader.objects([value], [None])
            assert isinstance(read, bytes), "one of its rows was read"
            value = read
        return self._exploded.with_only(value, element)

    def _read_columns(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> ReadColumns | None:
        """The records as columns, where the format has a quick way for most of them."""
        if self._quick is None or len(values) < ROWS_MIN or (among := numbered(sources)) is None:
            return None
        found = self._quick.columns(values, *([among[0]] if sources else []))
        if found is None or 2 * np.count_nonzero(found[1]) < len(values):
            return None
        columns, fits = found
        if sources:
            given = source_columns(list(map(self._source_fields.members_of, among[0])), among[1], self._fields)
            if given is None or given[0].keys() & columns.keys():  # which of two counts, the text says
                return None
            columns, fits = columns | given[0], fits & given[1]

        def texts(places: Sequence[int]) -> Sequence[JsonText]:
            assert self._reader is not None
            own = [sources[at] for at in places] if sources else [None] * len(places)
            objects = self._reader.objects([values[at] for at in places], own)
            return self._filled_in(objects, own) if sources else objects

        return ReadColumns(columns, fits, texts)

    def _parts_of_messages(
        self, messages: MessageReader, values: Sequence[bytes | None], sources: Sequence[bytes | None]
    ) -> Iterator[Rows]:
        wholes, places, elements = list[JsonText](), list[int](), list[int | None]()

        def taken() -> Rows:
            texts = wholes if self._json_rows is None else self._json_rows.rows(wholes)
            rows = Rows(texts, list(places), list(elements), list(wholes))
            if sources:
                rows = rows._replace(texts=self._filled_in(texts, rows.of_each(sources)))
            wholes.clear()
            places.clear()
            elements.clear()
            return rows

        for place, value in enumerate(values):
            found = messages.rows(value, sources[place] if sources else None)
            is_whole = isinstance(found, Rejection)
            rows_of_record: Sequence[JsonText] = [found] if isinstance(found, Rejection) else found
            wholes += rows_of_record
            places += [place] * len(rows_of_record)
            elements += [None] if is_whole else range(len(rows_of_record))
            if len(wholes) >= ROWS_A_PART:
                yield taken()
        if wholes:
            yield taken()

    def _parts_without_tombstones(
        self, values: Sequence[bytes | None], sources: Sequence[bytes | None]
    ) -> Iterator[Rows]:
        kept = [place for place, value in enumerate(values) if value is not None]
        for rows in self.parts([values[place] for place in kept], [sources[place] for place in kept if sources]):
            yield rows._replace(places=rows.of_each(kept))

    def _filled_in(self, texts: Sequence[JsonText], sources: Sequence[bytes | None]) -> Sequence[JsonText]:
        return texts if self._is_filled_in else self._source_fields.fill_in(texts, sources)
