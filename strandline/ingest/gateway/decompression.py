"""Decompression of gzip (RFC 1952) and zstd (RFC 8878) bodies, up to a limit.

A few kilobytes can decompress to gigabytes. So the limit applies to the output, and decompression stops there.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from strandline.ingest.gateway.framing import TooLarge, Unframable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_FRAMES_MAX = 100
"""Maximum number of concatenated frames. Each costs one copy of the remaining body."""
_GZIP = 31
"""zlib option: a window of 32 kB, with gzip's header and checksum."""
_ZSTD_WINDOW_LOG_MAX = 23
"""8 MB, the largest window that HTTP allows (RFC 9659). Without the limit a frame may ask for far more memory."""
ZSTD_OPTIONS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG_MAX}


class ContentCoding(Enum):
    """Compression of a body, by its name in `content-encoding`."""

    GZIP = "gzip"
    ZSTD = "zstd"


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


_DECOMPRESSORS: dict[ContentCoding, Callable[[], _Decompressor]] = {
    ContentCoding.GZIP: lambda: zlib.decompressobj(_GZIP),
    ContentCoding.ZSTD: lambda: zstd.ZstdDecompressor(options=ZSTD_OPTIONS),
}


def decompress(body: bytes, coding: ContentCoding, bytes_max: int) -> bytes:
    """Return the decompressed body.

    Raises TooLarge as soon as it has more than `bytes_max` bytes, and Unframable if the body is broken or truncated.
    """
    parts: list[bytes] = []
    bytes_left = bytes_max
    rest = body
    while rest or not parts:
        if len(parts) == _FRAMES_MAX:
            raise Unframable(f"the {coding.value} body has more than {_FRAMES_MAX} frames; compress it as one")
        decompressor = _DECOMPRESSORS[coding]()
        try:
            part = decompressor.decompress(rest, bytes_left + 1)
        except (zlib.error, zstd.ZstdError) as error:
            raise Unframable(
                f"the body can't be decompressed as {coding.value} ({error}); check its content-encoding"
            ) from error
        bytes_left -= len(part)
        if bytes_left < 0:
            raise TooLarge(
                f"the {coding.value} body decompresses to more than {bytes_max} bytes; nothing of it was persisted: "
                f"send it in parts"
            )
        if not decompressor.eof:
            raise Unframable(f"the {coding.value} body was cut short; nothing of it was persisted: send it again")
        parts.append(part)
        rest = decompressor.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)
