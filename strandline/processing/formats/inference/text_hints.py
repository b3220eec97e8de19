"""Hints on string fields whose values seem to have another type, with the expression that converts them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import product

import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.times.time_patterns import read_pattern
from strandline.processing.formats.inference.field_types import FITS_SHARE, is_code, value_of
from strandline.processing.operators.functions.written_times import read
from strandline.processing.pipelines.expressions import column_text

_TEXTS_MAX = 1_000
"""Maximum number of strings that are examined."""
_TIME = re.compile(r"\d{1,4}[./-](?:\d{1,2}|[A-Za-z]{3,9})[./-]\d{1,4}(?:[ T]|, )+\d{1,2}:\d{2}")
_TIME_PARTS = re.compile(
    r"(?P<first>\d{1,4})(?P<mark>[./-])(?P<second>\d{1,2}|[A-Za-z]{3,9})(?P=mark)(?P<third>\d{1,4})(?P<gap>,? +|T)"
    r"\d{1,2}:\d{2}(?P<seconds>:\d{2}(?:(?P<point>[.,])\d{1,6})?)?"
    r"(?P<half> ?[AaPp][Mm])?(?P<offset> ?(?:Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?))?"
)
_COMMA_NUMBER = re.compile(r"-?\d+,\d+", re.ASCII)
_THOUSANDS = re.compile(r"-?[1-9]\d{0,2},\d{3}", re.ASCII)
"""A number whose comma can be a separator of thousands."""
_BOOLEANS = ("true", "false")
_TIME_REMEDY = "as docs/formats.md shows (Times in other forms)"


def is_of_another_form(text: str) -> bool:
    """Return True if it is a time in another form than ISO 8601, a number with a decimal comma or a leading zero, `True` or
    `False`."""
    stripped = text.strip()
    return (
        bool(_TIME.search(stripped) or _COMMA_NUMBER.fullmatch(stripped) or is_code(stripped))
        or stripped.lower() in _BOOLEANS
    )


def hint_of(name: str, texts: Sequence[str]) -> str | None:
    """Return a hint on a string field with this name whose values seem to have another type. None if they don't."""
    some = [text.strip(" ") for text in texts[:_TEXTS_MAX]]
    needed = FITS_SHARE * len(some)
    column = column_text(name)
    has_blanks = any(text != text.strip(" ") for text in texts)
    if has_blanks:
        column = f"trim({column})"
    if sum(_TIME.search(text) is not None for text in some) >= needed:
        return _time_hint(name, column, some)
    numbers = [not isinstance(value_of(text), str | bool) for text in some]
    commas = [text for text in some if _COMMA_NUMBER.fullmatch(text)]
    if commas and sum(numbers) + len(commas) >= needed:
        points = [text for text, is_number in zip(some, numbers, strict=True) if is_number and "." in text]
        return _comma_hint(name, column, commas, points)
    booleans = [text for text in texts[:_TEXTS_MAX] if text.strip(" ").lower() in _BOOLEANS]
    if len(booleans) >= needed:
        derived = _derived(f"{name}_is_true", f"lower({column}) = 'true'")
        return (
            f'{name} is a string with values as "{booleans[0]}", but booleans are only true and false; convert it in a pipeline: '
            f"{derived}"
        )
    if 2 * sum(numbers) >= len(some) and not any(map(is_code, some)):
        taken = f"convert it in a pipeline: {_derived(f'{name}_number', f'try_cast({column} as double)')}"
        other = next((text for text, is_number in zip(some, numbers, strict=True) if not is_number), None)
        if other is not None:
            return f"{name} is a string, because too many values are not numbers, as {other[:40]!a}; {taken}"
        if has_blanks:
            shown = next(text for text in texts if text != text.strip(" "))
            return f"{name} is a string, because there are blanks around its numbers, as {json.dumps(shown)}; {taken}"
    return None


def _derived(name: str, expression: str) -> str:
    """Return the step of a pipeline, in YAML."""
    return f"derive: {{{name}: {json.dumps(expression, ensure_ascii=False)}}}"


def _comma_hint(name: str, column: str, commas: list[str], points: list[str]) -> str:
    """Return the hint on a column of strings that are numbers with commas. `commas`, `points`: numbers with a comma or a
    point."""
    decimal = _derived(f"{name}_number", f"try_cast(replace({column}, ',', '.') as double)")
    if all(map(_THOUSANDS.fullmatch, commas)):
        mark, shown, without = "comma", commas[0], f"replace({column}, ',')"
    elif points:
        mark, shown, without = "point", points[0], f"replace(replace({column}, '.'), ',', '.')"
    else:
        return f'{name} is a string with decimal commas, as "{commas[0]}"; convert it in a pipeline: {decimal}'
    thousands = _derived(f"{name}_number", f"try_cast({without} as double)")
    return (
        f'{name} is a string, because the {mark} in its numbers, as "{shown}", is ambiguous. If it is a decimal {mark}, '
        f"convert it with {decimal}; if it separates thousands, with {thousands}"
    )


def _time_hint(name: str, column: str, texts: list[str]) -> str:
    patterns = time_patterns(texts)
    if not patterns:
        return f"{name} is a string with times that are not ISO 8601; read it by to_timestamp(text, pattern), {_TIME_REMEDY}"
    first, *others = (one.replace("'", r"\'") for one in patterns)
    derived = _derived(f"{name}_time", f"to_timestamp({column}, '{first}')")
    hint = (
        f'{name} is a string: times as "{texts[0]}" are ambiguous, so they are not converted; in a pipeline, write {derived}, '
        f"{_TIME_REMEDY}"
    )
    return hint + "".join(
        f"; for another position of the month, the pattern is '{json.dumps(one)[1:-1]}'" for one in others
    )


def only_pattern(texts: Sequence[str]) -> str | None:
    """Return the pattern with which `to_timestamp` reads the strings. None if they aren't times, or if several patterns fit."""
    some = texts[:_TEXTS_MAX]
    if not some or sum(_TIME.search(text) is not None for text in some) < FITS_SHARE * len(some):
        return None
    patterns = time_patterns(some)
    return patterns[0] if len(patterns) == 1 else None


def time_patterns(texts: Sequence[str]) -> list[str]:
    """Return the patterns with which `to_timestamp` reads nearly all of the strings, the most probable first. One for each
    order of day and month."""
    parts = next((found for text in texts if (found := _TIME_PARTS.fullmatch(text))), None)
    if parts is None:
        return []
    column = pa.array(texts, pa.string())
    patterns = []
    for dates in _orders(parts):
        for date, clock in product(dates, _clocks(parts)):
            pattern = f"{date}{clock}"
            if pc.count(read(column, read_pattern(pattern))).as_py() >= FITS_SHARE * len(texts):
                patterns.append(pattern)
                break
    return patterns


def _orders(parts: re.Match[str]) -> Iterator[list[str]]:
    """Yield the possible forms of the date for each order, the most probable order first: with two digits, and as written."""
    months = ("MMM", "MMMM") if parts["second"].isalpha() else ("MM", "M")
    year = "yyyy" if max(len(parts["first"]), len(parts["third"])) == 4 else "yy"
    mark = parts["mark"]
    if len(parts["first"]) > 2:
        yield [mark.join((year, month, day)) for day, month in product(("dd", "d"), months)]
        return
    orders = [[mark.join((day, month, year)) for day, month in product(("dd", "d"), months)]]
    if not parts["second"].isalpha():
        orders.append([mark.join((month, day, year)) for day, month in product(("dd", "d"), months)])
    yield from reversed(orders) if mark == "/" and parts["half"] else orders


def _clocks(parts: re.Match[str]) -> Iterator[str]:
    gap = "'T'" if parts["gap"] == "T" else parts["gap"]
    seconds = "" if parts["seconds"] is None else ":ss"
    fraction = "" if parts["point"] is None else f"{parts['point']}SSSSSS"
    half = "" if parts["half"] is None else parts["half"][:-2] + "a"
    offset = (parts["offset"] or "").strip()
    is_named = offset in ("UTC", "GMT")
    letters = (
        ""
        if not offset
        else f"'{offset}'"
        if is_named
        else "XXX"
        if ":" in offset
        else "XX"
        if len(offset) > 3
        else "X"
    )
    behind = " " * (parts["offset"] or "").startswith(" ") + letters
    for hours in ("hh", "h") if half else ("HH", "H"):
        yield f"{gap}{hours}:mm{seconds}{fraction}{half}{behind}"
