"""What a pipeline's check needs to know of a lookup, and how a lookup may change while jobs use it. Pure.

Each slice is enriched by the version that was in force when it was cut, in every replay. So rows may change in any way, but a
field keeps its type and the key stays what it is, in all versions that a replay may need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.core.lookups.lookup import LookupSpec


@dataclass(frozen=True)
class LookupShape:
    """A lookup without its rows."""

    name: str
    key: tuple[str, ...]
    types: Mapping[str, str]
    version: int = 1
    """By which slices are enriched that say none."""


Shapes = Mapping[str, LookupShape]


def shape_of(spec: LookupSpec, version: int = 1) -> LookupShape:
    """The shape of one version."""
    return LookupShape(spec.lookup, tuple(spec.key), spec.types, version)


def shape_of_versions(documents: Sequence[dict[str, Any]], base: int) -> LookupShape:
    """What a version of a job that is there already may find in a lookup: the fields of all versions, because one that it uses
    may be gone from newer ones by the time when it is replayed. A field that a slice's version lacks is null there.

    `documents`: of the versions, the oldest first.
    """
    specs = [LookupSpec.described(document) for document in documents]
    types: dict[str, str] = {}
    for spec in specs:
        types |= spec.types
    return LookupShape(specs[-1].lookup, tuple(specs[-1].key), types, base)


def refused_changes(history: Iterable[LookupSpec], new: LookupSpec) -> list[str]:
    """Why a lookup can't become `new`, as sentences that say what to do instead; empty when it can. `history`: the versions that
    a replay may need. That a field goes, the check of the pipelines refuses that add it."""
    return list(dict.fromkeys(_refused(history, new)))


def _refused(history: Iterable[LookupSpec], new: LookupSpec) -> Iterator[str]:
    another = "register a lookup of another name"
    for old in history:
        if old.key != new.key:
            yield f"its key from {', '.join(old.key)} to {', '.join(new.key)}: {another}, and a pipeline that uses that one"
        for name in old.types.keys() & new.types.keys():
            if old.types[name] != new.types[name]:
                yield (
                    f"field {name} from {old.types[name]} to {new.types[name]}: add the new type as another field, as {name}_2"
                )
