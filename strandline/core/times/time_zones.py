"""The rules of time zones. Pure, and light to import.

The rules of all zones come with the package `tzdata`, which is locked with all others: every process of an installation goes by
the same ones, whatever the machine has. A newer package may know that a country has changed its clocks. Then days that are not
emitted yet begin and end by the new rules, and expressions compute by them.
"""

from __future__ import annotations

from functools import cache, lru_cache
from importlib.resources import files
from zoneinfo import ZoneInfo

import tzdata

VERSION: str = tzdata.IANA_VERSION
"""Of the rules, as `2026f`."""


@cache
def zone_names() -> frozenset[str]:
    """All time zones, as `Europe/Berlin`."""
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="ascii").split())


@lru_cache(maxsize=64)
def rules_of(name: str) -> ZoneInfo:
    """Raises ValueError where there is no such zone."""
    if name not in zone_names():  # a name is a path in the package
        raise ValueError(f"'{name}' is not a time zone of the tz database {VERSION}")
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as rules:
        return ZoneInfo.from_file(rules, key=name)
