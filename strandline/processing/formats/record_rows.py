"""The rows of records. Each record becomes JSON objects of the declared fields, which `decoder.py` reads, or columns of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from strandline.core.json_paths import JsonPath, parse_json_path
from strandline.core.record_headers import HEADER_QUERY, HEADER_REPLAY_OF, HEADER_SOURCE
from strandline.core.streams.format import ValueRows
from strandline.core.streams.format_registry import package_of, require_package
from strandline.processing.formats.columns.exploded_columns import ExplodedColumns, rows_of
from strandline.processing.formats.columns.read_columns import ROWS_MIN, ColumnReader, DecodedColumns
from strandline.processing.formats.columns.source_columns import numbered, source_columns
from strandline.processing.formats.format import ArrayReader, Format, ReaderRequest, SessionState, format_of
from strandline.processing.formats.json_rows import EXPLODED_BYTES_MAX, ExplodedRows, JsonRows, Rows
from strandline.processing.formats.payload_text import PayloadText
from strandline.processing.formats.record_fields import JsonText, RecordField, record_fields
from strandline.processing.formats.record_metadata import RecordMetadata
from strandline.processing.formats.shapes.shape import ShapeConfig
from strandline.processing.formats.shapes.shaped_columns import ShapedColumns
from strandline.processing.formats.shapes.shaped_rows import ShapedRows
from strandline.processing.formats.source_fields import SourceFields
from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchemas

if TYPE_CHECKING:  # its pydantic takes a fifth of a second to import in every Python worker
    from strandline.core.streams.stream import StreamSpec


_BYTES_EXPLODED = 1 << 20
"""Maximum number of bytes of records that are read together, if each can be many rows."""


@dataclass(frozen=True)
class RecordFormat:
    """The form of a stream's records. Pickled by Spark."""

    name: str
    fields: tuple[RecordField, ...]
    """Schema of the stream."""
    topic_levels: Mapping[str, int]
    """Fields that a level of the MQTT topic fills: name -> level."""
    options: Any = None
    """Options of the format, as `Format.read_options` returns them."""
    value_rows: ValueRows | None = None
    """Form of records that are rows of values. None if records aren't."""
    explode: JsonPath | None = None
    """Array whose elements are rows. None if there is none."""
    shape: ShapeConfig | None = None
    """Shape of records that are several rows, if it isn't an array of objects."""
    is_of_positions: bool = False
    """True if a row is an array whose values are read by index."""
    header_fields: tuple[tuple[str, str], ...] = ()
    """Fields that a header of the record fills: name and header."""
    metadata: tuple[tuple[str, str], ...] = ()
    """Fields that metadata of the record fill: name, and metadata in the form of the stream's document."""
    event_time_parameter: str | None = None
    """Field that the query parameter `event_time` fills. None if there is none."""
    payload: PayloadText | None = None
    """How the text of a record is found. None if the record is the text, in UTF-8."""
    package: str = ""
    """Package that adds the format, with its release. Empty for a format of Strandline."""

    @property
    def form(self) -> Format:
        """The format, from the registry of formats. Raises FunctionUnusable if its package can't be used."""
        return format_of(self.name)

    @property
    def uses_registry(self) -> bool:
        """True if each record names its schema in the schema registry."""
        return self.form.uses_registry(self.options)

    @property
    def keeps_sessions(self) -> bool:
        """True if the outcome of a record depends on earlier records of its partition."""
        return self.form.keeps_sessions

    @property
    def explodes(self) -> bool:
        """True if a record can be several rows."""
        return self.explode is not None or self.shape is not None


def record_format(stream: StreamSpec) -> RecordFormat:
    """Return the form of the stream's records. Raises FunctionUnusable if the format belongs to a package that can't be used."""
    form = format_of(stream.format)
    return RecordFormat(
        name=stream.format,
        fields=form.fields(record_fields(stream)),
        topic_levels=dict(stream.mqtt.fields) if stream.mqtt else {},
        options=form.read_options(stream),
        value_rows=form.value_rows(stream),
        explode=_array_of_rows(stream, form),
        shape=_shape(stream),
        is_of_positions=stream.is_of_positions,
        header_fields=tuple(stream.http.record_headers.items()) if stream.http else (),
        metadata=tuple(stream.metadata.items()),
        event_time_parameter=stream.event_time_parameter,
        payload=_payload(stream),
        package=package_of(stream.format),
    )


def _array_of_rows(stream: StreamSpec, form: Format) -> JsonPath | None:
    """Return the path of the array whose elements are rows. None if there is none."""
    if form.rows_at is not None:
        return form.rows_at
    path = stream.explode_path
    return None if path in (None, "$") else parse_json_path(path)


def _payload(stream: StreamSpec) -> PayloadText | None:
    """Return how the text of a record is found. None if the record is the text."""
    charset = "" if stream.charset == "utf-8" else stream.charset
    embedded = tuple((parse_json_path(one.at), one.encoding) for one in stream.embedded)
    return PayloadText(charset, embedded) if charset or embedded else None


def _shape(stream: StreamSpec) -> ShapeConfig | None:
    """Return the shape of the stream's records. None if a record is one row, or has an array of objects."""
    if stream.explode_path == "$":
        return ShapeConfig("elements", ((),))
    spec = stream.shape
    if spec is None:
        return None
    return ShapeConfig(
        spec.kind,
        tuple(spec.containers),
        spec.name,
        spec.match,
        spec.shorter == "null",
        spec.index,
        spec.time,
        spec.step or 0,
        None if spec.inner is None else parse_json_path(spec.inner),
        spec.outer,
        tuple(spec.filled),
    )


def json_objects(config: RecordFormat, values: Sequence[bytes]) -> Iterator[JsonText]:
    """Yield each record as a JSON object before its fields are read, or the reason why it isn't one."""
    sources = SourceFields({}, {field.name: field.type for field in config.fields})
    form = config.form
    reader = form.reader(ReaderRequest(config.fields, config.options, config.explode, sources))
    for value in values:
        if form.keeps_sessions:
            yield None  # the meaning of a message depends on earlier ones
        else:
            text = value if config.payload is None else config.payload.opened(value)
            yield from [text] if reader is None else reader.objects([text], [None])


class RowReader:
    """Makes the rows of one stream's records.

    It keeps no state between calls, except the sources that it has read. If the format keeps sessions, it also keeps the
    declarations of the records so far. Then all records of a partition must be passed in their order.
    """

    def __init__(self, config: RecordFormat, schemas: RegisteredSchemas | None = None) -> None:
        """`schemas`: required if the format uses the registry."""
        metadata = {name: RecordMetadata(text) for name, text in config.metadata}
        self._source_fields = SourceFields(
            config.topic_levels,
            {field.name: field.type for field in config.fields if not field.rest},
            dict(config.header_fields),
            config.event_time_parameter,
            metadata,
        )
        require_package(config.name, config.package)
        form = config.form
        request = ReaderRequest(config.fields, config.options, config.explode, self._source_fields, schemas)
        self._reader = form.reader(request)
        self._is_filled_in = form.fills_in_sources
        self._skips_tombstones = form.skips_tombstones
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
            self._quick_exploded = form.element_columns(config.fields, config.explode)
        self._fields = config.fields
        self._session_reader = (
            form.session_reader(config.fields, self._texts_in_sessions, self._source_fields.members_of)
            if form.keeps_sessions
            else None
        )
        self._quick = self._quick_reader(form, request)
        self._payload = config.payload
        self._letters: tuple[bytes, Callable[[int], bytes]] | None = None
        """Record with the last dead letter, and the function that returns those of its rows."""
        self.headers = (HEADER_QUERY, *((HEADER_SOURCE,) if config.topic_levels else ()))
        """Headers on which rows depend: only the first one that a record has counts."""
        beside = {header for _, header in config.header_fields} | {one.header for one in metadata.values()}
        if form.keeps_sessions:
            self.headers = (HEADER_SOURCE,)
            beside.add(HEADER_REPLAY_OF)
        self.headers_beside = tuple(sorted(beside))
        """Other headers on which rows depend."""

    def _quick_reader(self, form: Format, request: ReaderRequest) -> ColumnReader | None:
        """Return the reader of plain records as columns. None if there is none."""
        is_able = self._json_rows is None or form.columns_follow_paths
        return form.columns(request, self._reader) if is_able and self._exploded is None else None

    def leave_columns(self) -> None:
        """Read all following records by their text. For tests: the outcome must be the same."""
        self._quick = self._quick_exploded = None

    @property
    def sessions(self) -> SessionState | None:
        """Declarations of the records so far. None if the format keeps no sessions."""
        return None if self._session_reader is None else self._session_reader.sessions

    def begin(self, sessions: SessionState) -> None:
        """Continue with other records. `sessions`: the declarations before these records."""
        if self._session_reader is not None:
            self._session_reader.begin(sessions)

    def parts(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> Iterator[Rows]:
        """Yield the rows of the records in their order: all in one part, or in parts of whole records if a record can be many
        rows. Each part has rows.

        `sources`: for each record, the first of `headers` that it has, packed with its `headers_beside`. Empty if no record has
        one.
        """
        yield from self._parts(values if self._payload is None else self._payload.all_opened(values), sources)

    def _parts(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> Iterator[Rows]:
        if self._skips_tombstones and None in values:
            yield from self._parts_without_tombstones(values, sources)
            return
        if self._session_reader is not None:
            for part in _in_parts(values):
                for rows in self._session_reader.parts(values[part], sources[part]):
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
                    yield rows._replace(places=rows.of_each(range(part.start, part.stop))) if part.start else rows

    def _exploded_parts(
        self,
        exploded: ExplodedRows | ShapedRows,
        quick: ExplodedColumns | ShapedColumns,
        values: Sequence[bytes | None],
        sources: Sequence[bytes | None],
    ) -> Iterator[Rows]:
        """Yield the rows of records that can each be many rows. They are read as columns if most of them can be."""

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
        # One record at a time, because an object can have as many bytes as all rows of a record.
        objects = chain.from_iterable(
            self._objects([value], [source])
            for value, source in zip(values, sources or [None] * len(values), strict=True)
        )
        for rows in exploded.parts(objects):
            yield rows._replace(texts=self._filled_in(rows.texts, rows.of_each(sources))) if sources else rows

    def _objects(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> Sequence[JsonText]:
        return values if self._reader is None else self._reader.objects(values, sources or [None] * len(values))

    def _texts(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> Sequence[JsonText]:
        """Return the row of each record, for records that are one row."""
        objects = self._objects(values, sources)
        flat = objects if self._json_rows is None else self._json_rows.rows(objects)
        return self._filled_in(flat, sources) if sources else flat

    def dead_letter_value(self, values: Sequence[bytes | None], rows: Rows, at: int) -> bytes | None:
        """Return the content of a row's dead letter: the record's bytes, or for an element's row the record with only this
        element, so that a replay repeats no other row."""
        element = None if rows.elements is None else rows.elements[at]
        value = values[at if rows.places is None else rows.places[at]]
        if element is None or value is None:
            return value
        if (
            self._session_reader is not None
            and rows.whole_of is not None
            and isinstance(whole := rows.whole_of(at), bytes)
        ):
            return self._session_reader.letter_of_row(whole)
        if self._letters is None or self._letters[0] != value:
            self._letters = value, self._letters_of(value if self._payload is None else self._payload.opened(value))
        letter = self._letters[1](element)
        return letter if self._payload is None else self._payload.closed(letter)

    def _letters_of(self, value: bytes) -> Callable[[int], bytes]:
        """Return a function: index of an element -> dead letter of its row."""
        if self._session_reader is not None:
            return self._session_reader.letters(value)
        if isinstance(self._reader, ArrayReader):
            return self._reader.letters(value)
        assert self._exploded is not None
        if self._reader is None:
            return self._exploded.letters(value)
        (read,) = self._reader.objects([value], [None])
        assert isinstance(read, bytes), "one of its rows was accepted"
        return self._exploded.letters(read)

    def _read_columns(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> DecodedColumns | None:
        """Return the records as columns. None if the format has no fast path for most of them."""
        if self._quick is None or len(values) < ROWS_MIN or (among := numbered(sources)) is None:
            return None
        if self._reader is None and self._json_rows is None and not sources:
            return None  # flat JSON, which the decoder reads
        found = self._quick.columns(values, *([among[0]] if sources else []))
        if found is None or 2 * np.count_nonzero(found[1]) < len(values):
            return None

        def texts(places: Sequence[int]) -> Sequence[JsonText]:
            return self._texts([values[at] for at in places], [sources[at] for at in places if sources])

        read = DecodedColumns(*found, texts)
        return self._with_sources(read, *among) if sources else read

    def _with_sources(
        self, read: DecodedColumns, sources: Sequence[bytes | None], of_each: npt.NDArray[np.int64]
    ) -> DecodedColumns | None:
        """Add the columns that the sources fill. None if a record has a field of its source, because its text determines which
        value counts. `of_each`: index of each row's source."""
        given = source_columns(list(map(self._source_fields.members_of, sources)), of_each, self._fields)
        if given is None or given[0].keys() & read.columns.keys():
            return None
        return DecodedColumns(dict(read.columns) | given[0], read.fits & given[1], read.of)

    def _texts_in_sessions(self, wholes: Sequence[JsonText], sources: Sequence[bytes | None]) -> Sequence[JsonText]:
        texts = wholes if self._json_rows is None else self._json_rows.rows(wholes)
        return self._filled_in(texts, sources)

    def _parts_without_tombstones(
        self, values: Sequence[bytes | None], sources: Sequence[bytes | None]
    ) -> Iterator[Rows]:
        kept = [place for place, value in enumerate(values) if value is not None]
        for rows in self._parts([values[place] for place in kept], [sources[place] for place in kept if sources]):
            yield rows._replace(places=rows.of_each(kept))

    def _filled_in(self, texts: Sequence[JsonText], sources: Sequence[bytes | None]) -> Sequence[JsonText]:
        return texts if self._is_filled_in else self._source_fields.fill_in(texts, sources)


def _in_parts(values: Sequence[bytes | None]) -> Iterator[slice]:
    """Yield the ranges of records that have about _BYTES_EXPLODED bytes together."""
    first = size = 0
    for at, value in enumerate(values, 1):
        size += len(value or b"")
        if size >= _BYTES_EXPLODED or at == len(values):
            yield slice(first, at)
            first, size = at, 0
