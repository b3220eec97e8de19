"""Elements of arrays and objects as typed values, read by one call for a whole array."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from strandline.core.json_paths import JsonPath
from strandline.processing.formats.record_fields import RecordField

ListReader = Callable[[bytes], list[Any]]


def can_be_typed(field: RecordField) -> bool:
    """Return True if msgspec can read the values of the field as they are declared."""
    return (
        field.type in ("string", "double", "boolean", "timestamp", "long", "integer")
        and not field.has_parser
        and not field.text
        and not field.joined
        and not field.rest
    )


def typed(field: RecordField) -> Any:
    """Return the type of a value in an element. It can be null; whether the field is required is checked later."""
    return field.plain_type | None


class TypedElements:
    """Reads elements, and the values at paths in them."""

    def __init__(self, paths: Sequence[tuple[int, JsonPath, RecordField]]) -> None:
        """`paths`: index, path within an element, field. Raises ValueError if they can't be read together. If an element is a
        value, it has no members, so that the other fields belong to the record."""
        self._bare = next((one for one in paths if one[1] == ()), None)
        if self._bare is not None:
            self.type: Any = typed(self._bare[2])
            return
        tree: dict[str, Any] = {}
        for _, path, field in paths:
            if not path or not all(isinstance(step, str) for step in path):
                raise ValueError("an index, or an element next to its members")
            node = tree
            for step in path[:-1]:
                node = node.setdefault(str(step), {})
                if not isinstance(node, dict):
                    raise ValueError("a value next to its members")
            if str(path[-1]) in node:
                raise ValueError("two fields with one path")
            node[str(path[-1])] = field
        attributes: dict[JsonPath, str] = {}
        self.type = _struct(tree, (), attributes)
        self._members = [
            (path, str(path[-1]), extract_of(attribute, may_lack=len(path) > 1))
            for path, attribute in attributes.items()
        ]
        """Path, name, and reader of each member in an element, with those of an object after the object."""
        self._leaves = {at: path for at, path, _ in paths}
        self.last = paths[-1][0]
        """Index of the last path."""

    def read(self, elements: list[Any]) -> tuple[dict[int, list[Any]], Counter[str], int]:
        """Return the values of each path, UNSET if an element doesn't have it; the number of members with each name; and the
        number of elements that are objects."""
        if self._bare is not None:
            return {self._bare[0]: elements}, Counter(), 0
        found: dict[JsonPath, list[Any]] = {(): elements}
        names: Counter[str] = Counter()
        for path, name, extract in self._members:
            found[path] = extract(found[path[:-1]])
            names[name] += len(elements) - found[path].count(UNSET)
        return {at: found[path] for at, path in self._leaves.items()}, names, len(elements)


def extract_of(attribute: str, *, may_lack: bool = False) -> Callable[[list[Any]], list[Any]]:
    """Return a function from objects to the values of one member. `may_lack`: an object can be UNSET. Code with a fixed
    attribute name takes half the time of an attrgetter."""
    value = f"one if one is UNSET else one.{attribute}" if may_lack else f"one.{attribute}"
    extract: Callable[[list[Any]], list[Any]] = eval(f"lambda objects: [{value} for one in objects]")  # noqa: S307
    return extract


def _struct(tree: dict[str, Any], path: JsonPath, attributes: dict[JsonPath, str]) -> Any:
    members: list[Any] = []
    rename: dict[str, str] = {}
    for name, below in tree.items():
        attributes[*path, name] = attribute = f"f{len(members)}"
        rename[attribute] = name
        kind = _struct(below, (*path, name), attributes) if isinstance(below, dict) else typed(below)
        members.append((attribute, kind | UnsetType, UNSET))
    return msgspec.defstruct("Element", members, rename=rename, gc=False)


def decoder_of(kind: Any) -> Callable[[bytes], Any]:
    """Return a function that decodes JSON to a type made at run time."""
    return msgspec.json.Decoder(kind).decode
