"""Arrow batches as bytes: the form in which they cross Spark's exchange and are in its state store. Pure.

A blob is a sequence of Arrow IPC streams of one batch each. Before each stream is its length (8 bytes, little endian).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa

_Item = TypeVar("_Item")

_OPTIONS = pa.ipc.IpcWriteOptions(compression=None)
_LENGTH_BYTES = 8


def pack(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Return one blob that contains the batches in their order."""
    parts = []
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
            writer.write_batch(batch)
        buffer = sink.getvalue()
        parts += [buffer.size.to_bytes(_LENGTH_BYTES, "little"), buffer]
    return b"".join(parts)


def parts_of(items: Sequence[_Item], bytes_of: Callable[[_Item], int], bytes_max: int) -> Iterator[Sequence[_Item]]:
    """Yield the items in parts of at most `bytes_max` bytes, in their order. A larger item is its own part. Yields at least one
    part.

    Arrow's arrays of strings hold less than 2 GiB, so longer ones must not be joined.
    """
    first = size = 0
    for at, one in enumerate(items):
        own = bytes_of(one)
        if at > first and size + own > bytes_max:
            yield items[first:at]
            first, size = at, 0
        size += own
    yield items[first:]


def batch_of(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.RecordBatch:
    """Return one batch of rows that have a value for each field of the schema."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [pa.array(list(values), item.type) for values, item in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def unpack(blob: bytes | memoryview) -> list[pa.RecordBatch]:
    """Return the batches of a blob, without copying their columns."""
    view, at, batches = memoryview(blob), 0, []
    while at < len(view):
        length = int.from_bytes(view[at : at + _LENGTH_BYTES], "little")
        at += _LENGTH_BYTES
        batches.append(pa.ipc.open_stream(pa.py_buffer(view[at : at + length])).read_next_batch())
        at += length
    return batches
