"""Results as typed columns, for stores with types: files and tables.

A result that a document can't contain is refused here, too, so that one rule applies to every store. The platform's own
columns begin with `strandline_`: `id` and `time` (id and `@timestamp` of the document), `window_start` and
`window_end`, `job`, `stage`, `version`, `emission`, `slice_digest`. Records have `stream`, `partition`, `offset`, and
`element` instead of the window's times.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.results.document import DocumentColumns, DocumentShape
from strandline.results.names import OWN_PREFIX
from strandline.results.records.record_document import RecordShape
from strandline.results.text_columns import join_texts
from strandline.results.writer import ELEMENT, EVENT_US, OFFSET, WINDOW_END, WINDOW_START, Refused

ID = f"{OWN_PREFIX}id"
TIME = f"{OWN_PREFIX}time"
ATTEMPT_COLUMNS = frozenset(f"{OWN_PREFIX}{name}" for name in ("version", "emission", "slice_digest"))
"""Columns that identify the run that wrote a row, and are not part of the result."""
_MOMENT = pa.timestamp("us", "UTC")
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class TypedRows:
    """The rows that a store can accept, in their order, and the refused ones."""

    table: pa.RecordBatch
    documents: DocumentColumns
    """Documents of the same rows, without the fields of the run that writes them."""
    refused: list[Refused]

    def digest(self) -> int:
        """Return a number that depends on the rows and not on their order.

        The digest of several pieces is the sum of theirs.
        """
        total = 0
        sources = join_texts([self.documents.ids.cast(pa.binary()), *self.documents.pieces]).to_pylist()
        for source in sources:
            total += int.from_bytes(hashlib.sha256(source).digest()[:_DIGEST_BYTES], "big")
        return total % (1 << 8 * _DIGEST_BYTES)


def own_columns(shape: DocumentShape) -> dict[str, str]:
    """Return the platform's own columns with their types, as in a stream's schema."""
    times = {"window_start": "timestamp", "window_end": "timestamp"}
    places = {"stream": "string", "partition": "integer", "offset": "long", "element": "integer"}
    names = {"id": "string", "time": "timestamp", **(times if shape.has_window else places)}
    names |= {"job": "string", "stage": "string", "version": "integer", "emission": "long"}
    names["slice_digest"] = "string"
    return {f"{OWN_PREFIX}{name}": kind for name, kind in names.items()}


def typed_rows(
    shape: DocumentShape, batch: pa.RecordBatch, epoch: int, emission: int, slice_digest: str = ""
) -> TypedRows:
    """Return the rows of a batch. For its columns see ResultWriter."""
    documents = replace(shape, version=0).columns(batch, 0 if shape.is_once else epoch, 0)
    good, refused = documents.sorted_out()
    if refused:
        batch = batch.take(pa.array(np.flatnonzero([row not in documents.problems for row in range(len(documents))])))
    count = batch.num_rows

    def constant(value: str | int | None, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), count)

    columns: dict[str, pa.Array] = {"id": good.ids}
    if isinstance(shape, RecordShape):
        places, partitions = shape.places(batch)
        columns |= {
            "time": batch.column(EVENT_US).cast(pa.timestamp("us")).cast(_MOMENT),
            "stream": pa.array(shape.input_streams, pa.string()).take(pa.array(places)),
            "partition": partitions,
            "offset": batch.column(OFFSET),
            "element": batch.column(ELEMENT),
        }
    else:
        start, end = (_moments(batch.column(name)) for name in (WINDOW_START, WINDOW_END))
        columns |= {"time": end, "window_start": start, "window_end": end}
    columns |= {
        "job": constant(shape.job, pa.string()),
        "stage": constant(shape.stage, pa.string()),
        "version": constant(shape.version, pa.int32()),
        "emission": constant(emission, pa.int64()),
        "slice_digest": constant(slice_digest or None, pa.string()),
    }
    named = {f"{OWN_PREFIX}{name}": column for name, column in columns.items()}
    for name, kind in shape.fields:
        column = batch.column(name)
        named[name] = column.cast(_MOMENT) if kind == "timestamp" else column
    return TypedRows(pa.RecordBatch.from_arrays(list(named.values()), list(named)), good, refused)


def _moments(times_ms: pa.Array) -> pa.Array:
    return pc.multiply(times_ms, 1000).cast(pa.timestamp("us")).cast(_MOMENT)
