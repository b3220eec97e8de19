"""Files of Avro use a limited amount of memory and time, whatever numbers they contain."""

from __future__ import annotations

import bz2
import json
import lzma
import time
import tracemalloc
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from strandline.core.errors import PermanentError
from strandline.core.files.avro_files import BLOCK_BYTES_MAX, AvroFile
from strandline.processing.desk.record_files import read_records
from strandline.processing.formats.inference.schemas import NoSampleError
from strandline.processing.formats.proposals import infer_stream
from strandline.processing.formats.record_rows import RecordFormat

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "long"}]}
EMPTY = {"type": "record", "name": "R", "fields": []}
NULL = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "null"}]}
NULLS = {"type": "record", "name": "R", "fields": [{"name": "x", "type": {"type": "array", "items": "null"}}]}
STRINGS = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "string"}]}
SYNC = bytes(16)


def long(value: int) -> bytes:
    value, found = (value << 1) ^ (value >> 63), bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def sized(content: bytes) -> bytes:
    return long(len(content)) + content


def header(schema: object, codec: str = "null") -> bytes:
    values = {b"avro.schema": json.dumps(schema).encode(), b"avro.codec": codec.encode()}
    return b"Obj\x01" + long(len(values)) + b"".join(sized(k) + sized(v) for k, v in values.items()) + b"\0" + SYNC


def block(count: int, content: bytes) -> bytes:
    return long(count) + sized(content) + SYNC


def packed(codec: str, content: bytes) -> bytes:
    if codec == "deflate":
        made = zlib.compressobj(9, zlib.DEFLATED, -15)
        return made.compress(content) + made.flush()
    if codec == "snappy":
        return bytes(pa.Codec("snappy").compress(content, asbytes=True)) + bytes(4)
    if codec == "zstandard":
        return bytes(pa.Codec("zstd").compress(content, asbytes=True))
    return bz2.compress(content) if codec == "bzip2" else lzma.compress(content)


MANY = 1 << 50
HOSTILE: dict[str, tuple[bytes, str]] = {
    "records without bytes": (header(EMPTY) + block(MANY, b""), "have no bytes"),
    "records of null": (header(NULL) + block(MANY, b""), "have no bytes"),
    "an array of null": (header(NULLS) + block(1, long(MANY) + b"\0"), "have no bytes"),
    "more records than bytes": (header(SCHEMA) + block(MANY, b"\0" * 8), "claims to have"),
    "a negative number of records": (header(SCHEMA) + long(-5) + sized(b"\0") + SYNC, "claims to have"),
    "a block of a claimed size": (header(SCHEMA) + long(1) + long(MANY), "claims to have"),
    "a string of a claimed size": (header(STRINGS) + block(1, long(1 << 40)), "Expected 1099511627776 bytes"),
    "a header without an end": (b"Obj\x01" + long(MANY) + sized(b"a") + long(MANY), "header has more than"),
    "a number without an end": (b"Obj\x01" + b"\xff" * 64, "more than 10 bytes"),
    "another codec": (header(SCHEMA, "zip") + block(1, b"\0"), "isn't supported"),
}
UNPACK_TO_MUCH = {
    f"a block that {codec} unpacks to much": codec for codec in ("deflate", "bzip2", "xz", "snappy", "zstandard")
}
"""Name -> codec. Packing them all takes so long that it isn't done while tests are collected."""


def hostile(name: str) -> tuple[bytes, str]:
    """Return a hostile file, and the message that refuses it."""
    if name in HOSTILE:
        return HOSTILE[name]
    codec = UNPACK_TO_MUCH[name]
    content = packed(codec, sized(bytes(BLOCK_BYTES_MAX + 1)))
    return header(STRINGS, codec) + block(1, content), "unpacks to more than"


@pytest.mark.guarantee(
    "G780",
    "A file of Avro uses limited memory, and time in proportion to its bytes, whatever numbers it contains.",
    promise="no-client-can-exhaust-a-service",
)
@pytest.mark.parametrize("name", [*HOSTILE, *UNPACK_TO_MUCH])
def test_a_small_file_uses_little_memory_and_time(name: str, tmp_path: Path) -> None:
    content, message = hostile(name)
    path = tmp_path / "records.avro"
    path.write_bytes(content)
    config = RecordFormat("avro", (), {}, options=json.dumps(STRINGS))
    tracemalloc.start()
    began_s = time.process_time()
    with pytest.raises(PermanentError, match=message):
        list(read_records(path, config))
    with pytest.raises(NoSampleError, match=message):
        infer_stream("records", content)
    assert time.process_time() - began_s < 10
    assert tracemalloc.get_traced_memory()[1] < 6 * BLOCK_BYTES_MAX
    tracemalloc.stop()


@pytest.mark.guarantee("G780")
@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "snappy", "zstandard"])
def test_records_of_each_codec_are_read(codec: str) -> None:
    rows = [{"x": number} for number in range(-500, 500)]
    content = b"".join(long(row["x"]) for row in rows)
    file = header(SCHEMA, codec)
    for _ in range(3):
        file += block(len(rows), content if codec == "null" else packed(codec, content))
    assert list(AvroFile(BytesIO(file)).records()) == rows * 3


def test_a_file_of_the_library_is_read_and_converted() -> None:
    written: Any = fastavro.parse_schema({**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "y", "type": "string"}]})
    wider: Any = fastavro.parse_schema(
        {**SCHEMA, "fields": [{"name": "x", "type": "double"}, {"name": "z", "type": "int", "default": 7}]}
    )
    file = BytesIO()
    fastavro.writer(file, written, [{"x": number, "y": "a"} for number in range(5_000)], sync_interval=1_000)
    found = list(AvroFile(BytesIO(file.getvalue())).records(wider))
    assert found == [{"x": float(number), "z": 7} for number in range(5_000)]


def test_what_follows_the_records_of_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="more bytes than its records"):
        list(AvroFile(BytesIO(header(SCHEMA) + block(1, b"\0\0"))).records())
    with pytest.raises(ValueError, match="end with the sync marker"):
        list(AvroFile(BytesIO(header(SCHEMA) + block(1, b"\0")[:-1] + b"x")).records())
