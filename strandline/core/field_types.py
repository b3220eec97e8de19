"""The types that a field can have: in a stream's schema, in expressions, in results. A type is written as its name."""

from __future__ import annotations

import re

SIMPLE_TYPES = ("string", "long", "integer", "double", "boolean", "timestamp")
JSON_TYPE = "json"
"""In a stream's schema alone: the members of an object that no other field takes, as one JSON text. Elsewhere it is a string."""
TYPE_NAMES = (*SIMPLE_TYPES, "decimal(p,s)")
"""All types, as messages list them."""
TYPE_PATTERN = rf"({'|'.join(SIMPLE_TYPES)}|decimal\(\d+, *\d+\))"
"""For JSON Schemas."""
WHOLE_RANGES = {"integer": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}
"""The least and the greatest value of the types of whole numbers."""
PRECISION_MAX = 38
"""The digits of the longest decimal."""
NULL = "null"
"""The type of a bare null in an expression; no field has it."""
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")


def normal_type(text: str) -> str | None:
    """Return the one spelling of the type that `text` names, None when it names none. Raises ValueError as `decimal_type`."""
    if text in SIMPLE_TYPES:
        return text
    match = _DECIMAL.fullmatch(text)
    return decimal_type(int(match[1]), int(match[2])) if match else None


def decimal_type(precision: int, scale: int) -> str:
    """Return the type of decimals with that many digits, and that many of them after the point. Raises ValueError."""
    if not 1 <= precision <= PRECISION_MAX or not 0 <= scale <= precision:
        raise ValueError(f"a decimal has 1 to {PRECISION_MAX} digits, and no more after the point than in all")
    return f"decimal({precision},{scale})"


def digits_of(name: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal type, None of any other."""
    match = _DECIMAL.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def kind_of(name: str) -> str:
    """Return the type without a decimal's digits: `decimal`, or the type itself."""
    return name.partition("(")[0]


def is_decimal(name: str) -> bool:
    return kind_of(name) == "decimal"


def decimal_digits(name: str) -> tuple[int, int]:
    """Return precision and scale of a number type; a whole number is a decimal that holds all its type can hold."""
    return digits_of(name) or ((20, 0) if name == "long" else (10, 0))


def is_number(name: str) -> bool:
    return name in WHOLE_RANGES or kind_of(name) in ("double", "decimal")
