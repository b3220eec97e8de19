"""The document of a stream whose records are objects: JSON, or maps that are converted to JSON."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strandline.core.json_paths import STEPS_MAX, path_text
from strandline.processing.formats.inference.sample import Proposal, Proposed, readable
from strandline.processing.formats.inference.schemas import Path, leaves, schema_of
from strandline.processing.formats.record_fields import JsonText


def propose_for_maps(
    name: str, format_name: str, read: Sequence[JsonText], records: Sequence[bytes]
) -> Proposed | None:
    """Return a document for records of a format that are maps. `read`: JSON objects of the records. None if most aren't maps."""
    objects = [one for one in read if isinstance(one, bytes)]
    if 2 * len(objects) < len(records):
        return None
    maps = list(readable([one.decode() for one in objects]))
    proposal = propose_for_objects(name, maps, explodes=False)
    proposal.document["format"] = format_name
    return proposal, list(records)


def propose_for_objects(
    name: str,
    objects: list[dict[str, Any]],
    *,
    explodes: bool = True,
    declared: Callable[[Path | None], Mapping[Path, str]] | None = None,
) -> Proposal:
    """Return a proposal for objects. `explodes`: True if the elements of an array of objects can be the rows. `declared`:
    returns the known types for the path of this array, or for None."""
    document: dict[str, Any] = {"stream": name, "format": "json"}
    proposal = Proposal(document)
    array = _array_of_rows(objects) if explodes else None
    rows = objects
    if array is not None:
        document["explode"] = path_text(array)
        proposal.notes.append(
            f"each element of {path_text(array)} becomes a row; to read single elements instead, remove explode and use "
            f"{path_text((*array, 0))}.name"
        )
        rows = [_without(one, array) | element for one in objects for element in _objects_in(_at(one, array))]
    found: dict[Path, list[Any]] = defaultdict(list)
    for row in rows:
        for path, value in leaves(row, ()):
            found[path].append(value)
    types = None if declared is None else declared(array)
    document["schema"] = schema_of(found, len(rows), proposal.notes, is_text=False, declared=types)
    return proposal


def _array_of_rows(objects: list[dict[str, Any]]) -> Path | None:
    """Return the path of an array of objects that most records have. If there are several, prefer arrays with numbers in their
    objects, then the array with the most objects."""
    having: Counter[Path] = Counter()
    elements: Counter[Path] = Counter()
    with_numbers = set()
    for one in objects:
        for path, value in leaves(one, ()):
            if (
                isinstance(value, list)
                and len(path) < STEPS_MAX
                and all(isinstance(element, dict) for element in value)
            ):
                having[path] += 1
                elements[path] += len(value)
                if path not in with_numbers and any(map(_has_number, value)):
                    with_numbers.add(path)
    usual = [path for path, count in elements.items() if count and 2 * having[path] >= len(objects)]
    return max(usual, key=lambda path: (path in with_numbers, elements[path]), default=None)


def _has_number(one: dict[str, Any]) -> bool:
    return any(isinstance(value, int | float) and not isinstance(value, bool) for _, value in leaves(one, ()))


def _at(one: Any, path: Path) -> Any:
    """Return the value at a path of members. None if it doesn't exist."""
    for step in path:
        one = one.get(step) if isinstance(one, dict) else None
    return one


def _without(one: dict[Any, Any], path: Path) -> dict[Any, Any]:
    """Return the object without the value at the path."""
    first, *others = path
    left = {key: value for key, value in one.items() if key != first}
    return (
        left
        if not others or not isinstance(one.get(first), dict)
        else left | {first: _without(one[first], tuple(others))}
    )


def _objects_in(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
