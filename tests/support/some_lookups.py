"""Lookups of drawn pipelines, and changes of their rows while records arrive: new rows are applied, or a control
service reads a followed stream."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.support.oracle import Applied, Columns, Followed, Told, Version

REGISTRY: dict[str, Any] = {
    "stream": "registry",
    "partitions": 3,
    "key": "machine",
    "schema": {
        "machine": "string",
        "team": "string?",
        "budget": "double?",
        "retired": "boolean?",
        "note": "string?",
    },
}
"""The stream that a lookup follows."""
BUDGET_MAX = 60


@dataclass(frozen=True)
class SomeLookup:
    """A lookup whose fields a pipeline may add."""

    document: dict[str, Any]
    """Without its rows."""
    key: tuple[str, ...]
    """Key fields, named like columns of records."""
    added: tuple[str, ...]
    """The others."""
    keys: tuple[tuple[Any, ...], ...]
    """Keys that rows can have."""
    draw: Callable[[Random], Columns]
    """Draws the values of a row without its key."""

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.key, *self.added)

    @property
    def is_followed(self) -> bool:
        return "source" in self.document


LOOKUPS = {
    "sites": SomeLookup(
        {"lookup": "sites", "schema": {"site": "string", "rated": "double", "owner": "string?"}, "key": "site"},
        ("site",),
        ("rated", "owner"),
        (("north",), ("south",), ("east",), ("",), ("nowhere",)),
        lambda random: {"rated": random.randrange(-8, 20) / 4, "owner": random.choice([None, "a", "b"])},
    ),
    "plans": SomeLookup(
        {
            "lookup": "plans",
            "schema": {"kind": "string", "count": "long", "quota": "long", "grade": "string?"},
            "key": ["kind", "count"],
        },
        ("kind", "count"),
        ("quota", "grade"),
        tuple((kind, count) for kind in "abxy" for count in (-1, 0, 2, 5)),
        lambda random: {"quota": random.randrange(-2, 9), "grade": random.choice([None, "", "good", "fair"])},
    ),
    "teams": SomeLookup(
        {
            "lookup": "teams",
            "schema": {
                "machine": "string",
                "team": "string",
                "budget": {"type": "double", "required": False, "max": BUDGET_MAX},
            },
            "key": "machine",
            "source": {"stream": "registry", "deleted_if": "retired or team = 'none'"},
        },
        ("machine",),
        ("team", "budget"),
        tuple((f"m{number}",) for number in range(7)),
        lambda random: {"team": random.choice(["red", "blue"]), "budget": random.choice([None, 0.0, 2.5, 40.0])},
    ),
}
FIRST: dict[str, tuple[Columns, ...]] = {
    "sites": ({"site": "north", "rated": 2.5, "owner": "a"}, {"site": "south", "rated": 0.0, "owner": None}),
    "plans": (
        {"kind": "a", "count": 0, "quota": 3, "grade": "good"},
        {"kind": "b", "count": 2, "quota": 0, "grade": None},
    ),
    "teams": (),
}
"""The rows with which they begin."""


def first_versions() -> dict[str, Version]:
    """Return the effective versions before the log begins."""
    return {
        name: Version(1, {tuple(row[field] for field in lookup.key): row for row in FIRST[name]}, lookup.fields)
        for name, lookup in LOOKUPS.items()
    }


class SomeChanges:
    """Draws how one lookup changes."""

    def __init__(self, random: Random, name: str) -> None:
        self._random = random
        self._name = name
        self._lookup = LOOKUPS[name]
        self._rows = first_versions()[name].rows
        self._before = [self._rows]

    def draw(self) -> Applied | Followed:
        return self._followed() if self._lookup.is_followed else self._applied()

    def _applied(self) -> Applied:
        """Some rows are replaced, some go and some come; or all go, or those of before are there again. Now and then a version
        has a field less."""
        random, lookup = self._random, self._lookup
        chance = random.random()
        if chance < 0.1:
            self._rows = {}
        elif chance < 0.25:
            self._rows = random.choice(self._before)
        else:
            share = random.choice([0.1, 0.3, 0.9])
            changed = dict(self._rows)
            for key in lookup.keys:
                if random.random() < share:
                    changed.pop(key, None)
                    if random.random() < 0.65:
                        changed[key] = {**dict(zip(lookup.key, key, strict=True)), **lookup.draw(random)}
            self._rows = changed
        self._before.append(self._rows)
        fields = lookup.fields
        if random.random() < 0.1:
            lacking = random.choice(lookup.added)
            fields = tuple(one for one in fields if one != lacking)
        rows = [{name: row[name] for name in fields} for _, row in sorted(self._rows.items())]
        return Applied(self._name, lookup.key, fields, tuple(rows))

    def _followed(self) -> Followed:
        return self.reading(self._random.choice([0, 1, 1, 3, 12]))

    def reading(self, count: int) -> Followed:
        """Return a reading of a stream after this many records have arrived."""
        return Followed(self._name, tuple(self._told() for _ in range(count)))

    def _told(self) -> Told:
        """A record of the registry: most say a row, some delete one, and some can be none."""
        random, lookup = self._random, self._lookup
        key = random.choice(lookup.keys)
        (machine,) = key
        partition = zlib.crc32(machine.encode()) % REGISTRY["partitions"]
        row = {"machine": machine, **lookup.draw(random)}
        chance = random.random()
        sent = {**row, **random.choice([{}, {"note": "x"}, {"retired": False}, {"retired": None}])}
        if chance < 0.15:
            return Told(partition, machine.encode(), None, key)
        if chance < 0.3:
            gone = random.choice([{"retired": True}, {"team": "none"}, {"team": None, "retired": True}])
            return Told(partition, machine.encode(), _line(random, {**sent, **gone}), key)
        if chance < 0.45:
            wrong = random.choice([{"budget": BUDGET_MAX + 1}, {"team": None}, {"budget": "much"}, {"machine": None}])
            return Told(partition, machine.encode(), _line(random, {**sent, **wrong}), None)
        if chance < 0.5:
            return Told(partition, machine.encode(), b"{broken", None)
        return Told(partition, machine.encode(), _line(random, sent), key, row)


def _line(random: Random, sent: Columns) -> bytes:
    """Values that are missing are left out, or null."""
    return json.dumps({name: one for name, one in sent.items() if one is not None or random.random() < 0.5}).encode()


def some_changes(random: Random, used: Iterable[str], changing: Collection[str]) -> Iterator[list[Applied | Followed]]:
    """Yield the changes before each record.

    Args: used: Lookups of the pipeline. changing: Those of them that change while records arrive. The others that
    follow a stream are read once, before the first record.
    """
    changes = {name: SomeChanges(random, name) for name in sorted(used)}
    chance = random.choice([0.02, 0.08, 0.3])
    here: list[Applied | Followed] = [one.reading(12) for name, one in changes.items() if LOOKUPS[name].is_followed]
    while True:
        while changing and random.random() < chance:
            here.append(changes[random.choice(sorted(changing))].draw())
        yield here
        here = []
