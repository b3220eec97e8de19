"""A record that claims more elements, bytes or levels than it has is rejected without the memory or the time for them."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.record_fields import Rejection
from strandline.processing.formats.record_rows import RowReader, record_format

_FEW_BYTES = 8 << 20
RECORDS = {
    "msgpack": [
        b"\xdd\xff\xff\xff\xff",  # array of 4,294,967,295 elements
        b"\xdf\xff\xff\xff\xff",  # map
        b"\xdb\xff\xff\xff\xff",  # string
        b"\x81\xa1x\xdd\xff\xff\xff\xff\x01\x01",  # array in a map
        b"\x91" * 200_000 + b"\x01",  # arrays in arrays
    ],
    "cbor": [
        b"\x9b" + b"\x0f" * 8,
        b"\xbb" + b"\x0f" * 8,
        b"\x5b" + b"\x0f" * 8,
        b"\xa1\x61x\x9a\xff\xff\xff\xff\x01\x01",
        b"\x81" * 200_000 + b"\x01",
        b"\x9f" * 200_000,  # arrays without an end
    ],
}


@pytest.mark.guarantee(
    "G781",
    "A record of MessagePack or CBOR that claims more elements, bytes, or levels than it has is rejected without the "
    "memory or the time for them.",
    promise="no-client-can-exhaust-a-service",
)
@pytest.mark.parametrize(("name", "number"), [(name, at) for name, some in RECORDS.items() for at in range(len(some))])
def test_a_claimed_length_costs_nothing(name: str, number: int) -> None:
    stream = StreamSpec.from_document({"stream": "a", "format": name, "schema": {"x": "long", "s": "string"}})
    reader = RowReader(record_format(stream), None)
    tracemalloc.start()
    began_s = time.process_time()
    (found,) = [text for rows in reader.parts([RECORDS[name][number]], [None]) for text in rows.texts]
    assert isinstance(found, Rejection)
    assert time.process_time() - began_s < 5
    assert tracemalloc.get_traced_memory()[1] < _FEW_BYTES
    tracemalloc.stop()
