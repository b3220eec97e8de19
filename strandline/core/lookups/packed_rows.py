"""Rows of a lookup in the form in which they are sent and stored: JSON objects, one per line, compressed, in base64.

Their size is checked when they are packed, and again when they are unpacked.
"""

from __future__ import annotations

import base64
import zlib

ROWS_MAX = 50_000
"""Maximum number of rows in a version of a lookup."""
TEXT_BYTES_MAX = 8 << 20
"""Maximum size of the rows of a version as JSON, one per line. A process needs memory of this order for a version."""
PACKED_BYTES_MAX = 450_000
"""Maximum size of the compressed rows. A request to the control service can contain at most one megabyte."""


class TooLarge(ValueError):
    """The rows exceed a limit of lookups."""


def pack_rows(text: bytes) -> str:
    """Return rows, given as JSON objects, one per line, in their packed form. Raises TooLarge if they exceed a limit."""
    if len(text) > TEXT_BYTES_MAX:
        raise TooLarge(f"the rows have {len(text):,} bytes as JSON; a lookup can have at most {TEXT_BYTES_MAX:,}")
    packed = zlib.compress(text, 9)
    if len(packed) > PACKED_BYTES_MAX:
        raise TooLarge(
            f"the rows have {len(packed):,} bytes after compression; a lookup can have at most {PACKED_BYTES_MAX:,}"
        )
    return base64.b64encode(packed).decode()


def unpack_rows(packed: str) -> bytes:
    """Return the rows that `pack_rows` packed. Rows that exceed a limit are refused before they are completely
    unpacked.

    Raises ValueError if they can't be unpacked; TooLarge.
    """
    data = base64.b64decode(packed, validate=True)
    if len(data) > PACKED_BYTES_MAX:
        raise TooLarge(f"the rows have more than {PACKED_BYTES_MAX:,} bytes after compression")
    decompressor = zlib.decompressobj()
    try:
        text = decompressor.decompress(data, TEXT_BYTES_MAX + 1)
    except zlib.error as error:
        raise ValueError(f"the rows are not compressed by zlib: {error}") from error
    if len(text) > TEXT_BYTES_MAX:
        raise TooLarge(f"the rows have more than {TEXT_BYTES_MAX:,} bytes as JSON, the maximum of a lookup")
    if not decompressor.eof:
        raise ValueError("the compressed rows are truncated")
    return text
