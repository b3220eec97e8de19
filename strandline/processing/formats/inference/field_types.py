"""Proposes the type of a field from its values.

A type can be proposed although some values don't fit. At least `FITS_MIN` values must fit it, and at least `FITS_SHARE` of all.
Such a type is preferred to `string`, even if all values fit `string`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from strandline.core.field_types import WHOLE_RANGES
from strandline.processing.formats.text_values import is_number_text
from strandline.processing.formats.timestamps import PER_SECOND, parse_timestamp

FITS_MIN = 20
FITS_SHARE = 0.95
_CENTURY_S = (946_684_800, 4_102_444_800)
"""The years 2000 to 2099: the range of numbers that are regarded as times."""
_CODE = re.compile(r"0\d+", re.ASCII)
_TIME_NAME = re.compile(
    r"(?i)(?:^|_|\b)(?:t|ts|epoch|time|timestamp|date|datetime|at|when|created|measured|ns)(?:_?(?:s|ms|us|ns))?$"
)


@dataclass(frozen=True)
class ProposedType:
    """The proposed schema of a field, and the values that don't fit."""

    spec: dict[str, Any]
    unfitting: list[Any] = field(default_factory=list)


def type_of(name: str, values: Sequence[Any], *, is_text: bool) -> ProposedType:
    """Return the type for these values. None of them may be null, a list, or an object.

    `is_text`: True if the values are strings, as in CSV. Then blanks at their ends count.
    """
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
    are_codes = all(fits_of["string"]) and any(map(is_code, values))
    kind = "string" if are_codes else _best(fits_of, len(values))
    fitting = [at for at, fits in enumerate(fits_of[kind]) if fits]
    spec: dict[str, Any] = {"type": kind}
    if kind == "number":
        spec["type"] = _number_type([meant[at] for at in fitting])
    if kind == "timestamp" and any(is_number[at] for at in fitting):
        spec["unit"] = unit
    if (
        kind != "string"
        and not is_text
        and any(isinstance(values[at], str) and values[at] != meant[at] for at in fitting)
    ):
        spec["text"] = True
    return ProposedType(spec, [value for value, fits in zip(values, fits_of[kind], strict=True) if not fits])


def are_most(fitting: int, count: int) -> bool:
    """Return True if all values fit, or if so few don't fit that they can be left out."""
    return fitting > 0 and (fitting == count or (fitting >= FITS_MIN and fitting >= FITS_SHARE * count))


def _best(fits_of: dict[str, list[bool]], count: int) -> str:
    """Return the kind to propose. If several are equally good, return the first."""
    fitting = {kind: sum(fits) for kind, fits in fits_of.items()}
    usual = next((kind for kind, fits in fitting.items() if fits == count), None)
    near = next((kind for kind, fits in fitting.items() if are_most(fits, count)), None)
    if near is not None and usual in (None, "string", "number"):
        return near
    return usual or max(("timestamp", "string", "boolean", "number"), key=fitting.__getitem__)


def _unit(name: str, numbers: list[int | float]) -> str | None:
    """Return the unit in which most of the numbers are times of this century. None if the name of their field isn't that of a
    time."""
    if not _TIME_NAME.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)):
        return None
    times = {unit: sum(_is_of_century(number, unit) for number in numbers) for unit in PER_SECOND}
    unit = max(times, key=times.__getitem__)
    return unit if times[unit] else None


def _is_time(value: Any, unit: str | None) -> bool:
    if isinstance(value, str):
        return parse_timestamp(value, "ms") is not None
    return unit is not None and not isinstance(value, bool) and _is_of_century(value, unit)


def _is_of_century(number: float, unit: str) -> bool:
    return _CENTURY_S[0] <= number / PER_SECOND[unit] < _CENTURY_S[1]


def _number_type(numbers: list[int | float]) -> str:
    first, last = WHOLE_RANGES["long"]
    return "long" if all(isinstance(value, int) and first <= value <= last for value in numbers) else "double"


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
