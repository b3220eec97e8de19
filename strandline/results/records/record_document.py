"""A record becomes a document if a stage emits records. Like for windows (`document.py`), it depends only on the row.

    {"@timestamp": "2024-05-01T12:00:07.250Z",                     the record's event time
     "device": "t-17", "load": 0.83,                               the columns at the stage, by their names
     "strandline": {"job": "turbine-health", "stage": "raw", "version": 1, "epoch": 4, "emission": 1234,
                    "slice_digest": "9f86d081884c7d65", "stream": "turbines", "partition": 2, "offset": 88213}}

If the record was exploded, `strandline.element` is the index of the row's element in its array, from 0. In a stream the
document also has `event_time` after `@timestamp`, unless a column has that name, because a stream's schema is flat.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.results.document import DocumentColumns, DocumentShape, digest_of, hashed_ids, id_of_digest
from strandline.results.names import EVENT_TIME_FIELD, index_name, index_stem
from strandline.results.records.partition_labels import partition_of, stream_index_of
from strandline.results.text_columns import (
    TIME_OUT_OF_RANGE,
    id_parts,
    is_time_in_range,
    iso_texts,
    join_texts,
    read_column,
)
from strandline.results.writer import ELEMENT, EVENT_US, OFFSET, PARTITION

_encode = msgspec.json.Encoder().encode
_NO_INDEX = np.int64(-(10**9))
"""Value for the month of a time that has no index."""


def record_document_id(
    job: str, stage: str, stream: str, partition: int, offset: int, element: int | None = None
) -> str:
    """Return the id of a record's document. See `document_id`.

    The parts are: `s` job, `s` stage, `s` stream, `i` partition, `i` offset, and `i` element, or `n` if the row is the
    complete record.
    """
    return id_of_digest(digest_of((job, stage, stream, partition, offset, element)))


@dataclass(frozen=True)
class RecordShape(DocumentShape):
    """Properties that all documents of one emission of records share. `by` is empty; `aggregates` are the columns."""

    input_streams: tuple[str, ...] = field(kw_only=True)
    """The streams that the pipeline reads. The partition of a row is its label (`partition_labels`), which contains the
    stream of the record."""

    @property
    def has_window(self) -> bool:
        return False

    def places(self, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], pa.Array]:
        """Return for each record the index of its stream in `input_streams`, and its partition."""
        if len(self.input_streams) == 1:
            return np.zeros(batch.num_rows, np.int64), batch.column(PARTITION)
        labels = batch.column(PARTITION).to_numpy().astype(np.int64)
        return stream_index_of(labels), pa.array(partition_of(labels).astype(np.int32))

    def columns(self, batch: pa.RecordBatch, epoch: int, emission: int, slice_digest: str = "") -> DocumentColumns:
        """Return the documents of all rows.

        The caller limits the size of the batch. For its columns see ResultWriter.
        """
        times_us = batch.column(EVENT_US)
        inside = is_time_in_range(times_us)
        times = pc.if_else(inside, iso_texts(times_us, inside), times_us.cast(pa.string())).cast(pa.binary())
        columns = [read_column(name, batch.column(name), type_name) for name, type_name in self.fields]
        pieces: list[pa.BinaryArray | bytes] = [b'{"@timestamp":"', times, b'",']
        if self.is_stream and EVENT_TIME_FIELD not in dict(self.fields):
            pieces += [b'"%s":"' % EVENT_TIME_FIELD.encode(), times, b'",']
        for (name, _), column in zip(self.fields, columns, strict=True):
            pieces += [_encode(name) + b":", column.texts]
        places, partitions = self.places(batch)
        origin = self._origin(epoch, emission, slice_digest)
        if len(self.input_streams) == 1:
            pieces.append(b'"strandline":' + _encode(origin | {"stream": self.input_streams[0]})[:-1])
        else:
            streams = pa.array([_encode(stream) for stream in self.input_streams], pa.binary()).take(pa.array(places))
            pieces += [b'"strandline":' + _encode(origin)[:-1] + b',"stream":', streams]
        pieces += [b',"partition":', _digits(partitions)]
        pieces += [b',"offset":', _digits(batch.column(OFFSET)), *_element_texts(batch.column(ELEMENT)), b"}}"]
        parts = [id_parts(column, "long") for column in (partitions, batch.column(OFFSET), batch.column(ELEMENT))]
        begun = [digest_of((self.job, self.stage, stream)) for stream in self.input_streams]
        ids = hashed_ids(begun, places, join_texts(parts).to_pylist())
        names, codes = self._indices(times_us.to_numpy(), inside.to_numpy(zero_copy_only=False))
        problems = {
            row: (TIME_OUT_OF_RANGE, f"the event time {times_us[row].as_py()} us lies outside the years 1 to 9999")
            for row in pc.indices_nonzero(pc.invert(inside)).to_pylist()
        }
        for column in columns:
            problems = column.problems | problems
        return DocumentColumns(self._of_run(ids, epoch), pieces, problems, names, codes)

    def _indices(
        self, times_us: npt.NDArray[np.int64], inside: npt.NDArray[np.bool_]
    ) -> tuple[list[str | None], npt.NDArray[np.int64]]:
        """Return the distinct indices, by the months of event times, and the position of each row's index among them."""
        months = times_us.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)
        found, codes = np.unique(np.where(inside, months, _NO_INDEX), return_inverse=True)
        stem = index_stem(self.emit_name, self.generation)
        names: list[str | None] = []
        for month in found:
            start_ms = (
                int(month.astype("datetime64[M]").astype("datetime64[ms]").astype(np.int64))
                if month != _NO_INDEX
                else 0
            )
            named = self.emit_name if self.is_stream or self.is_elsewhere else index_name(stem, start_ms)
            names.append(None if month == _NO_INDEX else named)
        return names, codes.astype(np.int64)


def _digits(numbers: pa.Array) -> pa.BinaryArray:
    return numbers.cast(pa.string()).cast(pa.binary())


def _element_texts(elements: pa.Array) -> list[pa.BinaryArray]:
    if elements.null_count == len(elements):
        return []
    texts = pc.binary_join_element_wise(',"element":', elements.cast(pa.string()), "")
    return [texts.fill_null("").cast(pa.binary())]
