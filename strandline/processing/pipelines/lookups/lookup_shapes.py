"""The fields of a lookup that the check of a pipeline needs, and the changes of a lookup that are allowed. Pure.

Each replay enriches a slice with the version of the lookup that was effective when the slice was cut. So rows can change in any
way. But in all versions that a replay can need, the key stays the same, and each field keeps its type.
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
    """Version that enriches slices without a recorded version."""


Shapes = Mapping[str, LookupShape]


def shape_of(spec: LookupSpec, version: int = 1) -> LookupShape:
    """Return the shape of one version."""
    return LookupShape(spec.lookup, tuple(spec.key), spec.types, version)


def shape_of_versions(documents: Sequence[dict[str, Any]], base: int) -> LookupShape:
    """Return the shape that an existing version of a job uses: the fields of all versions of the lookup.

    The job can use a field that newer versions don't have when it is replayed. If the version of a slice lacks a field, it is
    null.

    `documents`: documents of the versions, the oldest first.
    """
    specs = [LookupSpec.described(document) for document in documents]
    types: dict[str, str] = {}
    for spec in specs:
        types |= spec.types
    return LookupShape(specs[-1].lookup, tuple(specs[-1].key), types, base)


def refused_changes(history: Iterable[LookupSpec], new: LookupSpec) -> list[str]:
    """Return the reasons why a lookup can't become `new`, each with a remedy. Empty if it can.

    `history`: the versions that a replay can need. Fields that are removed are checked with the pipelines that add them.
    """
    return list(dict.fromkeys(_refused(history, new)))


def _refused(history: Iterable[LookupSpec], new: LookupSpec) -> Iterator[str]:
    another = "register a lookup of another name"
    for old in history:
        if old.key != new.key:
            yield f"its key from {', '.join(old.key)} to {', '.join(new.key)}: {another}, and a pipeline that uses it"
        for name in old.types.keys() & new.types.keys():
            if old.types[name] != new.types[name]:
                yield (
                    f"field {name} from {old.types[name]} to {new.types[name]}: add the new type as another field, as {name}_2"
                )
