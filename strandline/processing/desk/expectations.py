"""The comparison of expected and found documents: missing, extra, and different documents. Pure.

Only the fields that an expected document names are compared: by `==`, with strings that are times as times. An expected document
matches one found document. Names can be nested or dotted (`window.start`). `_id` and `_index` are allowed too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Fields = dict[str, Any]
"""Dotted name -> value."""


@dataclass(frozen=True)
class Difference:
    """Two documents that should be equal: dotted name -> (expected, found)."""

    expected: Fields
    found: Fields
    fields: dict[str, tuple[Any, Any]]


@dataclass
class Differences:
    """The differences between expected and found documents."""

    missing: list[Fields] = field(default_factory=list)
    extra: list[Fields] = field(default_factory=list)
    different: list[Difference] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.different)

    def __len__(self) -> int:
        return len(self.missing) + len(self.extra) + len(self.different)


def flat(document: Mapping[str, Any], before: str = "") -> Fields:
    """Return the document with dotted names."""
    found: Fields = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        else:
            found[before + name] = value
    return found


def compare(
    expected: Iterable[Mapping[str, Any]],
    found: Iterable[Mapping[str, Any]],
    identity: Sequence[str],
    times: Collection[str] = (),
) -> Differences:
    """Pair expected with found documents.

    1. Find candidates: found documents that are equal in the fields of `identity` that the expected document names.
    2. Pair as many documents as possible with all fields equal.
    3. Pair remaining candidates as different. The others are missing or extra.

    `times`: fields whose strings are times.
    """
    wanted = [flat(one) for one in expected]
    given = [flat(one) for one in found]
    candidates = _Candidates(given, identity, times)
    possible = [candidates.of(one) for one in wanted]
    equal = [
        [at for at in places if all(same(one[name], given[at].get(name, _NOTHING), name in times) for name in one)]
        for one, places in zip(wanted, possible, strict=True)
    ]
    taken_by = _paired(equal)
    paired = set(taken_by.values())
    result = Differences()
    for number, one in enumerate(wanted):
        if number in paired:
            continue
        at = next((at for at in possible[number] if at not in taken_by), None)
        if at is None:
            result.missing.append(one)
            continue
        taken_by[at] = number
        unlike = {
            name: (value, given[at].get(name))
            for name, value in one.items()
            if not same(value, given[at].get(name, _NOTHING), name in times)
        }
        result.different.append(Difference(one, given[at], unlike))
    result.extra = [one for at, one in enumerate(given) if at not in taken_by]
    return result


_NOTHING = object()


def same(expected: Any, found: Any, is_time: bool) -> bool:
    """Return True if two JSON values are equal: 1 equals 1.0, and neither equals true."""
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    if is_time and isinstance(expected, str) and isinstance(found, str):
        return _instant(expected) == _instant(found)
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(same(e, f, is_time) for e, f in zip(expected, found, strict=True))
    return bool(expected == found)


def _instant(text: str) -> datetime | str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class _Candidates:
    """Finds documents by the fields of their identity that are named."""

    def __init__(self, given: Sequence[Fields], identity: Sequence[str], times: Collection[str]) -> None:
        self._given = given
        self._identity = identity
        self._times = times
        self._places: dict[tuple[str, ...], dict[tuple[Any, ...], list[int]]] = {}

    def of(self, wanted: Fields) -> list[int]:
        names = tuple(name for name in self._identity if name in wanted)
        if names not in self._places:
            found = self._places[names] = defaultdict(list)
            for at, one in enumerate(self._given):
                found[self._key(one, names)].append(at)
        return self._places[names].get(self._key(wanted, names), [])

    def _key(self, one: Fields, names: tuple[str, ...]) -> tuple[Any, ...]:
        values = (one.get(name) for name in names)
        return tuple(
            _instant(value)
            if name in self._times and isinstance(value, str)
            else (repr(value) if isinstance(value, bool) else value)
            for name, value in zip(names, values, strict=True)
        )


def _paired(equal: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return the maximum number of pairs, found -> expected. In turn, each expected document gets a free one, or others are moved
    (augmenting paths, without recursion)."""
    taken_by: dict[int, int] = {}
    place_of: dict[int, int] = {}
    for number in sorted(range(len(equal)), key=lambda number: len(equal[number])):
        came_from: dict[int, int] = {}
        waiting = [number]
        free: int | None = None
        while waiting and free is None:
            one = waiting.pop()
            for at in equal[one]:
                if at not in came_from:
                    came_from[at] = one
                    if at not in taken_by:
                        free = at
                        break
                    waiting.append(taken_by[at])
        while free is not None:
            one = came_from[free]
            before = place_of.get(one)
            taken_by[free], place_of[one] = one, free
            free = before
    return taken_by
