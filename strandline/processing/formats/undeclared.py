"""Counts members of records that the schema doesn't declare, in a sample. The decoder doesn't count them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from strandline.core.json_paths import path_text
from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.inference.schemas import Path, leaves
from strandline.processing.formats.record_fields import why_unreadable
from strandline.processing.formats.record_rows import RecordFormat, json_objects, record_format

NAMES_MAX = 1_000
"""Maximum number of undeclared fields that are distinguished: some senders put values into names."""
_KINDS = {bool: "boolean", int: "long", float: "double", str: "string", list: "array", type(None): "null"}


@dataclass(frozen=True)
class UndeclaredField:
    """A member of some records that no field of the schema reads."""

    path: str
    """Path for the `from` of a field. In elements of exploded records, `[*]` replaces the index."""
    types: list[str]
    """Types that occur, the most frequent first."""
    records: int
    """Number of records that have it."""


def undeclared_fields(stream: StreamSpec, values: Sequence[bytes]) -> list[UndeclaredField]:
    """Return the undeclared fields of these records, the most frequent first. Lines of csv and bare values have none."""
    config = record_format(stream)
    if stream.form.paths != "members" or stream.form.has_schema:
        return []
    declared = {(field.name,) if field.path is None else field.path for field in config.fields if not field.rest}
    known = declared | {path[:end] for path in declared for end in range(1, len(path))}
    types: dict[str, Counter[str]] = defaultdict(Counter)
    records: Counter[str] = Counter()
    for value in json_objects(config, values):
        found: dict[str, str] = {}
        for name, path, leaf in _members(config, value):
            is_declared = path in known or any(path[:end] in declared for end in range(1, len(path)))
            if not is_declared and (name in types or len(types) + len(found) < NAMES_MAX):
                found[name] = _KINDS[type(leaf)]
        records.update(found.keys())
        for name, kind in found.items():
            types[name][kind] += 1
    return [
        UndeclaredField(name, [kind for kind, _ in types[name].most_common()], count)
        for name, count in records.most_common()
    ]


def _members(config: RecordFormat, value: object) -> Iterator[tuple[str, Path, Any]]:
    """Yield each value in a record that isn't an object: its name for users, its path for fields, and the value."""
    if not isinstance(value, bytes) or why_unreadable(value) is not None:
        return
    try:
        whole = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError):
        return
    if not isinstance(whole, dict):
        return
    array = config.explode
    for path, leaf in leaves(whole, ()):
        if path != array:
            yield path_text(path), path, leaf
        for element in leaf if path == array and isinstance(leaf, list) else ():
            if isinstance(element, dict):
                yield from (
                    (f"{path_text(path)}[*]{path_text(inner)[1:]}", inner, one) for inner, one in leaves(element, ())
                )
