"""Functions of arrays. Positions count from 1, or from the end if they are negative."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.columns.codes import ranges
from strandline.processing.columns.values import is_valid, numpy_of, ranks_of
from strandline.processing.operators.comparisons import equal
from strandline.processing.operators.functions.string_limit import STRING_BYTES_MAX, Sizes, data_bytes, sizes_of
from strandline.processing.operators.functions.times import Kernel

RowIndices = npt.NDArray[np.int64]


def _array(*values: pa.Array) -> pa.Array:
    rows, width = len(values[0]), len(values)
    at = np.arange(rows * width)
    elements = pa.concat_arrays(values).take(pa.array(at % width * rows + at // width))
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * width), elements)


def _size(arrays: pa.Array) -> pa.Array:
    return pc.list_value_length(arrays).cast(pa.int32())


def _element_at(arrays: pa.Array, places: pa.Array) -> pa.Array:
    starts, lengths = _spans(arrays)
    wanted = numpy_of(places.fill_null(0)).astype(np.int64)
    there = (wanted != 0) & (np.abs(np.maximum(wanted, -(1 << 40))) <= lengths)
    found = starts + np.where(wanted > 0, wanted - 1, lengths + wanted)
    return arrays.values.take(pa.array(np.where(there, found, 0), mask=~there))


def _slice(arrays: pa.Array, starts: pa.Array, lengths: pa.Array) -> pa.Array:
    begins, sizes = _spans(arrays)
    start = numpy_of(starts.fill_null(0)).astype(np.int64)
    length = numpy_of(lengths.fill_null(-1)).astype(np.int64)
    good = is_valid(arrays) & (start != 0) & (length >= 0)
    first = np.where(start > 0, start - 1, sizes + np.maximum(start, -(1 << 40)))
    inside = good & (first >= 0) & (first < sizes)
    first = np.where(inside, first, 0)
    kept = np.where(inside, np.minimum(length, sizes - first), 0)
    ends = np.cumsum(kept)
    at = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - kept, kept) + np.repeat(begins + first, kept)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), arrays.values.take(pa.array(at)), mask=None if good.all() else pa.array(~good)
    )


def _array_contains(arrays: pa.Array, values: pa.Array) -> pa.Array:
    rows, equals = _equal_elements(arrays, values)
    has, has_null = np.zeros(len(arrays), np.bool_), np.zeros(len(arrays), np.bool_)
    has[rows[numpy_of(equals.fill_null(False))]] = True
    has_null[rows[~is_valid(equals)]] = True
    return pa.array(has, mask=~is_valid(arrays) | ~is_valid(values) | (has_null & ~has))


def _array_position(arrays: pa.Array, values: pa.Array) -> pa.Array:
    rows, equals = _equal_elements(arrays, values)
    _, lengths = _spans(arrays)
    places = ranges(np.ones(len(lengths), np.int64), lengths)
    is_equal = numpy_of(equals.fill_null(False))
    found = np.zeros(len(arrays), np.int64)
    found[rows[is_equal][::-1]] = places[is_equal][::-1]
    return pa.array(found, mask=~is_valid(arrays) | ~is_valid(values))


def _equal_elements(arrays: pa.Array, values: pa.Array) -> tuple[RowIndices, pa.Array]:
    """Return the row of each element, and a mask of the elements that equal the row's value."""
    _, lengths = _spans(arrays)
    rows = np.repeat(np.arange(len(arrays)), lengths)
    elements = arrays.flatten()
    return rows, equal(elements, values.take(pa.array(rows)), "double" if pa.types.is_floating(elements.type) else "")


def _extreme(arrays: pa.Array, *, is_least: bool) -> pa.Array:
    _, lengths = _spans(arrays)
    elements = arrays.flatten()
    places = np.flatnonzero(is_valid(elements))
    rows = np.repeat(np.arange(len(arrays)), lengths)[places]
    order = np.lexsort((ranks_of(elements.take(pa.array(places))), rows))
    chosen = np.full(len(arrays), -1, np.int64)
    # If several elements are assigned to one index, the last one counts.
    chosen[rows[order][::-1] if is_least else rows[order]] = places[order][::-1] if is_least else places[order]
    return elements.take(pa.array(chosen, mask=chosen < 0))


def _array_join(arrays: pa.Array, separator: str) -> pa.Array:
    _, lengths = _spans(arrays)
    elements = arrays.flatten()
    valid = is_valid(elements)
    kept = np.bincount(np.repeat(np.arange(len(arrays)), lengths)[valid], minlength=len(arrays))
    offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int32)
    texts = pa.ListArray.from_arrays(pa.array(offsets), elements.filter(pa.array(valid)))
    separator_bytes = len(separator.encode())

    def sizes() -> Sizes:
        ends = np.concatenate([[0], np.cumsum(sizes_of(texts.values))])
        found: Sizes = ends[offsets[1:]] - ends[offsets[:-1]] + np.maximum(kept - 1, 0) * separator_bytes
        return found

    bound = data_bytes(texts.values) + len(texts.values) * separator_bytes
    if bound > STRING_BYTES_MAX and (too_long := sizes() > STRING_BYTES_MAX).any():
        is_short = pa.array(~too_long)
        joined = pc.binary_join(pc.if_else(is_short, texts, pa.scalar([], texts.type)), separator)
        joined = pc.if_else(is_short, joined, pa.scalar(None, pa.string()))
    else:
        joined = pc.binary_join(texts, separator)
    return pc.if_else(arrays.is_valid(), joined, pa.scalar(None, pa.string())) if arrays.null_count else joined


def _split(texts: pa.Array, pattern: str) -> pa.Array:
    return pc.split_pattern_regex(texts, pattern=pattern)


def _spans(arrays: pa.Array) -> tuple[RowIndices, RowIndices]:
    """Return the beginning of each array in `arrays.values`, and its number of elements; 0 for a null."""
    starts = numpy_of(arrays.offsets)[:-1].astype(np.int64)
    return starts, numpy_of(pc.list_value_length(arrays).fill_null(0)).astype(np.int64)


def _struct(*_: pa.Array) -> pa.Array:
    raise AssertionError(
        "named_struct was called as a kernel, but the evaluation must build structs; report this as a bug"
    )


ARRAY_KERNELS: dict[str, Kernel] = {
    "array": _array,
    "size": _size,
    "element_at": _element_at,
    "try_element_at": _element_at,
    "slice": _slice,
    "array_contains": _array_contains,
    "array_position": _array_position,
    "array_min": lambda arrays: _extreme(arrays, is_least=True),
    "array_max": lambda arrays: _extreme(arrays, is_least=False),
    "array_join": _array_join,
    "split": _split,
    "named_struct": _struct,
}
