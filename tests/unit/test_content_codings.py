"""Packed bodies: what comes out, and what is refused before it can do harm."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable

import pytest

from strandline.ingest.gateway.decompression import Coding, unpack, zstd
from strandline.ingest.gateway.framing import TooLarge, Unframable

PACK: dict[Coding, Callable[[bytes], bytes]] = {Coding.GZIP: gzip.compress, Coding.ZSTD: zstd.compress}
BODY = b'{"n":1}\n' * 1_000

each_coding = pytest.mark.parametrize("coding", Coding, ids=lambda coding: coding.value)


@each_coding
def test_what_was_packed_comes_out_up_to_the_bound(coding: Coding) -> None:
    assert unpack(PACK[coding](BODY), coding, len(BODY)) == BODY
    with pytest.raises(TooLarge, match=f"more than {len(BODY) - 1} bytes"):
        unpack(PACK[coding](BODY), coding, len(BODY) - 1)
    assert unpack(PACK[coding](b""), coding, 0) == b""


@each_coding
def test_parts_that_were_packed_one_by_one_come_out_together(coding: Coding) -> None:
    assert unpack(PACK[coding](b"a") + PACK[coding](b"b"), coding, 2) == b"ab"
    with pytest.raises(TooLarge):
        unpack(PACK[coding](b"a") + PACK[coding](b"b"), coding, 1)
    with pytest.raises(Unframable, match="more than 100 frames"):
        unpack(PACK[coding](b"") * 101, coding, 10)


@each_coding
@pytest.mark.parametrize("cut", [1, 3, 20])
def test_a_body_that_was_cut_short_is_refused(coding: Coding, cut: int) -> None:
    with pytest.raises(Unframable, match="cut short"):
        unpack(PACK[coding](BODY)[:-cut], coding, len(BODY))
    with pytest.raises(Unframable, match="cut short"):
        unpack(b"", coding, 10)


@each_coding
@pytest.mark.parametrize("body", [b"{}", BODY, os.urandom(1_000), PACK[Coding.GZIP](BODY)[10:]])
def test_what_was_not_packed_so_is_refused(coding: Coding, body: bytes) -> None:
    with pytest.raises(Unframable, match="was it packed so"):
        unpack(body, coding, 1_000_000)


@each_coding
def test_rubbish_behind_the_body_is_refused(coding: Coding) -> None:
    with pytest.raises(Unframable):
        unpack(PACK[coding](BODY) + b"rubbish", coding, 1_000_000)


def test_a_changed_byte_is_found_by_the_checksum() -> None:
    packed = bytearray(gzip.compress(os.urandom(1_000)))
    packed[500] ^= 1
    with pytest.raises(Unframable):
        unpack(bytes(packed), Coding.GZIP, 10_000)


def test_a_zstd_frame_that_asks_for_more_memory_than_http_allows_is_refused() -> None:
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 24})
    packed = packer.compress(BODY, packer.FLUSH_BLOCK) + packer.flush()
    with pytest.raises(Unframable, match="too much memory"):
        unpack(packed, Coding.ZSTD, 1_000_000)
