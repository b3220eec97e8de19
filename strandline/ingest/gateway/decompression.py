"""Bodies that come packed: gzip (RFC 1952) and zstd (RFC 8878), unpacked only as far as they may grow.

A few kilobytes can unpack to gigabytes. So the bound is on what comes out, and the unpacking stops there.
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
"""Parts that were packed one by one and put together (a body of many would be copied once for each)."""
_GZIP = 31
"""zlib's window of 32 kB, with gzip's header and checksum."""
_ZSTD_WINDOW_LOG_MAX = 23
"""8 MB, the largest window that HTTP allows (RFC 9659); a frame may ask for far more memory."""


class ContentCoding(Enum):
    """How a body is packed, by its name in `content-encoding`."""

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
    ContentCoding.ZSTD: lambda: zstd.ZstdDecompressor(
        options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG_MAX}
    ),
}


def decompress(packed: bytes, coding: ContentCoding, bytes_max: int) -> bytes:
    """Return what was packed.

    Raises TooLarge as soon as that is more than `bytes_max` bytes, and Unframable when the body is broken or cut short.
    """
    parts: list[bytes] = []
    bytes_left = bytes_max
    rest = packed
    while rest or not parts:
        if len(parts) == _FRAMES_MAX:
            raise Unframable(f"the {coding.value} body has more than {_FRAMES_MAX} frames; pack it as one")
        decompressor = _DECOMPRESSORS[coding]()
        try:
            part = decompressor.decompress(rest, bytes_left + 1)
        except (zlib.error, zstd.ZstdError) as error:
            raise Unframable(f"the body can't be unpacked as {coding.value} ({error}); was it packed so?") from error
        bytes_left -= len(part)
        if bytes_left < 0:
            raise TooLarge(
                f"the {coding.value} body unpacks to more than {bytes_max} bytes; nothing of it was persisted: "
                f"send it in parts"
            )
        if not decompressor.eof:
            raise Unframable(f"the {coding.value} body was cut short; nothing of it was persisted: send it again")
        parts.append(part)
        rest = decompressor.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)
