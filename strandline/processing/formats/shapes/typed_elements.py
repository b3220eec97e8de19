"""Elements of arrays and objects as typed values, read by one call for a whole array."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
        self._spelled: dict[str, bytes] = {}
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
        names: dict[JsonPath, str] = {}
        self.type = _struct(tree, (), names)
        ways = {path[:end] for _, path, _ in paths for end in range(1, len(path) + 1)}
        self._spelled = {name: f'"{name}"'.encode() for name in {str(way[-1]) for way in ways}}
        self._places = Counter(str(way[-1]) for way in ways)
        self._inner_count = len(ways) - len(paths)
        """Number of names in an element whose values are objects."""
        self._leaves = {str(path[-1]): at for at, path, _ in paths}
        self.last = paths[-1][0]
        """Index of the last path."""
        self._extracts = [
            (at, _extract_of(".".join(names[path[:end]] for end in range(1, len(path) + 1)))) for at, path, _ in paths
        ]

    def are_once(self, text: bytes, count: int, columns: Mapping[int, list[Any]]) -> bool:
        """Return True if the text has each name as often as the elements have it, so that none has a name twice."""
        if self._bare is not None:
            return True
        for name, spelled in self._spelled.items():
            found = text.count(spelled)
            if found != count * self._places[name]:
                at = self._leaves.get(name)
                if at is None or self._places[name] > 1 or found != sum(one is not UNSET for one in columns[at]):
                    return False
        return True

    def occurrences(self, count: int, columns: Mapping[int, list[Any]]) -> dict[bytes, int]:
        """Return each name as it is written in JSON -> how often the elements have it, if none has a name twice."""
        if self._bare is not None:
            return {}
        found = {}
        for name, spelled in self._spelled.items():
            column = columns.get(self._leaves.get(name, -1))
            is_once = self._places[name] == 1 and column is not None
            found[spelled] = (
                count - column.count(UNSET) if is_once and column is not None else count * self._places[name]
            )
        return found

    def count_names(self, count: int, columns: Mapping[int, list[Any]]) -> int:
        """Return the number of names in the elements, without those of members that no field reads."""
        if self._bare is not None:
            return 0
        return count * self._inner_count + sum(
            count - column.count(UNSET) for column in (columns[at] for at in self._leaves.values())
        )

    def columns(self, elements: Sequence[Any]) -> dict[int, list[Any]] | None:
        """Return the values of each path. None if an object on a path is missing."""
        if self._bare is not None:
            return {self._bare[0]: list(elements)}
        try:
            return {at: extract(elements) for at, extract in self._extracts}
        except AttributeError:
            return None


def _extract_of(attributes: str) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function from elements to the values of one path. Code with fixed attribute names takes half the time of an
    attrgetter."""
    extract: Callable[[Sequence[Any]], list[Any]] = eval(f"lambda elements: [one.{attributes} for one in elements]")  # noqa: S307
    return extract


def _struct(tree: dict[str, Any], path: JsonPath, names: dict[JsonPath, str]) -> Any:
    members: list[Any] = []
    rename: dict[str, str] = {}
    for name, below in tree.items():
        names[*path, name] = attribute = f"f{len(members)}"
        rename[attribute] = name
        kind = _struct(below, (*path, name), names) if isinstance(below, dict) else typed(below)
        members.append((attribute, kind | UnsetType, UNSET))
    return msgspec.defstruct("Element", members, rename=rename, gc=False)


def decoder_of(kind: Any) -> Callable[[bytes], Any]:
    """Return a function that decodes JSON to a type made at run time."""
    return msgspec.json.Decoder(kind).decode
