"""Compressed bodies: the result, and what is refused before it can do harm."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable

import pytest

from strandline.ingest.gateway.decompression import ContentCoding, decompress, zstd
from strandline.ingest.gateway.framing import TooLarge, Unframable

PACK: dict[ContentCoding, Callable[[bytes], bytes]] = {
    ContentCoding.GZIP: gzip.compress,
    ContentCoding.ZSTD: zstd.compress,
}
BODY = b'{"n":1}\n' * 1_000

each_coding = pytest.mark.parametrize("coding", ContentCoding, ids=lambda coding: coding.value)


@each_coding
def test_a_body_is_decompressed_up_to_the_limit(coding: ContentCoding) -> None:
    assert decompress(PACK[coding](BODY), coding, len(BODY)) == BODY
    with pytest.raises(TooLarge, match=f"more than {len(BODY) - 1} bytes"):
        decompress(PACK[coding](BODY), coding, len(BODY) - 1)
    assert decompress(PACK[coding](b""), coding, 0) == b""


@each_coding
def test_frames_that_were_compressed_one_by_one_are_joined(coding: ContentCoding) -> None:
    assert decompress(PACK[coding](b"a") + PACK[coding](b"b"), coding, 2) == b"ab"
    with pytest.raises(TooLarge):
        decompress(PACK[coding](b"a") + PACK[coding](b"b"), coding, 1)
    with pytest.raises(Unframable, match="more than 100 frames"):
        decompress(PACK[coding](b"") * 101, coding, 10)


@each_coding
@pytest.mark.parametrize("cut", [1, 3, 20])
def test_a_body_that_was_cut_short_is_refused(coding: ContentCoding, cut: int) -> None:
    with pytest.raises(Unframable, match="cut short"):
        decompress(PACK[coding](BODY)[:-cut], coding, len(BODY))
    with pytest.raises(Unframable, match="cut short"):
        decompress(b"", coding, 10)


@each_coding
@pytest.mark.parametrize("body", [b"{}", BODY, os.urandom(1_000), PACK[ContentCoding.GZIP](BODY)[10:]])
def test_a_body_that_was_not_compressed_so_is_refused(coding: ContentCoding, body: bytes) -> None:
    with pytest.raises(Unframable, match="check its content-encoding"):
        decompress(body, coding, 1_000_000)


@each_coding
def test_rubbish_behind_the_body_is_refused(coding: ContentCoding) -> None:
    with pytest.raises(Unframable):
        decompress(PACK[coding](BODY) + b"rubbish", coding, 1_000_000)


def test_a_changed_byte_is_found_by_the_checksum() -> None:
    packed = bytearray(gzip.compress(os.urandom(1_000)))
    packed[500] ^= 1
    with pytest.raises(Unframable):
        decompress(bytes(packed), ContentCoding.GZIP, 10_000)


def test_a_zstd_frame_that_asks_for_more_memory_than_http_allows_is_refused() -> None:
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 24})
    packed = packer.compress(BODY, packer.FLUSH_BLOCK) + packer.flush()
    with pytest.raises(Unframable, match="too much memory"):
        decompress(packed, ContentCoding.ZSTD, 1_000_000)
