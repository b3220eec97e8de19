"""Proposes the type of a field from its values.

A type can be proposed although some values don't fit. At least `FITS_MIN` values must fit it, and at least `FITS_SHARE` of all.
Such a type is preferred to `string`, even if all values fit `string`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import Any

from strandline.core.field_types import WHOLE_RANGES
from strandline.processing.formats.inference import names
from strandline.processing.formats.inference.missing_values import is_marker, markers_in, number_markers_in
from strandline.processing.formats.text_values import is_number_text
from strandline.processing.formats.timestamps import PER_SECOND, parse_timestamp

FITS_MIN = 20
FITS_SHARE = 0.95
CENTURY_S = (946_684_800, 4_102_444_800)
"""The years 2000 to 2099: the range of numbers that are regarded as times."""
_CODE = re.compile(r"0\d+", re.ASCII)
_PART_NUMBER = re.compile(r"\d+[eE]\d+", re.ASCII)
_EPOCHS_MIN = 3
"""Minimum number of values that can be recognised as times without the name of a time."""
_EPOCHS_S = (1_262_304_000, 2_208_988_800)
"""The years 2010 to 2039."""
_EPOCHS_SPAN_S = 3 * 366 * 86_400
_EXACT_MAX = 1 << 53


@dataclass(frozen=True)
class ProposedType:
    """The proposed schema of a field, and the values that don't fit."""

    spec: dict[str, Any]
    unfitting: list[Any] = field(default_factory=list)


def type_of(name: str, values: Sequence[Any], *, is_text: bool) -> ProposedType:
    """Return the type for these values. None of them may be null, a list, or an object.

    `is_text`: True if the values are strings, as in CSV. Then blanks at their ends count.
    """
    markers = markers_in(values)
    others = [value for value in values if not is_marker(value)]
    if markers and others:
        proposed = _type_of(name, others, is_text=is_text)
        if proposed.spec["type"] not in ("string", "any"):
            missing = [*markers, *proposed.spec.get("missing", [])]
            return ProposedType(proposed.spec | {"required": False, "missing": missing}, proposed.unfitting)
    return _type_of(name, values, is_text=is_text)


def _type_of(name: str, values: Sequence[Any], *, is_text: bool) -> ProposedType:
    meant = [
        value_of(value) if isinstance(value, str) and not (is_text and value != value.strip()) else value
        for value in values
    ]
    is_number = [isinstance(value, int | float) and not isinstance(value, bool) for value in meant]
    unit = _unit(name, [value for value, fits in zip(meant, is_number, strict=True) if fits])
    fits_of = {
        "timestamp": [_is_time(value, unit) for value in meant],
        "boolean": [isinstance(value, bool) for value in meant],
        "number": is_number,
        "string": [isinstance(value, str) for value in values],
    }
    are_codes = all(fits_of["string"]) and (any(map(is_code, values)) or _identify(name, values, is_text=is_text))
    is_time = are_codes and all(fits_of["timestamp"]) and names.is_time(name)
    kind = "string" if are_codes and not is_time else _best(fits_of, len(values))
    if kind is None:
        if not is_text and not all(fits_of["string"]):
            return ProposedType({"type": "any"})
        kind = max(("timestamp", "string", "boolean", "number"), key=lambda one: sum(fits_of[one]))
    fitting = [at for at, fits in enumerate(fits_of[kind]) if fits]
    spec: dict[str, Any] = {"type": kind}
    if kind == "number":
        numbers = [meant[at] for at in fitting]
        spec["type"] = _number_type(name, numbers)
        if missing := number_markers_in(numbers):
            spec |= {"required": False, "missing": missing}
    if kind == "timestamp" and any(is_number[at] for at in fitting):
        spec["unit"] = unit
    if (
        kind != "string"
        and not is_text
        and any(isinstance(values[at], str) and values[at] != meant[at] for at in fitting)
    ):
        spec["text"] = True
    return ProposedType(spec, [value for value, fits in zip(values, fits_of[kind], strict=True) if not fits])


def _identify(name: str, values: Sequence[str], *, is_text: bool) -> bool:
    """Return True if strings that look like numbers can be identifiers. As numbers, different identifiers could be equal, and
    one with a letter would be rejected."""
    numbers = [value.strip() for value in values if is_number_text(value.strip())]
    if not numbers or names.is_measured(name) or (is_text and _number_rows(numbers)):
        return False
    if names.is_identifier(name) or any(map(_PART_NUMBER.fullmatch, numbers)):
        return True
    if is_text or names.is_value(name):
        return False
    decimals = {len(one.partition(".")[2]) for one in numbers}
    are_whole = decimals == {0} and not names.is_counted(name) and not names.is_time(name)
    return are_whole or len(decimals) > 1 or any("e" in one.lower() for one in numbers)


def _number_rows(numbers: Sequence[str]) -> bool:
    """Return True if the strings are consecutive integers."""
    are_whole = len(numbers) > 1 and all(number.isdigit() and len(number) < 19 for number in numbers)
    return are_whole and all(int(after) - int(before) == 1 for before, after in pairwise(numbers))


def are_most(fitting: int, count: int) -> bool:
    """Return True if all values fit, or if so few don't fit that they can be left out."""
    return fitting > 0 and (fitting == count or (fitting >= FITS_MIN and fitting >= FITS_SHARE * count))


def _best(fits_of: dict[str, list[bool]], count: int) -> str | None:
    """Return the kind to propose. If several are equally good, return the first. None if too many values fit no kind."""
    fitting = {kind: sum(fits) for kind, fits in fits_of.items()}
    usual = next((kind for kind, fits in fitting.items() if fits == count), None)
    near = next((kind for kind, fits in fitting.items() if are_most(fits, count)), None)
    return near if near is not None and usual in (None, "string", "number") else usual


def _unit(name: str, numbers: list[int | float]) -> str | None:
    """Return the unit in which most of the numbers are times of this century. None if neither the name of their field nor the
    numbers indicate times."""
    if not names.is_time(name):
        return _unit_of_epochs(name, numbers)
    times = {unit: sum(_is_of_century(number, unit) for number in numbers) for unit in PER_SECOND}
    unit = max(times, key=times.__getitem__)
    return unit if times[unit] else None


def _unit_of_epochs(name: str, numbers: list[int | float]) -> str | None:
    """Return the unit in which the numbers are times of a few years and rise, perhaps from the first time again for each series.
    None if there is none."""
    is_long_enough = len(numbers) >= (1 if name.isdigit() else _EPOCHS_MIN)
    if not is_long_enough or names.is_measured(name) or names.is_counted(name):
        return None
    first, last = min(numbers), max(numbers)
    rises = sum(before <= after or after == first for before, after in pairwise(numbers))
    if len(numbers) > 1 and (first == last or rises < FITS_SHARE * (len(numbers) - 1)):
        return None
    for unit, per_second in PER_SECOND.items():
        if _EPOCHS_S[0] <= first / per_second and last / per_second < _EPOCHS_S[1]:
            return unit if (last - first) / per_second < _EPOCHS_SPAN_S else None
    return None


def _is_time(value: Any, unit: str | None) -> bool:
    if isinstance(value, str):
        return parse_timestamp(value, "ms") is not None
    return unit is not None and not isinstance(value, bool) and _is_of_century(value, unit)


def _is_of_century(number: float, unit: str) -> bool:
    return CENTURY_S[0] <= number / PER_SECOND[unit] < CENTURY_S[1]


def _number_type(name: str, numbers: list[int | float]) -> str:
    first, last = WHOLE_RANGES["long"]
    is_whole = not names.is_measured(name) or any(abs(value) > _EXACT_MAX for value in numbers)
    return (
        "long" if is_whole and all(isinstance(value, int) and first <= value <= last for value in numbers) else "double"
    )


def is_code(text: str) -> bool:
    """Return True if it is digits with a leading zero, as in identifiers. Then identifiers without one aren't numbers either."""
    return _CODE.fullmatch(text.strip()) is not None


def value_of(text: str) -> Any:
    """Return the value of a string: a number that a field can hold, true or false, or the string itself."""
    stripped = text.strip()
    if stripped in ("true", "false"):
        return stripped == "true"
    return number_of(stripped) if is_number_text(stripped) and not is_beyond(stripped) else text


def number_of(text: str) -> int | float:
    """Return the value of a JSON number. Infinity if no field can hold it."""
    return int(text) if isfinite(number := float(text)) and text.removeprefix("-").isdigit() else number


def is_beyond(text: str) -> bool:
    """Return True if a string is a number that no field can hold."""
    return is_number_text(text.strip()) and not isfinite(float(text))
