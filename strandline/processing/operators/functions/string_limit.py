"""The limit of the strings that an expression returns. Pure.

A longer string is null, as Spark's other errors are, so its record is rejected with reason `expression`. Whether a string is too
long depends on its own row only. The size is computed before the string is built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

STRING_BYTES_MAX = 1 << 20
"""Maximum length in bytes of a string that concatenation or replacement returns."""

Sizes = npt.NDArray[np.int64]


def data_bytes(texts: pa.Array) -> int:
    """Return the length in bytes of all strings together: an upper bound for each of them."""
    if not len(texts) or texts.buffers()[1] is None:
        return 0
    ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return int(ends[-1]) - int(ends[0])


def sizes_of(texts: pa.Array) -> Sizes:
    """Return the length in bytes of each string; 0 for null."""
    sizes: Sizes = pc.binary_length(texts).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes


def without_too_long(texts: pa.Array, sizes: Callable[[], Sizes], bound: int) -> pa.Array:
    """Return the strings, with null for each row whose result would be longer than STRING_BYTES_MAX.

    `sizes`: returns the length in bytes of the result of each row. `bound`: upper bound of these lengths. If it is within the
    limit, no length is computed.
    """
    if bound <= STRING_BYTES_MAX:
        return texts
    too_long = sizes() > STRING_BYTES_MAX
    return pc.if_else(pa.array(too_long), pa.scalar(None, texts.type), texts) if too_long.any() else texts


def concatenable(parts: Sequence[pa.Array], separator_bytes: int = 0) -> pa.Array:
    """Return the first part, with null for each row whose parts are together too long."""
    separators = separator_bytes * (len(parts) - 1)

    def sizes() -> Sizes:
        together: Sizes = np.sum([sizes_of(part) for part in parts], axis=0)
        return together + separators

    return without_too_long(parts[0], sizes, sum(map(data_bytes, parts)) + separators)
