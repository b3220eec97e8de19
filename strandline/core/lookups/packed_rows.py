"""The rows of a lookup as they travel and are kept: JSON objects, one a line, compressed, in base64. Their size is
checked when they are packed, and again when they are unpacked."""

from __future__ import annotations

import base64
import zlib

ROWS_MAX = 50_000
"""Of one version of a lookup."""
TEXT_BYTES_MAX = 8 << 20
"""Of all its rows as JSON, one a line: what a process holds of a version is of that order."""
PACKED_BYTES_MAX = 450_000
"""Of the same compressed: a request to the control service holds no more than a megabyte."""


class TooLarge(ValueError):
    """Rows that are more than a lookup may hold."""


def pack_rows(text: bytes) -> str:
    """Rows as JSON, one a line, in the form in which they travel and are kept. Raises TooLarge."""
    if len(text) > TEXT_BYTES_MAX:
        raise TooLarge(f"the rows are {len(text):,} bytes as JSON; a lookup holds at most {TEXT_BYTES_MAX:,}")
    packed = zlib.compress(text, 9)
    if len(packed) > PACKED_BYTES_MAX:
        raise TooLarge(
            f"the rows are {len(packed):,} bytes when they are compressed; a lookup holds at most {PACKED_BYTES_MAX:,}"
        )
    return base64.b64encode(packed).decode()


def unpack_rows(packed: str) -> bytes:
    """The opposite of `pack_rows`. Refuses what is too large before it is unpacked whole. Raises ValueError; TooLarge."""
    data = base64.b64decode(packed, validate=True)
    if len(data) > PACKED_BYTES_MAX:
        raise TooLarge(f"the rows are more than {PACKED_BYTES_MAX:,} bytes when they are compressed")
    decompressor = zlib.decompressobj()
    try:
        text = decompressor.decompress(data, TEXT_BYTES_MAX + 1)
    except zlib.error as error:
        raise ValueError(f"the rows are not compressed by zlib: {error}") from error
    if len(text) > TEXT_BYTES_MAX:
        raise TooLarge(f"the rows are more than {TEXT_BYTES_MAX:,} bytes as JSON; a lookup holds no more")
    if not decompressor.eof:
        raise ValueError("the compressed rows are cut short")
    return text
