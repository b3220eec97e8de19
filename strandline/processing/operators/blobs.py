"""Arrow batches as bytes: what crosses Spark's exchange and lies in its state store. Pure.

A blob is a sequence of Arrow IPC streams of one batch each, every one behind its length (8 bytes, little endian).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

_OPTIONS = pa.ipc.IpcWriteOptions(compression=None)
_LENGTH_BYTES = 8


def pack(batches: Sequence[pa.RecordBatch]) -> bytes:
    """One blob that holds the batches in their order."""
    parts = []
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
            writer.write_batch(batch)
        buffer = sink.getvalue()
        parts += [buffer.size.to_bytes(_LENGTH_BYTES, "little"), buffer]
    return b"".join(parts)


def batch_of(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.RecordBatch:
    """One batch of rows that have a value for each field of the schema."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [pa.array(list(values), item.type) for values, item in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def unpack(blob: bytes | memoryview) -> list[pa.RecordBatch]:
    """The batches of a blob, without copying their columns."""
    view, at, batches = memoryview(blob), 0, []
    while at < len(view):
        length = int.from_bytes(view[at : at + _LENGTH_BYTES], "little")
        at += _LENGTH_BYTES
        batches.append(pa.ipc.open_stream(pa.py_buffer(view[at : at + length])).read_next_batch())
        at += length
    return batches
