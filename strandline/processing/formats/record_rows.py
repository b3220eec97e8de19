"""The formats of records: each becomes JSON objects of the declared fields, which `decoder.py` reads.

To add a format, add what reads it to `_READERS`, and its name to `RecordFormatName` in `core/streams/formats.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from strandline.core.json_paths import JsonPath, parse_json_path
from strandline.core.record_headers import HEADER_QUERY, HEADER_REPLAY_OF, HEADER_SOURCE
from strandline.processing.formats.bare_values import BareValues, RawValues
from strandline.processing.formats.change_events import ChangeEvents, fields_of_changes
from strandline.processing.formats.columns.exploded_columns import ExplodedColumns, rows_of
from strandline.processing.formats.columns.json_columns import JsonColumns
from strandline.processing.formats.columns.read_columns import ROWS_MIN, QuickReader, ReadColumns
from strandline.processing.formats.columns.source_columns import numbered, source_columns
from strandline.processing.formats.delimited_lines import DelimitedLines
from strandline.processing.formats.influx_lines import InfluxLines
from strandline.processing.formats.json_rows import EXPLODED_BYTES_MAX, ExplodedRows, JsonRows, Rows
from strandline.processing.formats.packed_maps import PackedMaps
from strandline.processing.formats.record_fields import JsonText, RecordField, record_fields
from strandline.processing.formats.record_metadata import RecordMetadata
from strandline.processing.formats.shapes.shape import ShapeConfig
from strandline.processing.formats.shapes.shaped_rows import ShapedColumns, ShapedRows
from strandline.processing.formats.source_fields import SourceFields
from strandline.processing.formats.sparkplug.message_rows import MessageRows
from strandline.processing.formats.sparkplug.messages import MessageReader, letter_of_row, letters_of_metrics
from strandline.processing.formats.sparkplug.sessions import Sessions
from strandline.processing.formats.telemetry.otlp_metrics import OtlpMetrics
from strandline.processing.formats.telemetry.points import POINTS
from strandline.processing.formats.telemetry.remote_writes import RemoteWrites
from strandline.processing.formats.with_schema.avro_records import AvroRecords, RegisteredAvroRecords
from strandline.processing.formats.with_schema.protobuf_messages import ProtobufMessages, RegisteredProtobufMessages
from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchemas

if TYPE_CHECKING:  # its pydantic takes a fifth of a second to import, in every Python worker
    from strandline.core.streams.stream import StreamSpec


_BYTES_EXPLODED = 1 << 20
"""Records that may be many rows each are read together up to so many bytes."""


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
    shape: ShapeConfig | None = None
    """The shape of records that are several rows, if it is another one."""
    is_of_positions: bool = False
    """True if a row is an array, of which fields are read by index."""
    is_base64: bool = False
    """Whether raw records are written in base64."""
    schema: str | None = None
    """Of Avro the schema in JSON, of Protobuf the file descriptors in base64; None: each record names its own."""
    message: str | None = None
    """The type of Protobuf's messages; None: any."""
    header_fields: tuple[tuple[str, str], ...] = ()
    """Fields that a header of the record fills: name and header."""
    metadata: tuple[tuple[str, str], ...] = ()
    """Fields that metadata of the record fill: name and what, as the stream's document has it."""
    event_time_parameter: str | None = None
    """The field that the query's parameter `event_time` fills."""

    @property
    def uses_registry(self) -> bool:
        """Whether each record names its schema in the schema registry."""
        return self.name in ("avro", "protobuf") and self.schema is None

    @property
    def explodes(self) -> bool:
        """True if a record can be several rows."""
        return self.explode is not None or self.shape is not None

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
        shape=_shape(stream),
        is_of_positions=stream.is_of_positions,
        is_base64=stream.raw is not None and stream.raw.encoding == "base64",
        schema=avro.written_by if avro else protobuf.descriptor if protobuf else None,
        message=protobuf.message if protobuf else None,
        header_fields=tuple(stream.http.record_headers.items()) if stream.http else (),
        metadata=tuple(stream.metadata.items()),
        event_time_parameter=stream.event_time_parameter,
    )


def _array_of_rows(stream: StreamSpec) -> JsonPath | None:
    """The array whose elements are rows, if the stream has one."""
    if stream.format in ("otlp", "prometheus"):
        return POINTS
    path = stream.explode_path
    return None if path in (None, "$") else parse_json_path(path)


def _shape(stream: StreamSpec) -> ShapeConfig | None:
    """The shape of the stream's records, if they are several rows and no array within an object."""
    if stream.explode_path == "$":
        return ShapeConfig("elements", ((),))
    spec = stream.shape
    if spec is None:
        return None
    return ShapeConfig(
        spec.kind, tuple(spec.containers), spec.name, spec.match, spec.shorter == "null", spec.index, tuple(spec.filled)
    )


class FormatReader(Protocol):
    """Reads the records of one format."""

    def objects(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return for each value a JSON object that holds its fields, or why there is none; None for None. `sources`: one of the
        headers of each record, or None. What becomes of a value depends on it and its source alone."""


class ArrayReader(FormatReader, Protocol):
    """Reads the records of a format that can be exploded, and is not JSON."""

    def letters(self, value: bytes) -> Callable[[int], bytes]:
        """Return what returns the record with an array of one element alone, by the element's place: the record is read once."""


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


def json_objects(config: RecordFormat, values: Sequence[bytes]) -> Iterator[JsonText]:
    """Each record as a JSON object, or why it is none, before fields are looked for in it."""
    make_reader = _READERS.get(config.name)
    sources = SourceFields({}, {field.name: field.type for field in config.fields})
    reader = make_reader(config, sources) if make_reader else None
    for value in values:
        if config.keeps_sessions:
            yield None  # a message says what it is only among those before it
        else:
            yield from [value] if reader is None else reader.objects([value], [None])


class RowReader:
    """Makes the rows of one stream's records. Keeps no state between calls but what it has read of sources, and, where the format
    keeps sessions, what the records so far have declared: then it is given all records of a partition in their order."""

    def __init__(self, config: RecordFormat, schemas: RegisteredSchemas | None = None) -> None:
        """`schemas`: for a format that uses the registry."""
        metadata = {name: RecordMetadata(text) for name, text in config.metadata}
        self._source_fields = SourceFields(
            config.topic_levels,
            {field.name: field.type for field in config.fields if not field.rest},
            dict(config.header_fields),
            config.event_time_parameter,
            metadata,
        )
        self._array_reader = _ARRAY_READERS[config.name](config, schemas) if config.name in _ARRAY_READERS else None
        make_reader = _READERS.get(config.name)
        self._reader = make_reader(config, self._source_fields) if make_reader else self._array_reader
        self._messages = MessageReader(Sessions()) if config.keeps_sessions else None
        self._is_filled_in = config.name in ("value", "raw")
        self._skips_tombstones = config.name == "debezium"
        is_needed = (
            any(field.text or field.path is not None or field.joined or field.rest for field in config.fields)
            and not self._is_filled_in
        )
        self._json_rows = JsonRows(config.fields) if is_needed else None
        self._exploded: ExplodedRows | ShapedRows | None = None
        self._quick_exploded: ExplodedColumns | ShapedColumns | None = None
        if config.shape is not None:
            self._exploded = ShapedRows(config.fields, config.shape)
            self._quick_exploded = ShapedColumns(config.fields, config.shape, EXPLODED_BYTES_MAX)
        elif config.explode is not None:
            self._exploded = ExplodedRows(config.fields, config.explode)
            if config.name == "json":
                self._quick_exploded = ExplodedColumns(config.fields, config.explode, EXPLODED_BYTES_MAX)
        self._fields = config.fields
        self._message_rows = (
            MessageRows(config.fields, self._texts_of_metrics, self._source_fields.members_of)
            if config.keeps_sessions
            else None
        )
        self._quick = self._quick_reader(config)
        self._letters: tuple[bytes, Callable[[int], bytes]] | None = None
        """The record that had a dead letter last, and what returns those of its rows."""
        self.headers = (HEADER_QUERY, *((HEADER_SOURCE,) if config.topic_levels else ()))
        """Those that rows depend on: the first of them that a record has."""
        beside = {header for _, header in config.header_fields} | {one.header for one in metadata.values()}
        if config.keeps_sessions:
            self.headers = (HEADER_SOURCE,)
            beside.add(HEADER_REPLAY_OF)
        self.headers_beside = tuple(sorted(beside))
        """Those that rows depend on beside the first."""

    def _quick_reader(self, config: RecordFormat) -> QuickReader | None:
        """What reads plain records as columns, if anything does."""
        if self._exploded is not None:
            return None
        if config.name == "json":
            return JsonColumns(config.fields)
        is_able = self._json_rows is None or config.name == "debezium"
        return self._reader if is_able and isinstance(self._reader, QuickReader) else None

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
        if self._messages is not None and self._message_rows is not None:
            for part in _in_parts(values):
                for rows in self._message_rows.parts(self._messages, values[part], sources[part]):
                    yield rows._replace(places=rows.of_each(range(part.start, part.stop))) if part.start else rows
            return
        if (read := self._read_columns(values, sources)) is not None:
            yield Rows(read)
        elif self._exploded is None:
            texts = self._texts(values, sources)
            yield from [Rows(texts)] if texts else []
        elif self._quick_exploded is None:
            yield from self._exploded_texts(self._exploded, values, sources)
        else:
            for part in _in_parts(values):
                for rows in self._exploded_parts(self._exploded, self._quick_exploded, values[part], sources[part]):
                    yield rows._replace(places=rows.of_each(range(part.start, part.stop)))

    def _exploded_parts(
        self,
        exploded: ExplodedRows | ShapedRows,
        quick: ExplodedColumns | ShapedColumns,
        values: Sequence[bytes | None],
        sources: Sequence[bytes | None],
    ) -> Iterator[Rows]:
        """The rows of records that may be many rows each: as columns, where most can be read so."""

        def texts(places: Sequence[int]) -> Iterator[Rows]:
            own = [sources[at] for at in places if sources]
            return self._exploded_texts(exploded, [values[at] for at in places], own)

        among = numbered(sources)
        found = quick.columns(values) if among is not None else None
        if among is not None and found is not None and 2 * np.count_nonzero(found.fits) >= len(values):
            rows, places, elements = rows_of(found, texts)
            read = self._with_sources(rows, among[0], among[1][places]) if sources else rows
            if read is not None:
                yield Rows(read, places, elements)
                return
        yield from texts(range(len(values)))

    def _exploded_texts(
        self, exploded: ExplodedRows | ShapedRows, values: Sequence[bytes | None], sources: Sequence[bytes | None]
    ) -> Iterator[Rows]:
        # One after the other: an object may have as many bytes as all rows of a record.
        objects = chain.from_iterable(
            self._objects([value], [source])
            for value, source in zip(values, sources or [None] * len(values), strict=True)
        )
        for rows in exploded.parts(objects):
            yield rows._replace(texts=self._filled_in(rows.texts, rows.of_each(sources))) if sources else rows

    def _objects(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> Sequence[JsonText]:
        return values if self._reader is None else self._reader.objects(values, sources or [None] * len(values))

    def _texts(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> Sequence[JsonText]:
        """The row of each record, where each is one."""
        objects = self._objects(values, sources)
        flat = objects if self._json_rows is None else self._json_rows.rows(objects)
        return self._filled_in(flat, sources) if sources else flat

    def dead_letter_value(self, values: Sequence[bytes | None], rows: Rows, at: int) -> bytes | None:
        """What the dead letter of a row holds: the record's bytes; of an element's row, the record with this element alone, so
        that a replay repeats no other row."""
        element = None if rows.elements is None else rows.elements[at]
        value = values[at if rows.places is None else rows.places[at]]
        if element is None or value is None:
            return value
        if rows.whole_of is not None and isinstance(whole := rows.whole_of(at), bytes):
            return letter_of_row(whole)
        if self._letters is None or self._letters[0] != value:
            self._letters = value, self._letters_of(value)
        return self._letters[1](element)

    def _letters_of(self, value: bytes) -> Callable[[int], bytes]:
        """What returns the dead letter of one of the record's rows, by its element's place."""
        if self._messages is not None:
            return letters_of_metrics(value)
        if self._array_reader is not None:
            return self._array_reader.letters(value)
        assert self._exploded is not None
        if self._reader is None:
            return self._exploded.letters(value)
        (read,) = self._reader.objects([value], [None])
        assert isinstance(read, bytes), "one of its rows was read"
        return self._exploded.letters(read)

    def _read_columns(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> ReadColumns | None:
        """The records as columns, where the format has a quick way for most of them."""
        if self._quick is None or len(values) < ROWS_MIN or (among := numbered(sources)) is None:
            return None
        if self._reader is None and self._json_rows is None and not sources:
            return None  # flat JSON, which the decoder reads
        found = self._quick.columns(values, *([among[0]] if sources else []))
        if found is None or 2 * np.count_nonzero(found[1]) < len(values):
            return None

        def texts(places: Sequence[int]) -> Sequence[JsonText]:
            return self._texts([values[at] for at in places], [sources[at] for at in places if sources])

        read = ReadColumns(*found, texts)
        return self._with_sources(read, *among) if sources else read

    def _with_sources(
        self, read: ReadColumns, sources: Sequence[bytes | None], of_each: npt.NDArray[np.int64]
    ) -> ReadColumns | None:
        """With the columns of what the sources give; None if a record has a field of theirs: which of two counts, its text says.
        `of_each`: of each row the place of its source."""
        given = source_columns(list(map(self._source_fields.members_of, sources)), of_each, self._fields)
        if given is None or given[0].keys() & read.columns.keys():
            return None
        return ReadColumns(dict(read.columns) | given[0], read.fits & given[1], read.of)

    def _texts_of_metrics(self, wholes: Sequence[JsonText], sources: Sequence[bytes | None]) -> Sequence[JsonText]:
        texts = wholes if self._json_rows is None else self._json_rows.rows(wholes)
        return self._filled_in(texts, sources)

    def _parts_without_tombstones(
        self, values: Sequence[bytes | None], sources: Sequence[bytes | None]
    ) -> Iterator[Rows]:
        kept = [place for place, value in enumerate(values) if value is not None]
        for rows in self.parts([values[place] for place in kept], [sources[place] for place in kept if sources]):
            yield rows._replace(places=rows.of_each(kept))

    def _filled_in(self, texts: Sequence[JsonText], sources: Sequence[bytes | None]) -> Sequence[JsonText]:
        return texts if self._is_filled_in else self._source_fields.fill_in(texts, sources)


def _in_parts(values: Sequence[bytes | None]) -> Iterator[slice]:
    """The places of records that have about _BYTES_EXPLODED together."""
    first = size = 0
    for at, value in enumerate(values, 1):
        size += len(value or b"")
        if size >= _BYTES_EXPLODED or at == len(values):
            yield slice(first, at)
            first, size = at, 0
