"""Schemas of Avro (1.12): read and judged before any record is decoded by them.

Some schemas are legal and refused all the same, because a few bytes could then cost any amount of memory or time, or end the
process: those that refer to themselves, that nest too deep, and arrays whose elements take no bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.core.json_paths import JsonPath

NESTING_MAX = 32
"""How deep types may be nested."""
NODES_MAX = 20_000
"""Types in a schema, with each named one counted wherever it is used."""

AvroType = Any
"""A parsed type: a name, a list (a union), or a dict."""

TIMES = {"timestamp-millis": "ms", "timestamp-micros": "us", "timestamp-nanos": "ns"}
TIMES |= {f"local-{name}": unit for name, unit in TIMES.items()}
"""Logical type -> the unit of its number."""
_PYTHON_TYPES = {"int": int, "long": int, "bytes": bytes, "fixed": bytes}
"""Kind -> as what it is read, of those that a logical type may give a meaning."""
_UUID_BYTES = 16
_COMPLEX = ("record", "error", "enum", "fixed")


def read_avro_schema(text: str, references: Sequence[str] = ()) -> AvroType:
    """Return the schema of a record, parsed and with every named type written out where it is used. `references`: the texts of
    schemas whose types it uses, each after those that it uses itself.

    Raises ValueError with a sentence.
    """
    import fastavro  # takes a while, and only streams of Avro need it
    from fastavro.schema import SchemaParseException, UnknownType

    named: dict[str, Any] = {}
    try:
        for one in references:
            fastavro.parse_schema(json.loads(one), named)
        schema = fastavro.parse_schema(json.loads(text), named)
    except UnknownType as error:
        raise ValueError(f"the schema uses a type {error}, which it does not define") from error
    except (SchemaParseException, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"is not a schema of Avro: {error or type(error).__name__}") from error
    plain = _Resolver(named).plain(schema, ())
    if not isinstance(plain, dict) or plain["type"] not in ("record", "error"):
        raise ValueError("is not the schema of a record; fields are read by name")
    return plain


class _Resolver:
    """Writes named types out, and refuses what can't be bounded."""

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
                    "the schema has an array whose elements take no bytes: a few bytes could hold any number"
                )
        elif kind == "map":
            plain["values"] = self.plain(schema["values"], (*inside, ""))
        return plain

    def _named_type(self, name: str, inside: tuple[str, ...]) -> AvroType:
        if name in inside:
            raise ValueError(f"the schema's type {name} refers to itself, which is not supported")
        return self.plain(self._named[name], inside)


def takes_bytes(schema: AvroType) -> bool:
    """Whether each value of the type takes at least a byte."""
    if isinstance(schema, list):
        return True
    kind = kind_of(schema)
    if kind == "fixed":
        return bool(schema["size"] > 0)
    if kind in ("record", "error"):
        return any(takes_bytes(one["type"]) for one in schema["fields"])
    return kind != "null"


def kind_of(schema: AvroType) -> str:
    """The type's name, `union` of several."""
    if isinstance(schema, list):
        return "union"
    return str(schema if isinstance(schema, str) else schema["type"])


@dataclass(frozen=True)
class Meaning:
    """What a number or bytes stand for, where a field takes them for that."""

    logical_type: str
    unit: str | None = None
    """Of a time."""
    scale: int = 0
    """Of a decimal."""

    def __str__(self) -> str:
        if self.unit is not None:
            return f"a time in {self.unit}"
        return f"a decimal of scale {self.scale}" if self.logical_type == "decimal" else f"a {self.logical_type}"


def meanings_at(schema: AvroType, path: JsonPath, field_type: str, unit: str) -> dict[type, Meaning]:
    """What stands at the path means to a field, by the Python type as which it is read; nothing where it is a value of the field
    as it is. `unit`: of the field's times.

    Raises ValueError where the branches of a union give a value different meanings: once it is read, its branch is not known.
    """
    found: dict[type, Meaning | None] = {}
    for one in types_at(schema, path):
        kind, meaning = _PYTHON_TYPES.get(kind_of(one)), _meaning(one, field_type, unit)
        if kind is not None and found.setdefault(kind, meaning) != meaning:
            raise ValueError(
                f"may be {found[kind] or 'what is stored'} or {meaning or 'what is stored'}, by the branch of a union, which is "
                "not known once a value is read: give all branches one logical type there, or each a name of its own for it"
            )
    return {kind: meaning for kind, meaning in found.items() if meaning is not None}


def _meaning(schema: AvroType, field_type: str, unit: str) -> Meaning | None:
    logical, kind = schema.get("logicalType") if isinstance(schema, dict) else None, kind_of(schema)
    if logical in TIMES and kind == "long" and field_type in ("timestamp", "string"):
        is_stored = field_type == "timestamp" and TIMES[logical] == unit
        return None if is_stored else Meaning("timestamp", unit=TIMES[logical])
    if logical == "date" and kind == "int" and field_type in ("timestamp", "string"):
        return Meaning("date")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return Meaning("decimal", scale=schema.get("scale", 0))
    if logical == "uuid" and kind == "fixed" and schema["size"] == _UUID_BYTES:
        return Meaning("uuid")
    return None


def types_at(schema: AvroType, path: JsonPath) -> list[AvroType]:
    """The types that a value at the path may have, without null."""
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
