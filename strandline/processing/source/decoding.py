"""Reading and decoding of a job's records. A run, an audit and a backfill use the same code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.log.reader import OffsetRange
from strandline.log.record_key import key_finder
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.formats.decoder import NEVER_AHEAD, NEVER_LATE, Decoded, Decoder
from strandline.processing.formats.format import SessionState
from strandline.processing.formats.record_fields import JsonText
from strandline.processing.formats.record_rows import RecordFormat, RowReader, record_format
from strandline.processing.slices.sender_faults import sender_of
from strandline.processing.source.slice_rows import row_identity
from strandline.processing.source.source_config import DecodingConfig, Piece, StreamDecoding, TaskConfig
from strandline.results.records.partition_labels import label_of

if TYPE_CHECKING:  # its pydantic takes a fifth of a second to import, in every Python worker; the Kafka client a tenth
    from strandline.log.range_reader import FetchedRecords, RangeReader
    from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchemas
    from strandline.processing.operators.lookups.lookup_table import LookupTable
    from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
    from strandline.processing.source.kept_lookups import LookupRef
    from strandline.processing.source.kept_schemas import SchemaCache


def decoding_of(pipeline: CheckedPipeline, kafka_bootstrap: str, ledger_url: str = "") -> DecodingConfig:
    """Return how the records of the pipeline's streams are decoded. `ledger_url`: without its password."""
    inputs = tuple(
        StreamDecoding(
            stream=one.name,
            format=record_format(one.stream),
            columns=one.columns_needed,
            event_time_source=one.event_time_source,
            late_limit=_late_limit(pipeline),
            key=one.stream.key,
        )
        for one in pipeline.inputs
    )
    return DecodingConfig(kafka_bootstrap, inputs, ledger_url, pipeline.lookups)


def task_config(
    pipeline: CheckedPipeline,
    kafka_bootstrap: str,
    bucket_keys: tuple[int, ...],
    events_ms: tuple[int, int] | None = None,
    ledger_url: str = "",
) -> TaskConfig:
    """Return the config of the source tasks of a pipeline. `bucket_keys`: see `slice_rows.bucket_keys`. `events_ms`: only records
    from the first to before the second event time are computed. None for all."""
    return TaskConfig(
        decoding=decoding_of(pipeline, kafka_bootstrap, ledger_url),
        stages=pipeline.stages,
        types=tuple(tuple(one.stream.types.items()) for one in pipeline.inputs),
        bucket_keys=bucket_keys,
        late_is_dropped=pipeline.spec.late == "drop",
        crashes=pipeline.spec.on_error == "crash",
        events_ms=events_ms,
        record_stages=pipeline.record_stages,
    )


def decoder_of(config: StreamDecoding) -> Decoder:
    """Return a decoder for one stream. A task makes it once."""
    return Decoder(
        fields=config.format.fields,
        event_time=config.event_time_source,
        columns_needed=config.columns,
        late_limit=config.late_limit,
    )


def _late_limit(pipeline: CheckedPipeline) -> str:
    """Return the name of the time before which a record is late. Empty if no record can be late."""
    if not pipeline.has_late_records:
        return ""
    return "the time from which on late records revise results," if pipeline.spec.revise_ms else "the watermark"


Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class DecodedChunk:
    """Decoded rows of complete records of one partition, in the order of their offsets. At least one row."""

    stream: str
    partition: int
    offsets: Sequence[int]
    """Offset of each row's record. A record is one row, unless it is exploded."""
    log_times_ms: Sequence[int]
    """Log time of each row's record."""
    decoded: Decoded
    value_at: Callable[[int], bytes | None]
    """Returns the bytes that the dead letter of a row contains."""
    elements: Sequence[int | None] | None = None
    """Index of each row's element in the exploded array. None if each record is a row."""
    tables: Mapping[str, LookupTable] = field(default_factory=dict)
    """Lookup -> the version of its rows by which these rows are enriched."""

    place: int = 0
    """Index of the stream among the input streams."""
    is_late: Marks | None = None
    """True for each accepted row that is below the watermark. None if there is none."""
    key: str | None = None
    """The stream's key field. None if it has none."""
    key_and_source: Callable[[int], tuple[bytes | None, bytes | None]] | None = None
    """Returns the Kafka key and the recorded source of the record at an offset. None if records come from elsewhere."""
    stored_bytes: int = 0
    """Size of the records as stored in Kafka. The first chunk of several that were fetched together contains the whole size."""

    def with_late(self, watermarks_ms: npt.NDArray[np.int64]) -> DecodedChunk:
        """Return the chunk with `is_late` set. `watermarks_ms`: the watermark of each row's slice."""
        event_ms = self.decoded.event_time.cast(pa.int64()).to_numpy() // 1000
        return replace(self, is_late=event_ms < watermarks_ms[self.accepted_indices()])

    def late_column(self, rows: npt.NDArray[np.int64]) -> pa.Array:
        """Return the column LATE of these accepted rows, by index: True for a late row."""
        is_late = np.zeros(len(rows), np.bool_) if self.is_late is None else self.is_late[rows]
        return pa.array(is_late, mask=~is_late)

    @property
    def label(self) -> int:
        """Label of the partition among the partitions of all streams."""
        return label_of(self.place, self.partition)

    def accepted_indices(self) -> list[int]:
        """Return the index in the chunk of each accepted row, in their order."""
        rejected = {reject.index for reject in self.decoded.rejects}
        return [at for at in range(len(self.offsets)) if at not in rejected]

    def sender_at(self, at: int) -> str | None:
        """Return the sender of a row. None if it is unknown.

        It is the value of the stream's key field, if the record is a JSON object with this field. Otherwise it is the record's
        Kafka key, or the source that the gateway recorded."""
        value = self.value_at(at) if self.key is not None else None
        own = None if value is None or self.key is None else key_finder(self.key)(value)
        if own or self.key_and_source is None:
            return sender_of(own)
        return sender_of(*self.key_and_source(self.offsets[at]))

    def identity_at(self, at: int) -> str:
        """Return the unique identity of a row."""
        return row_identity(self.stream, self.partition, self.offsets[at], self.element_at(at))

    def element_at(self, at: int) -> int | None:
        """Return the index of a row's element in its record. None if the record is the row."""
        return None if self.elements is None else self.elements[at]


SessionsRead = dict[tuple[str, int], SessionState]
"""(stream, partition) -> what its records have declared, where the format keeps that."""


class RecordReader(Protocol):
    """Reads ranges of the log. `RangeReader` is one."""

    def read(
        self, ranges: Sequence[OffsetRange], headers: Sequence[str] = (), headers_beside: Sequence[str] = ()
    ) -> Iterator[FetchedRecords]:
        """Yield the records of the ranges in the order of the ranges. See `RangeReader.read`."""


def decode_pieces(
    config: DecodingConfig,
    pieces: Sequence[Piece],
    *,
    is_new: bool = False,
    sessions: SessionsRead | None = None,
    reader: RecordReader | None = None,
    decoders: dict[str, Decoder] | None = None,
) -> Iterator[DecodedChunk]:
    """Read and decode the pieces in order, and yield their rows in chunks. A chunk may span slices; each record is decoded and
    validated by the rules of its own slice. All rows of a chunk are of one stream, and enriched with the same lookup versions.

    The columns have the types of the stream's config, also if a piece has another format. `is_new`: True for pieces of a new
    slice; only then the schema registry is queried whether the schemas that records name have changed. `sessions`: filled with
    the declarations of all records; complete after the last chunk. `reader`: reads the ranges of the pieces. None: the reader of
    this process. `decoders`: stream -> decoder, kept by the caller for later calls with the same config; missing ones are added.
    Raises what the log's reader raises; RegistryUnavailable, LedgerUnavailable, SchemaChanged.
    """
    decoders = {} if decoders is None else decoders
    registry = _RegistrySchemas(config, is_new=is_new)
    for (stream, other, refs, _), runs in groupby(_adjoining(pieces, registry), partial(_decoded_alike, registry)):
        own, place = config.of(stream), config.index_of(stream)
        if stream not in decoders:
            decoders[stream] = decoder_of(own)
        alike = list(runs)
        schemas = registry.schemas_of(alike[0][0])
        tables: Mapping[str, LookupTable] = {}
        if refs:
            from strandline.processing.source.kept_lookups import tables_of_process  # only where a pipeline needs it

            tables = tables_of_process(config.ledger_url, refs)
        row_reader = RowReader(other or own.format, schemas)
        decode = decoders[stream].decode if other is None else conforming_decoder(own, other)
        records = reader or reader_of_process(config.kafka_bootstrap)
        yield from _decode_runs(config, place, records, row_reader, decode, alike, tables, sessions)


class _RegistrySchemas:
    """Returns the schemas of the schema registry that the records of a piece may name."""

    def __init__(self, config: DecodingConfig, *, is_new: bool) -> None:
        self._config = config
        self._is_new = is_new
        self._current: set[str] = set()
        """Streams for which this process has read again since when each schema is used."""

    def generation_of(self, piece: Piece) -> int:
        """Return a number that is equal for pieces of committed slices that use the same schemas. 0 if records name none."""
        if self._is_new or not piece.job or not self._uses_registry(piece):
            return 0
        stream = piece.offsets.stream
        if stream not in self._current:
            self._kept().forget_uses(piece.job, stream)
            self._current.add(stream)
        return self._kept().generation(piece.job, stream, piece.slice)

    def schemas_of(self, piece: Piece) -> RegisteredSchemas | None:
        """Return the schemas for this piece and others of the same `generation_of`. None if its records name no schemas."""
        if not self._uses_registry(piece):
            return None
        from strandline.processing.source.kept_schemas import SchemasNow, SchemasOfSlice, SliceScope

        if not piece.job:
            return SchemasNow(self._kept())
        scope = SliceScope(piece.job, piece.offsets.stream, piece.slice, self._is_new)
        return SchemasOfSlice(self._kept(), scope)

    def _uses_registry(self, piece: Piece) -> bool:
        return (piece.format or self._config.of(piece.offsets.stream).format).uses_registry

    def _kept(self) -> SchemaCache:
        from strandline.processing.source.kept_schemas import schemas_of_process  # only where a stream needs it

        return schemas_of_process(self._config.ledger_url)


def _decoded_alike(
    registry: _RegistrySchemas, run: Sequence[Piece]
) -> tuple[str, RecordFormat | None, tuple[LookupRef, ...], int]:
    return run[0].offsets.stream, run[0].format, run[0].lookups, registry.generation_of(run[0])


Decode = Callable[[Sequence[JsonText], Sequence[int], Any, Any], Decoded]


def conforming_decoder(config: StreamDecoding, other: RecordFormat) -> Decode:
    """Return a `Decoder.decode` for another version of the stream's document that returns the columns of `config`.

    Columns that the other version doesn't declare are null. Columns of a narrower type are cast, which keeps each value. Only an
    integer beyond 2^53 becomes the nearest double."""
    types = {field.name: arrow_type(field.type) for field in config.format.fields}
    declared = {field.name for field in other.fields}
    decoder = Decoder(
        fields=other.fields,
        event_time=config.event_time_source,
        columns_needed=[name for name in config.columns if name in declared],
        late_limit=config.late_limit,
    )

    def decode(values: Sequence[JsonText], log_times_ms: Sequence[int], late_below_ms: Any, ahead_ms: Any) -> Decoded:
        decoded = decoder.decode(values, log_times_ms, late_below_ms, ahead_ms)
        arrays = {
            name: decoded.arrays[name].cast(types[name], safe=types[name] != pa.float64())
            if name in declared
            else pa.nulls(len(decoded.event_time), types[name])
            for name in config.columns
        }
        return replace(decoded, arrays=arrays)

    return decode


def _decode_runs(
    config: DecodingConfig,
    place: int,
    reader: RecordReader,
    row_reader: RowReader,
    decode: Decode,
    adjoining: Iterable[list[Piece]],
    tables: Mapping[str, LookupTable],
    sessions: SessionsRead | None,
) -> Iterator[DecodedChunk]:
    runs = {_whole(run): run for run in adjoining}
    begun: OffsetRange | None = None
    for records in reader.read(list(runs), row_reader.headers, row_reader.headers_beside):
        whole, run = records.offset_range, runs[records.offset_range]
        if whole != begun and row_reader.sessions is not None:
            from strandline.processing.source.kept_sessions import sessions_of_process  # only where a stream needs it

            form = (run[0].format or config.inputs[place].format).form
            begun_with = sessions_of_process(config.ledger_url).unpack(form, run[0].sessions)
            row_reader.begin(begun_with)
            if sessions is not None:
                sessions[whole.stream, whole.partition] = begun_with  # the reader writes on in it
        begun = whole
        ends = np.array([piece.offsets.offset_next for piece in run])
        late_below_ms = np.array([NEVER_LATE if piece.late_below_ms is None else piece.late_below_ms for piece in run])
        revised_ms = np.array(
            [NEVER_LATE if piece.revised_below_ms is None else piece.revised_below_ms for piece in run]
        )
        ahead_ms = np.array([NEVER_AHEAD if piece.max_ahead_ms is None else piece.max_ahead_ms for piece in run])
        stored_bytes = records.stored_bytes
        for rows in row_reader.parts(records.values, records.header_values):
            offsets, log_times_ms = rows.of_each(records.offsets), rows.of_each(records.log_times_ms)
            of_piece = np.searchsorted(ends, np.asarray(offsets, np.int64), "right")
            decoded = decode(rows.texts, log_times_ms, late_below_ms[of_piece], ahead_ms[of_piece])
            value_at = partial(row_reader.dead_letter_value, records.values, rows)
            chunk = DecodedChunk(
                whole.stream,
                whole.partition,
                offsets,
                log_times_ms,
                decoded,
                value_at,
                rows.elements,
                tables,
                place,
                key=config.inputs[place].key,
                key_and_source=records.key_and_source,
                stored_bytes=stored_bytes,
            )
            stored_bytes = 0
            yield chunk if (revised_ms == NEVER_LATE).all() else chunk.with_late(revised_ms[of_piece])


def _whole(run: Sequence[Piece]) -> OffsetRange:
    """Return the range of all pieces together, with the recorded checksum of each piece's end."""
    last = run[-1].offsets
    inner = tuple(recorded for piece in run[:-1] for recorded in piece.offsets.recorded_checksums)
    return replace(last, offset_first=run[0].offsets.offset_first, inner_checksums=inner + last.inner_checksums)


def _adjoining(pieces: Sequence[Piece], registry: _RegistrySchemas) -> Iterator[list[Piece]]:
    """Yield groups of consecutive pieces that are fetched and decoded together. Pieces of a group follow each other in one
    partition, and have the same format, lookup versions, and registered schemas."""
    run: list[Piece] = []
    for piece in pieces:
        before = run[-1].offsets if run else None
        here = piece.offsets
        if before and (
            (before.stream, before.partition, before.offset_next) != (here.stream, here.partition, here.offset_first)
            or piece.format is not run[-1].format
            or piece.lookups != run[-1].lookups
            or registry.generation_of(piece) != registry.generation_of(run[-1])
        ):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


READER_TIMEOUT_S = 30.0
"""Maximum time in seconds that a reader waits for Kafka without a record."""
_readers: dict[tuple[str, float], RangeReader] = {}


def reader_of_process(bootstrap: str, timeout_s: float = READER_TIMEOUT_S) -> RangeReader:
    """Return the log reader of this process. It is kept, because Spark reuses Python workers, and a new reader must connect."""
    key = bootstrap, timeout_s
    if key not in _readers:
        from strandline.log.range_reader import RangeReader

        _readers[key] = RangeReader(bootstrap, timeout_s)
    return _readers[key]
