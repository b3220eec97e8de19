"""The offset of the log source in Spark: the number of a batch's last slice, with a checksum.

Spark writes it into its offset log. A run that starts from a snapshot reads there which slices the state holds. The
checksum finds a number that was damaged on disk, which would otherwise repeat or skip a slice unnoticed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping


def offset_of_slice(number: int) -> dict[str, int]:
    return {"slice": number, "sum": _sum_of(number)}


def slice_of_offset(offset: Mapping[str, int]) -> int:
    """Return the slice number of an offset. Raises ValueError if `offset_of_slice` didn't return the offset."""
    number = offset.get("slice")
    if not isinstance(number, int) or offset != offset_of_slice(number):
        raise ValueError(
            f"{dict(offset)} is not an offset of the log source: it has no slice number, or its checksum doesn't match. Spark's "
            "checkpoint is damaged; start the job again, which creates another checkpoint"
        )
    return number


def _sum_of(number: int) -> int:
    return zlib.crc32(b"slice %d" % number)
