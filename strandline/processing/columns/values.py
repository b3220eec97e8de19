"""The values of a column as numpy arrays: plain values, values with the same order, equal zeros and NaNs, and hashes. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Doubles = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

_M = np.uint64(0xC6A4A7935BD1E995)
_R = np.uint64(47)
_POSITIVE = np.uint64((1 << 63) - 1)


def numpy_of(array: pa.Array) -> npt.NDArray[Any]:
    """Return the values. Integers and booleans must not contain nulls."""
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values


def is_valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return a mask of the values that aren't null."""
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def ordered_bits(doubles: Doubles) -> npt.NDArray[np.int64]:
    """Return integers with the same order as the doubles. Both zeros are equal, and NaN is the largest."""
    bits = _plain(doubles).view(np.int64)
    return np.where(bits < 0, np.int64(-(2**63)) - bits, bits)


def ranks_of(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return an integer for each value, with the same order as the values. No value may be null."""
    kind = values.type
    if pa.types.is_floating(kind):
        return ordered_bits(numpy_of(values))
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_boolean(kind):
        whole: npt.NDArray[np.int64] = numpy_of(values.cast(pa.int64()))
        return whole
    encoded = values.dictionary_encode()
    order = numpy_of(pc.sort_indices(encoded.dictionary))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    places: npt.NDArray[np.int64] = numpy_of(encoded.indices)
    return ranks[places]


def with_one_zero(values: pa.Array) -> pa.Array:
    """Return doubles with only the positive zero and a single NaN. Other types are returned unchanged."""
    if not pa.types.is_floating(values.type):
        return values
    return pa.array(_plain(numpy_of(values.fill_null(0.0))), mask=~is_valid(values))


def _plain(doubles: Doubles) -> Doubles:
    return np.where(np.isnan(doubles), np.nan, doubles + 0.0)


def hashes(values: pa.Array, seed: int = 0) -> pa.Array:
    """Return 63 bits of MurmurHash64A (Austin Appleby, public domain) for each value, as a non-negative long; null for a null.

    The hash is the same on every machine and in every version, because results depend on it. The hashed bytes are, in little
    endian:

    - string: its UTF-8 bytes;
    - decimal: the 16 bytes of its unscaled value;
    - number, timestamp: 8 bytes, as two's complement, bits of a double, or microseconds.

    `seed`: another seed results in other hashes.
    """
    valid = is_valid(values)
    if pa.types.is_string(values.type):
        found = _hashes_of_texts(values, seed)
    elif pa.types.is_decimal(values.type):
        pairs = np.frombuffer(values.buffers()[1], np.uint64)[2 * values.offset : 2 * (values.offset + len(values))]
        found = _finished(_mixed(_mixed(_begun(np.full(len(values), 16, np.uint64), seed), pairs[::2]), pairs[1::2]))
    else:
        is_double = pa.types.is_floating(values.type)
        words = numpy_of(with_one_zero(values).fill_null(0.0) if is_double else values.cast(pa.int64()).fill_null(0))
        found = _finished(_mixed(_begun(np.full(len(values), 8, np.uint64), seed), words.view(np.uint64)))
    return pa.array((found & _POSITIVE).view(np.int64), mask=~valid)


def _begun(lengths: Words, seed: int) -> Words:
    return np.uint64(seed) ^ (lengths * _M)


def _mixed(state: Words, words: Words) -> Words:
    mixed = words * _M
    mixed ^= mixed >> _R
    return (state ^ (mixed * _M)) * _M


def _finished(state: Words) -> Words:
    state = (state ^ (state >> _R)) * _M
    return state ^ (state >> _R)


def _hashes_of_texts(values: pa.Array, seed: int) -> Words:
    """Hash the strings, eight bytes of each string per step, longest strings first: each step has fewer strings."""
    if not len(values):
        return np.zeros(0, np.uint64)
    _, offsets_of, data = values.buffers()
    offsets = np.frombuffer(offsets_of, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    content = np.zeros((0 if data is None else data.size) + 8, np.uint8)
    if data is not None:
        content[:-8] = np.frombuffer(data, np.uint8)
    # The eight bytes that begin at each position.
    words = np.ndarray(len(content) - 7, np.dtype("<u8"), content, strides=(1,))
    lengths = np.diff(offsets)
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = offsets[:-1][order], lengths[order]
    state = _begun(lengths.astype(np.uint64), seed)
    whole = lengths // 8
    # Number of strings with more than 0, 1, 2 ... complete words.
    longer = np.searchsorted(-whole, -np.arange(int(whole[0])), side="left")
    for at, count in enumerate(longer.tolist()):
        state[:count] = _mixed(state[:count], words[starts[:count] + 8 * at])
    rest = np.flatnonzero(lengths % 8)
    tail = words[starts[rest] + 8 * whole[rest]]
    tail &= (np.uint64(1) << (lengths[rest] % 8 * 8).astype(np.uint64)) - np.uint64(1)
    state[rest] = (state[rest] ^ tail) * _M
    found = np.empty(len(state), np.uint64)
    found[order] = _finished(state)
    return found
