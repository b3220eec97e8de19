"""Types of fields in schemas, expressions, and results. A type is represented by its name.

There are simple types, `array<T>`, and `struct<name: T, ...>`. An array contains values of a simple type, or structs. A struct
contains values of simple types, or arrays of them. So no array is in an array, which Elasticsearch would flatten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

SIMPLE_TYPES = ("string", "long", "integer", "double", "boolean", "timestamp")
JSON_TYPE = "json"
"""Only in the schema of a stream: the members of an object that have no other field, as a JSON string. Elsewhere it is a
string."""
ANY_TYPE = "any"
"""Only in the schema of a stream: a value of any JSON type, as it was written. Elsewhere it is a string."""
SCALAR_NAMES = (*SIMPLE_TYPES, "decimal(p,s)")
"""Types of single values, as messages list them."""
TYPE_NAMES = (*SCALAR_NAMES, "array<...>", "struct<...>")
"""All types, as messages list them."""
TYPE_PATTERN = rf"({'|'.join(SIMPLE_TYPES)}|decimal\(\d+, *\d+\)|(array|struct)<.+>)"
"""Pattern of types, for JSON Schemas."""
WHOLE_RANGES = {"integer": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}
"""Minimum and maximum of the integer types."""
PRECISION_MAX = 38
"""Maximum number of digits of a decimal."""
NULL = "null"
"""Type of a null literal in an expression. No field has it."""
MEMBERS_MAX = 50
"""Maximum number of members of a struct."""
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_NESTED = re.compile(r"(array|struct)\s*<(.*)>", re.DOTALL)
_MEMBER = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]{0,199})\s*:(.*)", re.DOTALL)
_LEVELS_MAX = 3


def normal_type(text: str) -> str | None:
    """Return the canonical spelling of a type. None if `text` names no type.

    Raises ValueError as `decimal_type`, `array_type`, and `struct_type`.
    """
    return _normal(text, _LEVELS_MAX)


def _normal(text: str, levels: int) -> str | None:
    if text in SIMPLE_TYPES:
        return text
    if match := _DECIMAL.fullmatch(text):
        return decimal_type(int(match[1]), int(match[2]))
    match = _NESTED.fullmatch(text)
    if match is None or not levels:
        return None
    if match[1] == "array":
        element = _normal(match[2].strip(), levels - 1)
        return None if element is None else array_type(element)
    members = []
    for part in _parts(match[2]):
        found = _MEMBER.fullmatch(part)
        kind = None if found is None else _normal(found[2].strip(), levels - 1)
        if found is None or kind is None:
            return None
        members.append((found[1], kind))
    return struct_type(members)


def _parts(text: str) -> list[str]:
    """Split at the commas that are not in brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def array_type(element: str) -> str:
    """Return the type of arrays with elements of this type. Raises ValueError for arrays of arrays."""
    if kind_of(element) == "array" or _holds_array(element):
        raise ValueError(f"an array can't contain arrays, directly or in its elements; {element} contains one")
    return f"array<{element}>"


def struct_type(members: Iterable[tuple[str, str]]) -> str:
    """Return the type of structs with these members: (name, type).

    Raises ValueError for a struct in a struct, for names that differ only in case, and for too many members.
    """
    found = list(members)
    names = [name.lower() for name, _ in found]
    for name, kind in found:
        if names.count(name.lower()) > 1:
            raise ValueError(f"a struct must have each name once; '{name}' occurs twice")
        if kind_of(kind) == "struct" or kind_of(element_of(kind) or "") == "struct":
            raise ValueError(f"a struct can't contain structs; '{name}' is one")
    if not 1 <= len(found) <= MEMBERS_MAX:
        raise ValueError(f"a struct has 1 to {MEMBERS_MAX} members")
    return f"struct<{', '.join(f'{name}: {kind}' for name, kind in found)}>"


def element_of(name: str) -> str | None:
    """Return the type of an array's elements. None if the type isn't an array."""
    return name[len("array<") : -1] if kind_of(name) == "array" else None


def members_of(name: str) -> dict[str, str]:
    """Return the members of a struct: name -> type. Empty if the type isn't a struct."""
    if kind_of(name) != "struct":
        return {}
    pairs = (part.strip().partition(": ") for part in _parts(name[len("struct<") : -1]))
    return {member: kind for member, _, kind in pairs}


def is_nested(name: str) -> bool:
    """Return True if the type is an array or a struct."""
    return kind_of(name) in ("array", "struct")


def _holds_array(name: str) -> bool:
    return any(kind_of(kind) == "array" for kind in members_of(name).values())


def decimal_type(precision: int, scale: int) -> str:
    """Return the type of decimals with this number of digits, in total and after the point. Raises ValueError if no
    decimal can have them.
    """
    if not 1 <= precision <= PRECISION_MAX or not 0 <= scale <= precision:
        raise ValueError(f"a decimal has 1 to {PRECISION_MAX} digits in total, and at most as many after the point")
    return f"decimal({precision},{scale})"


def digits_of(name: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal type. None if the type isn't a decimal."""
    match = _DECIMAL.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def kind_of(name: str) -> str:
    """Return the type without its brackets: `decimal`, `array`, `struct`, or the simple type."""
    return name.partition("<")[0].partition("(")[0]


def is_decimal(name: str) -> bool:
    return kind_of(name) == "decimal"


def decimal_digits(name: str) -> tuple[int, int]:
    """Return precision and scale of a decimal or integer type: for an integer type, those of a decimal that fits all
    its values.
    """
    return digits_of(name) or ((20, 0) if name == "long" else (10, 0))


def is_number(name: str) -> bool:
    return name in WHOLE_RANGES or kind_of(name) in ("double", "decimal")
