"""Functions of strings and regular expressions. Characters are code points."""

from __future__ import annotations

import re
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.processing.operators.arithmetic import numbers_of
from strandline.processing.operators.functions.string_limit import (
    Sizes,
    concatenable,
    data_bytes,
    sizes_of,
    without_too_long,
)
from strandline.processing.operators.functions.times import Kernel
from strandline.processing.pipelines.functions.regular_expressions import Replacement, extracting

_ESCAPES = re.compile(r"\\.", re.DOTALL)
"""A group, or an escaped backslash, in a replacement of RE2."""


def _concat_ws(separator: str, *texts: pa.Array) -> pa.Array:
    first, *others = texts
    if first.null_count:
        # If no string remains to join, Arrow leaves the whole row out.
        some = reduce(pc.or_, (text.is_valid() for text in texts))
        first = pc.if_else(some, first, pa.scalar("", pa.string()))
    separator_bytes = len(separator.encode())
    joined = [first, *others]
    fitting = concatenable(joined, separator_bytes)
    if fitting is first:
        return pc.binary_join_element_wise(*joined, pa.scalar(separator, pa.string()), null_handling="skip")
    fits = pc.or_(fitting.is_valid(), first.is_null()) if first.null_count else fitting.is_valid()
    shorter = [pc.if_else(fits, text, pa.scalar("", pa.string())) for text in joined]
    found = pc.binary_join_element_wise(*shorter, pa.scalar(separator, pa.string()), null_handling="skip")
    return pc.if_else(fits, found, pa.scalar(None, pa.string()))


def _contains(texts: pa.Array, part: str) -> pa.Array:
    return pc.match_substring(texts, pattern=part)


def _instr(texts: pa.Array, part: str) -> pa.Array:
    """Return the position in characters, from 1; 0 if the part doesn't occur."""
    places = pc.find_substring(texts, pattern=part)  # in bytes
    if pc.all(pc.string_is_ascii(texts)).as_py() is not False:
        return pc.add(places, pa.scalar(1, pa.int32()))
    return pa.array([None if text is None else text.find(part) + 1 for text in texts.to_pylist()], pa.int32())


def _replace(texts: pa.Array, part: str, by: str) -> pa.Array:
    if not part:
        return texts
    old, new = len(part.encode()), len(by.encode())

    def sizes() -> Sizes:
        matches: Sizes = pc.count_substring(texts, pattern=part).fill_null(0).to_numpy(zero_copy_only=False)
        return sizes_of(texts) + matches.astype(np.int64) * (new - old)

    fitting = without_too_long(texts, sizes, data_bytes(texts) * max(1, -(-new // old)))
    return pc.replace_substring(fitting, pattern=part, replacement=by)


def _split_part(texts: pa.Array, separator: str, number: int) -> pa.Array:
    parts = pc.split_pattern(texts, pattern=separator)
    ends, starts = _ends_of(parts)
    wanted = starts + number - 1 if number > 0 else ends + number
    there = (wanted >= starts) & (wanted < ends)
    found = parts.values.take(pa.array(wanted, mask=~there)).fill_null("")
    return pc.if_else(texts.is_valid(), found, pa.scalar(None, pa.string())) if texts.null_count else found


def _ends_of(lists: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    offsets = lists.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    return offsets[1:], offsets[:-1]


def _filled(texts: pa.Array, length: int, fill: str) -> tuple[pa.Array, pa.Array]:
    """Return the strings cut to the length, and the filling that each one needs."""
    lengths = pc.utf8_length(texts)
    cut = pc.utf8_slice_codeunits(texts, 0, length)
    repeated = (fill * length)[:length] if fill else ""
    fillings = pa.array([repeated[:count] for count in range(length + 1)], pa.string())
    missing = np.maximum(length - numbers_of(lengths).astype(np.int64), 0)
    return cut, fillings.take(pa.array(missing))


def _lpad(texts: pa.Array, length: int, fill: str) -> pa.Array:
    cut, filling = _filled(texts, length, fill)
    return pc.binary_join_element_wise(filling, cut, pa.scalar("", pa.string()))


def _rpad(texts: pa.Array, length: int, fill: str) -> pa.Array:
    cut, filling = _filled(texts, length, fill)
    return pc.binary_join_element_wise(cut, filling, pa.scalar("", pa.string()))


def _regexp_like(texts: pa.Array, pattern: str) -> pa.Array:
    return pc.match_substring_regex(texts, pattern=pattern)


def _regexp_extract(texts: pa.Array, pattern: str, group: int) -> pa.Array:
    found = pc.extract_regex(texts, extracting(pattern, group))
    value = pc.if_else(found.is_valid(), found.field("value"), pa.scalar("", pa.string()))
    return pc.if_else(texts.is_valid(), value, pa.scalar(None, pa.string())) if texts.null_count else value


def _regexp_replace(texts: pa.Array, pattern: str, by: Replacement) -> pa.Array:
    """Return the strings with all matches replaced, or null for a result over STRING_BYTES_MAX. For this limit, a group in the
    replacement counts as long as the whole match."""
    groups = sum(token[1:].isdigit() for token in _ESCAPES.findall(by.text))
    new = len(by.text.encode()) - len(_ESCAPES.findall(by.text)) - groups

    def sizes() -> Sizes:
        rest = sizes_of(pc.replace_substring_regex(texts, pattern=pattern, replacement=""))
        matches = sizes_of(pc.replace_substring_regex(texts, pattern=pattern, replacement="x")) - rest
        found: Sizes = rest + matches * new + groups * (sizes_of(texts) - rest)
        return found

    fitting = without_too_long(texts, sizes, data_bytes(texts) * (1 + groups + new) + new)
    return pc.replace_substring_regex(fitting, pattern=pattern, replacement=by.text)


WORD_KERNELS: dict[str, Kernel] = {
    "concat_ws": _concat_ws,
    "contains": _contains,
    "startswith": lambda texts, part: pc.starts_with(texts, pattern=part),
    "endswith": lambda texts, part: pc.ends_with(texts, pattern=part),
    "instr": _instr,
    "replace": _replace,
    "split_part": _split_part,
    "lpad": _lpad,
    "rpad": _rpad,
    "reverse": pc.utf8_reverse,
    "regexp_like": _regexp_like,
    "regexp_extract": _regexp_extract,
    "regexp_replace": _regexp_replace,
}
