"""Rules of time zones. Pure, and light to import.

The rules of all zones come from the package `tzdata`, whose version is locked. So every process of an installation uses the
same rules, independent of the machine. A newer package can contain a change of a country's clocks. Then days that are not
emitted yet begin and end by the new rules, and expressions use the new rules.
"""

from __future__ import annotations

from functools import cache, lru_cache
from importlib.resources import files
from zoneinfo import ZoneInfo

import tzdata

VERSION: str = tzdata.IANA_VERSION
"""Version of the rules, as `2026f`."""


@cache
def zone_names() -> frozenset[str]:
    """Return the names of all time zones, as `Europe/Berlin`."""
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="ascii").split())


@lru_cache(maxsize=64)
def rules_of(name: str) -> ZoneInfo:
    """Return the rules of a time zone. Raises ValueError if the zone doesn't exist."""
    if name not in zone_names():  # a name is a path in the package
        raise ValueError(f"'{name}' is not a time zone of the tz database {VERSION}")
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as rules:
        return ZoneInfo.from_file(rules, key=name)
