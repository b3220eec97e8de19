"""Container files of Avro (1.12, "Object Container Files"), read with limits of memory and time.

The reader of fastavro trusts the numbers in a file: 220 bytes can contain any number of records without bytes, and a small
block can unpack to gigabytes. So this module reads the container, and fastavro reads single records.
"""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Any, BinaryIO

import pyarrow as pa

from strandline.core.schemas.avro_schemas import AvroType, read_avro_schema, takes_bytes

MAGIC = b"Obj\x01"
BLOCK_BYTES_MAX = 16 << 20
"""Maximum length in bytes of a block, packed and unpacked."""
_HEADER_BYTES_MAX = 1 << 20
_CODECS = ("null", "deflate", "bzip2", "xz", "snappy", "zstandard")
_SYNC_BYTES = 16
_LONG_BYTES_MAX = 10
_CHECKSUM_BYTES = 4
_UNPACK_BYTES = 1 << 16


class AvroFile:
    """A file that is read once, from its header to its last record."""

    def __init__(self, file: BinaryIO) -> None:
        """Read the header. Raises ValueError if it is invalid, or if its schema isn't supported."""
        self._file = file
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError("it isn't an Avro file")
        metadata = self._metadata()
        self._sync = self._bytes(_SYNC_BYTES)
        self._text = metadata["avro.schema"].decode("utf-8")
        self.schema: AvroType = read_avro_schema(self._text)
        """Schema of the records, with each named type expanded."""
        self.schema_as_written: Any = json.loads(self._text)
        if not takes_bytes(self.schema):
            raise ValueError("its records have no bytes, so a few bytes could contain any number of records")
        self._codec = metadata.get("avro.codec", b"null").decode("utf-8")
        if self._codec not in _CODECS:
            raise ValueError(f"its codec {self._codec[:40]!r} isn't supported")

    def records(self, reader_schema: Any = None) -> Iterator[Any]:
        """Yield each record, converted to `reader_schema` (parsed by fastavro) if it is not None.

        Memory is limited by BLOCK_BYTES_MAX, and time by the number of bytes: each record takes at least one byte.
        Raises ValueError, and SchemaResolutionError of fastavro.
        """
        import fastavro

        schema: Any = fastavro.parse_schema(json.loads(self._text))
        while (first := self._file.read(1)) != b"":
            count, size = self._long(first), self._long()
            if not 0 <= size <= BLOCK_BYTES_MAX:
                raise ValueError(f"a block claims to have {size:,} bytes; the maximum is {BLOCK_BYTES_MAX:,}")
            packed = self._bytes(size)
            if self._bytes(_SYNC_BYTES) != self._sync:
                raise ValueError("a block doesn't end with the sync marker of the file")
            block = b"".join(_unpacked(self._codec, packed))
            if not 0 <= count <= len(block):
                raise ValueError(f"a block of {len(block):,} bytes claims to have {count:,} records")
            stream = BytesIO(block)
            for _ in range(count):
                try:
                    yield fastavro.schemaless_reader(stream, schema, reader_schema)
                except StopIteration as error:  # would end this generator without an error
                    raise ValueError("a record is truncated") from error
            if stream.tell() != len(block):
                raise ValueError("a block has more bytes than its records, so the file is damaged; write it again")

    def _metadata(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        left = _HEADER_BYTES_MAX
        while (count := self._long()) != 0:
            if count < 0:
                count = -count
                self._long()  # length of the block in bytes
            for _ in range(count):
                name, value = self._sized(left), self._sized(left)
                left -= len(name) + len(value) + 2
                if left < 0:
                    raise ValueError(f"its header has more than {_HEADER_BYTES_MAX:,} bytes")
                found[name.decode("utf-8")] = value
        if "avro.schema" not in found:
            raise ValueError("its header has no schema")
        return found

    def _sized(self, bytes_max: int) -> bytes:
        size = self._long()
        if not 0 <= size <= bytes_max:
            raise ValueError(f"its header has more than {_HEADER_BYTES_MAX:,} bytes")
        return self._bytes(size)

    def _long(self, first: bytes = b"") -> int:
        value = 0
        for at in range(_LONG_BYTES_MAX):
            byte = (first if at == 0 and first else self._bytes(1))[0]
            value |= (byte & 0x7F) << (7 * at)
            if not byte & 0x80:
                return (value >> 1) ^ -(value & 1)
        raise ValueError("a number has more than 10 bytes")

    def _bytes(self, size: int) -> bytes:
        content = self._file.read(size)
        if len(content) != size:
            raise ValueError("it is truncated")
        return content


def _unpacked(codec: str, packed: bytes) -> Iterator[bytes]:
    """Yield the content of a block in pieces. Raises ValueError if it is longer than BLOCK_BYTES_MAX, or not in this codec."""
    if codec == "null":
        yield packed
        return
    total = 0
    for piece in _pieces(codec, packed):
        total += len(piece)
        if total > BLOCK_BYTES_MAX:
            raise ValueError(f"a block unpacks to more than {BLOCK_BYTES_MAX:,} bytes, the maximum")
        yield piece


def _pieces(codec: str, packed: bytes) -> Iterator[bytes]:
    try:
        if codec == "snappy":
            yield _of_snappy(packed)
        elif codec == "zstandard":
            with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
                while piece := stream.read(_UNPACK_BYTES):
                    yield piece
        elif codec == "deflate":
            inflate = zlib.decompressobj(-zlib.MAX_WBITS)
            while not inflate.eof:
                yield (piece := inflate.decompress(packed, _UNPACK_BYTES))
                packed = inflate.unconsumed_tail
                if not packed and len(piece) < _UNPACK_BYTES:
                    return
        else:
            unpack = bz2.BZ2Decompressor() if codec == "bzip2" else lzma.LZMADecompressor(memlimit=BLOCK_BYTES_MAX * 2)
            yield unpack.decompress(packed, _UNPACK_BYTES)
            while not unpack.eof and not unpack.needs_input:
                yield unpack.decompress(b"", _UNPACK_BYTES)
    except (zlib.error, lzma.LZMAError, pa.ArrowException, EOFError, OSError) as error:
        raise ValueError(f"a block isn't packed by {codec}: {error}") from error


def _of_snappy(packed: bytes) -> bytes:
    """Return the content of a block, which starts with its length. The checksum isn't compared."""
    size = 0
    for at, byte in enumerate(packed[:5]):
        size |= (byte & 0x7F) << (7 * at)
        if not byte & 0x80:
            break
    if size > BLOCK_BYTES_MAX:
        raise ValueError(f"a block unpacks to more than {BLOCK_BYTES_MAX:,} bytes, the maximum")
    content = pa.Codec("snappy").decompress(packed[:-_CHECKSUM_BYTES], decompressed_size=size, asbytes=True)
    return bytes(content)
