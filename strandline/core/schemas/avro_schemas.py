"""Schemas of Avro (1.12), read and validated before they decode any record.

Some schemas are valid but refused, because a few bytes could cost any amount of memory or time, or end the process. These are
schemas that refer to themselves or nest too deep, and arrays whose elements have no bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.core.json_paths import JsonPath

NESTING_MAX = 32
"""Maximum depth of nested types."""
NODES_MAX = 20_000
"""Maximum number of types in a schema. Each named type counts wherever it is used."""

AvroType = Any
"""A parsed type: a name, a list (a union), or a dict."""

TIMES = {"timestamp-millis": "ms", "timestamp-micros": "us", "timestamp-nanos": "ns"}
TIMES |= {f"local-{name}": unit for name, unit in TIMES.items()}
"""Logical type -> unit of its number."""
_PYTHON_TYPES = {"int": int, "long": int, "bytes": bytes, "fixed": bytes}
"""Kind -> Python type in which its values are read, for the kinds that a logical type can extend."""
_UUID_BYTES = 16
_COMPLEX = ("record", "error", "enum", "fixed")


def read_avro_schema(text: str, references: Sequence[str] = ()) -> AvroType:
    """Return the schema of a record, parsed, with every named type expanded where it is used. Raises ValueError with a message.

    Args: references: Schemas whose types it uses, as strings, each after the schemas that it uses itself.
    """
    import fastavro  # takes a while, and only streams of Avro need it
    from fastavro.schema import SchemaParseException, UnknownType

    named: dict[str, Any] = {}
    try:
        for one in references:
            fastavro.parse_schema(json.loads(one), named)
        schema = fastavro.parse_schema(json.loads(text), named)
    except UnknownType as error:
        raise ValueError(f"the schema uses the type {error}, which it does not define") from error
    except (SchemaParseException, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"is not an Avro schema: {error or type(error).__name__}") from error
    plain = _Resolver(named).plain(schema, ())
    if not isinstance(plain, dict) or plain["type"] not in ("record", "error"):
        raise ValueError("is not the schema of a record, but fields are read by name")
    return plain


class _Resolver:
    """Expands named types, and refuses types whose cost has no bound."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._nodes = 0

    def plain(self, schema: Any, inside: tuple[str, ...]) -> AvroType:
        self._nodes += 1
        if self._nodes > NODES_MAX or len(inside) > NESTING_MAX:
            raise ValueError(f"the schema has more than {NODES_MAX:,} types, or {NESTING_MAX} levels")
        if isinstance(schema, list):
            return [self.plain(one, (*inside, "")) for one in schema]
        if isinstance(schema, str):
            return self._named_type(schema, inside) if schema in self._named else schema
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.plain(kind, (*inside, ""))
        if kind in self._named and kind not in _COMPLEX:
            return self._named_type(kind, inside)
        plain = {key: value for key, value in schema.items() if not key.startswith("__")}
        if kind in ("record", "error"):
            own = (*inside, schema["name"])
            plain["fields"] = [{"name": one["name"], "type": self.plain(one["type"], own)} for one in schema["fields"]]
        elif kind == "array":
            plain["items"] = self.plain(schema["items"], (*inside, ""))
            if not takes_bytes(plain["items"]):
                raise ValueError(
                    "the schema has an array whose elements have no bytes, so a few bytes could contain any "
                    "number of elements"
                )
        elif kind == "map":
            plain["values"] = self.plain(schema["values"], (*inside, ""))
        return plain

    def _named_type(self, name: str, inside: tuple[str, ...]) -> AvroType:
        if name in inside:
            raise ValueError(f"the schema's type {name} refers to itself, which is not supported")
        return self.plain(self._named[name], inside)


def takes_bytes(schema: AvroType) -> bool:
    """Return True if each value of the type has at least one byte."""
    if isinstance(schema, list):
        return True
    kind = kind_of(schema)
    if kind == "fixed":
        return bool(schema["size"] > 0)
    if kind in ("record", "error"):
        return any(takes_bytes(one["type"]) for one in schema["fields"])
    return kind != "null"


def kind_of(schema: AvroType) -> str:
    """Return the name of the type; `union` for a union."""
    if isinstance(schema, list):
        return "union"
    return str(schema if isinstance(schema, str) else schema["type"])


@dataclass(frozen=True)
class LogicalType:
    """Meaning of a number or of bytes for a field, according to a logical type."""

    logical_type: str
    unit: str | None = None
    """Unit of a time. None if the type isn't a time."""
    scale: int = 0
    """Scale of a decimal."""

    def __str__(self) -> str:
        if self.unit is not None:
            return f"a time in {self.unit}"
        return f"a decimal of scale {self.scale}" if self.logical_type == "decimal" else f"a {self.logical_type}"


def meanings_at(schema: AvroType, path: JsonPath, field_type: str, unit: str) -> dict[type, LogicalType]:
    """Return the meaning of a value at the path for a field: Python type of the value -> meaning.

    Types whose values the field can use unchanged are left out.
    Args: unit: Unit of the field's times.
    Raises: ValueError: The branches of a union give a value different meanings. After it is read, its branch isn't known.
    """
    found: dict[type, LogicalType | None] = {}
    for one in types_at(schema, path):
        kind, meaning = _PYTHON_TYPES.get(kind_of(one)), _meaning(one, field_type, unit)
        if kind is not None and found.setdefault(kind, meaning) != meaning:
            raise ValueError(
                f"can be {found[kind] or 'the stored value'} or {meaning or 'the stored value'}, depending on "
                "the branch of a union. The branch is unknown after a value is read; use one logical type in all "
                "branches, or a different name in each branch"
            )
    return {kind: meaning for kind, meaning in found.items() if meaning is not None}


def _meaning(schema: AvroType, field_type: str, unit: str) -> LogicalType | None:
    logical, kind = schema.get("logicalType") if isinstance(schema, dict) else None, kind_of(schema)
    if logical in TIMES and kind == "long" and field_type in ("timestamp", "string"):
        is_stored = field_type == "timestamp" and TIMES[logical] == unit
        return None if is_stored else LogicalType("timestamp", unit=TIMES[logical])
    if logical == "date" and kind == "int" and field_type in ("timestamp", "string"):
        return LogicalType("date")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return LogicalType("decimal", scale=schema.get("scale", 0))
    if logical == "uuid" and kind == "fixed" and schema["size"] == _UUID_BYTES:
        return LogicalType("uuid")
    return None


def types_at(schema: AvroType, path: JsonPath) -> list[AvroType]:
    """Return the types that a value at the path can have, except null."""
    if isinstance(schema, list):
        return [found for one in schema for found in types_at(one, path)]
    kind = kind_of(schema)
    if not path:
        return [] if kind == "null" else [schema]
    step, rest = path[0], path[1:]
    if kind in ("record", "error"):
        return [found for one in schema["fields"] if one["name"] == step for found in types_at(one["type"], rest)]
    if kind == "map" and isinstance(step, str):
        return types_at(schema["values"], rest)
    return types_at(schema["items"], rest) if kind == "array" and isinstance(step, int) else []
