"""The types that a field can have: in a stream's schema, in expressions, in results. A type is written as its name.

Beside the simple types there are `array<T>` and `struct<name: T, ...>`. An array holds values of a simple type, or structs; a
struct holds values of simple types, or arrays of them. So a document needs no array within an array, which Elasticsearch would
flatten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

SIMPLE_TYPES = ("string", "long", "integer", "double", "boolean", "timestamp")
JSON_TYPE = "json"
"""In a stream's schema alone: the members of an object that no other field takes, as one JSON text. Elsewhere it is a string."""
ANY_TYPE = "any"
"""Only in a stream's schema: a value of any JSON type, as it was written. Elsewhere the field is a string."""
SCALAR_NAMES = (*SIMPLE_TYPES, "decimal(p,s)")
"""The types of single values, as messages list them."""
TYPE_NAMES = (*SCALAR_NAMES, "array<...>", "struct<...>")
"""All types, as messages list them."""
TYPE_PATTERN = rf"({'|'.join(SIMPLE_TYPES)}|decimal\(\d+, *\d+\)|(array|struct)<.+>)"
"""For JSON Schemas."""
WHOLE_RANGES = {"integer": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}
"""The least and the greatest value of the types of whole numbers."""
PRECISION_MAX = 38
"""The digits of the longest decimal."""
NULL = "null"
"""The type of a bare null in an expression; no field has it."""
MEMBERS_MAX = 50
"""The members of the widest struct."""
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_NESTED = re.compile(r"(array|struct)\s*<(.*)>", re.DOTALL)
_MEMBER = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]{0,199})\s*:(.*)", re.DOTALL)
_LEVELS_MAX = 3


def normal_type(text: str) -> str | None:
    """Return the one spelling of the type that `text` names, None when it names none. Raises ValueError as `decimal_type`,
    `array_type` and `struct_type`."""
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
    """What stands between the commas that are in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def array_type(element: str) -> str:
    """Return the type of arrays of such values. Raises ValueError for arrays of arrays."""
    if kind_of(element) == "array" or _holds_array(element):
        raise ValueError(f"an array holds no arrays, and not within its elements; {element} holds some")
    return f"array<{element}>"


def struct_type(members: Iterable[tuple[str, str]]) -> str:
    """Return the type of structs with these members: (name, type). Raises ValueError for a struct within a struct, for names that
    are alike, and for too many."""
    found = list(members)
    names = [name.lower() for name, _ in found]
    for name, kind in found:
        if names.count(name.lower()) > 1:
            raise ValueError(f"a struct has each name once; '{name}' stands there twice")
        if kind_of(kind) == "struct" or kind_of(element_of(kind) or "") == "struct":
            raise ValueError(f"a struct holds no structs; '{name}' is one")
    if not 1 <= len(found) <= MEMBERS_MAX:
        raise ValueError(f"a struct has 1 to {MEMBERS_MAX} members")
    return f"struct<{', '.join(f'{name}: {kind}' for name, kind in found)}>"


def element_of(name: str) -> str | None:
    """Return the type of an array's elements, None of any other type."""
    return name[len("array<") : -1] if kind_of(name) == "array" else None


def members_of(name: str) -> dict[str, str]:
    """Return a struct's members: name -> type; none of any other type."""
    if kind_of(name) != "struct":
        return {}
    pairs = (part.strip().partition(": ") for part in _parts(name[len("struct<") : -1]))
    return {member: kind for member, _, kind in pairs}


def is_nested(name: str) -> bool:
    """Whether it is an array or a struct."""
    return kind_of(name) in ("array", "struct")


def _holds_array(name: str) -> bool:
    return any(kind_of(kind) == "array" for kind in members_of(name).values())


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
    """Return the type without what stands in its brackets: `decimal`, `array`, `struct`, or the type itself."""
    return name.partition("<")[0].partition("(")[0]


def is_decimal(name: str) -> bool:
    return kind_of(name) == "decimal"


def decimal_digits(name: str) -> tuple[int, int]:
    """Return precision and scale of a number type; a whole number is a decimal that holds all its type can hold."""
    return digits_of(name) or ((20, 0) if name == "long" else (10, 0))


def is_number(name: str) -> bool:
    return name in WHOLE_RANGES or kind_of(name) in ("double", "decimal")
